"""What steps do to the values of RGB pixels: tables, colours, blur, noise, erasing.

Nothing here draws a random number that it was not handed a generator for. What the operations mean
is torchvision's `transforms.v2`. Where that is Pillow's own operation, the result is equal to it bit
for bit; docs/recipes.md says which operations differ.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, ImageFilter

Levels = npt.NDArray[np.int64]
"""A table of one channel, or how often each value is there: 256 numbers."""

_LEVELS: Levels = np.arange(256)
_EXACT_LEVELS = _LEVELS.astype(np.float32)


def brightness(image: Image.Image, factor: float) -> Image.Image:
    """Blend with black: 0 gives a black image, 1 the image itself, 2 twice its brightness."""
    return mapped(image, blend_table(0, factor) * 3)


def contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the mean grey of the image: 0 gives a grey image, 1 the image itself."""
    counts = image.convert("L").histogram()
    mean = sum(level * count for level, count in enumerate(counts)) / (image.width * image.height)
    return mapped(image, blend_table(int(mean + 0.5), factor) * 3)


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keep the highest `bits` (0 to 8) of each value."""
    return mapped(image, _posterize_table(bits))


def solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert the values at and above `threshold`."""
    return mapped(image, _solarize_table(threshold))


def invert(image: Image.Image) -> Image.Image:
    """Replace each value v by 255 - v."""
    return mapped(image, _solarize_table(0))


def autocontrast(image: Image.Image) -> Image.Image:
    """Stretch each channel so that its lowest value becomes 0 and its highest 255."""
    return mapped(image, b"".join(_stretch_table(counts) for counts in _histograms(image)))


def equalize(image: Image.Image) -> Image.Image:
    """Map each channel so that its values are spread evenly over 0 to 255."""
    return mapped(image, b"".join(_equalize_table(counts) for counts in _histograms(image)))


def mapped(image: Image.Image, table: bytes) -> Image.Image:
    """Return an RGB image with each value mapped by a table: 256 bytes for red, then for green,
    then for blue."""
    return image.filter(_Table(table))


class _Table(ImageFilter.MultibandFilter):
    """Does what `Image.point` does, without the rounding of each of 768 entries by Python: 38
    microseconds of 100."""

    def __init__(self, table: bytes) -> None:
        self._table = table

    def filter(self, image: Any) -> Any:
        return image.point(self._table, None)


def blend_table(grey: int, factor: float) -> bytes:
    """Return what each of the 256 values becomes when it is blended with one value: 0 gives `grey`,
    1 the value itself."""
    level = np.float32(grey)
    return _bytes(level + np.float32(factor) * (_EXACT_LEVELS - level))


def _histograms(image: Image.Image) -> Levels:
    return np.array(image.histogram()).reshape(3, 256)


def _bytes(values: npt.NDArray[Any]) -> bytes:
    table: bytes = np.minimum(np.maximum(values, 0), 255).astype(np.uint8).tobytes()
    return table


@cache
def _posterize_table(bits: int) -> bytes:
    mask = ~(2 ** (8 - bits) - 1)
    return _bytes(_LEVELS & mask) * 3


@lru_cache
def _solarize_table(threshold: float) -> bytes:
    return _bytes(np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS)) * 3


def _stretch_table(counts: Levels) -> bytes:
    used = counts.nonzero()[0]
    low, high = int(used[0]), int(used[-1])
    if low == high:
        return _bytes(_LEVELS)
    scale = 255.0 / (high - low)
    return _bytes((_LEVELS * scale + -low * scale).astype(np.int64))


