"""Batches for a training loop, in an order that depends only on the seed, the epoch and the
dataset. docs/loader.md."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import Bools, Numbers, edges_of
from shardctl.loader.blocks.column import Spec
from shardctl.loader.blocks.memory import BatchMemory, lend_free_memory
from shardctl.loader.blocks.stages import STAGE
from shardctl.loader.options import LoaderOptions
from shardctl.loader.order import BucketedOrder, EpochOrder, neighbours
from shardctl.loader.prefetch import MOST_AUTO_THREADS, Prefetcher, Tuner, Waits
from shardctl.loader.processes.messages import CPU_S
from shardctl.loader.processes.pool import Processes
from shardctl.loader.stream import DatasetStream, Mixture, Stream, sums
from shardctl.system.arguments import caller_level, whole_number
from shardctl.system.fetching import Ahead
from shardctl.system.machine import usable_cores
from shardctl.system.python_names import named_arguments, no_attribute
from shardctl.system.text import counted

PLANNED_SAMPLES = 16384
"""Samples whose order is computed at a time: 20 ns for each, while a single batch of 256 takes 130
microseconds."""

TASK_BATCHES = 64
"""The largest number of batches that are made at a time."""

REPEATED = "repeated"
"""The field that says which samples of a batch only fill it up."""

LOOKED_AT = 4
"""Tasks that are looked at before each one that is begun, where samples come from far away."""

MOST_SKIPPED, FEW_SKIPPED = 100, 10
"""One of how many samples of an epoch may be skipped, and how many may be of a small dataset."""

MOST_AHEAD = 128
"""Tasks that are known ahead: 1 GB of samples, four times the bytes that are requested ahead."""


@dataclass(frozen=True)
class LoaderStats:
    """Statistics of a loader since the start of its last iteration, batches that are made ahead
    included.

    Seconds: the training loop waited for batches (`wait_get_s`), threads waited because finished
    batches were not yet taken (`wait_put_s`), threads worked (`making_s`). The last two are sums
    over all threads, of worker processes too. `objects_cut` counts objects of which too little was
    inside of the cut image. Since the loader was made: `stages`, the time of its threads by stage
    (with `profile`), and `processes_cpu_s`. Since a dataset on a store was opened (otherwise 0):
    `requests`, `network_bytes`, and blocks from the network and from the cache.
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
    """The samples of several consecutive batches of an epoch.

    Batch i has `sizes[i]` samples; after it, `ends[i]` samples of the epoch are consumed.
    `repeated` says which samples only fill up a batch.
    """

    epoch: int
    samples: Numbers
    repeated: Bools
    sizes: Numbers
    ends: list[int]

    def cut(self, together: int) -> Iterator[_Task]:
        """Cut it into smaller tasks of a few batches: to compute the samples of all of them at once
        is cheaper."""
        edges = edges_of(self.sizes).tolist()
        for first in range(0, len(self.sizes), together):
            last = min(first + together, len(self.sizes))
            part, batches = slice(edges[first], edges[last]), slice(first, last)
            yield _Task(
                self.epoch,
                self.samples[part],
                self.repeated[part],
                self.sizes[batches],
                self.ends[batches],
            )


_Made = tuple[int, list[tuple[Any, int, Numbers, int]], BatchMemory]
"""The epoch of a task; its batches, each with its number of samples, those that were skipped, and
the samples of the epoch consumed after it; and their memory."""


def _looking_ahead(
    tasks: Iterator[_Task], stream: Stream, ahead: Sequence[Ahead | None]
) -> Iterator[_Task]:
    """Yield the tasks, after a look at those that come next. It goes further with every task, so
    that the first comes early."""
    known: deque[_Task] = deque()
    while True:
        for _ in range(LOOKED_AT):
            is_short = any(each.is_short for each in ahead if each is not None)
            if known and (len(known) == MOST_AHEAD or not is_short):
                break
            task = next(tasks, None)
            if task is None:
                break
            stream.expect(ahead, task.samples, task.epoch)
            known.append(task)
        if not known:
            return
        yield known.popleft()


