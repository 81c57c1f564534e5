"""Files of UTF-8 text whose records end at every line end: cut on a grid, and read a unit at a
time."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import Bools, Numbers
from shardctl.format.shard import normalized
from shardctl.sources.files import changed, fill, read_range
from shardctl.sources.formats.base import (
    PIECE_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    Cut,
    Digest,
    Parsed,
    Reading,
    TextFile,
    TextFormat,
    TextPart,
    Unit,
    count_byte,
    count_lines,
    refused,
)
from shardctl.system.files import open_ordinary
from shardctl.system.text import format_bytes

BUFFER_BYTES = 1 << 20
"""Newlines are counted in one buffer of this size that is used again and again: counting a whole
piece at once takes 5 to 12 times as long, because of page faults."""

HEAD_BYTES = 1 << 16
"""How much of the beginning of a file is looked at for what comes before its first record."""

_NEWLINE = 10

Ends = Sequence[Any]
"""The first and the last place in a cell behind a record, and how many there are; or where a record
begins and ends that is rejected, 1, and why."""


def too_long(size: int, limit: int) -> Rejection:
    """Return why a line of this many bytes is rejected."""
    most = format_bytes(limit)
    message = f"a line of {size} bytes, and at most {most} are read as one record; divide it"
    return refused("too-large", message)


class GridFile(TextFile):
    """A seekable UTF-8 file of a text format, over which lies a grid of cells of `unit_bytes`.

    A unit begins after the first end of a record in a cell and goes to the first one in a later
    cell: where a file is cut depends on nothing but the file. So a unit is about `unit_bytes` long,
    and longer where a record is. A record of more than `record_bytes` is a unit of its own, which
    is rejected.
    """

    def __init__(
        self,
        text: TextFormat,
        unit_bytes: int = UNIT_BYTES,
        piece_bytes: int = PIECE_BYTES,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        super().__init__(text)
        self.cell = unit_bytes
        self.piece = max(1, piece_bytes // unit_bytes) * unit_bytes
        self.longest = max(record_bytes, unit_bytes)  # records within a cell are not measured

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return ranges of whole cells."""
        return [(offset, min(self.piece, size - offset)) for offset in range(0, size, self.piece)]

    @abstractmethod
    def too_large(self, size: int) -> Rejection:
        """Return why a record of so many bytes is rejected."""

    def cuts(self, ends: Iterable[Ends], head: int, size: int, begun: bool) -> Iterator[Cut]:
        """Yield the units of a file whose records begin at `head`, given where they end.

        The first cell needs no border: what is before its first end belongs to the unit that is
        behind it, unless the unit has begun (`begun`) in another cell.
        """
        start, last, records = head, head, 0
        for first, end, count, *fault in ends:
            if fault:
                if records:
                    yield Cut(start, first - start, records)
                yield Cut(first, end - first, 1, *fault)
                start, last, records, begun = end, end, 0, False
                continue
            if first - last > self.longest:
                if records:
                    yield Cut(start, last - start, records)
                yield Cut(last, first - last, 1, self.too_large(first - last))
                start, records = first, count - 1
            elif begun:
                yield Cut(start, first - start, records + 1)
                start, records = first, count - 1
            else:
                records += count
            last, begun = end, True
        rest = size - last  # a last record without a line end
        if rest > self.longest:
            if records:
                yield Cut(start, last - start, records)
            yield Cut(last, rest, 1, self.too_large(rest))
        elif records or rest > 0:
            yield Cut(start, size - start, records + (rest > 0))


class LineFile(GridFile):
    """Such a file whose records end at every line feed."""

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the ends of the lines in every cell that has some. Line ends before the first
        record are not counted; the first piece says where that record begins."""
        found = []
        with open_ordinary(path) as file:
            head = 0
            if offset == 0:
                head = self.text.head(os.pread(file.fileno(), HEAD_BYTES, 0), reading).size
            buffer = bytearray(min(size, max(1, BUFFER_BYTES // self.cell) * self.cell))
            for start in range(offset, offset + size, len(buffer)):
                length = min(len(buffer), offset + size - start)
                fill(file.fileno(), start, memoryview(buffer)[:length])
                for place in range(0, length, self.cell):
                    end = min(place + self.cell, length)
                    begin = min(max(place, head - start), end)
                    # A MiB takes 0.18 ms with its read. An array of bools, searched from both ends,
                    # took 0.49 ms (2026-11-27).
                    if count := count_byte(memoryview(buffer)[begin:end], _NEWLINE):
                        ends = buffer.find(b"\n", begin, end), buffer.rfind(b"\n", begin, end)
                        found.append([*(start + each + 1 for each in ends), count])
        return {"head": head, "ends": found}

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units. None if what comes before the first record is longer than a piece, so
        that it was not seen."""
        if not scans or (head := scans[0]["head"]) >= size:
            return []
        if head > self.piece and len(scans) > 1:
            return None
        ends = [each for scan in scans for each in scan["ends"]]
        begun = bool(ends) and (ends[0][0] - 1) // self.cell > head // self.cell
        return list(self.cuts(ends, head, size, begun))

    def too_large(self, size: int) -> Rejection:
        """Return why a line is rejected."""
        return too_long(size, self.longest)

    def parse_together(
        self, texts: Sequence[bytes], reading: Reading, schema: pa.Schema
    ) -> Iterator[Parsed]:
        """Yield the records of whole files, parsed as one text: the same as each by itself. Nothing
        is yielded if a line of them has no record, or might have another one. Raises Misfit."""
        if any(text.endswith(b"\r") for text in texts):  # no line end, unless one follows
            return
        counts = list(map(count_lines, texts))
        text = b"".join(text if text.endswith(b"\n") else text + b"\n" for text in texts)
        parsed = self.text.parse(TextPart(text), reading, schema, None)
        if parsed.batch.num_rows == sum(counts):
            for count, end in zip(counts, np.cumsum(counts).tolist(), strict=True):
                # how many bytes they have must not depend on other files: it decides where blocks end
                rows = normalized(parsed.batch.slice(end - count, count))
                yield Parsed(np.arange(1, count + 1), rows, [])

    def parts(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> Generator[TextPart]:
        """Yield the records of a unit at once: it is about as large as it was cut. The digest is of
        all bytes of the unit's range."""
        data = range_of(path, unit)
        if digest is not None:
            digest.update(data)
        if unit.skip or count_lines(data) != unit.records:
            ends = np.append(0, line_ends(data))
            if len(ends) <= unit.skip + unit.records:
                raise changed()
            data = data[ends[unit.skip] : ends[unit.skip + unit.records]]
        yield TextPart(data, unit.first)


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


def chosen_lines(data: bytes, ends: Numbers, wanted: Bools) -> tuple[bytes, Numbers]:
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


def range_of(path: str, unit: Unit) -> bytes:
    """Return the bytes of a unit. Raises Rejection if the file is shorter, OSError."""
    with open_ordinary(path) as file:
        return read_range(file.fileno(), unit.offset, unit.size)
