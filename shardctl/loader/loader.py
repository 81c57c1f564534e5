"""Batches for a training loop, in an order that depends only on the seed, the epoch and the dataset. docs/loader.md."""

from __future__ import annotations

import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from shardctl.errors import DatasetError, UsageError
from shardctl.loader.blocks import Batch, BatchMemory, Indices, lend_free_memory
from shardctl.loader.bucketing import BucketedOrder
from shardctl.loader.lookahead import Lookahead
from shardctl.loader.options import LoaderOptions
from shardctl.loader.order import EpochOrder, InOrder, neighbours
from shardctl.loader.other_tools import LOADER_ATTRIBUTES
from shardctl.loader.prefetch import MOST_AUTO_THREADS, Prefetcher, Tuner, Waits
from shardctl.loader.processes.pool import Processes, Tally
from shardctl.loader.stream import Stream
from shardctl.system.arguments import caller_level, whole_number
from shardctl.system.dataclass import dataclass
from shardctl.system.machine import usable_cores
from shardctl.system.python_names import no_attribute
from shardctl.system.text import counted

PLANNED_SAMPLES = 16384
"""Samples whose order is computed at a time: 20 ns for each, while a single batch of 256 takes 130 microseconds."""

TASK_BATCHES = 64
"""The largest number of batches that are made at a time."""

LOOKED_AT = 4
"""Tasks that are looked at before each one that is begun, where samples come from far away."""

MOST_SKIPPED, FEW_SKIPPED = 100, 10
"""One of how many samples of an epoch may be skipped, and how many may be of a small dataset."""

MOST_AHEAD = 128
"""Tasks that are known ahead: 1 GB of samples, four times the bytes that are requested ahead."""


Item = TypeVar("Item")


@dataclass(frozen=True)
class LoaderStats:
    """Statistics of a loader since the start of its last iteration.

    Times are in seconds. `wait_get_s`: the training loop waited for batches. `wait_put_s`: threads waited because finished
    batches were not yet taken. `making_s`: threads worked. The last two are sums over all threads. `threads` is the number of
    threads in use, also for "auto". `objects_cut` is the number of objects that were left out because too little of them was
    inside of the cut image. Batches that are made ahead count too. `stages` is the time of the loader's threads by stage, in
    seconds since the loader was made; it is measured with `profile`. `processes` is the number of worker processes, 0 if the
    threads are in this process. `processes_cpu_s` is their processor time in seconds since the loader was made. The figures of
    worker processes are part of all sums. For a dataset on a store (docs/commands/cache.md), four numbers count from its
    opening: `requests`, `network_bytes`, and `network_blocks` and `cached_blocks` (blocks from the network and from the cache).
    For a local dataset, they are 0.
    """

    threads: int
    processes: int
    batches: int
    samples: int
    seconds: float
    samples_per_s: float
    wait_get_s: float
    wait_put_s: float
    making_s: float
    block_hits: int
    block_misses: int
    image_hits: int
    image_misses: int
    skipped: int
    objects_cut: int
    requests: int
    network_bytes: int
    network_blocks: int
    cached_blocks: int
    stages: dict[str, float]
    processes_cpu_s: float


@dataclass(frozen=True)
class _Task:
    """The positions of several consecutive batches in an order.

    Batch i has `sizes[i]` samples; after it, `ends[i]` samples of the epoch are consumed.
    """

    epoch: int
    positions: Indices
    sizes: list[int]
    ends: list[int]
    order: EpochOrder


@dataclass(frozen=True)
class _Made:
    """The batches of a task: each with its number of samples, those that were skipped, and the samples of the epoch consumed
    after it."""

    epoch: int
    batches: list[tuple[Any, int, Indices, int]]
    memory: BatchMemory


def _unchanged(batch: Batch) -> Batch:
    return batch


def _cut(task: _Task, together: int) -> Iterator[_Task]:
    """Cut a task into smaller tasks of a few batches. Their samples are computed here, at once, which is cheaper."""
    samples = task.order.samples(task.positions)
    edges = np.cumsum([0, *task.sizes]).tolist()
    for first in range(0, len(task.sizes), together):
        last = min(first + together, len(task.sizes))
        part = samples[edges[first] : edges[last]]
        yield replace(task, positions=part, sizes=task.sizes[first:last], ends=task.ends[first:last], order=InOrder())


