"""Gray of more than 8 bits, and of floating point numbers, as 8 bits: by the range of its type, or
by a given one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardctl.errors import UsageError
from shardctl.format.arrays import Bytes as Gray
from shardctl.images.geometry import Values
from shardctl.system.text import counted

MODES = ("I", "F")
"""How the names of the modes begin that Pillow gives such images."""

LITTLE = 1 / 8
"""Share of the range of their type below which images are said to use little of it: 32 of 256
levels are left."""


@dataclass(frozen=True)
class GrayRange:
    """`low` and what is below becomes 0, `high` and what is above 255. Without numbers they are the
    least and the largest of each image."""

    low: float = math.nan
    high: float = math.nan

    @classmethod
    def parse(cls, text: str) -> GrayRange:
        """Read `range` or `LOW:HIGH`. Raises UsageError."""
        if text == "range":
            return cls()
        low, _, high = text.partition(":")
        try:
            found = cls(float(low), float(high))
        except ValueError:
            found = cls()
        if not -math.inf < found.low < found.high < math.inf:
            raise UsageError(f"gray16 must be range or LOW:HIGH, such as 0:4095; it is {text!r}")
        return found

    def __str__(self) -> str:
        return "range" if math.isnan(self.low) else f"{self.low:.17g}:{self.high:.17g}"

    def to_8_bits(self, values: Values) -> Gray:
        """Scale values. Those that are no numbers become 0, as all of an image with one value do by
        its own range."""
        low, high = extent(values) if math.isnan(self.low) else (self.low, self.high)
        shares = (np.nan_to_num(values.astype(np.float64), nan=low) - low) / ((high - low) or 1.0)
        return (np.clip(shares, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)


def extent(values: Values) -> tuple[float, float]:
    """Return the least and the largest number; 0 twice where there is none."""
    numbers = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)


def to_8_bits(values: Values) -> Gray:
    """Scale values by the range of their type, not of the picture."""
    most = type_range(values)[1]
    if values.dtype.kind == "f":
        scaled: Gray = (np.clip(np.nan_to_num(values), 0, most) * (255.0 / most) + 0.5).astype(
            np.uint8
        )
        return scaled
    return (np.clip(values.astype(np.int64), 0, most) >> (8 if most == _16_BITS else 23)).astype(
        np.uint8
    )


_16_BITS, _31_BITS = 0xFFFF, 0x7FFFFFFF


def type_range(values: Values) -> tuple[int, int]:
    """Return the numbers that `to_8_bits` makes 0 and 255."""
    if values.dtype.kind == "f":
        return 0, 1 if np.nan_to_num(values).max(initial=0) <= 1.0 else 255
    is_short = values.dtype.itemsize <= 2 or (values.min() >= 0 and values.max() <= _16_BITS)
    return 0, _16_BITS if is_short else _31_BITS


def lost_extent(values: Values) -> tuple[float, float] | None:
    """Return the extent of an image if `to_8_bits` cuts numbers off, or they use little of the
    range; None for others."""
    (low, high), (least, most) = extent(values), type_range(values)
    loses = low < least or high > most or high - low < (most - least) * LITTLE
    return (low, high) if loses and low < high else None


def warnings_on_gray(found: Sequence[tuple[float, float] | None]) -> list[str]:
    """Say of how many images little is left, given what `lost_extent` returned for some, and what
    to do."""
    lost = [each for each in found if each is not None]
    if not lost:
        return []
    values = f"{min(low for low, _ in lost):g} to {max(high for _, high in lost):g}"
    return [
        f"{len(lost):,} of {counted(len(found), 'image')} of deep gray tried lose most levels in "
        f"8 bits (values {values}): give --gray16 LOW:HIGH, or range"
    ]
