from __future__ import annotations

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shardctl.images.codecs import rle

MASKS = arrays.arrays(bool, arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12))


@pytest.mark.parametrize(
    ("runs", "counts"),
    [  # what pycocotools 2.0 gives
        ([0, 4], b"04"),
        ([6], b"6"),
        ([5, 2, 3, 2], b"5230"),
        ([0, 1, 1, 1, 1], b"01100"),
        ([100, 30, 50], b"T3n0b1"),
        ([3, 100, 3, 5], b"3T33QM"),
        ([16, 15, 17], b"`0?a0"),
        ([1, 1, 70000, 3, 70001], b"11`[T221"),
    ],
)
def test_runs_are_written_as_pycocotools_writes_them(runs, counts):
    assert rle.compress(runs) == counts
    assert rle.decompress(counts).tolist() == runs


@given(MASKS)
@examples(100)
def test_a_mask_comes_back(mask):  # type: ignore[type-arg]
    assert np.array_equal(rle.decode(rle.encode(mask), mask.shape), mask)


@given(st.lists(st.integers(0, 2**33), max_size=12))
@examples(100)
def test_lengths_come_back(runs):
    assert rle.decompress(rle.compress(runs)).tolist() == runs


def test_runs_go_down_the_columns():
    mask = np.zeros((3, 2), bool)
    mask[1, 0] = mask[2, 0] = mask[0, 1] = True
    assert rle.decompress(rle.encode(mask)).tolist() == [1, 3, 2]


@pytest.mark.parametrize("counts", [b"\xff", b"T", b" ", b"0o", b"ooooooooooo0", b"4N"])
def test_what_is_no_rle_is_refused(counts):
    with pytest.raises(ValueError, match=r"run|length"):
        rle.decode(counts, (2, 2))
