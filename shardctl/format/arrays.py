"""Columns of numbers, and rows of batches, without the large modules that Arrow's own ways import:
they start every command."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_DTYPES = {
    pa.bool_(): np.dtype(np.bool_),
    pa.float16(): np.dtype(np.float16),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
    **{pa.from_numpy_dtype(name): np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{
        pa.from_numpy_dtype(name): np.dtype(name)
        for name in ("uint8", "uint16", "uint32", "uint64")
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


def column_of(numbers: npt.NDArray[Any]) -> pa.Array:
    """Return numbers, (n,) of any type of fixed size but bool, as an Arrow array: of the same
    memory if that is contiguous.

    `pa.array` would first ask whether they are a masked array. That imports `numpy.ma` (12 ms), and
    pandas if it is installed.
    """
    assert numbers.dtype.isnative, "Arrow has the order of bytes of this machine"
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])


def rows_at(batch: pa.RecordBatch, rows: npt.NDArray[Any]) -> pa.RecordBatch:
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
