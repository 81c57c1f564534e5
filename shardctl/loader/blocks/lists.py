"""Lists of numbers, and lists of lists: as numpy arrays of each sample, or all of a batch in one
array that is filled up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.gather import Indices

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Lists:
    """The lists of n samples: `numbers` one behind the other, and how long the lists of every depth
    are.

    `lengths[0]` (n,) has the lengths of the samples' own lists, `lengths[1]` those of the lists in
    them, and so on. `missing` says which numbers are missing (their value is 0), `lacking` (n,)
    which samples are missing or have a missing list in them (it is of length 0); None if nothing
    is. `original` is the Arrow array that they came in.
    """

    numbers: npt.NDArray[Any]
    lengths: list[Indices]
    missing: Mask | None = None
    lacking: Mask | None = None
    original: pa.Array | None = None

    @classmethod
    def of(cls, array: pa.Array) -> Lists:
        """Read the lists of an Arrow array of lists of numbers."""
        import pyarrow.compute as pc  # rare, and 40 ms

        lengths: list[Indices] = []
        original = array
        lacking = np.zeros(len(array), bool)
        while not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            if array.null_count:
                lacking[_owners(lengths, np.flatnonzero(is_missing(array)))] = True
            lengths.append(_plain(pc.list_value_length(array).fill_null(0)).astype(np.int64))
            array = array.flatten()  # without the lists that are missing
        missing = is_missing(array) if array.null_count else None
        numbers = _plain(array.fill_null(0) if array.null_count else array)
        return cls(numbers, lengths, missing, lacking if lacking.any() else None, original)

    def owners(self, places: Indices) -> Indices:
        """Return the sample that each of these numbers is of."""
        return _owners(self.lengths, places)

    def with_numbers(self, numbers: npt.NDArray[Any]) -> Lists:
        """Return the same lists of other numbers."""
        return replace(self, numbers=numbers)

    @cached_property
    def _edges(self) -> list[list[int]]:
        """Where each list of a depth begins among the items of the next, and where the last one
        ends."""
        return [[0, *np.cumsum(lengths).tolist()] for lengths in self.lengths]

    def arrays(self) -> list[Any]:
        """Return one array for each sample. Where the lists in it are not of one length, it is a
        list of arrays."""
        return [self._array(0, place) for place in range(len(self.lengths[0]))]

    def arrays_or_none(self) -> list[Any]:
        """Return the same with None for what is missing: a sample, or numbers, whose sample is a
        list then."""
        found = self.arrays()
        lacking = np.zeros(len(found), bool) if self.lacking is None else self.lacking.copy()
        if self.missing is not None:
            lacking[self.owners(np.flatnonzero(self.missing))] = True
        for place in np.flatnonzero(lacking).tolist():
            found[place] = self.original[place].as_py() if self.original is not None else None
        return found

    def _array(self, depth: int, place: int) -> Any:
        begin, end = self._edges[depth][place : place + 2]
        shape = [end - begin]
        for deeper in range(depth + 1, len(self.lengths)):
            lengths = self.lengths[deeper][begin:end]
            if len(lengths) and (lengths != lengths[0]).any():
                return [
                    self._array(depth + 1, inner)
                    for inner in range(*self._edges[depth][place : place + 2])
                ]
            shape.append(int(lengths[0]) if len(lengths) else 0)
            begin, end = self._edges[deeper][begin], self._edges[deeper][end]
        return self.numbers[begin:end].reshape(shape)

    def sizes(self) -> Indices:
        """Return how long each sample is: (n,), for lists of lists (n, depths), the longest at each
        depth."""
        if len(self.lengths) == 1:
            return self.lengths[0]
        found = np.zeros((len(self.lengths[0]), len(self.lengths)), np.int64)
        for depth, lengths in enumerate(self.lengths):
            owners = _owners(self.lengths[:depth], np.arange(len(lengths)))
            np.maximum.at(found[:, depth], owners, lengths)
        return found

    def padded(
        self, fill: float, memory: Callable[[tuple[int, ...]], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """Return one array (n, longest, …) of `memory`, filled up with `fill`."""
        longest = (
            self.sizes().reshape(len(self.lengths[0]), len(self.lengths)).max(axis=0, initial=0)
        )
        padded = memory((len(self.lengths[0]), *longest.tolist()))
        padded.fill(fill)
        if len(self.lengths) == 1:
            padded[np.arange(longest[0]) < self.lengths[0][:, None]] = self.numbers
            return padded
        # of the lists of a depth, then of the items in them: at the end, of the numbers
        places = np.arange(len(padded))
        for lengths, most in zip(self.lengths, longest.tolist(), strict=True):
            places = (places[:, None] * most + np.arange(most))[np.arange(most) < lengths[:, None]]
        padded.reshape(-1)[places] = self.numbers
        return padded


def _owners(lengths: list[Indices], places: Indices) -> Indices:
    """Return the samples that these items are of, below lists of these lengths at each depth."""
    for of_depth in reversed(lengths):
        places = np.searchsorted(np.cumsum(of_depth), places, side="right")
    return places


def _plain(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array without missing ones, (n,), writable: a tensor may share
    them."""
    plain: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return plain if plain.flags.writeable else plain.copy()


def is_missing(array: pa.Array) -> Mask:
    """Return which values are missing, (n,)."""
    return _plain(array.is_null())


def numbers_of(array: pa.Array, column: Column) -> tuple[npt.NDArray[Any], Mask | None]:
    """Return the numbers of a "fixed" column, (n, *shape), and which of them are missing; None if
    none is."""
    inner = array.storage if isinstance(array, pa.ExtensionArray) else array
    missing = is_missing(inner)
    while pa.types.is_fixed_size_list(inner.type):
        size = inner.type.list_size
        inner = inner.values.slice(inner.offset * size, len(inner) * size)
        missing = np.repeat(missing, size) | is_missing(inner)
    shape = (len(array), *column.shape)
    numbers = _plain(
        inner.fill_null(False if column.is_boolean else 0) if inner.null_count else inner
    ).reshape(shape)
    return numbers, missing.reshape(shape) if missing.any() else None


def with_none(numbers: npt.NDArray[Any], missing: Mask) -> list[Any]:
    """Return one value for each sample, None if it is missing as a whole; where a part is, it is a
    list."""
    lacking = missing.reshape(len(missing), -1)
    some: list[bool] = np.any(lacking, axis=1).tolist()
    every: list[bool] = np.all(lacking, axis=1).tolist()
    found: list[Any] = []
    for place, value in enumerate(numbers):
        if not some[place]:
            found.append(value)
        elif every[place]:
            found.append(None)
        else:
            with_holes = value.astype(object)
            with_holes[missing[place]] = None
            found.append(with_holes.tolist())
    return found
