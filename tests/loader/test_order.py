from __future__ import annotations

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from shardctl.system.permutation import Permutation


@examples(100)
@given(size=st.integers(0, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 100))
def test_every_element_comes_once(size, seed, epoch):
    order = Permutation(size, seed, epoch)(np.arange(size))
    assert np.array_equal(np.sort(order), np.arange(size))


def test_keys_give_different_orders():
    orders = {
        tuple(Permutation(50, seed, epoch)(np.arange(50)))
        for seed in range(10)
        for epoch in range(10)
    }
    assert len(orders) == 100


def test_neighbours_are_as_far_apart_as_chance_would_have_them():
    size = 20_000
    order = Permutation(size, 7)(np.arange(size))
    assert np.abs(np.diff(order)).mean() == pytest.approx(size / 3, rel=0.03)
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.03


def test_an_order_over_a_billion_needs_no_table():
    order = Permutation(10**9, 3)
    some = order(np.arange(10**9 - 1000, 10**9))
    assert len(np.unique(some)) == 1000
    assert some.min() >= 0
    assert some.max() < 10**9


def test_the_order_is_the_same_for_ever():
    assert Permutation(10, 1)(np.arange(10)).tolist() == [7, 9, 4, 5, 8, 3, 6, 0, 1, 2]
