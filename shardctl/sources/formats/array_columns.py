"""Arrays of numpy as columns: a row is what one place along the first dimension has, with exactly
its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.formats.base import RECORD_BYTES
from shardctl.sources.jsonl import DEEPEST
from shardctl.system.text import format_bytes, printable

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]

_NO_TEXT = b"\xff"
"""What no string in UTF-8 is: rows that have it are rejected when strings are checked."""


def refused(error: str, message: str) -> Rejection:
    """Return why an array is no column."""
    return Rejection("read", error, message)


def row_bytes(dtype: DType, shape: tuple[int, ...], what: str) -> int:
    """Return the size of a row of an array. Raises Rejection for an array that has no rows, or that
    are no records."""
    if dtype.hasobject:
        message = (
            f"{what} holds Python objects, which are pickles and can run any code when they "
            "are read; save numbers or texts"
        )
        raise refused("pickle", message)
    if not shape:
        raise refused(
            "no-rows", f"{what} is a single value and has no rows; leave it out of the file"
        )
    size = dtype.itemsize
    for length in shape[1:]:
        size *= length
    if not size:
        raise refused(
            "no-values", f"the rows of {what} have no values (shape {_shown(shape)}); leave it out"
        )
    if size > RECORD_BYTES:
        limit = format_bytes(RECORD_BYTES)
        message = (
            f"a row of {what} has {format_bytes(size)}, and at most {limit} are read as "
            "one; "
            "save smaller rows"
        )
        raise refused("too-large", message)
    return size


def _shown(shape: tuple[int, ...]) -> str:
    return " by ".join(map(str, shape))


def column_type(dtype: DType, shape: tuple[int, ...], what: str) -> pa.DataType:
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
        return pa.struct(
            [(name, column_type(field_type(dtype, name), (), what)) for name in dtype.names]
        )
    if dtype.kind in "biuf" and dtype.itemsize <= 8:
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    if dtype.kind in "US":
        return pa.string() if dtype.kind == "U" else pa.binary()
    if dtype.kind in "mM" and dtype.itemsize == 8:
        unit, steps = np.datetime_data(dtype)
        if steps == 1 and unit in ("s", "ms", "us", "ns"):
            return pa.timestamp(unit) if dtype.kind == "M" else pa.duration(unit)
        if steps == 1 and unit == "D" and dtype.kind == "M":
            return pa.date32()
    message = (
        f"{what} has the type {printable(str(dtype))[:200]}, which is not read; save it as "
        "numbers, texts, bytes or times in"
        " s, ms, us or ns"
    )
    raise refused("unknown-type", message)


def field_type(dtype: DType, name: str) -> DType:
    """Return the type of a field of a structured type."""
    assert dtype.fields is not None, "it has fields"
    return dtype.fields[name][0]


def column(array: Array) -> pa.Array:
    """Return the rows of an array of a type that `column_type` takes. Raises ArrowInvalid for a
    date that is too far away."""
    if array.ndim > 1:
        values = column(array.reshape(-1))
        for length in reversed(array.shape[1:]):
            values = pa.FixedSizeListArray.from_arrays(values, length)
        return values
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
    if dtype.kind in "mM":
        return _times(native, _element_type(dtype, ""))
    return pa.array(native)


def _times(array: Array, type_: pa.DataType) -> pa.Array:
    values = pa.array(array.view(np.int64), mask=np.isnat(array))
    return values.cast(pa.int32()).view(type_) if pa.types.is_date32(type_) else values.view(type_)


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
