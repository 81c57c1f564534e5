"""Names of very many files, by a hash of eight bytes each: a set of strings would take 150."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import xxhash


class NameSet:
    """A set of names that are given at once. That it has another name too is as likely as two
    hashes of 64 bits being equal."""

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = array("Q", map(_hash, names))

    @classmethod
    def repeated(cls, names: Iterable[str]) -> NameSet:
        """Return those that are given more than once."""
        found = cls(names)
        values, counts = np.unique(np.frombuffer(found._hashes, np.uint64), return_counts=True)
        found._hashes = array("Q", values[counts > 1].tobytes())
        return found

    @cached_property
    def _sorted(self) -> array[int]:
        return array("Q", np.sort(np.frombuffer(self._hashes, np.uint64)).tobytes())

    def __contains__(self, name: str) -> bool:
        number = _hash(name)
        place = bisect_left(self._sorted, number)
        return place < len(self._sorted) and self._sorted[place] == number

    def __bool__(self) -> bool:
        return bool(self._hashes)


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))
