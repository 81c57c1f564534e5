"""Files that stay open between units: the next unit goes on where the one before ended."""

from __future__ import annotations

import os
from typing import Any, Generic, Protocol, TypeVar

from shardctl.sources.formats.base import Reading, Unit


class OpenFile(Protocol):
    """A file that is read from its beginning on, such as a compressed one.

    Two files are the same, and read in the same way, if their `key` is equal. The last item of the
    key is the reading. `passed` is the number of records that have been read.
    """

    key: tuple[Any, ...]
    passed: int

    def close(self) -> None:
        """Close the file."""
        ...


T = TypeVar("T", bound=OpenFile)


class KeptOpen(Generic[T]):
    """The file that this process read last, by the number of the process: a forked one must not
    share its open file.

    There are two at most: shardctl reads the keys of records, which are a single field, ahead of
    the records.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, bool], T] = {}

    def keep(self, file: T) -> None:
        """Keep a file open where it is, for the unit that follows in it. The one that was kept
        before is closed."""
        place = _place(file.key[-1])
        if (other := self._kept.pop(place, None)) is not None:
            other.close()
        self._kept[place] = file

    def take(self, key: tuple[Any, ...], unit: Unit) -> T | None:
        """Return the file that has this key, if it was kept and has not passed the beginning of the
        unit."""
        kept = self._kept.pop(_place(key[-1]), None)
        if kept is not None and kept.key == key and kept.passed <= unit.skip:
            return kept
        if kept is not None:
            kept.close()
        return None


def _place(reading: Reading) -> tuple[int, bool]:
    return os.getpid(), len(reading.only) == 1
