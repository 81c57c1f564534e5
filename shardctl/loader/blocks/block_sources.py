"""Where the values of a batch are read: in mapped or loaded files, or in blocks that are fetched
into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.loader.blocks.blocks import BlockCache
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.gather import Located
from shardctl.loader.blocks.locate import InMemory, InPlace, Wanted
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.stages import Stages
from shardctl.loader.blocks.unreadable import unreadable_blocks


@dataclass(frozen=True)
class GatherOptions:
    """How samples are read.

    `mmap` False reads blocks into memory instead of mapping files (for network file systems),
    `preload` keeps everything that was read. If blocks cannot be read in place, at most `blocks` of
    them and `block_bytes` bytes are kept in memory. `cache_bytes` limits the memory for decoded
    images. `checksums` compares each block with its checksum when it is first read. `skip` leaves
    out samples that cannot be read, and counts them. `profile` measures the time of each stage.
    """

    mmap: bool = True
    preload: bool = False
    blocks: int = 64
    block_bytes: float = 1e9
    cache_bytes: int = 0
    checksums: bool = False
    skip: bool = False
    profile: bool = False


def in_place(shards: Shards, options: GatherOptions) -> bool:
    """Return whether samples can be read one by one: uncompressed, and mapped or loaded."""
    return (
        (options.mmap or options.preload)
        and shards.has_places
        and shards.manifest.recipe.get("compression") == "none"
    )


class BlockPlaces:
    """The places of all samples of some columns. Threads may share it."""

    def __init__(
        self, shards: Shards, columns: Sequence[Column], options: GatherOptions, stages: Stages
    ) -> None:
        self.shards, self.stages = shards, stages
        # Those of a store are compared when they come.
        self._options = replace(options, checksums=options.checksums and shards.is_local)
        flat = [column for column in columns if column.is_flat]
        opener = shards.opener(options.preload)
        self.in_place = (
            InPlace(shards, flat, opener, self._options.checksums)
            if in_place(shards, options)
            else None
        )
        # Made now: threads that need one at the same time would each make their own.
        self.blocks = self._cache(columns)
        """The blocks that are read into memory."""
        self.nested = self._cache([column for column in columns if not column.is_flat])
        """The blocks of the columns that are never read in place: without the images and numbers
        that are."""

    def _cache(self, columns: Sequence[Column]) -> BlockCache:
        limit, limit_bytes = self._options.blocks, self._options.block_bytes
        if self._options.preload:
            limit, limit_bytes = len(self.shards.starts), float("inf")
        return BlockCache(
            self.shards, list(columns), limit, limit_bytes, self._options.checksums, self.stages
        )

    def counts(self) -> dict[str, int]:
        """Return the hits and misses of the cache of blocks, and what came over a network."""
        hits, misses = self.blocks.hits + self.nested.hits, self.blocks.misses + self.nested.misses
        return {"block_hits": hits, "block_misses": misses, **self.shards.counts()}


class BlockSources:
    """The blocks and files of the values of one batch."""

    def __init__(self, places: BlockPlaces, wanted: Wanted, counted: bool = True) -> None:
        """Find the files; samples that are `counted` are not requested again in this epoch."""
        self._places, self.wanted, self._counted = places, wanted, counted
        self._memory: InMemory | None = None
        self._nested: InMemory | None = None
        if places.in_place is not None:
            self._files, faults = places.in_place.prepare(wanted, places.stages)
            if faults:
                raise unreadable_blocks(places.shards, wanted, faults)

    @property
    def memory(self) -> InMemory:
        """The blocks, in memory. (A cached_property would hold a lock that all threads share before
        Python 3.12.)"""
        if self._memory is None:
            self._memory = self._fetch(self._places.blocks)
        return self._memory

    def memory_of(self, column: Column) -> InMemory:
        """Return the blocks of a column, in memory: without those columns that are read in place,
        where this one is not."""
        place = self._places.in_place
        # which is in memory whole
        if place is None or column.is_flat or place.pass_by(self.wanted):
            return self.memory
        if self._nested is None:
            self._nested = self._fetch(self._places.nested)
        return self._nested

    def _fetch(self, cache: BlockCache) -> InMemory:
        counts = np.bincount(self.wanted.inverse, minlength=len(self.wanted.blocks)) * self._counted
        found, faults = cache.get(self.wanted.blocks.tolist(), counts.tolist())
        if faults:
            raise unreadable_blocks(self._places.shards, self.wanted, faults)
        return InMemory(
            self._places.shards, [found[block] for block in self.wanted.blocks.tolist()]
        )

    def locate(self, column: Column) -> Located | npt.NDArray[Any] | None:
        """Return the places of a column's values, or its numbers; None if they must be read one by
        one."""
        if not column.is_flat:
            return None
        place = self._places.in_place
        if place is not None and not place.lie_elsewhere(column, self.wanted):
            return place.locate(column, self.wanted, self._files)
        flats = self.memory.flats(column, self.wanted)
        if flats is None:
            return None
        if column.kind == "fixed" and not column.shape:
            return self.memory.numbers(column, flats, self.wanted)
        return self.memory.locate(column, flats, self.wanted)
