"""Operations in which the new value of a channel depends on its old value alone: tables of 256 entries."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

Levels = npt.NDArray[np.int64]
"""A table of one channel, or how often each value is there: 256 numbers."""

_LEVELS: Levels = np.arange(256)
_RAMP = Image.frombytes("L", (256, 1), bytes(range(256)))


def brightness(image: Image.Image, factor: float) -> Image.Image:
    """Blend with black: 0 gives a black image, 1 the image itself, 2 twice its brightness."""
    return image.point(blend_table(0, factor) * 3)


def contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the mean grey of the image: 0 gives a grey image, 1 the image itself."""
    counts = image.convert("L").histogram()
    mean = sum(level * count for level, count in enumerate(counts)) / (image.width * image.height)
    return image.point(blend_table(int(mean + 0.5), factor) * 3)


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keep the highest `bits` (0 to 8) of each value."""
    return image.point(_posterize_table(bits))


def solarize(image: Image.Image, threshold: float) -> Image.Image:
    """Invert the values at and above `threshold`."""
    return image.point(_solarize_table(threshold))


def invert(image: Image.Image) -> Image.Image:
    """Replace each value v by 255 - v."""
    return image.point(_solarize_table(0))


def autocontrast(image: Image.Image) -> Image.Image:
    """Stretch each channel so that its lowest value becomes 0 and its highest 255."""
    return image.point(np.concatenate([_stretch_table(counts) for counts in _histograms(image)]).tolist())


def equalize(image: Image.Image) -> Image.Image:
    """Map each channel so that its values are spread evenly over 0 to 255."""
    return image.point(np.concatenate([_equalize_table(counts) for counts in _histograms(image)]).tolist())


def blend_table(grey: int, factor: float) -> list[int]:
    """Return what each of the 256 values becomes when it is blended with one value: 0 gives `grey`, 1 the value itself."""
    return list(Image.blend(Image.new("L", _RAMP.size, grey), _RAMP, factor).tobytes())


def _histograms(image: Image.Image) -> Levels:
    return np.array(image.histogram()).reshape(3, 256)


@cache
def _posterize_table(bits: int) -> list[int]:
    mask = ~(2 ** (8 - bits) - 1)
    return [level & mask for level in range(256)] * 3


@cache
def _solarize_table(threshold: float) -> list[int]:
    return [level if level < threshold else 255 - level for level in range(256)] * 3


def _stretch_table(counts: Levels) -> Levels:
    used = counts.nonzero()[0]
    low, high = int(used[0]), int(used[-1])
    if low == high:
        return _LEVELS
    scale = 255.0 / (high - low)
    return np.clip((_LEVELS * scale + -low * scale).astype(np.int64), 0, 255)


def _equalize_table(counts: Levels) -> Levels:
    """Return the table for one channel.

    Source: `PIL.ImageOps.equalize`, which leaves the count of the highest level out of the step.
    """
    total, highest = int(counts.sum()), int(counts[counts.nonzero()[0][-1]])
    step = (total - highest) // 255
    if step == 0:
        return _LEVELS
    below = counts.cumsum() - counts
    return np.minimum((step // 2 + below) // step, 255)
