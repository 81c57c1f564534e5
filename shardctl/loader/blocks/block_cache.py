"""A cache of blocks: each is decompressed once for all threads, and the least recently used is
dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future

import pyarrow as pa

from shardctl.errors import DamageError, DatasetError, StorageError, first_line
from shardctl.format.shard import VERIFY_ADVICE, check_intact
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
        self._shards, self._limit, self._limit_bytes, self._checksums = (
            shards,
            limit,
            limit_bytes,
            checksums,
        )
        self._stages = stages
        self._ready: OrderedDict[int, Block] = OrderedDict()
        self._bytes = 0
        self._left: dict[int, int] = {}
        self.hits = self.misses = 0
        self.renew()
        keep_renewed(self)

    def renew(self) -> None:
        """Make a new lock, and forget the reads of other threads: a forked child does not have
        these threads."""
        self._lock = threading.Lock()
        self._coming: dict[int, Future[Block]] = {}

    def get(self, blocks: list[int], counts: list[int]) -> tuple[dict[int, Block], Faults]:
        """Return these blocks, with the number of samples needed of each, and the errors of those
        that cannot be read.

        Blocks that no thread is reading are read first; then this thread waits for those that
        another thread is reading, so that two threads that need the same blocks share the work.
        """
        found: dict[int, Block] = {}
        faults: Faults = {}
        waiting: dict[int, Future[Block]] = {}
        with self._shards.wanted([block for block in blocks if not self._is_at_hand(block)]):
            for block in blocks:
                if self._claim(block, found, waiting):
                    self._fetch(block, found, faults)
        for block, coming in waiting.items():
            with self._stages.stage(WAITING):
                try:
                    found[block] = coming.result()
                except DamageError as error:
                    faults[block] = error
        if self._limit_bytes < float("inf"):
            with self._lock:
                for block, count in zip(blocks, counts, strict=True):
                    self._use(block, count)
        return found, faults

    def _is_at_hand(self, block: int) -> bool:
        return block in self._ready or block in self._coming

    def _use(self, block: int, count: int) -> None:
        """Count the samples of a block that are being read, and release the block after the last
        ones."""
        self._left[block] = self._left.get(block, self._shards.rows_of(block)) - count
        if self._left[block] <= 0:
            del self._left[block]
            self._drop(block)

    def _drop(self, block: int) -> None:
        dropped = self._ready.pop(block, None)
        self._bytes -= dropped.batch.nbytes if dropped is not None else 0

    def _claim(
        self, block: int, found: dict[int, Block], waiting: dict[int, Future[Block]]
    ) -> bool:
        """Take a cached block, or queue for one that is being read. Return whether this thread must
        read it itself."""
        with self._lock:
            if block in self._ready:
                self._ready.move_to_end(block)
                found[block] = self._ready[block]
            elif block in self._coming:
                waiting[block] = self._coming[block]
            else:
                self._coming[block] = Future()
                self.misses += 1
                return True
            self.hits += 1
            return False

    def _fetch(self, block: int, found: dict[int, Block], faults: Faults) -> None:
        """Read a block, for this thread and for those that wait for it."""
        coming, loaded = self._coming[block], None
        why: BaseException = DatasetError(f"block {block} could not be read")
        try:
            with self._stages.stage(DECOMPRESS):
                loaded = found[block] = self._read(block)
        except DamageError as error:
            why = faults[block] = error
        except Exception as error:
            why = error
            raise
        finally:  # after any error, no thread waits without end
            with self._lock:
                self._coming.pop(block, None)
                if loaded is not None:
                    self._keep(block, loaded)
            if loaded is not None:
                coming.set_result(loaded)
            else:
                coming.set_exception(why)

    def _keep(self, block: int, loaded: Block) -> None:
        self._ready[block] = loaded
        self._bytes += loaded.batch.nbytes
        while len(self._ready) > 1 and (
            len(self._ready) > self._limit or self._bytes > self._limit_bytes
        ):
            self._drop(next(iter(self._ready)))

    def _read(self, block: int) -> Block:
        batch, metadata = self._shards.read(block, self._fields, self._stages)
        if batch.num_rows != self._shards.rows_of(block):
            raise other_rows(self._shards, block)
        if self._checksums:
            check_intact(batch, metadata, self._shards.where(block))
        loaded = Block(batch)
        self._validate(block, loaded)
        return loaded

    def _validate(self, block: int, loaded: Block) -> None:
        """Look at all values of the columns that Arrow itself will read; our own reading checks
        what it uses."""
        for column in self._columns:
            if _is_for_arrow(column, loaded.batch.column(column.name)):
                try:
                    loaded.checked(column)
                except (pa.ArrowException, ValueError) as error:
                    raise DamageError(
                        f"{self._shards.where(block)} cannot be read ({first_line(error)}); "
                        f"{VERIFY_ADVICE}"
                    ) from error


def _is_for_arrow(column: Column, values: pa.Array) -> bool:
    """Return whether Arrow itself will read values of this column: of its type, or because some are
    missing."""
    if column.kind in ("other", "nested"):
        return True
    try:
        return flatten(values, column) is None
    except ValueError:  # too few bytes: said where they are read
        return False


def other_rows(shards: Shards, block: int) -> DamageError:
    """Return the error for a block that does not have the rows that the manifest says."""
    return DamageError(
        f"{shards.where(block)} does not have the rows that were written; {VERIFY_ADVICE}"
    )


def name_samples(shards: Shards, block: int, error: DamageError) -> str:
    """Return what an error says, and which samples a block holds: their keys, or their numbers
    where these cannot be read."""
    first, last = int(shards.starts[block]), int(shards.starts[block + 1]) - 1
    try:
        keys = _keys_of(shards, block)
        which = f"keys {keys[0].as_py()!r} to {keys[-1].as_py()!r}"
    except (DatasetError, StorageError, pa.ArrowException, ValueError, IndexError):
        which = f"samples {first} to {last}"
    return f"{error} [{shards.where(block)}, {which}]"


def key_of_row(shards: Shards, block: int, row: int) -> str:
    """Return the key of a sample for a message; "?" if it cannot be read."""
    try:
        return str(_keys_of(shards, block)[row].as_py())
    except (DatasetError, StorageError, pa.ArrowException, ValueError, IndexError):
        return "?"


def _keys_of(shards: Shards, block: int) -> pa.Array:
    """Return the keys of a block. Raises what Arrow raises, DatasetError and StorageError."""
    keys = shards.glance(block, (shards.layout.columns.names.index("key"),)).column(0)
    keys.validate(full=True)
    return keys
