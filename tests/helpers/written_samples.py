"""Samples to write, and to compare with what is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

Sample = dict[str, Any]


def pixels(number: int, size: int = 4) -> Any:
    return np.random.default_rng(number).integers(0, 256, (size, size, 3), np.uint8)


def plain(samples: Iterable[Sample]) -> list[Sample]:
    """Return samples with lists in the place of arrays."""
    return [
        {name: getattr(value, "tolist", lambda v=value: v)() for name, value in sample.items()}
        for sample in samples
    ]
