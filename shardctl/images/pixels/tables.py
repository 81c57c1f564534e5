"""Operations in which the new value of a channel depends on its old value alone: tables of 256
entries."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
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