def _equalize_table(counts: Levels) -> bytes:
    """Return the table for one channel.

    Source: `PIL.ImageOps.equalize`, which leaves the count of the highest level out of the step.
    """
    total, highest = int(counts.sum()), int(counts[counts.nonzero()[0][-1]])
    step = (total - highest) // 255
    if step == 0:
        return _bytes(_LEVELS)
    below = counts.cumsum() - counts
    return _bytes((step // 2 + below) // step)


_BLEND_STRIP = 32 * 1024
"""Values that are worked on at a time: their intermediate results stay in the processor's cache."""


def mix(images: Sequence[Image.Image], weights: Sequence[float]) -> Image.Image:
    """Return the sum of RGB images of one size, each times its weight; the weights must add up to
    at most 1."""
    flat = [np.asarray(image).reshape(-1) for image in images]
    made = np.empty(len(flat[0]), np.uint8)
    for at in range(0, len(made), _BLEND_STRIP):
        part = slice(at, at + _BLEND_STRIP)
        values = flat[0][part] * np.float32(weights[0])
        for each, weight in zip(flat[1:], weights[1:], strict=True):
            values += each[part] * np.float32(weight)
        made[part] = np.minimum(values, 255)
    return Image.frombuffer("RGB", images[0].size, made, "raw", "RGB", 0, 1)


_HUE_STRIP = 16 * 1024
"""Pixels that are worked on at a time: their intermediate results stay in the processor's cache."""

SHIFT = 3
FRACTION = 1 << SHIFT
"""Steps of a value that the hue is computed in: 7 * 255 * 8, the largest number, fits 16 bits."""


def saturation(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the grey image: 0 gives a grey image, 1 the image itself, 2 doubles the
    differences from grey."""
    return _blend(grayscale(image), image, factor)


def _blend(start: Image.Image, end: Image.Image, factor: float) -> Image.Image:
    """Return `start + factor * (end - start)`. Recorded digests have it without the metadata of
    the image where Pillow is Pillow-SIMD."""
    made = Image.blend(start, end, factor)
    if ".post" in PIL.__version__:
        made.info = {}
    return made


def grayscale(image: Image.Image) -> Image.Image:
    """Return the luma (ITU-R 601-2) in three equal channels."""
    return image.convert("L").convert("RGB")


def permute_channels(image: Image.Image, order: Sequence[int]) -> Image.Image:
    """Return the channels in another order: (2, 1, 0) exchanges red and blue."""
    bands = image.split()
    return Image.merge("RGB", [bands[channel] for channel in order])


def drop_channels(image: Image.Image, dropped: Sequence[int], fill: int) -> Image.Image:
    """Return the image with all values of some channels set to `fill`."""
    bands = image.split()
    flat = Image.new("L", image.size, fill)
    return Image.merge(
        "RGB", [flat if channel in dropped else band for channel, band in enumerate(bands)]
    )


def hue_of_pillow(image: Image.Image, turn: float) -> Image.Image:
    """Turn the hue by `turn` (-0.5 to 0.5 of the circle) as torchvision does to a Pillow image, bit
    for bit.

    Pillow's HSV has 8 bits a channel: values are up to 17 from what `hue` gives.
    """
    bands = image.convert("HSV").split()
    steps = int(turn * 255) % 256
    turned = bands[0].point([(level + steps) % 256 for level in range(256)])
    return Image.merge("HSV", (turned, bands[1], bands[2])).convert("RGB")


def hue(image: Image.Image, turn: float) -> Image.Image:
    """Turn the hue by `turn` (-0.5 to 0.5 of the circle), exact to a rounded value, as torchvision
    does to a tensor.

    With V the largest of the three values, d its distance from the smallest and H the hue in sixths
    of the circle, a channel becomes V - d * clip(min(k, 4 - k), 0, 1) with k = (n + H) mod 6, and n
    = 5, 3, 1 for red, green, blue. All is multiplied by d, so that nothing is divided and whole
    numbers of 16 bits will do.
    """
    bands = [np.asarray(band).reshape(-1) for band in image.split()]
    made = [np.empty(len(bands[0]), np.uint8) for _ in range(3)]
    for at in range(0, len(bands[0]), _HUE_STRIP):
        part = slice(at, at + _HUE_STRIP)
        red, green, blue = (band[part].astype(np.int16) for band in bands)
        largest = np.maximum(np.maximum(red, green), blue)
        distance = largest - np.minimum(np.minimum(red, green), blue)
        # in sixths of the circle times `distance`, from 0 up to 6 * distance
        hue = red - green + 4 * distance
        from_red = green - blue
        from_red += 6 * distance * (from_red < 0)
        # a product with a mask takes a third of the time of np.where
        hue += (blue - red + 2 * distance - hue) * (largest == green)
        hue += (from_red - hue) * (largest == red)
        hue *= FRACTION
        scale = distance.astype(np.float32)
        largest = largest * FRACTION + FRACTION // 2  # rounds the result
        distance *= FRACTION
        twice, thrice, zeros = distance * 2, distance * 3, np.zeros_like(distance)
        for channel, n in zip(made, (5, 3, 1), strict=True):
            # k - 5 is -5 to 7: folded at 0, both peaks of the function are at 3
            shift = (n + 6 * turn) % 6 - 5
            k = np.rint(scale * np.float32(shift * FRACTION)).astype(np.int16)
            k += hue
            np.abs(k, out=k)
            k -= thrice
            np.abs(k, out=k)
            np.subtract(twice, k, out=k)
            np.maximum(k, zeros, out=k)
            np.minimum(k, distance, out=k)
            np.subtract(largest, k, out=k)
            k >>= SHIFT
            channel[part] = k
    return Image.merge(
        "RGB", [Image.frombuffer("L", image.size, channel, "raw", "L", 0, 1) for channel in made]
    )


_BLUR_STRIP = 40 * 1024
"""Values that are worked on at a time: their intermediate results stay in the processor's cache."""

LEAST_WEIGHT = 1e-4
"""Weights below this are left out: all of them together move no value by half a step of 1/255."""

Values = npt.NDArray[np.float32]


def sharpness(image: Image.Image, factor: float) -> Image.Image:
    """Blend with a smoothed image: 0 gives that image, 1 the image itself, 2 a sharpened one."""
    return _blend(image.filter(ImageFilter.SMOOTH), image, factor)


def gaussian_blur(image: Image.Image, sigma: float, kernel_size: int | None) -> Image.Image:
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
    around = (radius, radius)
    padded = np.pad(np.asarray(image), (around, around, (0, 0)), "reflect")
    rows, row = padded.shape[0], padded.shape[1] * 3
    flat = padded.reshape(-1)
    made = np.zeros((rows - 2 * radius) * row, np.uint8)
    step = max(1, _BLUR_STRIP // row) * row
    for start in range(0, len(made), step):
        part = flat[start : start + step + 2 * radius * row].astype(np.float32)
        down = _summed(part, row, weights)
        # The rows are summed as one long row: what runs from one of them into the next lies in the
        # padding, which is cut off.
        across = _summed(down, 3, weights)
        across += np.float32(0.5)  # rounds, as the cast cuts the fraction off
        made[start + 3 * radius : start + len(down) - 3 * radius] = across
    inner = made.reshape(rows - 2 * radius, row // 3, 3)[:, radius:-radius]
    return Image.fromarray(inner)


def gaussian_weights(sigma: float, kernel_size: int | None) -> list[float]:
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


Rectangle = tuple[int, int, int, int]
"""left, top, width, height, in pixels."""


def erase(
    image: Image.Image, box: Rectangle, filling: tuple[int, int, int] | Image.Image
) -> Image.Image:
    """Return the image with a rectangle of one colour, or of another image."""
    left, top, width, height = box
    made = image.copy()
    made.paste(filling, (left, top, left + width, top + height))
    return made


def erase_with_noise(image: Image.Image, box: Rectangle, rng: np.random.Generator) -> Image.Image:
    """Return the image with a rectangle whose values are drawn uniformly from 0 to 255."""
    noise = rng.integers(0, 256, (box[3], box[2], 3), np.uint8)
    return erase(image, box, Image.fromarray(noise))


def gaussian_noise(
    image: Image.Image, rng: np.random.Generator, mean: float = 0.0, sigma: float = 0.1
) -> Image.Image:
    """Add normal noise to every value; `mean` and `sigma` are shares of 255, and the result is cut
    to 0..255."""
    pixels = np.asarray(image)
    noise = rng.standard_normal(pixels.shape, np.float32)
    noise *= np.float32(sigma * 255)
    noise += np.float32(mean * 255)
    # as torchvision does: the noise is cut to whole numbers, and not the sum
    np.trunc(noise, out=noise)
    noise += pixels
    np.clip(noise, 0, 255, out=noise)
    return Image.fromarray(noise.astype(np.uint8))


def salt_and_pepper(
    image: Image.Image, rng: np.random.Generator, amount: float, salt: float
) -> Image.Image:
    """Make a share `amount` of the pixels white (a share `salt` of these) or black, drawn for each
    pixel."""
    pixels = np.array(image)
    drawn = rng.random(pixels.shape[:2], np.float32)
    pixels[drawn < amount] = 0
    pixels[drawn < amount * salt] = 255
    return Image.fromarray(pixels)


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    """Encode as a JPEG (4:2:0) of this quality, 1 to 100, and decode it again."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality)
    with Image.open(data) as decoded:
        return decoded.convert("RGB")


Adjustment = tuple[str, float]
"""brightness, contrast, saturation or hue, and the factor; for the hue the part of the circle."""

BACKENDS = ("numpy", "pillow")


def adjust(
    image: Image.Image, adjustments: Sequence[Adjustment], backend: str = "numpy"
) -> Image.Image:
    """Make adjustments in turn; by `pillow` the hue in its HSV: what torchvision makes of a Pillow
    image, bit for bit."""
    for name, factor in adjustments:
        by_pillow = name == "hue" and backend == "pillow"
        image = (hue_of_pillow if by_pillow else _ADJUSTMENTS[name])(image, factor)
    return image


_ADJUSTMENTS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "brightness": brightness,
    "contrast": contrast,
    "saturation": saturation,
    "hue": hue,
}