def _looking_ahead(tasks: Iterator[_Task], ahead: Lookahead) -> Iterator[_Task]:
    """Yield the tasks, after a look at those that come next. It goes further with every task, so that the first comes early."""
    known: deque[_Task] = deque()
    while True:
        for _ in range(LOOKED_AT):
            if known and (len(known) == MOST_AHEAD or not ahead.is_short):
                break
            task = next(tasks, None)
            if task is None:
                break
            samples = task.order.samples(task.positions)
            ahead.expect(samples, task.epoch)
            known.append(replace(task, positions=samples, order=InOrder()))
        if not known:
            return
        yield known.popleft()


class _Position(NamedTuple):
    """A place in the order: an epoch, how many of its samples all ranks together have consumed, and this rank has skipped."""

    epoch: int = 0
    samples: int = 0
    skipped: int = 0


@cache
def _warn_of_padding() -> None:
    """Warn once in a process, and not in every epoch."""
    warnings.warn(
        "the last batch of each epoch is filled up: the first samples of the epoch come twice, and all ranks get equally many"
        " batches. Give remainder='pad' if you want this, or remainder='drop' to leave that batch out.",
        stacklevel=4,
    )


def _tuner(processes: int) -> Tuner:
    """Return a tuner that begins with a thread for each core, and for each process."""
    return Tuner(max(usable_cores(), processes), max(MOST_AUTO_THREADS, processes))


