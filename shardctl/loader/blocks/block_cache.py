"""A cache of blocks: each is decompressed once for all threads, and the least recently used is
dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import ExitStack, suppress

import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, StorageError, first_line
from shardctl.format.shard import VERIFY_ADVICE, StoredBlock, check_intact
from shardctl.loader.blocks.column import Block, Column, flatten
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.stages import DECOMPRESS, WAITING, Stages
from shardctl.system.processes.fork import keep_renewed

Faults = dict[int, DamageError]
"""What is wrong with blocks, by block."""


class BlockCache:
    """Some columns of blocks, ready to be read. Threads may share it.

    A block is released as soon as each of its samples has been requested: an epoch uses a sample
    once. Of the other blocks, the most recently used are kept, up to `limit` blocks or
    `limit_bytes`, whichever is reached first. With an infinite `limit_bytes` all of them are kept.
    """

    def __init__(
        self,
        shards: Shards,
        columns: list[Column],
        limit: int,
        limit_bytes: float,
        checksums: bool,
        stages: Stages,
    ) -> None:
        names = shards.layout.columns.names
        self._columns = columns
        # A checksum is that of all columns together.
        self._fields = (
            None if checksums else tuple(sorted(names.index(column.name) for column in columns))
        )
        self._shards, self._stages, self._checksums = shards, stages, checksums
        self._limit, self._limit_bytes = limit, limit_bytes
        self._left: dict[int, int] = {}
        self.hits = self.misses = 0
        self.renew()
        keep_renewed(self)

    def renew(self) -> None:
        """Begin with a new lock and no blocks: in a forked child, the threads that read some are not
        there."""
        self._lock = threading.Lock()
        # those that are being read too
        self._blocks: OrderedDict[int, Future[Block]] = OrderedDict()
        self._bytes = 0

    def get(self, blocks: list[int], counts: list[int]) -> tuple[dict[int, Block], Faults]:
        """Return these blocks, with the number of samples needed of each, and the errors of those
        that cannot be read.

        Blocks that no thread is reading are read first; then this thread waits for those that
        another thread is reading, so that two threads that need the same blocks share the work.
        """
        coming: dict[int, Future[Block]] = {}
        with ExitStack() as at_once:
            with self._lock:  # later, another thread may have taken one that is then brought again
                new = [block for block in blocks if block not in self._blocks]
                at_once.enter_context(self._shards.wanted(new))
            for block in blocks:
                with self._lock:
                    is_new = block not in self._blocks
                    coming[block] = self._blocks.setdefault(block, Future())
                    self._blocks.move_to_end(block)
                    self.misses += is_new
                    self.hits += not is_new
                if is_new:
                    self._fetch(block, coming[block])
        found: dict[int, Block] = {}
        faults: Faults = {}
        for block in blocks:
            with self._stages.stage(WAITING):
                try:
                    found[block] = coming[block].result()
                except DamageError as error:
                    faults[block] = error
        if self._limit_bytes < float("inf"):
            with self._lock:
                for block, count in zip(blocks, counts, strict=True):
                    left = self._left.get(block, self._shards.rows_of(block)) - count
                    self._left[block] = left
                    if left <= 0:  # after the last samples
                        del self._left[block]
                        self._drop(block)
        return found, faults

    def _drop(self, block: int) -> None:
        dropped = self._blocks.pop(block, None)
        if dropped is not None and dropped.done():
            self._bytes -= dropped.result().batch.nbytes

    def _fetch(self, block: int, coming: Future[Block]) -> None:
        """Read a block, for this thread and for those that wait for it."""
        try:
            with self._stages.stage(DECOMPRESS):
                loaded = self._read(block)
        except BaseException as error:
            with self._lock:
                self._drop(block)
            coming.set_exception(error)  # no thread waits without end
            if not isinstance(error, DamageError):
                raise
            return
        with self._lock:
            coming.set_result(loaded)
            self._bytes += loaded.batch.nbytes
            ready = [old for old, each in self._blocks.items() if each.done()]
            for place, old in enumerate(ready[:-1]):
                if len(ready) - place <= self._limit and self._bytes <= self._limit_bytes:
                    break
                self._drop(old)

    def _read(self, block: int) -> Block:
        stored = self._shards.read(block, self._fields, self._stages)
        batch = checked(self._shards, block, stored, self._checksums)
        loaded = Block(batch)
        for column in self._columns:
            # Arrow itself reads values of its types, and where some are missing; our own reading
            # checks what it uses, and says where too few bytes are read.
            for_arrow = column.kind in ("other", "nested")
            with suppress(ValueError):
                for_arrow = for_arrow or flatten(batch.column(column.name), column) is None
            try:
                if for_arrow:
                    loaded.checked(column)
            except (pa.ArrowException, ValueError) as error:
                raise DamageError(
                    f"{self._shards.where(block)} cannot be read ({first_line(error)}); "
                    f"{VERIFY_ADVICE}"
                ) from error
        return loaded


def checked(
    shards: Shards, block: int, stored: StoredBlock, checksum: bool = False
) -> pa.RecordBatch:
    """Return a block that was read. Raises DamageError if it does not have the rows that the
    manifest says, or where that is asked for, not its checksum."""
    batch, metadata = stored
    if batch.num_rows != shards.rows_of(block):
        raise DamageError(
            f"{shards.where(block)} does not have the rows that were written; {VERIFY_ADVICE}"
        )
    if checksum:
        check_intact(batch, metadata, shards.where(block))
    return batch


def name_samples(shards: Shards, block: int, error: DamageError) -> str:
    """Return what an error says, and which samples a block holds: their keys, or their numbers
    where these cannot be read."""
    which = f"samples {shards.starts[block]} to {shards.starts[block + 1] - 1}"
    if keys := keys_of(shards, block):
        which = f"keys {keys[0]!r} to {keys[-1]!r}"
    return f"{error} [{shards.where(block)}, {which}]"


def keys_of(shards: Shards, block: int) -> list[str]:
    """Return the keys of a block for a message; none if they cannot be read."""
    with suppress(DatasetError, StorageError, pa.ArrowException, ValueError):
        keys = shards.glance(block, (shards.layout.columns.names.index("key"),)).column(0)
        keys.validate(full=True)
        return list(keys.to_pylist())
    return []
