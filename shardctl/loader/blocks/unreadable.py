"""Samples that cannot be read: which they are, and why."""

from __future__ import annotations

import numpy as np

from shardctl.errors import DatasetError
from shardctl.loader.blocks.blocks import Faults, key_of_row, name_samples
from shardctl.loader.blocks.locate import Wanted
from shardctl.loader.blocks.shards import Indices, Shards


class Unreadable(Exception):
    """Some samples cannot be read: their places among the requested ones, and the reason."""

    def __init__(self, places: Indices, error: DatasetError) -> None:
        super().__init__(str(error))
        self.places, self.error = places, error


def name_of(shards: Shards, wanted: Wanted, place: int) -> str:
    """Name one of the requested samples for a message."""
    block, row = int(wanted.block[place]), int(wanted.rows[place])
    return f"{shards.where(block)}, row {row}, key {key_of_row(shards, block, row)!r}"


def unreadable_sample(shards: Shards, wanted: Wanted, place: int, why: str) -> Unreadable:
    """Return the error for one of the requested samples."""
    return Unreadable(np.array([place]), DatasetError(f"{name_of(shards, wanted, place)}: {why}"))


def unreadable_blocks(shards: Shards, wanted: Wanted, faults: Faults) -> Unreadable:
    """Return the error for blocks that cannot be read."""
    places = np.flatnonzero(np.isin(wanted.block, list(faults)))
    block = int(wanted.block[places[0]])
    error = faults[block]
    named = name_samples(shards, block, error)
    named.__cause__ = error.__cause__
    return Unreadable(places, named)