class Loader:
    """An iterable of batches; each batch is a dict of field name to values. One iteration is one epoch.

    Every iteration begins the next epoch, also after a `break`. After `load_state_dict`, the next iteration continues
    from the loaded state instead.
    """

    def __init__(self, stream: Stream, options: LoaderOptions) -> None:
        options.check()
        for column in options.bucket:
            stream.lengths(column, np.empty(0, np.int64))  # raises for a column without lengths
        self.options = options
        self.stream = stream
        self._at = self._next = _Position()
        self._task_batches = self._batches_per_task()
        self._tuner = _tuner(options.processes or 0) if options.threads == "auto" else None
        self._processes = Processes(stream, options.processes, self._most_threads) if options.processes else None
        self._waits = Waits()
        self._spare: deque[BatchMemory] = deque()
        self._batches = self._samples = 0
        self._began = self._ended = time.perf_counter()

    if not TYPE_CHECKING:  # a type checker knows that there is no such attribute

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with what to write in place of another tool's word."""
            raise no_attribute("a loader", self, name, LOADER_ATTRIBUTES)

    def _batches_per_task(self) -> int:
        most = self.stream.together // self.options.batch_size
        if self.options.prefetch:
            most = min(most, self.options.prefetch)
        return max(1, min(TASK_BATCHES, most))

    def __len__(self) -> int:
        """Return the number of batches that this rank gets in an epoch: also with `repeat`, and after `load_state_dict`.

        With `on_error="skip"`, a batch of which every sample is skipped does not come, but counts here.
        """
        full, rest = divmod(len(self.stream), self.options.global_batch)
        return full + self._takes_part(rest)

    def _takes_part(self, rest: int) -> bool:
        """Return whether this rank gets a batch of the `rest` samples that are left after the full batches of all ranks."""
        if not rest or self.options.drops:
            return False
        rank, ranks = self.options.place
        if self.options.rule == "pad":
            return True
        # The sizes of the parts depend on no epoch. To make an epoch's order only to count them would be slow.
        return len(neighbours(0, rest, rank, ranks)) > 0

    def __repr__(self) -> str:
        """Return the sizes, the order and the fields, for display."""
        rank, world_size = self.options.place
        order = self.stream.identity()
        shuffle = f"shuffle {order['shuffle']!r}, seed {order['seed']}" if order.get("shuffle") else "no shuffle"
        if "mixture" in order:
            shuffle = f"a mixture of {len(order['mixture'])} datasets, seed {order['seed']}"
        return (
            f"<shardctl.Loader: {counted(len(self), 'batch', 'batches')} of {self.options.batch_size:,} per epoch,"
            f" {counted(len(self.stream), 'sample')},"
            f" {shuffle}, rank {rank} of {world_size}; fields {', '.join(self.stream.specs())}>"
        )

    @property
    def threads(self) -> int:
        """The number of threads in use."""
        return self._tuner.threads if self._tuner else int(self.options.threads)

    @property
    def _most_threads(self) -> int:
        return self._tuner.most if self._tuner else self.threads

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the worker processes that have been started."""
        return self._processes.ids if self._processes else []

    def start(self) -> None:
        """Start the worker processes, which the first iteration does otherwise, and wait until they have opened the dataset.

        Does nothing without `processes`, and if they were started before. Raises WorkerError, DatasetError.
        """
        if self._processes:
            self._processes.begin()

    def close(self) -> None:
        """End the worker processes, as the end of this object does. An iteration that is under way raises WorkerError then.

        The next iteration starts new ones. Does nothing without `processes`.
        """
        if self._processes:
            self._processes.close()

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch: its rest after `load_state_dict` with a state of it, else the whole epoch.

        Warns if it leaves the rest of another epoch, which a state has. Raises UsageError for a negative epoch.
        """
        if whole_number("epoch", epoch, 0) != self._next.epoch:
            if self._next.samples and not self._is_over(self._next.samples):
                self._warn_of_left_state(epoch)
            self._next = _Position(epoch)
        self._at = self._next

    def assign(self, rank: int, world_size: int) -> None:
        """Set the rank and the world size, unless they were given to the loader. Raises UsageError."""
        given = self.options
        placed = given.placed_at(rank, world_size)
        if placed != given.place:
            options = replace(given, rank=placed[0], world_size=placed[1])
            options.check()
            self.options = options

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._next.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data: the epoch, and how many of its samples all ranks together have consumed.

        If this rank has skipped some of them, their number too.
        This is the position of the last iteration, also after a `break`. Prefetched batches do not count.
        """
        state = {"epoch": self._at.epoch, "samples": self._at.samples, "order": self._identity()}
        return {**state, "skipped": self._at.skipped} if self._at.skipped else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state: the next iteration yields the rest of its epoch, later iterations the next epochs.

        Batch size, world size, threads and columns may differ. Raises UsageError for the state of another dataset or order.
        """
        try:
            epoch, samples = whole_number("epoch", state["epoch"]), whole_number("samples", state["samples"])
            skipped = whole_number("skipped", state.get("skipped", 0))
        except (KeyError, TypeError, UsageError):
            raise UsageError(f"not the state of a loader, as loader.state_dict() returns it: {state!r}") from None
        mine, other = self._identity(), state.get("order", {})
        if not isinstance(other, dict):
            raise UsageError(f"not the state of a loader, as loader.state_dict() returns it: {state!r}")
        differing = [name for name in other if other[name] != mine.get(name)]
        if differing:
            was = ", ".join(f"{name} {other[name]!r} (here {mine.get(name)!r})" for name in differing)
            raise UsageError(f"the state was saved with another dataset, seed or shuffle: it had {was}")
        if epoch < 0 or not 0 <= samples <= len(self.stream):
            raise UsageError(f"the state (epoch {epoch}, sample {samples}) does not fit a dataset of {len(self.stream)}")
        self._at = self._next = _Position(epoch, samples, skipped)

    def stats(self) -> LoaderStats:
        """Return the statistics since the start of the last iteration."""
        seconds = self._ended - self._began
        done = Tally(self.stream.counts(), self.stream.stages())
        if self._processes:
            done += self._processes.tally()
        return LoaderStats(
            threads=self.threads,
            processes=self.options.processes or 0,
            batches=self._batches,
            samples=self._samples,
            seconds=round(seconds, 6),
            samples_per_s=round(self._samples / seconds, 1) if seconds > 0 else 0.0,
            wait_get_s=round(self._waits.get, 6),
            wait_put_s=round(self._waits.put, 6),
            making_s=round(self._waits.making, 6),
            **done.counts,
            stages=done.stages,
            processes_cpu_s=round(done.cpu_s, 6),
        )

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch, or the rest of the epoch of a loaded state."""
        return self.map(_unchanged)

    def map(self, function: Callable[[Batch], Item]) -> Iterator[Item]:
        """Yield `function(batch)` for every batch, in their order. This is an iteration as any other.

        The loader's threads call the function, several at a time, while the training loop works. The iteration raises the
        errors of the function.
        """
        self._say_what_is_odd()
        self.start()
        depth = max(1, self.options.prefetch // self._task_batches) if self.options.prefetch else None
        self._batches = self._samples = 0
        self._began = self._ended = time.perf_counter()
        begin = self._at = self._next
        self._next = _Position(begin.epoch + 1)
        first: tuple[int, Indices] | None = None
        # Where processes make the batches, this one can only fetch blocks to where they find them.
        ahead = self.stream.ahead(keeps=not self.options.processes)
        tasks = self._tasks(begin) if ahead is None else _looking_ahead(self._tasks(begin), ahead)
        with (
            ExitStack() as at_end,
            closing(ahead) if ahead is not None else nullcontext(),
            Prefetcher(partial(self._make, function), tasks, self._most_threads, depth, self._tuner) as prefetcher,
        ):
            at_end.callback(lend_free_memory)
            self._waits = prefetcher.waits
            for made in prefetcher:
                for batch, size, lost, end in made.batches:
                    skipped = len(lost) + (self._at.skipped if made.epoch == self._at.epoch else 0)
                    if len(lost):
                        first = first if first is not None and first[0] == made.epoch else (made.epoch, lost[:1])
                        self._check_skipped(skipped, *first)
                    self._next = _Position(made.epoch + 1)
                    self._at = self._next if self._is_over(end) else _Position(made.epoch, end, skipped)
                    self._samples += size
                    self._ended = time.perf_counter()
                    if size:
                        self._batches += 1
                        yield batch
                if self.options.reuse:
                    self._spare.append(made.memory)
        if not self._batches:  # the epoch of the state was complete
            self._at = self._next

    def _check_skipped(self, skipped: int, epoch: int, first: Indices) -> None:
        """Raise DatasetError where too many samples of an epoch were skipped: `first` (1,) is the first one.

        A hundredth of this rank's part may be; of few samples ten, and never all: as many as are in a damaged block.
        """
        samples = -(-len(self.stream) // self.options.place[1])
        if skipped <= max(samples // MOST_SKIPPED, min(FEW_SKIPPED, samples - 1)):
            return
        counts = f"{skipped:,} of {counted(samples, 'sample')} of epoch {epoch} cannot be read, which is too many to skip"
        try:
            self.stream.strict().gather(first, epoch, BatchMemory())
        except DatasetError as error:
            raise DatasetError(f"{counts}; the first: {error}") from error
        raise DatasetError(f"{counts}; the first can be read by now: read them again")

    def _say_what_is_odd(self) -> None:
        """Warn if samples come twice and nobody asked for it, and if there are samples and all ranks get none."""
        given, samples = self.options, len(self.stream)
        if given.place[0] != 0:
            return  # the first rank says it for all
        if given.drops and 0 < samples < given.global_batch:
            self._warn_of_no_batch()
        left = samples - self._next.samples
        if given.remainder is None and given.rule == "pad" and left % given.global_batch:
            _warn_of_padding()

    def _warn_of_left_state(self, epoch: int) -> None:
        left, samples = self._next.epoch, counted(self._next.samples, "sample")
        warnings.warn(
            f"set_epoch({epoch}) leaves the loaded state (epoch {left}, {samples} consumed): epoch {epoch} is read from its"
            f" beginning. Leave set_epoch out, or call it with {left}.",
            stacklevel=caller_level(),
        )

    def _warn_of_no_batch(self) -> None:
        samples, size, ranks = len(self.stream), self.options.batch_size, self.options.place[1]
        each = f"{size:,} for each of {ranks} ranks" if ranks > 1 else f"{size:,}"
        keeps = "drop_last=False" if self.options.drop_last else "another remainder"
        there = f"{counted(samples, 'sample')} {'makes' if samples == 1 else 'make'} no batch"
        warnings.warn(f"{there} of {each}; take a smaller batch_size or {keeps}", stacklevel=caller_level())

    def _is_over(self, consumed: int) -> bool:
        """Return whether an epoch with `consumed` samples consumed has no batch left."""
        return len(self.stream) - consumed < (self.options.global_batch if self.options.drops else 1)

    def _tasks(self, begin: _Position) -> Iterator[_Task]:
        """Yield the tasks, epoch after epoch. The first tasks are small, so that the first batch comes early."""
        epoch, consumed = begin.epoch, begin.samples
        together = planned = 1
        for left in itertools.count(self.options.repeat or 0, -1):
            if left == 0 and self.options.repeat:
                return
            order = self._order(epoch)
            while not self._is_over(consumed):
                task = self._next_batches(order, epoch, consumed, planned)
                yield from [task] if len(task.sizes) <= together else _cut(task, together)
                consumed, together = task.ends[-1], min(2 * together, self._task_batches)
                planned = min(2 * planned, max(self._task_batches, PLANNED_SAMPLES // self.options.batch_size))
            if self._is_over(0):
                return  # epochs without a batch would repeat without end
            epoch, consumed = epoch + 1, 0

    def _order(self, epoch: int) -> EpochOrder:
        order = self.stream.epoch(epoch)
        for column, batches in self.options.bucket.items():
            lengths = partial(self.stream.lengths, column)
            key = (self.options.seed, epoch)
            order = BucketedOrder(order, len(self.stream), lengths, self.options.global_batch, batches, key)
        return order

    def _identity(self) -> dict[str, Any]:
        """Return what the order depends on, as plain data."""
        which = self.stream.identity()
        if self.options.bucket:
            which |= {"bucket": dict(self.options.bucket), "global_batch": self.options.global_batch}
        return which

    def _next_batches(self, order: EpochOrder, epoch: int, consumed: int, most: int) -> _Task:
        """Return this rank's part of the next batches of an epoch."""
        ends: list[int] = []
        for _ in range(most):
            ends.append(min((ends or [consumed])[-1] + self.options.global_batch, len(self.stream)))
            if self._is_over(ends[-1]):
                break
        starts = [consumed, *ends[:-1]]
        if self.options.place[1] == 1 and self.options.rule != "pad":
            sizes = [end - start for start, end in zip(starts, ends, strict=True)]
            return _Task(epoch, np.arange(consumed, ends[-1], dtype=np.int64), sizes, ends, order)
        parts = [self._share(order, start, end - start) for start, end in zip(starts, ends, strict=True)]
        return _Task(epoch, np.concatenate(parts), list(map(len, parts)), ends, order)

    def _share(self, order: EpochOrder, first: int, count: int) -> Indices:
        """Return this rank's positions among `count` from `first` on."""
        (rank, ranks), size = self.options.place, self.options.batch_size
        own = order.share(first, count, rank, ranks)
        if self.options.rule == "uneven" or len(own) == size:
            return own
        # Ranks before this one have taken rank * size - count * rank // ranks of the samples that fill up.
        filled = rank * size - count * rank // ranks + np.arange(size - len(own), dtype=np.int64)
        return np.concatenate([own, filled % len(self.stream)])

    def _make(self, function: Callable[[Batch], Any], task: _Task) -> _Made:
        memory = self._memory()
        samples = task.order.samples(task.positions)
        if self._processes:
            batch, there = self._processes.gather(samples, task.epoch)
        else:
            batch, there = self.stream.gather(samples, task.epoch, memory)
        if len(task.sizes) == 1:
            size = int(there.sum())
            lost = samples[~there]
            return _Made(task.epoch, [(function(batch) if size else batch, size, lost, task.ends[0])], memory)
        edges = np.cumsum([0, *task.sizes])
        cuts = np.concatenate([[0], np.cumsum(there)])[edges].tolist()
        made = []
        for begin, end, consumed, (left, right) in zip(cuts[:-1], cuts[1:], task.ends, pairwise(edges.tolist()), strict=True):
            part = {name: values[begin:end] for name, values in batch.items()}
            lost = samples[left:right][~there[left:right]]
            made.append((function(part) if end > begin else part, end - begin, lost, consumed))
        return _Made(task.epoch, made, memory)

    def _memory(self) -> BatchMemory:
        """Return memory that is no longer in use, or new memory. Thread-safe."""
        try:
            return self._spare.pop()
        except IndexError:
            return BatchMemory()
