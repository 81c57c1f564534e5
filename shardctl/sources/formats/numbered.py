"""Files whose rows have numbers: any of them is read by where it lies, and a unit is a run of them.
Arrays, tokens, HDF5."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from shardctl.sources.formats.base import (
    UNIT_BYTES,
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
    check_columns,
    class_names,
    parsed_batches,
    types_of,
)
from shardctl.sources.types import Types


class Rows(Protocol):
    """An open file of rows. `schema` has their columns, with plain types."""

    schema: pa.Schema

    def cuts(self) -> list[tuple[int, int, int]]:
        """Return the units, (offset, size, rows) each, having checked what can be known before rows
        are read.

        Raises OSError, Rejection.
        """
        ...

    def hash(self, unit: Unit, digest: Digest) -> None:
        """Give the bytes that the rows of a unit are made of to a digest. Raises OSError,
        Rejection."""
        ...

    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows of a unit, some rows at a time. Raises OSError,
        Rejection, or what FAULTS has."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class RowFormat(Protocol):
    """A format of such files: it opens one."""

    name: ClassVar[str]

    def open(self, path: str) -> Rows:
        """Look at what a file says of its rows. Raises OSError, Rejection."""
        ...


class Numbered:
    """Reads the rows of such a format."""

    types_can_be_sampled: ClassVar[bool] = False

    def __init__(self, form: RowFormat) -> None:
        self._form = form

    @property
    def name(self) -> str:
        """The name of the format."""
        return self._form.name

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the whole file: it says where its rows are."""
        return [(0, size)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units, [offset, size, rows]."""
        with closing(self._form.open(path)) as rows:
            return [list(each) for each in rows.cuts()]

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units."""
        return [Cut(*each) for each in scans[0]]

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types that the file says, or the values of columns that are looked at."""
        with closing(self._form.open(path)) as rows:
            classes = class_names(rows.schema.metadata)
            return types_of(
                rows.schema, reading, lambda only: _read(rows, unit, only, None), classes
            )

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the rows of a unit; rejects are rows with text that is no Unicode."""
        with closing(self._form.open(path)) as rows:
            check_columns(rows.schema.names, schema)
            rows.hash(unit, digest)
            yield from _read(rows, unit, schema, choose)


def _read(rows: Rows, unit: Unit, schema: pa.Schema, choose: Choose | None) -> Iterator[Parsed]:
    names = [name for name in rows.schema.names if schema.get_field_index(name) >= 0]
    return parsed_batches(rows.batches(unit, names), unit.first, schema, choose)


def cuts_of(rows: int, row_bytes: int, start: int) -> list[tuple[int, int, int]]:
    """Return units of about 1 MiB for rows of the same size; `start` is where the first one
    lies."""
    each = max(1, UNIT_BYTES // row_bytes)
    return [
        (start + at * row_bytes, min(each, rows - at) * row_bytes, min(each, rows - at))
        for at in range(0, rows, each)
    ]


def runs_of(unit: Unit, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of a unit, first (from 0) and count, as many at a time as a batch has."""
    each = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))
    start, end = unit.first - 1, unit.first - 1 + unit.records
    for at in range(start, end, each):
        yield at, min(each, end - at)


def batch_of(columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    """Return a batch of columns; of none it has its rows too."""
    if not columns:
        return without_columns(rows)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
