"""Files whose rows have numbers: any of them is read by where it lies, and a unit is a run of them.
Arrays, tokens, HDF5."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import Array, DType, Shape
from shardctl.sources.formats.base import (
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    Digest,
    Format,
    Misfit,
    Parsed,
    Reading,
    Unit,
    refused,
    without_columns,
)
from shardctl.sources.formats.columns import (
    FAULTS,
    batch_rows,
    check_columns,
    class_names,
    damaged,
    hash_ranges,
    nested,
    parsed,
)
from shardctl.sources.jsonl import DEEPEST
from shardctl.sources.types import Types
from shardctl.system.text import format_bytes, printable


class Rows(ABC):
    """An open file of rows. `schema` has their columns with plain types, and the metadata of the
    file's own.

    Where all rows have the same size, they are `count`, of `row_bytes`, and the first one lies at
    `start`.
    """

    schema: pa.Schema
    path: str
    count: int
    row_bytes: int
    start = 0

    def cuts(self) -> Sequence[tuple[Any, ...]]:
        """Return the units, (offset, size, rows) each, of about 1 MiB, having checked what can be
        known before rows are read.

        Raises OSError, Rejection.
        """
        each = max(1, UNIT_BYTES // self.row_bytes)
        rows = [(at, min(each, self.count - at)) for at in range(0, self.count, each)]
        return [(self.start + at * self.row_bytes, n * self.row_bytes, n) for at, n in rows]

    def runs(self, unit: Unit) -> Iterator[tuple[int, int]]:
        """Yield the rows of a unit, first (from 0) and count, as many at a time as a batch has."""
        each = batch_rows(1, self.row_bytes)
        end = unit.first - 1 + unit.records
        for at in range(unit.first - 1, end, each):
            yield at, min(each, end - at)

    def hash(self, unit: Unit, digest: Digest) -> None:
        """Give the bytes that the rows of a unit are made of to a digest: its range of the file.
        Raises OSError, Rejection."""
        hash_ranges(self.path, [(unit.offset, unit.size)], digest)

    @abstractmethod
    def batches(self, unit: Unit, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows of a unit, some rows at a time. Raises OSError,
        Rejection, or what FAULTS has."""

    def close(self) -> None:  # noqa: B027 - most keep nothing open
        """Close the file."""


class Numbered(Format):
    """Reads the rows of such a format: `opened` looks at what a file says of them. It raises
    OSError, Rejection."""

    types_can_be_sampled = False

    def __init__(self, opened: Callable[[str], Rows]) -> None:
        self._opened = opened

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units."""
        with closing(self._opened(path)) as rows:
            return {"cuts": rows.cuts()}

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types that the file says, or the values of columns that are looked at."""
        with closing(self._opened(path)) as rows:
            label, looked = reading.label, reading.looked_among(rows.schema)
            only = pa.schema(map(rows.schema.field, looked))
            found = Types.of_schema(rows.schema, label, looked)
            for part in _read(rows, unit, only, None) if looked else ():
                found = found.join(Types.of(part.batch, label))
            return found.with_classes(class_names(rows.schema.metadata))

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
        with closing(self._opened(path)) as rows:
            check_columns(rows.schema.names, schema)
            rows.hash(unit, digest)
            yield from _read(rows, unit, schema, choose)


def _read(rows: Rows, unit: Unit, schema: pa.Schema, choose: Choose | None) -> Iterator[Parsed]:
    """Yield rows of a unit. Raises Misfit, and Rejection where a batch is damaged: it and all after
    it cannot be read."""
    names = [name for name in rows.schema.names if schema.get_field_index(name) >= 0]
    number = unit.first
    try:
        for batch in rows.batches(unit, names):
            yield from parsed(batch, number, schema, choose)
            number += len(batch)
    except (Misfit, Rejection):
        raise
    except FAULTS as error:
        raise damaged(f"row {number} and what follows", error) from error


