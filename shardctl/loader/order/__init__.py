"""Which sample comes next: functions of a seed and a position, with no table of samples behind them."""

from shardctl.loader.order.epoch import MODES, EpochOrder, Indices, InOrder, Ordering, OrderOptions, neighbours
from shardctl.loader.order.permutation import Orders, Permutation, key_of, mix64, permute

__all__ = [
    "MODES",
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
