"""CSV files in UTF-8 that can be sought: cut in parallel pieces, exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.files import changed, fill
from shardctl.sources.formats.base import (
    PIECE_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    Cut,
    Digest,
    Format,
    Head,
    Misfit,
    Numbers,
    Parsed,
    Reading,
    Unit,
)
from shardctl.sources.formats.columns import Version, version_of
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
from shardctl.sources.formats.lines import range_of
from shardctl.sources.types import Types
from shardctl.system.files import ordinary


@lru_cache(64)
def _head_of(path: str, _version: Version, form: Delimited, reading: Reading) -> Head:
    """Return the head of a file; it is read again when it is another one."""
    with open(path, "rb", opener=ordinary) as file:
        return form.head(file.read(HEAD_BYTES + 4), reading)


def _head(path: str, form: Delimited, reading: Reading) -> Head:
    return _head_of(path, version_of(path), form, reading)


@dataclass(frozen=True)
class DelimitedFile(Format):
    """CSV files in UTF-8 that can be sought: cut on a grid of `cell` bytes, in pieces of `piece`
    bytes.

    A piece is scanned without knowing whether it begins inside quotes, for both cases: an even or
    an odd number of quotes before it. Counting is enough where every quote opens or closes a cell;
    else the file is scanned from its start to its end.
    """

    form: Delimited = field(default_factory=Delimited)
    cell: int = UNIT_BYTES
    piece: int = PIECE_BYTES

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the ranges (offset, size) of a file of `size` bytes that can be scanned apart from
        each other."""
        return [(offset, min(self.piece, size - offset)) for offset in range(0, size, self.piece)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Look at a piece of a file, or at all of it: then what cannot be counted in pieces is read
        from start to end."""
        form = self.form
        head = _head(path, form, reading).size
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            end = os.fstat(file.fileno()).st_size
            if offset + size > end:
                raise changed()
            scanner = _Scanner(file.fileno(), form.delimiter, self.cell, head, end)
            if size <= self.piece:
                both = [
                    _both_ways(*cell, form.delimiter)
                    for cell in scanner.cells(max(offset, head), offset + size)
                ]
                if offset or size < end or _chained(both) is not None:
                    return {"head": head, "both": both}
            return {"head": head, "found": scanner.serial(head)}

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units of a file; None if quotes that do not open or close a cell make counting
        in pieces impossible."""
        if not scans:
            return []
        found = scans[0].get("found")
        if found is None:
            found = _chained([cell for scan in scans for cell in scan["both"]])
        return None if found is None else list(_cuts(found, scans[0]["head"], size))

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the columns of a unit's records; what cannot be read is left out."""
        data = _records_of(range_of(path, unit), unit, self.form)
        return self.form.types_of(data, unit.first, _head(path, self.form, reading), reading)

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit at once: it is about as large as it was cut."""
        form = self.form
        data = range_of(path, unit)
        digest.update(data)
        data = _records_of(data, unit, form)
        head = _head(path, form, reading)
        try:
            parsed = form.parse(data, unit.first, head, reading, schema, choose)
        except Misfit:
            ends = find_records(data, form.delimiter).ends
            if len(ends) <= unit.records:
                raise
            # It may be in a record of another unit. To look for the end of this one before would
            # take as long as parsing.
            parsed = form.parse(
                data[: int(ends[unit.records - 1])], unit.first, head, reading, schema, choose
            )
        yield _up_to(parsed, unit.first + unit.records)


def _records_of(data: bytes, unit: Unit, form: Delimited) -> bytes:
    """Return the unit's records without those that it skips."""
    if not unit.skip:
        return data
    ends = find_records(data, form.delimiter).ends
    return data[int(ends[unit.skip - 1]) : int(ends[min(unit.skip + unit.records, len(ends)) - 1])]


def _up_to(parsed: Parsed, end: int) -> Parsed:
    """Leave out the records from number `end` on: they are another unit's."""
    rows = int(np.searchsorted(parsed.numbers, end))
    if rows == len(parsed.numbers) and not any(number >= end for number, _ in parsed.rejects):
        return parsed
    rejects = [reject for reject in parsed.rejects if reject[0] < end]
    return Parsed(parsed.numbers[:rows], parsed.batch.slice(0, rows), rejects)


Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Scanner:
    """Looks at a file cell by cell of its grid, in flat memory; `head` is where its records begin,
    `end` where they end."""

    file: int
    delimiter: str
    cell: int
    head: int
    end: int

    def cells(self, start: int, end: int) -> Iterator[tuple[int, Bytes, Numbers, Numbers]]:
        """Yield of each stretch of a cell its offset, its quotes, the bytes before them, and its
        line ends.

        Places are offsets in the file.
        """
        buffer = np.empty(self.cell + 2, np.uint8)
        while start < end:
            size = min(self.cell - start % self.cell, end - start)
            array = buffer[: size + 2]
            array[0] = array[-1] = NEWLINE
            # a byte mark before the first record is not before a quote
            first = start - (start > self.head)
            fill(
                self.file,
                first,
                array[1 - (start - first) : 1 + size + (start + size < self.end)].data,
            )
            quotes = np.flatnonzero(array[1 : size + 1] == QUOTE)
            ends = line_ends(array[1 : size + 1 + (start + size < self.end)], size)
            yield start, array[quotes], quotes + start, ends + start
            start += size

    def serial(self, start: int) -> list[list[int]]:
        """Return [first end, last end, records] of each cell in which records end, and [start, end,
        quote, 1] of each record whose quote is never closed: its line."""
        found, state, last = [], State(), start
        for _, before, quotes, ends in self.cells(start, self.end):
            counted = self._counted(quotes, before, state)
            inside = state.inside ^ (len(counted) % 2 == 1)  # what it was before
            own = ends[(np.searchsorted(counted, ends) + inside) % 2 == 0]
            if len(own):
                last = int(own[-1])
                found.append([int(own[0]), last, len(own)])
        if not state.inside:
            return found
        line = next(
            (int(ends[0]) for *_, ends in self.cells(state.opened, self.end) if len(ends)), self.end
        )
        return [*found, [last, line, state.opened, 1], *self.serial(line)]

    def _counted(self, quotes: Numbers, before: Bytes, state: State) -> Numbers:
        """Return the quotes that open or close a cell, and go on from `state`."""
        if not len(quotes):
            return quotes
        opening = int(state.inside)
        half = not state.inside and before[0] == QUOTE and state.closed != quotes[0] - 1
        if half or not are_all_counted(before[opening::2], self.delimiter):
            return counted_quotes(quotes, before, self.delimiter, state)
        opens = quotes[opening::2]
        anew = opens[before[opening::2] != QUOTE]
        if len(anew):
            state.opened = int(anew[-1])
        closes = quotes[1 - opening :: 2]
        if len(closes):
            state.closed = int(closes[-1])
        state.inside ^= len(quotes) % 2 == 1
        return quotes


def _both_ways(
    _start: int, before: Bytes, quotes: Numbers, ends: Numbers, delimiter: str
) -> list[list[int]]:
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


def _cuts(found: list[list[int]], head: int, size: int) -> Iterator[Cut]:
    """Yield the units: each ends with the first record that ends in a cell. Records that are too
    large stand alone."""
    start, last, records, fresh = head, head, 0, True
    for entry in found:
        if len(entry) == 4:
            begin, end, quote, _ = entry
            if records:
                yield Cut(start, begin - start, records)
            yield Cut(begin, end - begin, 1, unclosed(quote - begin))
            start, last, records, fresh = end, end, 0, True
            continue
        first, end, count = entry
        if first - last > RECORD_BYTES:
            if records:
                yield Cut(start, last - start, records)
            yield Cut(last, first - last, 1, _too_large(first - last))
            start, records = first, count - 1
        elif fresh:
            records += count
        else:
            yield Cut(start, first - start, records + 1)
            start, records = first, count - 1
        last, fresh = end, False
    rest = size - last  # a last record without a line end
    if rest > RECORD_BYTES:
        if records:
            yield Cut(start, last - start, records)
        yield Cut(last, rest, 1, _too_large(rest))
    elif records or rest:
        yield Cut(start, size - start, records + (rest > 0))


def _too_large(size: int) -> Rejection:
    return Rejection(
        "read",
        "too-large",
        f"the row has {size} bytes, more than the {RECORD_BYTES} that are read; is a quote missing?",
    )
