"""Columns of numbers, and rows of batches, are what Arrow's own ways give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.format.arrays import column_of, rows_at


@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int32", "int64", "uint64", "float32", "float64"]
)
def test_numbers_become_the_same_column(dtype):
    for numbers in (
        np.arange(7).astype(dtype),
        np.arange(40).astype(dtype)[::3],
        np.empty(0, dtype),
    ):
        column = column_of(numbers)
        assert column.equals(pa.array(numbers))
        column.validate(full=True)


@given(st.lists(st.integers(0, 199), max_size=150))
def test_rows_are_those_of_take(rows):
    batch = pa.record_batch(
        {"n": pa.array(range(200)), "text": [str(n) if n % 3 else None for n in range(200)]}
    )
    wanted = np.array(rows, np.int64)
    assert rows_at(batch, wanted).equals(batch.take(pa.array(wanted)))
    together = rows_at(batch, np.sort(wanted))
    assert together.equals(batch.take(pa.array(np.sort(wanted))))
