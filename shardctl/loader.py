"""Batches for a training loop, in an order that depends on nothing but the seed, the epoch and the dataset."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardctl.errors import UsageError
from shardctl.order import Permutation
from shardctl.reader import Batch, Indices, SampleReader

AUTO_THREADS = 8
"""Most threads that `threads="auto"` takes."""

AHEAD = 2
"""Batches in the making per thread."""


@dataclass(frozen=True)
class LoaderOptions:
    """How batches are made. `batch_size` is per rank; `columns` None means all of them.

    `drop_last` leaves out the last batch of an epoch where it is not full. Without it, the ranks share what is left, and
    some may get one batch less than others.
    """

    batch_size: int
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    threads: int | str = "auto"
    drop_last: bool = False
    columns: tuple[str, ...] | None = None
    decode: bool = True

    def check(self) -> None:
        """Raise UsageError for numbers that cannot be."""
        if self.batch_size < 1:
            raise UsageError(f"a batch size of {self.batch_size} is impossible; give at least 1")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank {self.rank} is not one of a world of {self.world_size}")
        if self.threads != "auto" and not (isinstance(self.threads, int) and 1 <= self.threads <= 1024):
            raise UsageError(f"threads must be auto or a number from 1 to 1024; it is {self.threads!r}")

    def thread_count(self) -> int:
        """Return the number of threads that make batches."""
        return min(AUTO_THREADS, os.cpu_count() or 1) if self.threads == "auto" else int(self.threads)


class Loader:
    """Iterating gives one epoch of batches, each a dict of field name to values; the next iteration is the next epoch."""

    def __init__(self, reader: SampleReader, options: LoaderOptions) -> None:
        options.check()
        self._reader, self.options = reader, options
        self._columns = reader.check_columns(options.columns)
        self._epoch = 0
        self._next_batch = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        together = self.options.batch_size * self.options.world_size
        return len(self._reader) // together if self.options.drop_last else -(-len(self._reader) // together)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch at the next iteration."""
        self._epoch, self._next_batch = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Return where the loader is: the epoch, and the samples that all ranks together have been given in it."""
        together = self.options.batch_size * self.options.world_size
        return {"epoch": self._epoch, "samples": min(self._next_batch * together, len(self._reader))}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from where another loader was: the next iteration gives the rest of its epoch."""
        together = self.options.batch_size * self.options.world_size
        self._epoch, self._next_batch = state["epoch"], -(-state["samples"] // together)

    def __iter__(self) -> Iterator[Batch]:
        threads = self.options.thread_count()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="shardctl-loader")
        try:
            yield from self._epoch_batches(pool, threads * AHEAD)
        finally:
            pool.shutdown(cancel_futures=True)

    def _epoch_batches(self, pool: ThreadPoolExecutor, ahead: int) -> Iterator[Batch]:
        """Give the batches in order, `ahead` of them in the making."""
        waiting: deque[Future[Batch]] = deque()
        numbers = iter(range(self._next_batch, len(self)))
        permutation = Permutation(len(self._reader), self.options.seed, self._epoch) if self.options.shuffle else None
        while True:
            while len(waiting) < ahead and (number := next(numbers, None)) is not None:
                indices = self._indices(number, permutation)
                waiting.append(pool.submit(self._reader.gather, indices, self._columns, self.options.decode))
            if not waiting:
                break
            batch = waiting.popleft().result()
            self._next_batch += 1
            if _length(batch):
                yield batch
        self.set_epoch(self._epoch + 1)

    def _indices(self, number: int, permutation: Permutation | None) -> Indices:
        """Return the indices of this rank's part of global batch `number`."""
        size, ranks = self.options.batch_size, self.options.world_size
        first = number * size * ranks
        count = min(size * ranks, len(self._reader) - first)
        start, end = first + count * self.options.rank // ranks, first + count * (self.options.rank + 1) // ranks
        positions = np.arange(start, end, dtype=np.int64)
        return permutation(positions) if permutation else positions


def _length(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values()), ()))
