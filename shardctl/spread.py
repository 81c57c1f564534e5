"""Evenly spaced choices: inputs to try, blocks and samples to read."""

from __future__ import annotations

import numpy as np


def spread(size: int, count: int) -> list[int]:
    """Return up to `count` of the numbers below `size`, evenly apart, the first and the last among them."""
    # Not np.unique, which at its first call imports numpy.ma: 20 ms.
    return sorted(set(np.linspace(0, size - 1, min(size, count)).astype(int).tolist())) if size else []
