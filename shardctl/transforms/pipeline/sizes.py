"""How many bytes the values of a row take in a block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

ROW_OVERHEAD = 32
"""Bytes that a row costs beside its values: offsets, validity."""


def row_size(values: Iterable[Any]) -> int:
    """Return about how many bytes a row takes in a block."""
    return ROW_OVERHEAD + sum(map(value_size, values))


def value_size(value: Any) -> int:
    """Return about how many bytes a value takes in a block."""
    kind = type(value)
    # a union in isinstance takes three times as long, and this is done for every value
    if kind is str or kind is bytes:
        return len(value)
    if kind is int or kind is float or value is None:
        return 8
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        # all of them are, or none fits a column; polygons have many
        if value and type(value[0]) in (float, int, bool):
            return 4 + 8 * len(value)
        return 4 + sum(map(value_size, value))
    if isinstance(value, dict):
        return sum(map(value_size, value.values()))
    return 8
