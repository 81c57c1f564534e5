"""Saturation, hue, grey and the order of the channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardctl.images.pixels.blending import blend

STRIP = 16 * 1024
"""Pixels that are worked on at a time: their intermediate results stay in the processor's cache."""

SHIFT = 3
FRACTION = 1 << SHIFT
"""Steps of a value that the hue is computed in: 7 * 255 * 8, the largest number, fits 16 bits."""

Words = npt.NDArray[np.int16]


def saturation(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the grey image: 0 gives a grey image, 1 the image itself, 2 doubles the
    differences from grey."""
    return blend(grayscale(image), image, factor)


def grayscale(image: Image.Image) -> Image.Image:
    """Return the luma (ITU-R 601-2) in three equal channels."""
    return image.convert("L").convert("RGB")


def permute_channels(image: Image.Image, order: Sequence[int]) -> Image.Image:
    """Return the channels in another order: (2, 1, 0) exchanges red and blue."""
    bands = image.split()
    return Image.merge("RGB", [bands[channel] for channel in order])


def drop_channels(image: Image.Image, dropped: Sequence[int], fill: int = 0) -> Image.Image:
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
    red, green, blue = (np.asarray(band).reshape(-1) for band in image.split())
    made = [np.empty(len(red), np.uint8) for _ in range(3)]
    for at in range(0, len(red), STRIP):
        part = slice(at, at + STRIP)
        _turn(red[part], green[part], blue[part], turn, [channel[part] for channel in made])
    return Image.merge(
        "RGB", [Image.frombuffer("L", image.size, channel, "raw", "L", 0, 1) for channel in made]
    )


def _turn(
    red: npt.NDArray[np.uint8],
    green: npt.NDArray[np.uint8],
    blue: npt.NDArray[np.uint8],
    turn: float,
    made: Sequence[npt.NDArray[np.uint8]],
) -> None:
    largest = np.maximum(np.maximum(red, green), blue)
    spread = largest - np.minimum(np.minimum(red, green), blue)
    distance = spread.astype(np.int16)
    hue = _hue(
        red.astype(np.int16),
        green.astype(np.int16),
        blue.astype(np.int16),
        largest.astype(np.int16),
        distance,
    )
    hue *= FRACTION
    largest = largest.astype(np.int16)
    largest *= FRACTION
    largest += FRACTION // 2  # rounds the result
    scale = spread.astype(np.float32)
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
        channel[:] = k


def _hue(red: Words, green: Words, blue: Words, largest: Words, distance: Words) -> Words:
    """Return the hue in sixths of the circle times `distance`, from 0 up to 6 * distance."""
    from_red = green - blue
    from_red += 6 * distance * (from_red < 0)
    from_green = blue - red + 2 * distance
    hue = red - green + 4 * distance
    # a product with a mask takes a third of the time of np.where
    hue += (from_green - hue) * (largest == green)
    hue += (from_red - hue) * (largest == red)
    return hue
