"""Arrow's columns as arrays of numpy, and back: numbers, lists and texts, without the large modules that Arrow's own ways import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Array: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Bools: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Hashes: TypeAlias = npt.NDArray[np.uint64]
DType: TypeAlias = np.dtype[Any]
Shape: TypeAlias = tuple[int, ...]

_DTYPES = {
    pa.bool_(): np.dtype(np.bool_),
    pa.float16(): np.dtype(np.float16),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
    **{
        pa.from_numpy_dtype(name): np.dtype(name)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}

FEW_RUNS = 64
"""So many slices are made in less time than it takes to import `pyarrow.compute`."""


def dtype_of(type_: pa.DataType) -> np.dtype[Any]:
    """Return the dtype of numpy for an Arrow type.

    `to_pandas_dtype` of Arrow before 26 imports pandas, where it is installed: 0.3 s of every
    process (measured 2026-11-28).
    """
    return _DTYPES[type_] if type_ in _DTYPES else np.dtype(type_.to_pandas_dtype())


def column_of(numbers: Array) -> pa.Array:
    """Return numbers, (n,) of any type of fixed size but bool, as an Arrow array: of the same
    memory if that is contiguous.

    `pa.array` would first ask whether they are a masked array. That imports `numpy.ma` (12 ms), and
    pandas if it is installed.
    """
    assert numbers.dtype.isnative, "Arrow has the order of bytes of this machine"
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a copy where it is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def numbers_of(column: pa.ChunkedArray) -> Array:
    """Return a copy of a column of numbers of a table, which has no nulls, (n,).

    `ChunkedArray.to_numpy` imports pandas, where it is installed, and so does `pa.array` of a list:
    0.4 s (measured 2026-11-29).
    """
    return np.from_dlpack(column.combine_chunks())


def sums_of(values: Array, group: Array, groups: int) -> Numbers:
    """Return the sum of the whole numbers of each group, (groups,), given the group of each,
    (n,)."""
    return np.bincount(group, values, groups).astype(np.int64)


def rows_at(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """Return some rows of a batch, by their numbers (n,). Most often they are few, or lie together.

    `RecordBatch.take` imports `pyarrow.compute` (25 to 40 ms). Raises IndexError for a row that is
    not there.
    """
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(batch):
        raise IndexError(f"rows {rows.min()} to {rows.max()} of a batch of {len(batch)}")
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    if len(runs) > FEW_RUNS:
        return batch.take(column_of(rows))
    slices = [batch.slice(run[0], len(run)) if len(run) else batch.slice(0, 0) for run in runs]
    return slices[0] if len(slices) == 1 else pa.concat_batches(slices)


def table_rows(table: pa.Table, rows: Numbers) -> pa.Table:
    """Return some rows of a table, by their numbers in order (n,): batch by batch, as a take from
    the whole table would first copy it together."""
    if not len(rows):
        return table.slice(0, 0)
    first = int(rows[0])
    table, rows = table.slice(first, int(rows[-1]) + 1 - first), rows - first
    batches = table.to_batches()
    starts = np.cumsum([0, *map(len, batches)])
    cuts = np.searchsorted(rows, starts)
    found = [
        rows_at(batch, rows[cut:end] - start)
        for batch, start, cut, end in zip(batches, starts, cuts, cuts[1:], strict=False)
        if cut < end
    ]
    return pa.Table.from_batches(found, table.schema)


def edges_of(lengths: Array) -> Numbers:
    """Return where parts of these lengths (n,) begin, one behind the other, and the end: (n + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths)])


def owners_of(counts: Array) -> Numbers:
    """Return for each of some items, one behind the other, whose it is: the first `counts[0]` are of
    0, and so on."""
    return np.repeat(np.arange(len(counts)), counts)


def begin_runs(values: Array) -> Bools:
    """Return which of some values (n,) begin a run of equal ones."""
    return np.concatenate([[True], values[1:] != values[:-1]])


def is_number(type_: pa.DataType) -> bool:
    """Return whether a type is one of whole numbers or of floats."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def is_text(type_: pa.DataType) -> bool:
    """Return whether a type is one of strings."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def is_binary(type_: pa.DataType) -> bool:
    """Return whether a type is one of bytes of any length."""
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def is_list(type_: pa.DataType) -> bool:
    """Return whether a type is one of lists, of one length or of any. Views of lists are not."""
    return bool(
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    )


def items_of(lists: pa.Array) -> pa.Array:
    """Return what is in lists of one length, one behind the other; missing lists have room there."""
    size = lists.type.list_size
    return lists.values.slice(lists.offset * size, len(lists) * size)


def leaf_of(type_: pa.DataType) -> tuple[pa.DataType, int]:
    """Return the type of the values in lists, and in lists in them, and in how many lists each
    is."""
    depth = 0
    while is_list(type_):
        depth, type_ = depth + 1, type_.value_type
    return type_, depth


class TextBytes(NamedTuple):
    """The bytes of texts, one after the other. Text i is data[offsets[i]:offsets[i + 1]]; offsets
    are (n + 1,) from 0."""

    data: Bytes
    offsets: Numbers

    @property
    def sizes(self) -> Numbers:
        """How many bytes each text has, (n,)."""
        return np.diff(self.offsets)


def bytes_of(texts: pa.Array) -> TextBytes:
    """Return the bytes of texts, (n,) string or binary. They are not copied. A missing text has
    none.

    Raises TypeError for anything else: `encode` of a tokenizer gets what a person gives.
    """
    if not isinstance(texts, pa.Array):
        raise TypeError(
            "texts are an array of Arrow, as in pa.array(['one text']); it is "
            f"{type(texts).__name__}"
        )
    if not len(texts):
        return TextBytes(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[
        texts.offset : texts.offset + len(texts) + 1
    ].astype(np.int64)
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    )
    return TextBytes(data[offsets[0] : offsets[-1]], offsets - offsets[0])


def texts_from(data: Bytes, offsets: Numbers) -> pa.Array:
    """Return bytes as texts: (n,) string, text i is data[offsets[i]:offsets[i + 1]]."""
    buffers = [
        None,
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(np.ascontiguousarray(data)),
    ]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def hash_names(names: Iterable[str]) -> Hashes:
    """Return 8 bytes per name, so that ten million names are compared within 80 MB.

    Different names may have the same hash: callers compare the names if hashes are equal.
    """
    return np.fromiter(map(xxhash.xxh3_64_intdigest, map(str.encode, names)), np.uint64)


def hash_column(column: pa.ChunkedArray) -> Hashes:
    """Return the hashes of all names in a column, (n,) uint64; few of them are Python objects at a
    time."""
    pieces = (
        chunk.slice(start, 65536)
        for chunk in column.chunks
        for start in range(0, len(chunk), 65536)
    )
    return np.concatenate(
        [np.empty(0, np.uint64), *(hash_names(each.to_pylist()) for each in pieces)]
    )
