"""CSV files in UTF-8 that can be sought: cut in parallel pieces, exactly."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np

from shardctl.errors import Rejection
from shardctl.format.arrays import Bytes, Numbers
from shardctl.sources.files import Version, changed, fill, local_version
from shardctl.sources.formats.base import Cut, Digest, Head, Reading, TextFormat, TextPart, Unit
from shardctl.sources.formats.csv import (
    HEAD_BYTES,
    NEWLINE,
    QUOTE,
    Delimited,
    State,
    are_all_counted,
    counted_quotes,
    find_records,
    line_ends,
    unclosed,
)
from shardctl.sources.formats.lines import GridFile, range_of
from shardctl.system.files import open_ordinary


@lru_cache(64)
def _head_of(path: str, _version: Version, form: TextFormat, reading: Reading) -> Head:
    """Return the head of a file; it is read again when it is another one."""
    with open_ordinary(path) as file:
        return form.head(file.read(HEAD_BYTES + 4), reading)


class DelimitedFile(GridFile):
    """CSV files in UTF-8 that can be sought.

    A piece is scanned without knowing whether it begins inside quotes, for both cases: an even or
    an odd number of quotes before it. Counting is enough where every quote opens or closes a cell;
    else the file is scanned from its start to its end.
    """

    text: Delimited

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Look at a piece of a file, or at all of it: then what cannot be counted in pieces is read
        from start to end."""
        head, delimiter = (
            _head_of(path, local_version(path), self.text, reading).size,
            self.text.delimiter,
        )
        with open_ordinary(path) as file:
            end = os.fstat(file.fileno()).st_size
            if offset + size > end:
                raise changed()
            cells = partial(_cells, file.fileno(), self.cell, head, end)
            if size <= self.piece:
                both = [
                    _both_ways(*cell, delimiter) for cell in cells(max(offset, head), offset + size)
                ]
                if offset or size < end or _chained(both) is not None:
                    return {"head": head, "both": both}
            return {"head": head, "found": _serial(cells, delimiter, head, end)}

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units of a file; None if quotes that do not open or close a cell make counting
        in pieces impossible."""
        if not scans:
            return []
        found = scans[0].get("found")
        if found is None:
            found = _chained([cell for scan in scans for cell in scan["both"]])
            if found is None:
                return None
        ends = (
            (first, last, 1, unclosed(count - first)) if is_unclosed else (first, last, count)
            for first, last, count, *is_unclosed in found
        )
        return list(self.cuts(ends, scans[0]["head"], size, begun=False))

    def too_large(self, size: int) -> Rejection:
        """Return why a row is rejected."""
        return Rejection(
            "read",
            "too-large",
            f"the row has {size} bytes, more than the {self.longest} that are read; is a quote missing?",
        )

    def parts(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> Generator[TextPart]:
        """Yield the records of a unit at once: it is about as large as it was cut. To look for the
        end of a part of a unit would take as long as parsing."""
        data, text = range_of(path, unit), self.text
        if digest is not None:
            digest.update(data)
        if unit.skip:
            ends = find_records(data, text.delimiter)[0]
            last = min(unit.skip + unit.records, len(ends)) - 1
            data = data[int(ends[unit.skip - 1]) : int(ends[last])]
        head = _head_of(path, local_version(path), text, reading)
        yield TextPart(data, unit.first, head.columns, unit.records)


def _cells(
    file: int, cell: int, head: int, last: int, start: int, end: int
) -> Iterator[tuple[Bytes, Numbers, Numbers]]:
    """Yield of each stretch of a cell between two places the bytes before its quotes, its quotes,
    and its line ends, by their places in the file.

    It takes flat memory. The records of the file begin at `head` and end at `last`.
    """
    buffer = np.empty(cell + 2, np.uint8)
    while start < end:
        size = min(cell - start % cell, end - start)
        array = buffer[: size + 2]
        array[0] = array[-1] = NEWLINE
        # a byte mark before the first record is not before a quote
        before, after = int(start > head), int(start + size < last)
        fill(file, start - before, array[1 - before : 1 + size + after].data)
        quotes = np.flatnonzero(array[1 : size + 1] == QUOTE)
        ends = line_ends(array[1 : size + 1 + after], size)
        yield array[quotes], quotes + start, ends + start
        start += size


def _serial(cells: Any, delimiter: str, start: int, end: int) -> list[list[int]]:
    """Return [first end, last end, records] of each cell in which records end, and [start, end,
    quote, 1] of each record whose quote is never closed: its line."""
    found, state, last = [], State(), start
    for before, quotes, ends in cells(start, end):
        counted = counted_quotes(quotes, before, delimiter, state)
        inside = state.inside ^ (len(counted) % 2 == 1)  # what it was before
        own = ends[(np.searchsorted(counted, ends) + inside) % 2 == 0]
        if len(own):
            last = int(own[-1])
            found.append([int(own[0]), last, len(own)])
    if not state.inside:
        return found
    line = next((int(ends[0]) for *_, ends in cells(state.opened, end) if len(ends)), end)
    return [*found, [last, line, state.opened, 1], *_serial(cells, delimiter, line, end)]


def _both_ways(before: Bytes, quotes: Numbers, ends: Numbers, delimiter: str) -> list[list[int]]:
    """Return for a cell that begins outside and inside quotes: whether all its quotes count,
    whether it ends inside quotes, the first and the last end of a record in it, and how many there
    are."""
    odd = np.searchsorted(quotes, ends) % 2
    found = []
    for inside in (0, 1):
        own = ends[odd == inside]
        sound = are_all_counted(before[inside::2], delimiter)
        edges = [int(own[0]), int(own[-1])] if len(own) else [0, 0]
        found.append([int(sound), (len(quotes) + inside) % 2, *edges, len(own)])
    return found


def _chained(cells: list[list[list[int]]]) -> list[list[int]] | None:
    """Return [first end, last end, records] of each cell, taken as the cells before it say. None:
    they cannot be counted."""
    inside, found = 0, []
    for both in cells:
        sound, inside, *ends = both[inside]
        if not sound:
            return None
        if ends[2]:
            found.append(ends)
    return None if inside else found
