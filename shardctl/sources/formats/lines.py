"""Files of UTF-8 text whose records end at every line end: cut on a grid, and read a unit at a
time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import reduce
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.files import changed, fill, read_range
from shardctl.sources.formats.base import (
    PIECE_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    Cut,
    Digest,
    Format,
    Head,
    Numbers,
    Parsed,
    Reading,
    TextFormat,
    Unit,
    count_byte,
    count_lines,
)
from shardctl.sources.types import Types
from shardctl.system.files import ordinary
from shardctl.system.text import format_bytes

BUFFER_BYTES = 1 << 20
"""Newlines are counted in one buffer of this size that is used again and again: counting a whole
piece at once takes 5 to 12 times as long, because of page faults."""

PART_BYTES = 4 << 20
"""Bytes that are parsed together at most, unless one line is longer."""

HEAD_BYTES = 1 << 16
"""How much of the beginning of a file is looked at for what comes before its first record."""

_NEWLINE = 10


class LineFile(Format):
    """A seekable UTF-8 file of a text format whose records end at every `\\n`, as a `Format`.

    A grid of cells of `unit_bytes` lies over the file. A unit begins after the first line end of a
    cell and goes to the first line end of a later one: where a file is cut depends on nothing but
    the file. So a unit is about `unit_bytes` long, and longer where a line is. A line of more than
    `record_bytes` is a unit of its own, which is rejected.
    """

    def __init__(
        self,
        text_format: TextFormat,
        unit_bytes: int = UNIT_BYTES,
        piece_bytes: int = PIECE_BYTES,
        record_bytes: int = RECORD_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._format = text_format
        self.types_can_be_sampled = text_format.types_can_be_sampled
        self._cell = unit_bytes
        self._piece = max(1, piece_bytes // unit_bytes) * unit_bytes
        self._part = part_bytes
        self._longest = max(record_bytes, unit_bytes)  # lines within a cell are not measured

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return ranges of whole cells."""
        return [(offset, min(self._piece, size - offset)) for offset in range(0, size, self._piece)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return of every cell its first and last newline, as offsets in the file (-1: none), and
        how many it has.

        Line ends before the first record are not counted. The first piece also says where that
        record begins.
        """
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            head = self._head(file, reading).size if offset == 0 else 0
            first, last, counts = self._newlines(file, offset, size, head)
            ended = size > 0 and read_range(file.fileno(), offset + size - 1, 1) == b"\n"
        return {"head": head, "first": first, "last": last, "counts": counts, "ended": ended}

    def _newlines(
        self, file: BinaryIO, offset: int, size: int, head: int
    ) -> tuple[list[int], list[int], list[int]]:
        buffer = bytearray(max(1, BUFFER_BYTES // self._cell) * self._cell)
        first, last, counts = [], [], []
        for start in range(offset, offset + size, len(buffer)):
            length = min(len(buffer), offset + size - start)
            fill(file.fileno(), start, memoryview(buffer)[:length])
            for place in range(0, length, self._cell):
                end = min(place + self._cell, length)
                begin = min(max(place, head - start), end)
                # A MiB takes 0.18 ms with its read. An array of bools, searched from both ends,
                # took 0.49 ms (2026-11-27).
                counts.append(count_byte(memoryview(buffer)[begin:end], _NEWLINE))
                first.append(
                    start + found if (found := buffer.find(b"\n", begin, end)) >= 0 else -1
                )
                last.append(
                    start + found if (found := buffer.rfind(b"\n", begin, end)) >= 0 else -1
                )
        return first, last, counts

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units. None if what comes before the first record is longer than a piece, so
        that it was not seen."""
        head = scans[0]["head"] if scans else 0
        if head > self._piece and len(scans) > 1:
            return None
        if head >= size:
            return []
        first, last, counts = (
            [end for scan in scans for end in scan[name]] for name in ("first", "last", "counts")
        )
        before = [0, *accumulate(counts)]
        # The cell of the first record needs no border: what is before its first line end belongs to
        # the same unit.
        starting = head // self._cell
        borders = [
            (cell, end + 1) for cell, end in enumerate(first) if end >= 0 and cell > starting
        ]
        cells = [starting, *(cell for cell, _ in borders)]
        starts = [head, *(start for _, start in borders)]
        done = [0, *(before[cell] + 1 for cell, _ in borders)]  # records before each start
        ends = [*starts[1:], size]
        total = before[-1] + (not scans[-1]["ended"])
        cuts: list[Cut] = []
        for cell, start, end, records in zip(
            cells, starts, ends, np.diff([*done, total]).tolist(), strict=True
        ):
            if start < end:
                cuts += self._cuts(start, max(start, last[cell] + 1), end, records)
        return cuts

    def _cuts(self, start: int, longest: int, end: int, records: int) -> list[Cut]:
        """Return a unit as it is, or its last line, which begins at `longest`, apart from the
        others if it is too long."""
        if end - longest <= self._longest:
            return [Cut(start, end - start, records)]
        limit = format_bytes(self._longest)
        message = f"a line of {end - longest} bytes, and at most {limit} are read as one record; divide it"
        fault = Cut(longest, end - longest, 1, Rejection("read", "too-large", message))
        return [Cut(start, longest - start, records - 1), fault] if longest > start else [fault]

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records; what cannot be read is left out."""
        head, data = self._wanted(path, unit, reading, None)
        parts = _parts(data, unit.first, self._part)
        return reduce(
            Types.join, (self._format.types_of(part, first, head, reading) for first, part in parts)
        )

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: Any,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit in parts. The digest is of all bytes of the unit's range."""
        head, data = self._wanted(path, unit, reading, digest)
        for first, part in _parts(data, unit.first, self._part):
            yield self._format.parse(part, first, head, reading, schema, choose)

    def _wanted(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> tuple[Head, bytes]:
        """Return the bytes of the records of a unit without those that it passes over."""
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            head = self._head(file, reading)
            data = read_range(file.fileno(), unit.offset, unit.size)
        if digest is not None:
            digest.update(data)
        if not unit.skip and count_lines(data) == unit.records:
            return head, data
        ends = line_ends(data)
        if len(ends) < unit.skip + unit.records:
            raise changed()
        start = int(ends[unit.skip - 1]) if unit.skip else 0
        end = int(ends[unit.skip + unit.records - 1]) if unit.records else start
        return head, data[start:end]

    def _head(self, file: BinaryIO, reading: Reading) -> Head:
        return self._format.head(os.pread(file.fileno(), HEAD_BYTES, 0), reading)


def line_ends(data: bytes) -> Numbers:
    """Return where each line of `data` ends, its line end included: (n,) int64, increasing. The
    last one may have none."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE) + 1
    return ends if data[-1:] in (b"", b"\n") else np.append(ends, len(data))


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8, as Arrow tells it: in a tenth of the time that Python
    takes."""
    buffers = [None, pa.py_buffer(np.array([0, len(data)], np.int64)), pa.py_buffer(data)]
    try:
        pa.Array.from_buffers(pa.large_string(), 1, buffers).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def chosen_lines(
    data: bytes, ends: Numbers, wanted: npt.NDArray[np.bool_]
) -> tuple[bytes, Numbers]:
    """Return the lines that are wanted, (n,) bool, without the others, and where they end then.
    `ends`: of all lines."""
    if wanted.all():
        return data, ends
    starts = np.concatenate(([0], ends[:-1]))
    # first of a run, first after it, and so on
    steps = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    view = memoryview(data)
    runs = [
        view[starts[first] : ends[after - 1]]
        for first, after in zip(steps[::2], steps[1::2], strict=True)
    ]
    return b"".join(runs), np.cumsum((ends - starts)[wanted])


def _parts(data: bytes, first: int, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the first line, lines) of parts of `data` of at most so many bytes, or one
    line; at least one part."""
    if len(data) <= most:
        yield first, data
        return
    start = 0
    while start < len(data):
        end = len(data)
        if start + most < end:
            end = (
                data.rfind(b"\n", start, start + most) + 1
                or data.find(b"\n", start + most) + 1
                or end
            )
        yield first, data[start:end]
        first += data.count(b"\n", start, end)
        start = end


def range_of(path: str, unit: Unit) -> bytes:
    """Return the bytes of a unit. Raises Rejection if the file is shorter, OSError."""
    with open(path, "rb", buffering=0, opener=ordinary) as file:
        return read_range(file.fileno(), unit.offset, unit.size)
