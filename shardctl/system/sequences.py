"""Sequences of numbers: evenly spaced choices, and items that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence of `count` items that keeps none: a list of millions of tasks takes gigabytes.

    `make` is called with the place of an item when it is asked for.

    It has no slices.
    """

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._places = range(count)
        self._make = make

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        return self._make(self._places[place])


def evenly_spaced(size: int, count: int) -> list[int]:
    """Return up to `count` of the numbers below `size`, evenly apart, the first and the last among
    them."""
    # Not np.unique, which at its first call imports numpy.ma: 20 ms.
    return (
        sorted(set(np.linspace(0, size - 1, min(size, count)).astype(int).tolist())) if size else []
    )