class _Position(NamedTuple):
    """A place in the order: an epoch, how many of its samples all ranks together have consumed, and
    this rank has skipped."""

    epoch: int = 0
    samples: int = 0
    skipped: int = 0


@dataclass
class _Run:
    """Where a loader is, and what its last iteration has done. Those that `map` made of it share
    it."""

    at: _Position = field(default_factory=_Position)
    next: _Position = field(default_factory=_Position)
    waits: Waits = field(default_factory=Waits)
    batches: int = 0
    samples: int = 0
    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0

    def begin(self) -> _Position:
        """Begin an iteration. Returns where."""
        self.batches = self.samples = 0
        self.began = self.ended = time.perf_counter()
        self.at, self.next = self.next, _Position(self.next.epoch + 1)
        return self.at


def refuse_other_order(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise UsageError, which names what differs, unless what decides the order of a state is the
    same here."""
    names = [name for name in {**saved, **here} if saved.get(name) != here.get(name)]
    if names:
        was = ", ".join(f"{name} {saved.get(name)!r} (here {here.get(name)!r})" for name in names)
        raise UsageError(
            f"the state was saved with another dataset, seed, shuffle or steps: it had {was}"
        )


@cache
def _warn_of_padding() -> None:
    """Warn once in a process, and not in every epoch."""
    warnings.warn(
        "the last batch of each epoch is filled up with its first samples; give remainder='pad' "
        "for this, or 'drop'",
        stacklevel=4,
    )


class Loader:
    """An iterable of batches; each batch is a dict of field name to values. One iteration is one
    epoch.

    Every iteration begins the next epoch, also after a `break`. After `load_state_dict`, the next
    iteration continues from the loaded state instead.
    """

    if not TYPE_CHECKING:  # type checkers say themselves what is not there
        __getattr__ = no_attribute

        def __getitem__(self, index: Any) -> Any:
            """Raise TypeError: DataLoader of PyTorch takes samples by their places."""
            raise TypeError(
                "batches come in turn: `for batch in loader`, or next(iter(loader)); ds[0] is a "
                "sample, and shardctl.torch.Loader(loader) stands for the DataLoader of PyTorch"
            )

    @named_arguments("Loader", "ds.loader(256)", (DatasetStream, Mixture))
    def __init__(self, stream: Stream, options: LoaderOptions) -> None:
        for column in options.bucket:
            stream.lengths(column, np.empty(0, np.int64))  # raises for a column without lengths
        if options.repeated and REPEATED in stream.specs():
            raise UsageError(
                f"repeated=True adds a field {REPEATED!r}; leave out that of the dataset with "
                "columns="
            )
        self.options = options
        self.stream = stream
        self._run = _Run()
        self._functions: tuple[Callable[[Any], Any], ...] = ()
        most = min(TASK_BATCHES, stream.together // options.batch_size)
        self._task_batches = max(1, min(most, options.prefetch or most))
        count = options.processes or 0
        self._tuner = (
            Tuner(max(usable_cores(), count), max(MOST_AUTO_THREADS, count))
            if options.threads == "auto"
            else None
        )
        self._processes = Processes(stream, count, self._most_threads) if count else None
        self._spare: deque[BatchMemory] = deque()

    def __len__(self) -> int:
        """Return the number of batches that this rank gets in an epoch: also with `repeat`, and
        after `load_state_dict`.

        With `on_error="skip"`, a batch of which every sample is skipped does not come, but counts
        here.
        """
        full, rest = divmod(len(self.stream), self.options.global_batch)
        if not rest or self.options.drops:
            return full
        # The sizes of the parts depend on no epoch. To make an epoch's order only to count them
        # would be slow.
        part = neighbours(0, rest, *self.options.rank_and_size())
        return full + (self.options.rule == "pad" or len(part) > 0)

    def __repr__(self) -> str:
        """Return the sizes, the order and the fields, for display."""
        rank, world_size = self.options.rank_and_size()
        order = self.stream.identity()
        shuffle = "no shuffle"
        if order.get("shuffle"):
            shuffle = f"shuffle {order['shuffle']!r}, seed {order['seed']}"
        if "mixture" in order:
            shuffle = f"a mixture of {order['mixture']} datasets, seed {order['seed']}"
        return (
            f"<shardctl.Loader: {counted(len(self), 'batch', 'batches')} of "
            f"{self.options.batch_size:,} per epoch,"
            f" {counted(len(self.stream), 'sample')},"
            f" {shuffle}, rank {rank} of {world_size}; fields {', '.join(self.specs())}>"
        )

    def specs(self) -> dict[str, Spec]:
        """Return what the values of each field of a batch are, before `map`."""
        own = {REPEATED: Spec("fixed", (), np.dtype(bool))} if self.options.repeated else {}
        return {**self.stream.specs(), **own}

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
        """Start the worker processes, which the first iteration does otherwise, and wait until they
        have opened the dataset.

        Does nothing without `processes`, and if they were started before. Raises WorkerError,
        DatasetError.
        """
        if self._processes:
            self._processes.begin()

    def close(self) -> None:
        """End the worker processes, as the end of this object does. An iteration that is under way
        raises WorkerError then.

        The next iteration starts new ones. Does nothing without `processes`.
        """
        if self._processes:
            self._processes.close()

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch: its rest after `load_state_dict` with a state of it,
        else the whole epoch.

        Warns if it leaves the rest of another epoch, which a state has. Raises UsageError for a
        negative epoch.
        """
        run = self._run
        if whole_number("epoch", epoch, 0) != run.next.epoch:
            if run.next.samples and not self._is_over(run.next.samples):
                left, samples = run.next.epoch, counted(run.next.samples, "sample")
                warnings.warn(
                    f"set_epoch({epoch}) leaves the loaded state (epoch {left}, {samples} "
                    "consumed); leave it out",
                    stacklevel=caller_level(),
                )
            run.next = _Position(epoch)
        run.at = run.next

    def assign(self, rank: int, world_size: int) -> None:
        """Set the rank and the world size, unless they were given to the loader. Raises
        UsageError."""
        given = self.options
        wanted = given.rank_and_size(rank, world_size)
        if wanted != given.rank_and_size():
            self.options = replace(given, rank=wanted[0], world_size=wanted[1])

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._run.next.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain data: the epoch, and how many of its samples all ranks
        together have consumed.

        If this rank has skipped some of them, their number too, as if each of the ranks had skipped
        as many. This is the position of the last iteration, also after a `break`. Prefetched
        batches do not count.
        """
        at = self._run.at
        state = {"epoch": at.epoch, "samples": at.samples, "order": self._identity()}
        if at.skipped:
            state["skipped"] = at.skipped * self.options.ranks
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state: the next iteration yields the rest of its epoch, later iterations
        the next epochs.

        Batch size, world size, threads and columns may differ. Raises UsageError for the state of
        another dataset or order.
        """
        try:
            epoch, samples, skipped = (
                whole_number(name, {"skipped": 0, **state}[name])
                for name in ("epoch", "samples", "skipped")
            )
            here, other = self._identity(), dict(state["order"])
        except (KeyError, TypeError, ValueError, UsageError):
            raise UsageError(
                f"not the state of a loader, as loader.state_dict() returns it: {state!r}"
            ) from None
        refuse_other_order(other, here)
        if epoch < 0 or not 0 <= samples <= len(self.stream):
            raise UsageError(
                f"the state (epoch {epoch}, sample {samples}) does not fit a dataset of "
                f"{len(self.stream)}"
            )
        mine = -(-skipped // self.options.ranks)
        self._run.at = self._run.next = _Position(epoch, samples, mine)

    def stats(self) -> LoaderStats:
        """Return the statistics since the start of the last iteration."""
        run = self._run
        seconds = run.ended - run.began
        done: dict[str, Any] = {CPU_S: 0.0, **self.stream.counts()}
        if self._processes:
            done = sums([done, self._processes.counts()])
        stages = [name for name in done if name.startswith(STAGE)]
        return LoaderStats(
            threads=self.threads,
            processes=self.options.processes or 0,
            batches=run.batches,
            samples=run.samples,
            seconds=round(seconds, 6),
            samples_per_s=round(run.samples / seconds, 1) if seconds > 0 else 0.0,
            wait_get_s=round(run.waits.get, 6),
            wait_put_s=round(run.waits.put, 6),
            making_s=round(run.waits.making, 6),
            stages={name.removeprefix(STAGE): done.pop(name) for name in stages},
            processes_cpu_s=round(done.pop(CPU_S), 6),
            **done,
        )

    def map(self, function: Callable[[Any], Any]) -> Loader:
        """Return a loader of `function(batch)` for every batch. It is at the same place as this
        one, which goes on with it.

        The loader's threads call the function, several at a time, while the training loop works.
        The iteration raises the errors of the function. Raises UsageError for what cannot be
        called.
        """
        if not callable(function):
            raise UsageError(f"map() takes a function of a batch; it is {function!r}")
        mapped = copy(self)
        mapped._functions = (*self._functions, function)
        return mapped

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, or the rest of the epoch of a loaded state."""
        self._say_what_is_odd()
        self.start()
        run, depth = self._run, self.options.prefetch
        if depth is not None:
            depth = max(1, depth // self._task_batches)
        begin = run.begin()
        first: tuple[int, Numbers] | None = None
        # Where processes make the batches, this one can only fetch blocks to where they find them.
        ahead = self.stream.ahead(keeps=not self.options.processes)
        tasks = self._tasks(begin)
        if any(ahead):
            tasks = _looking_ahead(tasks, self.stream, ahead)
        with (
            ExitStack() as at_end,
            closing(
                Prefetcher(self._make, tasks, self._most_threads, depth, self._tuner)
            ) as prefetcher,
        ):
            at_end.callback(lend_free_memory)
            for each in filter(None, ahead):
                at_end.callback(each.close)
            run.waits = prefetcher.waits
            for epoch, batches, memory in prefetcher:
                for batch, size, lost, end in batches:
                    skipped = len(lost) + (run.at.skipped if epoch == run.at.epoch else 0)
                    if len(lost):
                        if first is None or first[0] != epoch:
                            first = epoch, lost[:1]
                        self._check_skipped(skipped, *first)
                    run.next = _Position(epoch + 1)
                    run.at = run.next if self._is_over(end) else _Position(epoch, end, skipped)
                    run.samples += size
                    run.ended = time.perf_counter()
                    if size:
                        run.batches += 1
                        yield batch
                if self.options.reuse:
                    self._spare.append(memory)
        if not run.batches:  # the epoch of the state was complete
            run.at = run.next

    def _check_skipped(self, skipped: int, epoch: int, first: Numbers) -> None:
        """Raise DatasetError where too many samples of an epoch were skipped: `first` (1,) is the
        first one.

        A hundredth of the epoch may be; of few samples ten, and never all: as many as are in a
        damaged block. The ranks divide this number among them, rounded up.
        """
        every, ranks = len(self.stream), self.options.ranks
        if skipped <= -(-max(every // MOST_SKIPPED, min(FEW_SKIPPED, every - 1)) // ranks):
            return
        samples = -(-every // ranks)
        counts = (
            f"{skipped:,} of {counted(samples, 'sample')} of epoch {epoch} cannot be read, too "
            "many to skip"
        )
        try:
            self.stream.strict().gather(first, epoch, BatchMemory())
        except DatasetError as error:
            raise DatasetError(f"{counts}; the first: {error}") from error
        raise DatasetError(f"{counts}; the first can be read now: try again")

    def _say_what_is_odd(self) -> None:
        """Warn if samples come twice and nobody asked for it, and if there are samples and all
        ranks get none."""
        given, samples = self.options, len(self.stream)
        if given.rank_and_size()[0] != 0:
            return  # the first rank says it for all
        if given.drops and 0 < samples < given.global_batch:
            ranks, size = given.ranks, given.batch_size
            each = f"{size:,} for each of {ranks} ranks" if ranks > 1 else f"{size:,}"
            keeps = "drop_last=False" if given.drop_last else "another remainder"
            warnings.warn(
                f"{counted(samples, 'sample')}: no batch of {each}; take a smaller batch_size or "
                f"{keeps}",
                stacklevel=caller_level(),
            )
        left = samples - self._run.next.samples
        if (
            given.remainder is None
            and not given.repeated
            and given.rule == "pad"
            and left % given.global_batch
        ):
            _warn_of_padding()

    def _is_over(self, consumed: int) -> bool:
        """Return whether an epoch with `consumed` samples consumed has no batch left."""
        least = self.options.global_batch if self.options.drops else 1
        return len(self.stream) - consumed < least

    def _tasks(self, begin: _Position) -> Iterator[_Task]:
        """Yield the tasks, epoch after epoch. The first tasks are small, so that the first batch
        comes early."""
        consumed, together, planned = begin.samples, 1, 1
        for epoch in islice(count(begin.epoch), self.options.repeat):
            order = self._order(epoch)
            while not self._is_over(consumed):
                task = self._next_batches(order, epoch, consumed, planned)
                yield from task.cut(together)
                consumed, together = task.ends[-1], min(2 * together, self._task_batches)
                planned = min(
                    2 * planned, max(self._task_batches, PLANNED_SAMPLES // self.options.batch_size)
                )
            if self._is_over(0):
                return  # epochs without a batch would repeat without end
            consumed = 0

    def _order(self, epoch: int) -> EpochOrder:
        stream, given = self.stream, self.options
        order = stream.epoch(epoch)
        for column, batches in given.bucket.items():
            lengths, key = partial(stream.lengths, column), (given.seed, epoch)
            order = BucketedOrder(order, len(stream), lengths, given.global_batch, batches, key)
        return order

    def _identity(self) -> dict[str, Any]:
        """Return all that decides which sample comes when, as plain data."""
        which, given = self.stream.identity(), self.options
        if given.bucket:
            which |= {
                "bucket": dict(given.bucket),
                "global_batch": given.global_batch,
                "seed": given.seed,
            }
        return which

    def _next_batches(self, order: EpochOrder, epoch: int, consumed: int, most: int) -> _Task:
        """Return this rank's part of the next batches of an epoch."""
        ends: list[int] = []
        for _ in range(most):
            ends.append(min((ends or [consumed])[-1] + self.options.global_batch, len(self.stream)))
            if self._is_over(ends[-1]):
                break
        sizes, samples = np.diff([consumed, *ends]), len(self.stream)
        if self.options.ranks == 1 and self.options.rule != "pad":
            positions = np.arange(consumed, ends[-1])  # batch by batch: 10 % slower for short texts
        else:
            parts = [
                self._share(order, first, end - first) for first, end in pairwise([consumed, *ends])
            ]
            positions, sizes = np.concatenate(parts), np.array([len(part) for part in parts])
        wanted = order.samples(positions % samples)
        return _Task(epoch, wanted, positions >= samples, sizes, ends)

    def _share(self, order: EpochOrder, first: int, count: int) -> Numbers:
        """Return this rank's positions among `count` from `first` on. Those that fill up follow the
        epoch's end."""
        (rank, ranks), size = self.options.rank_and_size(), self.options.batch_size
        own = order.share(first, count, rank, ranks)
        if self.options.rule == "uneven" or len(own) == size:
            return own
        # Ranks before this one have taken rank * size - count * rank // ranks of the samples that
        # fill up.
        filled = rank * size - count * rank // ranks + np.arange(size - len(own), dtype=np.int64)
        return np.concatenate([own, len(self.stream) + filled])

    def _make(self, task: _Task) -> _Made:
        try:
            memory = self._spare.pop()  # no longer in use
        except IndexError:
            memory = BatchMemory()
        samples = task.samples
        if self._processes:
            batch, there = self._processes.gather(samples, task.epoch)
        else:
            batch, there = self.stream.gather(samples, task.epoch, memory)
        if self.options.repeated:
            batch[REPEATED] = task.repeated[there]
        edges = edges_of(task.sizes)
        cuts = edges_of(there)[edges]
        made = []
        for (begin, end), consumed, (left, right) in zip(
            pairwise(cuts.tolist()), task.ends, pairwise(edges.tolist()), strict=True
        ):
            part: Any = batch
            if len(task.sizes) > 1:
                part = {name: values[begin:end] for name, values in batch.items()}
            for function in self._functions if end > begin else ():
                part = function(part)
            made.append((part, end - begin, samples[left:right][~there[left:right]], consumed))
        return task.epoch, made, memory
