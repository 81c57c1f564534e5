"""Parquet: row groups of columns. A row group is a unit, or several units that are read one after
the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa

from shardctl.sources.files import changed
from shardctl.sources.formats.base import (
    Choose,
    Cut,
    Digest,
    Parsed,
    Reading,
    Unit,
    without_columns,
)
from shardctl.sources.formats.columns import (
    BATCH_BYTES,
    BATCH_ROWS,
    FAULTS,
    Version,
    check_columns,
    class_names,
    damaged,
    hash_range,
    not_a_file,
    parsed_batches,
    plain_schema,
    rows_of,
    types_of,
    version_of,
)
from shardctl.sources.types import Types
from shardctl.system.files import ordinary

_SIGNATURE = 28
"""Bytes of the signature of a footer."""

_BUFFER = 1 << 20
"""Bytes of a column chunk that are read at once: memory stays flat, however large the row group
is."""


class ParquetFile:
    """Parquet files, read with the checksums of their pages where they have some."""

    name: ClassVar[str] = "parquet"
    types_can_be_sampled: ClassVar[bool] = False

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the whole file: its footer says where everything is."""
        return [(0, size)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return offset, size and rows of each row group. Raises Rejection if the file is no
        Parquet."""
        file = _File(path)
        return [[*file.range(group), file.rows(group)] for group in range(file.groups)]

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return a unit per row group that has rows."""
        return [Cut(*group) for group in scans[0] if group[2]]

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types that the file says, or the values of columns that are looked at."""
        file = _File(path)
        classes = class_names(file.arrow_schema.metadata)
        return types_of(file.schema, reading, lambda only: file.read(unit, only, None), classes)

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the rows of a unit; rejects are rows with text that is no UTF-8."""
        file = _File(path)
        check_columns(file.schema.names, schema)
        hash_range(path, unit.offset, unit.size, digest)
        yield from file.read(unit, schema, choose)


class _File:
    """A Parquet file: its footer, kept while it is the same file, of the same size and time. Raises
    OSError, Rejection."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.version = version_of(path)
        try:
            self.metadata, self.arrow_schema = _footer(path, self.version)
            self.schema = plain_schema(self.arrow_schema)
        except FAULTS as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise not_a_file("Parquet", error) from error
        self.groups: int = self.metadata.num_row_groups

    def rows(self, group: int) -> int:
        """Return the number of rows of a row group."""
        return int(self.metadata.row_group(group).num_rows)

    def range(self, group: int) -> tuple[int, int]:
        """Return offset and size of the bytes of a row group's columns. Raises Rejection if they
        are not in the file."""
        try:
            facts = self.metadata.row_group(group)
            chunks = [facts.column(place) for place in range(facts.num_columns)]
            starts = [
                min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
                for chunk in chunks
            ]
            end = max(
                (
                    start + chunk.total_compressed_size
                    for start, chunk in zip(starts, chunks, strict=True)
                ),
                default=0,
            )
        except FAULTS as error:
            raise damaged(f"row group {group + 1}", error) from error
        start = min(starts, default=0)
        if not 0 <= start <= end <= self.version[0] or facts.num_rows < 0:
            raise damaged(
                f"row group {group + 1}", ValueError("its bytes would be outside the file")
            )
        return start, end - start

    def group_of(self, unit: Unit) -> int:
        """Return the row group that lies in these bytes. Raises Rejection."""
        groups = _groups(self.path, self.version)
        if (unit.offset, unit.size) in groups:
            return groups[unit.offset, unit.size]
        raise changed()

    def read(self, unit: Unit, schema: pa.Schema, choose: Choose | None) -> Iterator[Parsed]:
        """Yield the rows of a unit, with the columns of `schema`. Raises Rejection, Misfit."""
        group = self.group_of(unit)
        names = [name for name in self.arrow_schema.names if schema.get_field_index(name) >= 0]
        key = (self.path, *self.version, group, *names)
        within = unit.skip + 1 - unit.first  # of the row group, added to the number of a row
        yield from parsed_batches(
            rows_of(key, lambda: self._batches(group, names), unit.skip, unit.records),
            unit.first,
            schema,
            choose,
            lambda number: f"row group {group + 1} (from row {number + within} on)",
        )

    def _batches(self, group: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        from pyarrow import parquet  # 30 ms to import

        facts = self.metadata.row_group(group)
        rows = max(
            1, min(BATCH_ROWS, BATCH_BYTES * facts.num_rows // max(1, facts.total_byte_size))
        )
        if not names:
            yield from _without_columns(facts.num_rows)
            return
        with pa.OSFile(self.path) as file:
            reader = parquet.ParquetFile(
                file,
                metadata=self.metadata,
                page_checksum_verification=True,
                pre_buffer=False,
                buffer_size=_BUFFER,
            )
            yield from reader.iter_batches(
                rows, row_groups=[group], columns=names, use_threads=False
            )


def _without_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows without columns."""
    for start in range(0, rows, BATCH_ROWS):
        yield without_columns(min(BATCH_ROWS, rows - start))


@lru_cache(8)
def _footer(path: str, _version: Version) -> tuple[Any, pa.Schema]:
    from pyarrow import parquet  # 30 ms to import

    with parquet.ParquetFile(path) as file, open(path, "rb", opener=ordinary) as raw:
        raw.seek(-8, os.SEEK_END)
        # A footer that is signed belongs to encrypted columns, and pyarrow aborts where these are
        # asked for.
        if int.from_bytes(raw.read(4), "little") == file.metadata.serialized_size + _SIGNATURE:
            raise pa.ArrowInvalid("encrypted columns")
        return file.metadata, file.schema_arrow


@lru_cache(8)
def _groups(path: str, _version: Version) -> dict[tuple[int, int], int]:
    """Return the number of each row group that has rows, by offset and size."""
    file = _File(path)
    return {file.range(group): group for group in range(file.groups) if file.rows(group)}
