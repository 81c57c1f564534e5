"""Arrow IPC: files (Feather V2 is one), cut at their record batches, and streams, which are read
from the beginning."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from shardctl.format.stretches import (
    DICTIONARIES,
    MAGIC,
    RECORD_BATCHES,
    blocks_of,
    field_of,
    number_at,
    read_tail,
)
from shardctl.sources.files import Version, local_version
from shardctl.sources.formats.base import UNIT_BYTES, Cut, Digest, Unit, refused
from shardctl.sources.formats.columns import (
    FAULTS,
    batch_rows,
    damaged,
    hash_ranges,
    not_a_file,
    plain_schema,
    rows_of,
)
from shardctl.sources.formats.numbered import Rows
from shardctl.system.files import open_ordinary

_FEATHER_1 = b"FEA1"


def opened(path: str) -> _File:
    """Open a file or a stream of Arrow IPC: which of them it is, its first bytes say. Raises
    OSError; Rejection if it is neither."""
    version = local_version(path)
    with open_ordinary(path) as file:
        start = file.read(len(MAGIC))
    if start.startswith(_FEATHER_1):
        raise refused(
            "feather-1",
            "Feather version 1 is not read; write it again as version 2, with pyarrow.feather",
        )
    try:
        return (_File if start == MAGIC else _Stream)(path, version)
    except FAULTS as error:
        raise not_a_file("Arrow", error) from error


def _small(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """Yield the rows in batches that are not too large. Raises ArrowInvalid if an array is
    damaged."""
    for batch in batches:
        batch.validate()  # before anything follows its offsets
        rows = batch_rows(len(batch), batch.get_total_buffer_size())
        for start in range(0, len(batch), rows):
            yield batch.slice(start, rows)


class _File(Rows):
    """An Arrow IPC file. Read without a memory map: a file that shrinks meanwhile would end the
    process."""

    reader = staticmethod(pa.ipc.open_file)

    def __init__(self, path: str, version: Version) -> None:
        self.path = path
        self.version = version
        with pa.OSFile(path) as file, self.reader(file) as reader:
            self._own: pa.Schema = reader.schema
            self.schema = plain_schema(self._own)

    def cuts(self) -> list[Cut]:
        """Return the units: runs of record batches of about 1 MiB together. Raises Rejection."""
        _, batches = _footer(self.path, self.version)
        cuts: list[Cut] = []
        try:
            with pa.OSFile(self.path) as file, self.reader(file) as reader:
                if len(batches) != reader.num_record_batches:
                    raise ValueError("the number of record batches is wrong")
            with open_ordinary(self.path) as file:
                for offset, size in batches:
                    rows, last = _rows(file.fileno(), (offset, size)), cuts[-1] if cuts else None
                    if last and last.size < UNIT_BYTES and last.offset + last.size == offset:
                        cuts[-1] = Cut(last.offset, last.size + size, last.records + rows)
                    else:
                        cuts.append(Cut(offset, size, rows))
        except ValueError as error:
            raise damaged("the file", error) from error
        return [cut for cut in cuts if cut.records]

    def hash(self, unit: Unit, digest: Digest) -> None:
        """Give the bytes of a unit to a digest, after those of the dictionaries that its values are
        from."""
        dictionaries, _ = _footer(self.path, self.version)
        hash_ranges(self.path, [*dictionaries, (unit.offset, unit.size)], digest)

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit, going on where the last one ended."""
        key = (self.path, *self.version, unit.offset, unit.size, tuple(names))
        yield from rows_of(key, lambda: _small(self._read(unit, names)), unit.skip, unit.records)

    def _read(self, unit: Unit, names: list[str]) -> Generator[pa.RecordBatch]:
        """Yield the record batches of a unit; with all columns where none is named."""
        fields = [self._own.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        with pa.OSFile(self.path) as file, self.reader(file, options=options) as reader:
            yield from self.chosen(reader, unit)

    def chosen(self, reader: Any, unit: Unit) -> Iterator[pa.RecordBatch]:
        """Yield the record batches that lie in the bytes of a unit."""
        for place, (offset, _) in enumerate(_footer(self.path, self.version)[1]):
            if unit.offset <= offset < unit.offset + unit.size:
                yield reader.get_batch(place)


class _Stream(_File):
    """An Arrow IPC stream: one unit."""

    reader = staticmethod(pa.ipc.open_stream)

    def cuts(self) -> list[Cut]:
        """Return all rows as one unit. Raises Rejection if the stream ends before its end or is
        damaged."""
        try:
            with pa.OSFile(self.path) as file, self.reader(file) as reader:
                rows = sum(map(len, reader))
        except FAULTS as error:
            raise damaged("the stream", error) from error
        return [Cut(0, self.version[0], rows)] if rows else []

    hash = Rows.hash

    def chosen(self, reader: Any, unit: Unit) -> Iterator[pa.RecordBatch]:
        """Yield all record batches."""
        yield from reader


_Block = tuple[int, int]
"""Offset and size of a message in a file."""


@lru_cache(8)
def _footer(path: str, version: Version) -> tuple[tuple[_Block, ...], tuple[_Block, ...]]:
    """Return where dictionaries and record batches lie: pyarrow does not tell. Raises Rejection if
    that is not in the file."""

    def get(start: int, length: int) -> pa.Buffer:
        return pa.py_buffer(os.pread(file.fileno(), length, start))

    def blocks(field: int) -> tuple[_Block, ...]:
        found = blocks_of(tail, version[0], field)
        return tuple(zip(found.starts.tolist(), found.lengths.tolist(), strict=True))

    try:
        with open_ordinary(path) as file:
            tail = read_tail(version[0], get)
        return blocks(DICTIONARIES), blocks(RECORD_BATCHES)
    except ValueError as error:
        raise damaged("the footer", error) from error


def _rows(file: int, block: _Block) -> int:
    """Return the number of rows of the record batch in a message."""
    start = os.pread(file, 8, block[0])
    old = start[:4] != b"\xff\xff\xff\xff"  # before Arrow 0.15
    size = number_at("<I", start, 0 if old else 4)
    if size > block[1]:
        raise ValueError("a message is longer than its place")
    data = os.pread(file, size, block[0] + (4 if old else 8))
    header = field_of(data, number_at("<I", data, 0), 2)
    if header is None:
        raise ValueError("a message without a header")
    length = field_of(data, header + number_at("<I", data, header), 0)
    rows = 0 if length is None else number_at("<q", data, length)
    if rows < 0:
        raise ValueError("a negative number of rows")
    return rows
