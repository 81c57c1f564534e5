"""The shards of a dataset on an object store: blocks come over the network, or lie in a local
cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DamageError, DatasetError
from shardctl.format.shard import BlockFile, Opener, map_file
from shardctl.format.tables import ShardTable
from shardctl.loader.blocks.shards import Indices, OpenShard, Shards, identity
from shardctl.loader.blocks.stages import CACHE, NETWORK, Stages
from shardctl.loader.remote.cache import Cache
from shardctl.loader.remote.open import (
    DatasetHandle,
    fetch_file,
    handle_of,
    open_again,
    open_remote,
)
from shardctl.loader.remote.remote_blocks import RemoteDataset
from shardctl.loader.remote.request_threads import Ahead
from shardctl.system.text import printable


class InMemoryShard(OpenShard):
    """A shard that has no file here: its schema and the places of its blocks are known, and none of
    its bytes."""


class RemoteShards(Shards):
    """The shards of one split of a dataset on a store, or of all. Threads may share it.

    Blocks are numbered here from the split's first one; the dataset below counts all blocks of all
    splits.
    """

    def __init__(self, dataset: RemoteDataset, split: str | None = None) -> None:
        self.dataset = dataset
        super().__init__(dataset.tables, split)
        assert isinstance(self._table, ShardTable)  # only unfinished datasets have another
        dataset.attach(self._table)
        self._first = dataset.first_block(self._first_shard)

    @classmethod
    def at(cls, url: str, split: str | None, cache: Cache | None) -> RemoteShards:
        """Open the dataset below a URL. Raises DatasetError, StoreError, StorageError,
        InstallError, UsageError."""
        return cls(open_remote(url, cache), split)

    def in_split(self, split: str) -> Shards:
        """Return the shards of a split of the same dataset. Raises UsageError."""
        return RemoteShards(self.dataset, split)

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the same dataset when it is unpickled, with a client of its own."""
        return _reopened, (handle_of(self.dataset), self.split)

    is_local = False

    @property
    def location(self) -> str:
        """The URL of the dataset."""
        return self.dataset.url

    def name_of(self, shard: int) -> str:
        """Return the URL of a shard of this split for messages."""
        return printable(self.dataset.name_of(self._first_shard + shard))

    def _path(self, shard: int) -> str:
        path = self.dataset.path(self._first_shard + shard)
        return self.name_of(shard) if path is None else str(path)

    def wanted(self, blocks: list[int]) -> AbstractContextManager[None]:
        """Request these blocks at the same time."""
        return self.dataset.wanted([self._first + block for block in blocks])

    def read(
        self, block: int, fields: tuple[int, ...] | None, stages: Stages
    ) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
        """Return a block, or some columns of it, once it is here. Raises DatasetError,
        StoreError."""
        return self.dataset.read(self._first + block, fields, stages.stage(NETWORK))

    def glance(self, block: int, fields: tuple[int, ...]) -> pa.RecordBatch:
        """Return some columns of a block. Raises DatasetError, StoreError."""
        return self.dataset.read(self._first + block, fields, nullcontext())[0]

    def settle(self, blocks: list[int], stages: Stages) -> tuple[list[int], dict[int, DamageError]]:
        """Bring blocks to the cache, all at the same time. Those that find no room there must be
        read into memory."""
        passing: list[int] = []
        faults: dict[int, DamageError] = {}
        with self.wanted([] if self.dataset.keeps_no_more else blocks):
            for block in blocks:
                try:
                    with stages.stage(CACHE):
                        if not self.dataset.settle(self._first + block, stages.stage(NETWORK)):
                            passing.append(block)
                except DamageError as error:
                    faults[block] = error
        return passing, faults

    @property
    def has_places(self) -> bool:
        """Whether there is a cache in which blocks lie as in the shards."""
        return self.dataset.cached is not None

    def opener(self, preload: bool) -> Opener:
        """Return how files of the cache are opened: mapped, as blocks may come later that are not
        in them yet."""
        return map_file

    def ahead(self, keeps: bool) -> Ahead | None:
        """Return what fetches blocks before they are needed; for other processes only where there
        is a cache."""
        return self.dataset.ahead(keeps) if keeps or self.dataset.cached is not None else None

    def missing(self, blocks: Indices, keeps: bool) -> Indices:
        """Return those of these blocks that must come over the network, as `ahead` counts them:
        through all splits.

        None for other processes where the cache is full: they would not find them.
        """
        return (
            self.dataset.missing(self._first + blocks)
            if keeps or not self.dataset.keeps_no_more
            else blocks[:0]
        )

    @contextmanager
    def in_turn(self, samples: Indices | None) -> Iterator[None]:
        """Bring the blocks of these samples ahead, in this order, while they are read."""
        blocks = (
            np.arange(len(self.starts) - 1) if samples is None else self.blocks_in_turn(samples)
        )
        with closing(self.dataset.ahead(keeps=True)) as coming:
            coming.expect(self.missing(blocks, keeps=True).tolist())
            yield

    def counts(self) -> dict[str, int]:
        """Return how many requests, bytes and blocks came over the network, and how many blocks
        from the cache."""
        return dict(vars(self.dataset.counts))

    def fetch_files(self, names: Sequence[str]) -> Path:
        """Bring files of the dataset. Raises DatasetError, StoreError."""
        for name in names:
            fetch_file(self.dataset, name, self.manifest.files[name])
        return self.dataset.tables

    def _open_now(self, shard: int, opener: Opener, fields: tuple[int, ...] | None) -> OpenShard:
        path = self.dataset.path(self._first_shard + shard)
        if path is None:
            file = self.dataset.reader(self._first_shard + shard, fields)
            self._check_content(shard, file, fields)
            return InMemoryShard(file, Path(), (0, 0, 0))
        file, status = BlockFile.at(path, opener, fields), identity(path)
        if status is None:
            raise _removed(path)
        self._check_content(shard, file, fields)
        return OpenShard(file, path, status)

    def check_unchanged(self, shard: int, opened: OpenShard, since: float) -> None:
        """Raise DatasetError for a file of the cache that is gone, or cut short. Its time changes
        with each block."""
        if isinstance(opened, InMemoryShard) or opened.checked >= since:
            return
        opened.checked = time.monotonic()
        found = identity(opened.path)
        if found is None or found[:2] != opened.identity[:2]:
            raise _removed(opened.path)


def _removed(path: Path) -> DatasetError:
    return DatasetError(
        f"{printable(str(path))}: removed from the cache while it was read; open the dataset again"
    )


def _reopened(handle: DatasetHandle, split: str | None) -> RemoteShards:
    return RemoteShards(open_again(handle), split)