def batch_of(columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    """Return a batch of columns; of none it has its rows too."""
    return pa.record_batch(columns) if columns else without_columns(rows)


_NO_TEXT = b"\xff"
"""What no string in UTF-8 is: rows that have it are rejected when strings are checked."""


def row_bytes(dtype: DType, shape: Shape, what: str) -> int:
    """Return the size of a row of an array. Raises Rejection for an array that has no rows, or that
    are no records."""
    if dtype.hasobject:
        raise refused(
            "pickle",
            f"{what} holds Python objects, pickles that can run any code; save numbers or texts",
        )
    if not shape:
        raise refused(
            "no-rows", f"{what} is a single value and has no rows; leave it out of the file"
        )
    size = dtype.itemsize * math.prod(shape[1:])
    if not size:
        raise refused(
            "no-values", f"the rows of {what} have no values (shape {_shown(shape)}); leave it out"
        )
    if size > RECORD_BYTES:
        raise refused(
            "too-large",
            f"a row of {what} has {format_bytes(size)}, and at most {format_bytes(RECORD_BYTES)} are read; save smaller rows",
        )
    return size


def _shown(shape: Shape) -> str:
    return " by ".join(map(str, shape))


def column_type(dtype: DType, shape: Shape, what: str) -> pa.DataType:
    """Return the type of a column whose values have this shape and this type of elements.

    Raises Rejection if no column holds them.
    """
    if dtype.subdtype is not None:
        dtype, inner = dtype.subdtype
        return column_type(dtype, (*shape, *inner), what)
    if 0 in shape or len(shape) >= DEEPEST:
        raise refused(
            "no-values",
            f"a part of {what} has the shape {_shown(shape)}, which no column holds; leave it out",
        )
    type_ = _element_type(dtype, what)
    for length in reversed(shape):
        type_ = pa.list_(type_, length)
    return type_


def _element_type(dtype: DType, what: str) -> pa.DataType:
    if dtype.names:
        return pa.struct([(name, column_type(dtype[name], (), what)) for name in dtype.names])
    if dtype.kind in "US":
        return pa.string() if dtype.kind == "U" else pa.binary()
    # Arrow does not look at the steps of times
    if dtype.kind in "biuf" or (dtype.kind in "mM" and np.datetime_data(dtype)[1] == 1):
        with suppress(pa.ArrowNotImplementedError):
            return pa.from_numpy_dtype(dtype.newbyteorder("="))
    raise refused(
        "unknown-type",
        f"{what} has the type {printable(dtype)[:200]}; save numbers, texts, bytes or times in s, ms, us or ns",
    )


def column(array: Array) -> pa.Array:
    """Return the rows of an array of a type that `column_type` takes. Raises ArrowInvalid for a
    date that is too far away."""
    if array.ndim > 1:
        return nested(column(array.reshape(-1)), array.shape)
    dtype = array.dtype
    if dtype.names:
        return pa.StructArray.from_arrays(
            [column(array[name]) for name in dtype.names], names=list(dtype.names)
        )
    if dtype.kind == "b":
        # any byte may stand for true
        return pa.array(np.ascontiguousarray(array).view(np.uint8) != 0)
    if dtype.kind == "U":
        return _texts(array)
    if dtype.kind == "S":
        return pa.array(array.tolist(), pa.binary())
    native = np.ascontiguousarray(array.astype(dtype.newbyteorder("=")))
    if dtype.kind == "M" and np.datetime_data(dtype)[0] == "D":
        days = pa.array(native.view(np.int64), mask=np.isnat(native))
        return days.cast(pa.int32()).view(pa.date32())
    return pa.array(native)


def _texts(array: Array) -> pa.Array:
    """Return strings. What is no Unicode is a string that is not valid, so that its row is rejected
    and no other."""
    codes = np.ascontiguousarray(array).view(f"{array.dtype.str[0]}u4").reshape(len(array), -1)
    if not (codes >= 0xD800).any():
        return pa.array(array.tolist(), pa.string())
    return pa.array([_encoded(row) for row in codes], pa.binary()).view(pa.string())


def _encoded(codes: Array) -> bytes:
    """Return a text, given as numbers of characters and padded with zeros, in UTF-8."""
    try:
        return codes.astype("<u4").tobytes().decode("utf-32-le").rstrip("\0").encode()
    except UnicodeDecodeError:
        return _NO_TEXT
