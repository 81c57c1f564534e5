"""Parquet: row groups of columns. A row group is a unit, or several units that are read one after
the other."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from shardctl.sources.files import Version, changed, local_version
from shardctl.sources.formats.base import Unit
from shardctl.sources.formats.columns import (
    FAULTS,
    batch_rows,
    damaged,
    not_a_file,
    plain_schema,
    rows_of,
)
from shardctl.sources.formats.numbered import Rows
from shardctl.system.files import open_ordinary

_SIGNATURE = 28
"""Bytes of the signature of a footer."""

_BUFFER, _BUFFERS = 1 << 20, 32 << 20
"""Bytes of a column chunk, and of all, that are read at once: memory stays flat, however large the
row group is."""


class RowGroups(Rows):
    """The rows of a Parquet file: a row group is a unit. Its footer is kept while it is the same
    file, of the same size and time; the checksums of its pages are compared where they have some.
    Raises OSError; Rejection if it is no Parquet."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._version = local_version(path)
        try:
            self._metadata, self.schema = _footer(path, self._version)
        except FAULTS as error:
            raise not_a_file("Parquet", error) from error

    def cuts(self) -> list[tuple[int, int, int]]:
        """Return the row groups that have rows."""
        groups = (self._cut(group) for group in range(self._metadata.num_row_groups))
        return [cut for cut in groups if cut[2]]

    def _cut(self, group: int) -> tuple[int, int, int]:
        """Return offset and size of the bytes of a row group's columns, and its rows. Raises
        Rejection if they are not in the file."""
        what = f"row group {group + 1}"
        try:
            facts = self._metadata.row_group(group)
            starts, end = [], 0
            for chunk in (facts.column(place) for place in range(facts.num_columns)):
                first = chunk.data_page_offset
                starts.append(min(first, chunk.dictionary_page_offset or first))
                end = max(end, starts[-1] + chunk.total_compressed_size)
        except FAULTS as error:
            raise damaged(what, error) from error
        start = min(starts, default=0)
        if not 0 <= start <= end <= self._version[0] or facts.num_rows < 0:
            raise damaged(what, "its bytes would be outside the file")
        return start, end - start, int(facts.num_rows)

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit, going on where the last one ended."""
        group = _groups(self.path, self._version).get((unit.offset, unit.size))
        if group is None:
            raise changed()
        key = (self.path, *self._version, group, tuple(names))
        yield from rows_of(key, lambda: self._read(group, names), unit.skip, unit.records)

    def _read(self, group: int, names: list[str]) -> Generator[pa.RecordBatch]:
        from pyarrow import parquet  # 30 ms to import

        facts = self._metadata.row_group(group)
        rows = batch_rows(facts.num_rows, facts.total_byte_size)
        with pa.OSFile(self.path) as file:
            reader = parquet.ParquetFile(
                file,
                metadata=self._metadata,
                page_checksum_verification=True,
                pre_buffer=False,
                buffer_size=min(_BUFFER, _BUFFERS // len(names)),
            )
            yield from reader.iter_batches(
                rows, row_groups=[group], columns=names, use_threads=False
            )


@lru_cache(8)
def _footer(path: str, _version: Version) -> tuple[Any, pa.Schema]:
    from pyarrow import parquet  # 30 ms to import

    with parquet.ParquetFile(path) as file, open_ordinary(path) as raw:
        raw.seek(-8, os.SEEK_END)
        # A footer that is signed belongs to encrypted columns, and pyarrow aborts where these are
        # asked for.
        if int.from_bytes(raw.read(4), "little") == file.metadata.serialized_size + _SIGNATURE:
            raise pa.ArrowInvalid("encrypted columns")
        return file.metadata, plain_schema(file.schema_arrow)


@lru_cache(8)
def _groups(path: str, _version: Version) -> dict[tuple[int, int], int]:
    """Return the number of each row group that has rows, by offset and size."""
    file = RowGroups(path)
    cuts = map(file._cut, range(file._metadata.num_row_groups))
    return {(start, size): group for group, (start, size, rows) in enumerate(cuts) if rows}
