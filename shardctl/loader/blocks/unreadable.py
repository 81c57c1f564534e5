"""Samples that cannot be read: which they are, and why."""

from __future__ import annotations

import numpy as np

from shardctl.errors import DamageError
from shardctl.loader.blocks.blocks import Faults, key_of_row, name_samples
from shardctl.loader.blocks.locate import Wanted
from shardctl.loader.blocks.shards import Shards


def name_of(shards: Shards, wanted: Wanted, place: int) -> str:
    """Name one of the requested samples for a message."""
    block, row = int(wanted.block[place]), int(wanted.rows[place])
    return f"{shards.where(block)}, row {row}, key {key_of_row(shards, block, row)!r}"


def unreadable_sample(shards: Shards, wanted: Wanted, place: int, why: str) -> DamageError:
    """Return the error for one of the requested samples."""
    return DamageError(f"{name_of(shards, wanted, place)}: {why}", [place])


def unreadable_blocks(shards: Shards, wanted: Wanted, faults: Faults) -> DamageError:
    """Return the error for blocks that cannot be read."""
    places = np.flatnonzero(np.isin(wanted.block, list(faults)))
    block = int(wanted.block[places[0]])
    named = DamageError(name_samples(shards, block, faults[block]), places)
    named.__cause__ = faults[block].__cause__
    return named
