"""The blocks of one dataset on a store, by their numbers through all of its shards: from the cache,
or over the network."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, NoSuchKeyError, ObjectChangedError
from shardctl.format.arrays import Indices
from shardctl.format.shard import VERIFY_ADVICE, BlockFile, check_intact, map_file, once_more
from shardctl.format.stretches import (
    END_BYTES,
    TAIL,
    Extents,
    HeldFile,
    extents_of,
    footer_bytes,
    read_tail,
)
from shardctl.format.tables import ShardTable
from shardctl.loader.blocks.fetching import Ahead, Counts, Fetcher
from shardctl.loader.remote.cache import About, CachedDataset
from shardctl.system.files import ordinary
from shardctl.system.processes.fork import keep_renewed
from shardctl.system.stores import client_of
from shardctl.system.stores.base import Entry
from shardctl.system.text import printable

Fields = tuple[int, ...] | None
"""The numbers of the columns that are read, None for all."""

Waiting = AbstractContextManager[None]
"""What a thread is in while it waits for the network: its time is counted."""

OPEN_SHARDS = 1024
"""Shards of which the footer is in memory, some 20 kB each."""

_BLOCK_BYTES = 24
"""Bytes of a footer for each block; it has the schema too."""

_STRIPES = 256


@dataclass
class _OpenShard:
    """What is known of a shard: where its blocks lie, its footer as a file, and the readers that
    were made of it.

    `in_cache` says whether a file of the cache has the footer too, so that the blocks that are
    there can be read in it.
    """

    extents: Extents
    held: HeldFile
    in_cache: bool
    readers: dict[tuple[bool, Fields], BlockFile] = field(default_factory=dict)


class RemoteDataset:
    """The shards of a dataset below a URL. Its tables lie in `tables`, a local folder. Threads may
    share it.

    `attach` gives it the table of the shards; nothing is read before.
    """

    def __init__(self, about: About, base: str, tables: Path, cached: CachedDataset | None) -> None:
        self.about, self.base, self.tables, self.cached = about, base, tables, cached
        self.url = about.url
        self.counts = Counts()
        self._table: ShardTable | None = None

    def attach(self, table: ShardTable) -> None:
        """Take the table of the shards, once. Raises StorageError."""
        if self._table is not None:
            return
        self._first_block = np.concatenate([[0], np.cumsum(table.block_counts)])
        blocks = int(self._first_block[-1])
        if self.cached is not None:
            self.cached.attach(len(table), blocks)
        self._checked = np.zeros(blocks, bool)
        self._fetched = np.zeros(blocks, bool)  # over the network, by this process
        self._versions: dict[int, str] = {}
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._tail_bytes = TAIL
        there = weakref.proxy(self)  # the fetcher goes with it
        self._fetcher: Fetcher[pa.Buffer | None] = Fetcher(
            lambda block: there.fetch(block), lambda block: there.cost(block), blocks
        )
        self._table = table
        self.renew()
        keep_renewed(self)

    def renew(self) -> None:
        """Take fresh locks: in a forked child the old ones may be held by a thread that is not
        there."""
        self._lock = threading.Lock()
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]

    @property
    def table(self) -> ShardTable:
        """The table of the shards."""
        assert self._table is not None, "attach comes first"
        return self._table

    def name_of(self, shard: int) -> str:
        """Return the URL of a shard."""
        return f"{self.url}/{self.base}{self.table.names[shard]}"

    def first_block(self, shard: int) -> int:
        """Return the number of a shard's first block."""
        return int(self._first_block[shard])

    def path(self, shard: int) -> Path | None:
        """Return the local file with those blocks of a shard that are in the cache, in their
        places; None without a cache.

        Raises DatasetError, StoreError.
        """
        in_cache = self._shard(shard).in_cache
        return (
            self.cached.path(self.table.names[shard])
            if self.cached is not None and in_cache
            else None
        )

    def reader(self, shard: int, fields: Fields = None) -> BlockFile:
        """Return a reader of a shard, for its schema and the number of its blocks. Raises
        DatasetError, StoreError."""
        return self._reader(shard, fields, mapped=False)

    def wanted(self, blocks: Sequence[int]) -> AbstractContextManager[None]:
        """Bring these blocks at the same time, now: they are read inside of the `with` block."""
        return self._fetcher.wanted([block for block in blocks if not self._is_here(block)])

    def ahead(self, keeps: bool) -> Ahead:
        """Return a list, to be filled, of blocks that will be needed, by this process (`keeps`) or
        by others."""
        return self._fetcher.ahead(keeps)

    def missing(self, blocks: Indices) -> Indices:
        """Return those of these blocks that must come over the network."""
        return (
            blocks if self.cached is None else blocks[self.cached.missing(len(self.table) + blocks)]
        )

    @property
    def keeps_no_more(self) -> bool:
        """Whether blocks that come over the network are not kept: without a cache, or with a full
        one."""
        return self.cached is None or self.cached.cache.refuses

    def read(
        self, block: int, fields: Fields, waiting: Waiting
    ) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
        """Return a block with its metadata. One that is not what was written is fetched once more.

        The thread is in `waiting` while the block is under way. Raises DatasetError, StoreError.
        """
        return once_more(lambda: self._read(block, fields, waiting), lambda: self._forget(block))

    def settle(self, block: int, waiting: Waiting) -> bool:
        """Return whether a block is in its place in the local file, whole; False where it passes
        through memory alone.

        The thread is in `waiting` while the block is under way. Raises DatasetError, StoreError.
        """
        if self.cached is None or (self.keeps_no_more and not self._is_here(block)):
            return False
        return once_more(lambda: self._settle(block, waiting), lambda: self._forget(block))

    def _read(
        self, block: int, fields: Fields, waiting: Waiting
    ) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
        data = None
        if not self._is_here(block) or self._fetcher.is_coming(block):
            with waiting:
                data = self._fetcher.take(block)
        else:
            self._fetcher.skip(block)
        shard, number = self._place_of(block)
        if data is None and self._checked[block]:
            self.counts.cached_blocks += 1
            return self._reader(shard, fields, mapped=True).fetch(number)
        if data is None:
            batch, metadata = self._checked_in_place(block)
        else:
            batch, metadata = self._decoded(block, data)
        if fields is not None:
            schema = pa.schema([batch.schema.field(number) for number in fields])
            batch = pa.RecordBatch.from_arrays(
                [batch.column(number) for number in fields], schema=schema
            )
        return batch, metadata

    def _settle(self, block: int, waiting: Waiting) -> bool:
        if not self._is_here(block) or self._fetcher.is_coming(block):
            with waiting:
                data = self._fetcher.look(block)
            if data is not None:
                return False
            if self._fetcher.is_coming(block):  # it is kept for whoever takes it: that is now
                self._fetcher.take(block)
        self._fetcher.skip(block)
        if not self._checked[block]:
            self._checked_in_place(block)
        return True

    def _is_here(self, block: int) -> bool:
        return self.cached is not None and self.cached.has(len(self.table) + block)

    def _forget(self, block: int) -> None:
        self._checked[block] = False
        if self.cached is not None:
            self.cached.forget(len(self.table) + block)

    def _checked_in_place(self, block: int) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
        shard, number = self._place_of(block)
        batch, metadata = self._reader(shard, None, mapped=True).fetch(number)
        self._check(block, batch, metadata)
        with self._lock:
            if not self._checked[block] and not self._fetched[block]:
                self.counts.cached_blocks += 1
            self._checked[block] = True
        return batch, metadata

    def _decoded(self, block: int, data: pa.Buffer) -> tuple[pa.RecordBatch, dict[bytes, bytes]]:
        """Return a block of these bytes, which came over the network."""
        shard, number = self._place_of(block)
        opened = self._shard(shard)
        reader = self._reader_of(opened, shard, None, mapped=False)
        with opened.held.holding(int(opened.extents.starts[number]), data):
            batch, metadata = reader.fetch(number)
        self._check(block, batch, metadata)
        return batch, metadata

    def _check(self, block: int, batch: pa.RecordBatch, metadata: dict[bytes, bytes]) -> None:
        shard, number = self._place_of(block)
        check_intact(batch, metadata, f"{printable(self.name_of(shard))}, block {number}")

    def _place_of(self, block: int) -> tuple[int, int]:
        """Return the shard of a block, and its number in it."""
        shard = int(np.searchsorted(self._first_block, block, side="right")) - 1
        return shard, block - int(self._first_block[shard])

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
        opened = self._shard(shard)
        extents = opened.extents
        start, length = int(extents.starts[number]), int(extents.lengths[number])

        def get() -> pa.Buffer:
            data = self._get(shard, start, length)
            with self._lock:
                self.counts.network_blocks += 1
                self._fetched[block] = True
            return data

        # without its footer, a block in the cache could not be read
        if self.cached is None or not opened.in_cache:
            return get()
        name, size = self.table.names[shard], int(self.table.sizes[shard])
        return self.cached.keep(len(self.table) + block, name, size, start, 0, get)

    def _get(self, shard: int, start: int, length: int) -> pa.Buffer:
        """Return some bytes of a shard. Raises DatasetError if it is not the one that was looked at
        first."""
        name, shown = self._key_of(shard), printable(self.name_of(shard))
        version = self._versions.get(shard) or self._look(shard)
        try:
            data = client_of(self.url).exactly(Entry(name, 0, version), start, length)
        except NoSuchKeyError:
            raise DatasetError(f"{shown}: no such shard") from None
        except ObjectChangedError:
            raise DatasetError(
                f"{shown}: replaced in the store while it was read; open the dataset again"
            ) from None
        with self._lock:
            self.counts.requests += 1
            self.counts.network_bytes += data.size
        return data

    def _look(self, shard: int) -> str:
        """Note which version of a shard's object is read from now on."""
        shown, size = printable(self.name_of(shard)), int(self.table.sizes[shard])
        found = client_of(self.url).stat(self._key_of(shard))
        if found is None or found.size != size:  # perhaps a proxy's answer
            found = client_of(self.url).stat(self._key_of(shard))
        with self._lock:
            self.counts.requests += 1
        if found is None:
            raise DatasetError(f"{shown}: no such shard")
        if found.size != size:
            raise DatasetError(
                f"{shown}: {found.size} bytes where the dataset has {size}; {VERIFY_ADVICE}"
            )
        with self._lock:
            return self._versions.setdefault(shard, found.version)

    def _key_of(self, shard: int) -> str:
        return self.base + self.table.names[shard]

    def _shard(self, shard: int) -> _OpenShard:
        """Return where a shard's blocks lie: from its footer, which is fetched once."""
        with self._lock:
            found = self._open.get(shard)
            if found is not None:
                self._open.move_to_end(shard)
                return found
        with self._stripes[shard % _STRIPES]:
            with self._lock:
                found = self._open.get(shard)
            if found is None:
                found = self._opened(shard)
                with self._lock:
                    self._open[shard] = found
                    while len(self._open) > OPEN_SHARDS:
                        self._open.popitem(last=False)
        return found

    def _opened(self, shard: int) -> _OpenShard:
        """Look at a shard. A footer that is not what was written is fetched once more."""

        def look() -> _OpenShard:
            cached, tail = self.cached, None
            if cached is None:
                tail = self._fetched_tail(shard)
            elif not cached.has(shard):
                name, size = self.table.names[shard], int(self.table.sizes[shard])
                blocks, get = (
                    int(self.table.block_counts[shard]),
                    partial(self._fetched_tail, shard),
                )
                tail = cached.keep(shard, name, size, None, blocks, get)
            found = self._tail_here(shard) if tail is None else tail.to_pybytes()
            held = HeldFile(int(self.table.sizes[shard]), found)
            return _OpenShard(self._extents(shard, found), held, in_cache=tail is None)

        def forget() -> None:
            if self.cached is not None:
                self.cached.forget(shard)

        return once_more(look, forget)

    def _tail_here(self, shard: int) -> bytes:
        """Return the footer of a shard that is in the cache. Raises DatasetError if it is not there
        after all."""
        assert self.cached is not None
        path = self.cached.path(self.table.names[shard])
        try:
            with open(path, "rb", buffering=0, opener=ordinary) as file:
                size = os.fstat(file.fileno()).st_size
                end = os.pread(file.fileno(), END_BYTES, max(0, size - END_BYTES))
                length = min(size, footer_bytes(end))
                tail = os.pread(file.fileno(), length, size - length)
            if not self.cached.is_tail(shard, tail):
                raise ValueError("it is not as it was fetched")
        except (OSError, ValueError) as error:
            raise DatasetError(f"{printable(str(path))}: {error}") from error
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
        shown = printable(self.name_of(shard))
        try:
            extents = extents_of(tail, int(self.table.sizes[shard]))
        except ValueError as error:
            raise DamageError(
                f"{shown}: not a readable Arrow file ({error}); {VERIFY_ADVICE}"
            ) from None
        if len(extents.starts) != self.table.block_counts[shard]:
            raise DatasetError(f"{shown}: its blocks do not fit the dataset; {VERIFY_ADVICE}")
        return extents

    def _reader(self, shard: int, fields: Fields, mapped: bool) -> BlockFile:
        return self._reader_of(self._shard(shard), shard, fields, mapped)

    def _reader_of(self, opened: _OpenShard, shard: int, fields: Fields, mapped: bool) -> BlockFile:
        """Return a reader of the file of the cache (`mapped`), or of the blocks that are held in
        memory."""
        found = opened.readers.get((mapped, fields))
        if found is None:
            if mapped:
                assert self.cached is not None
                found = BlockFile.at(self.cached.path(self.table.names[shard]), map_file, fields)
            else:
                found = BlockFile(
                    printable(self.name_of(shard)),
                    lambda: pa.PythonFile(opened.held, mode="r"),
                    fields,
                )
            opened.readers[(mapped, fields)] = found
        return found
