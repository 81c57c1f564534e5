"""The blocks of one dataset on a store, by their numbers through all of its shards: from the cache,
or over the network."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, NoSuchKeyError, WrongAnswerError
from shardctl.format.arrays import Numbers, edges_of
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.names import Places
from shardctl.format.shard import (
    VERIFY_ADVICE,
    BlockFile,
    Fields,
    StoredBlock,
    check_intact,
    once_more,
)
from shardctl.format.stretches import (
    END_BYTES,
    TAIL,
    Extents,
    OpenFile,
    RemoteFile,
    extents_of,
    footer_bytes,
    read_tail,
)
from shardctl.format.tables import ShardTable
from shardctl.loader.blocks.stages import NETWORK_COUNTS
from shardctl.loader.remote.cache import About, CachedDataset
from shardctl.system.fetching import Fetcher
from shardctl.system.files import ordinary
from shardctl.system.mmap import map_file
from shardctl.system.processes.fork import keep_renewed
from shardctl.system.stores import client_of
from shardctl.system.stores.base import Entry
from shardctl.system.text import printable

Waiting = AbstractContextManager[None]
"""What a thread is in while it waits for the network: its time is counted."""

OPEN_SHARDS = 1024
"""Shards of which the footer is in memory, some 20 kB each."""

_BLOCK_BYTES = 24
"""Bytes of a footer for each block; it has the schema too."""

_STRIPES = 256


def _outside(start: int, count: int) -> pa.Buffer:
    raise OSError(f"bytes {start} to {start + count} are outside of its block")


@dataclass
class _OpenShard:
    """What is known of a shard: where its blocks lie, its footer as a file, and the readers that
    were made of it.

    `path` is the file of the cache that has the footer too, so that the blocks that are there can be
    read in it; None if there is none.
    """

    shown: str
    extents: Extents
    held: RemoteFile
    path: Path | None
    readers: dict[tuple[bool, Fields], BlockFile] = field(default_factory=dict)

    def reader(self, fields: Fields, mapped: bool) -> BlockFile:
        """Return a reader of the file of the cache (`mapped`), or of the blocks that are held in
        memory."""
        found = self.readers.get((mapped, fields))
        if found is None:
            if mapped:
                assert self.path is not None
                found = BlockFile.at(self.path, map_file, fields)
            else:
                found = BlockFile(
                    self.shown, lambda: pa.PythonFile(OpenFile(self.held), mode="r"), fields
                )
            self.readers[(mapped, fields)] = found
        return found


class RemoteDataset:
    """The shards of a dataset below a URL. Its tables lie in `tables`, a local folder. Threads may
    share it."""

    def __init__(
        self, about: About, places: Places, tables: Path, cached: CachedDataset | None
    ) -> None:
        """Raises DatasetError for tables that are not whole, StorageError."""
        self.about, self.places, self.tables, self.cached = about, places, tables, cached
        self.url = about.url
        self.counts = dict.fromkeys(NETWORK_COUNTS, 0)
        self.table = table = ShardTable(DatasetFolder(tables))
        self.first_block = edges_of(table.block_counts)
        blocks = int(self.first_block[-1])
        if cached is not None:
            cached.attach(table)
        self._checked = np.zeros(blocks, bool)
        self._fetched = np.zeros(blocks, bool)  # over the network, by this process
        self._open: dict[int, _OpenShard] = {}
        self._tail_bytes = TAIL
        there = weakref.proxy(self)  # the fetcher goes with it
        self.fetcher: Fetcher[pa.Buffer | None] = Fetcher(
            lambda block: there.fetch(block), lambda block: there.cost(block), blocks
        )
        self.renew()
        keep_renewed(self)

    def renew(self) -> None:
        """Take fresh locks: in a forked child the old ones may be held by a thread that is not
        there."""
        self._lock = threading.Lock()
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]

    def name_of(self, shard: int) -> str:
        """Return the URL of a shard, for messages."""
        return printable(f"{self.url}/{self._key_of(shard)}")

    def wanted(self, blocks: Iterable[int]) -> AbstractContextManager[None]:
        """Bring these blocks at the same time, now: they are read inside of the `with` block."""
        return self.fetcher.wanted(block for block in blocks if not self._is_here(block))

    def missing(self, blocks: Numbers) -> Numbers:
        """Return those of these blocks that must come over the network."""
        return (
            blocks if self.cached is None else blocks[self.cached.missing(len(self.table) + blocks)]
        )

    @property
    def keeps_no_more(self) -> bool:
        """Whether blocks that come over the network are not kept: without a cache, or with a full
        one."""
        return self.cached is None or self.cached.cache.refuses

    def read(self, block: int, fields: Fields, waiting: Waiting) -> StoredBlock:
        """Return a block with its metadata. One that is not what was written is fetched once more.

        The thread is in `waiting` while the block is under way. Raises DatasetError, StoreError.
        """
        return once_more(lambda: self._read(block, fields, waiting), lambda: self._forget(block))

    def settle(self, block: int, waiting: Waiting) -> bool:
        """Return whether a block is in its place in the local file, whole; False where it passes
        through memory alone.

        The thread is in `waiting` while the block is under way. Raises DatasetError, StoreError.
        """
        return once_more(lambda: self._settle(block, waiting), lambda: self._forget(block))

    def _read(self, block: int, fields: Fields, waiting: Waiting) -> StoredBlock:
        data = None
        if not self._is_here(block) or self.fetcher.is_coming(block):
            with waiting:
                data = self.fetcher.take(block)
        else:
            self.fetcher.skip(block)
        shard, number = self._place_of(block)
        if data is None and self._checked[block]:
            self.counts["cached_blocks"] += 1
            return self.shard(shard).reader(fields, mapped=True).fetch(number)
        batch, metadata = self._whole(block, data)
        if fields is not None:
            schema = pa.schema([batch.schema.field(number) for number in fields])
            batch = pa.RecordBatch.from_arrays(
                [batch.column(number) for number in fields], schema=schema
            )
        return batch, metadata

    def _settle(self, block: int, waiting: Waiting) -> bool:
        # one that was damaged is fetched once more
        if self.fetcher.is_coming(block) or not (self._is_here(block) or self.keeps_no_more):
            with waiting:
                if self.fetcher.take(block, stays=True) is not None:
                    return False
        self.fetcher.skip(block)
        if not self._is_here(block):
            return False
        if not self._checked[block]:
            self._whole(block, None)
        return True

    def _is_here(self, block: int) -> bool:
        return self.cached is not None and self.cached.has(len(self.table) + block)

    def _forget(self, block: int) -> None:
        self._look(self._place_of(block)[0])
        self._checked[block] = False
        if self.cached is not None:
            self.cached.forget(len(self.table) + block)

    def _whole(self, block: int, data: pa.Buffer | None) -> StoredBlock:
        """Return a block, checked: of these bytes, which came over the network, or (None) in its
        place."""
        shard, number = self._place_of(block)
        opened = self.shard(shard)
        reader = opened.reader(None, mapped=data is None)
        start = int(opened.extents.starts[number])
        with nullcontext() if data is None else opened.held.holding(start, data):
            batch, metadata = reader.fetch(number)
        check_intact(batch, metadata, f"{opened.shown}, block {number}")
        if data is None:
            with self._lock:
                self.counts["cached_blocks"] += not (self._checked[block] or self._fetched[block])
                self._checked[block] = True
        return batch, metadata

    def _place_of(self, block: int) -> tuple[int, int]:
        """Return the shard of a block, and its number in it."""
        shard = int(np.searchsorted(self.first_block, block, side="right")) - 1
        return shard, block - int(self.first_block[shard])

    def cost(self, block: int) -> int:
        """Return about how many bytes a block has, without looking at its shard."""
        shard, _ = self._place_of(block)
        return (
            int(self.table.sizes[shard])
            * int(self.table.block_rows[block])
            // max(1, int(self.table.rows[shard]))
        )

    def fetch(self, block: int) -> pa.Buffer | None:
        """Bring a block into the cache (None), or into memory."""
        shard, number = self._place_of(block)
        opened = self.shard(shard)
        start, length = (
            int(each[number]) for each in (opened.extents.starts, opened.extents.lengths)
        )

        def get() -> pa.Buffer:
            data = self._get(shard, start, length)
            with self._lock:
                self.counts["network_blocks"] += 1
                self._fetched[block] = True
            return data

        # without its footer, a block in the cache could not be read
        if self.cached is None or opened.path is None:
            return get()
        return self.cached.keep(len(self.table) + block, shard, start, get)

    def _get(self, shard: int, start: int, length: int) -> pa.Buffer:
        """Return some bytes of a shard. Raises DatasetError, StoreError."""
        try:
            data = client_of(self.url).exactly(Entry(self._key_of(shard), 0), start, length)
        except WrongAnswerError:
            self._look(shard)
            raise
        except NoSuchKeyError:
            raise self._gone(shard) from None
        with self._lock:
            self.counts["requests"] += 1
            self.counts["network_bytes"] += data.size
        return data

    def _look(self, shard: int) -> None:
        """Raise DatasetError if a shard, of which something is wrong, is not there or not whole."""
        client, key, size = client_of(self.url), self._key_of(shard), int(self.table.sizes[shard])
        found = client.stat(key)
        if found is None or found.size != size:  # perhaps a proxy's answer
            found = client.stat(key)
        if found is None:
            raise self._gone(shard)
        if found.size != size:
            raise DatasetError(
                f"{self.name_of(shard)}: {found.size} bytes where the dataset has {size}; "
                f"{VERIFY_ADVICE}"
            )

    def _gone(self, shard: int) -> DatasetError:
        return DatasetError(f"{self.name_of(shard)}: no such shard")

    def _key_of(self, shard: int) -> str:
        return self.places.of(self.table.paths[shard])

    def shard(self, shard: int) -> _OpenShard:
        """Return where a shard's blocks lie: from its footer, which is fetched once. Raises
        DatasetError, StoreError."""
        found = self._open.get(shard)
        if found is None:
            with self._stripes[shard % _STRIPES]:
                found = self._open.get(shard) or self._opened(shard)
                with self._lock:
                    self._open[shard] = found
                    while len(self._open) > OPEN_SHARDS:
                        del self._open[next(iter(self._open))]
        return found

    def _opened(self, shard: int) -> _OpenShard:
        """Look at a shard. A footer that is not what was written is fetched once more."""
        cached = self.cached

        def look() -> _OpenShard:
            get, path, tail = partial(self._fetched_tail, shard), None, None
            if cached is None:
                tail = get()
            elif not cached.has(shard):
                tail = cached.keep(shard, shard, None, get)
            if tail is not None:
                found = tail.to_pybytes()
            else:
                assert cached is not None
                path = cached.path(shard)
                found = self._tail_here(cached, shard, path)
            shown = self.name_of(shard)
            held = RemoteFile(int(self.table.sizes[shard]), found, _outside)
            return _OpenShard(shown, self._extents(shard, found), held, path)

        def forget() -> None:
            self._look(shard)
            if cached is not None:
                cached.forget(shard)

        return once_more(look, forget)

    def _tail_here(self, cached: CachedDataset, shard: int, path: Path) -> bytes:
        """Return the footer of a shard that is in the cache. Raises DatasetError if it is not there
        after all."""
        try:
            with open(path, "rb", buffering=0, opener=ordinary) as file:
                size = os.fstat(file.fileno()).st_size
                end = os.pread(file.fileno(), END_BYTES, max(0, size - END_BYTES))
                length = min(size, footer_bytes(end))
                tail = os.pread(file.fileno(), length, size - length)
            if not cached.is_tail(shard, tail):
                raise ValueError("it is not as it was fetched")
        except (OSError, ValueError) as error:
            raise DatasetError(f"{printable(path)}: {error}") from error
        return tail

    def _fetched_tail(self, shard: int) -> pa.Buffer:
        """Return the last bytes of a shard, with all of its footer and no more."""
        likely = self._tail_bytes + _BLOCK_BYTES * int(self.table.block_counts[shard])
        tail = read_tail(int(self.table.sizes[shard]), partial(self._get, shard), likely)
        with suppress(ValueError):  # what is wrong is said where the footer is read
            tail = tail[-footer_bytes(tail) :]
        self._tail_bytes = max(self._tail_bytes, len(tail) if len(tail) > likely else 0)
        return pa.py_buffer(tail)

    def _extents(self, shard: int, tail: bytes) -> Extents:
        shown = self.name_of(shard)
        try:
            extents = extents_of(tail, int(self.table.sizes[shard]))
        except ValueError as error:
            raise DamageError(
                f"{shown}: not a readable Arrow file ({error}); {VERIFY_ADVICE}"
            ) from None
        if len(extents.starts) != self.table.block_counts[shard]:
            raise DatasetError(f"{shown}: its blocks do not fit the dataset; {VERIFY_ADVICE}")
        return extents
