"""Which sample comes next: functions of a seed and a position, with no table of samples behind
them."""

from shardctl.loader.order.epoch import (
    MODES,
    BucketedOrder,
    EpochOrder,
    Indices,
    InOrder,
    Ordering,
    OrderOptions,
    neighbours,
)
from shardctl.loader.order.permutation import Orders, Permutation, key_of, mix64, permute

__all__ = [
    "MODES",
    "BucketedOrder",
    "EpochOrder",
    "InOrder",
    "Indices",
    "OrderOptions",
    "Ordering",
    "Orders",
    "Permutation",
    "key_of",
    "mix64",
    "neighbours",
    "permute",
]
