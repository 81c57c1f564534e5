from __future__ import annotations

import numpy as np
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


def test_the_order_is_the_same_for_ever():
    assert Permutation(10, 1)(np.arange(10)).tolist() == [7, 9, 4, 5, 8, 3, 6, 0, 1, 2]
