"""Blur and sharpness."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from shardctl.images.pixels.blending import blend

STRIP = 40 * 1024
"""Values that are worked on at a time: their intermediate results stay in the processor's cache."""

LEAST_WEIGHT = 1e-4
"""Weights below this are left out: all of them together move no value by half a step of 1/255."""

Values = npt.NDArray[np.float32]


def sharpness(image: Image.Image, factor: float) -> Image.Image:
    """Blend with a smoothed image: 0 gives that image, 1 the image itself, 2 a sharpened one."""
    return blend(image.filter(ImageFilter.SMOOTH), image, factor)


def gaussian_blur(image: Image.Image, sigma: float, kernel_size: int | None = None) -> Image.Image:
    """Blur with a Gaussian of standard deviation `sigma` in pixels; at the edges the image is
    mirrored.

    `kernel_size` is how many pixels (odd) the Gaussian is cut to; None: all that count. Values
    differ by at most 1 from torchvision's. An image that is smaller than half of the kernel is
    mirrored several times.
    """
    weights = gaussian_weights(sigma, kernel_size)
    radius = len(weights) - 1
    if radius == 0:
        return image.copy()
    padded = _mirrored(np.asarray(image), radius)
    rows, row = padded.shape[0], padded.shape[1] * 3
    flat = padded.reshape(-1)
    made = np.zeros((rows - 2 * radius) * row, np.uint8)
    step = max(1, STRIP // row) * row
    for start in range(0, len(made), step):
        part = flat[start : start + step + 2 * radius * row].astype(np.float32)
        down = _summed(part, row, weights)
        # The rows are summed as one long row: what runs from one of them into the next lies in the
        # padding, which is cut off.
        across = _summed(down, 3, weights)
        across += np.float32(0.5)  # rounds, as the cast cuts the fraction off
        made[start + 3 * radius : start + len(down) - 3 * radius] = across
    inner = made.reshape(rows - 2 * radius, row // 3, 3)[:, radius:-radius]
    return Image.fromarray(np.ascontiguousarray(inner))


def _mirrored(pixels: npt.NDArray[np.uint8], radius: int) -> npt.NDArray[np.uint8]:
    """Return the pixels with a border in which they are mirrored about the outermost ones; a side
    of one pixel is repeated."""
    height, width = pixels.shape[:2]
    rows, columns = _places(height, radius), _places(width, radius)
    made = np.empty((height + 2 * radius, width + 2 * radius, 3), np.uint8)
    middle = slice(radius, radius + height)
    made[middle, radius : radius + width] = pixels
    made[middle, :radius] = pixels[:, columns[:radius]]
    made[middle, radius + width :] = pixels[:, columns[radius + width :]]
    made[:radius] = made[radius + rows[:radius]]
    made[radius + height :] = made[radius + rows[radius + height :]]
    return made


def _places(length: int, radius: int) -> npt.NDArray[np.int64]:
    """Return which pixel of a row stands at -radius to length + radius - 1 when it is mirrored, as
    often as is needed."""
    period = max(2 * (length - 1), 1)
    at = np.arange(-radius, length + radius) % period
    return np.minimum(at, period - at) if length > 1 else np.zeros_like(at)


def gaussian_weights(sigma: float, kernel_size: int | None = None) -> list[float]:
    """Return the weights of a Gaussian from its middle outwards; mirrored, they add up to 1.

    Source: torchvision's `_get_gaussian_kernel1d`, whose points lie 1/sqrt(2) apart, so that
    exp(-x^2) is the Gaussian.
    """
    whole = math.ceil(4 * sigma)
    radius = whole if kernel_size is None else min(whole, (kernel_size - 1) // 2)
    heights = [math.exp(-0.5 * (at / sigma) ** 2) for at in range(radius + 1)]
    total = heights[0] + 2 * sum(heights[1:])
    counted = [height for height in heights if height / total >= LEAST_WEIGHT]
    total = counted[0] + 2 * sum(counted[1:])
    return [height / total for height in counted]


def _summed(source: Values, step: int, weights: list[float]) -> Values:
    """Return the weighted sum of each value and of what lies `step`, `2 * step`, … to both sides of
    it, where all are there."""
    middle = (len(weights) - 1) * step
    length = len(source) - 2 * middle
    made: Values = source[middle : middle + length] * np.float32(weights[0])
    pair = np.empty_like(made)
    for at, weight in enumerate(weights[1:], 1):
        left, right = middle - at * step, middle + at * step
        np.add(source[left : left + length], source[right : right + length], out=pair)
        pair *= np.float32(weight)
        made += pair
    return made
