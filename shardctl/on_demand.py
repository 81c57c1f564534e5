"""Sequences whose items are made when they are asked for: a list of millions of tasks takes gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class OnDemand(Sequence[T]):
    """A sequence of `count` items that keeps none: `make` is called with the place of an item when it is asked for.

    It has no slices.
    """

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._places = range(count)
        self._make = make

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        return self._make(self._places[place])
