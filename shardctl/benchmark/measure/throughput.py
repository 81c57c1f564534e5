"""What can be measured, shards and a reader of them; and the rate of batches for a consumer that
does nothing else: several runs, and their measurements."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shardctl.benchmark.measure.meters import (
    CpuMeter,
    Latencies,
    RateSeries,
    Weights,
    count_of,
    drop,
    environment,
    memory_with,
    residency,
)
from shardctl.benchmark.measure.result import (
    IN_ORDER,
    AgainstResult,
    BenchResult,
    NetworkResult,
)
from shardctl.benchmark.options import BenchOptions
from shardctl.errors import DatasetError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.tables import ShardTable
from shardctl.format.token_columns import columns_of_blocks
from shardctl.loader.blocks.memory import Batch
from shardctl.loader.blocks.stages import NETWORK_COUNTS
from shardctl.loader.blocks.transforms import zeros
from shardctl.loader.dataset import Dataset, open_dataset
from shardctl.loader.loader import Loader
from shardctl.system.locations import is_url
from shardctl.system.text import printable


class Batches(Protocol):
    """An open reader: a loader of shardctl, or the reader of another tool in a process of its
    own."""

    @property
    def threads(self) -> int:
        """The number of threads, or of worker processes, that read."""

    def __iter__(self) -> Iterator[Batch]: ...
    def stats(self) -> Any:
        """Return what was measured since the start of the last iteration: `stages`, `wait_put_s`,
        `making_s` and `processes_cpu_s` of LoaderStats."""

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start at the beginning of this epoch."""

    def close(self) -> None:
        """End what was started for reading."""


Report = Callable[[int], None]
"""Is told the number of samples of every batch."""

Memory = tuple[float | None, float]
"""In 10^6 bytes: without mapped files, None if the system does not report it, and with them."""


class Subject(Protocol):
    """What is measured: shards, and how they are read."""

    def open(self, epochs: int | None, drop_last: bool = False) -> tuple[Batches, float]:
        """Return a reader of so many epochs (None: for ever), and the seconds that it took to open
        the shards. Raises DatasetError, InputError, InstallError."""

    def order_and_memory(self, batches: Batches) -> tuple[str, Memory]:
        """Return the name of the order in which they come, and the memory of the processes that
        read."""

    def transfers_of(self, batches: Batches) -> dict[str, int] | None:
        """Return what has come over a network since the reader was opened, as LoaderStats counts
        it; None for local files."""

    @property
    def files(self) -> list[Path]:
        """The files of the shards; none where they are on a store. Raises DatasetError."""


@dataclass(frozen=True)
class OwnDataset:
    """A dataset of shardctl, read with its loader."""

    place: str | Path
    options: BenchOptions

    def open(self, epochs: int | None, drop_last: bool = False) -> tuple[Batches, float]:
        """Open a loader. Raises DatasetError."""
        began = time.perf_counter()
        loader = open_loader(self.place, self.options, epochs, drop_last)
        return loader, time.perf_counter() - began

    def order_and_memory(self, batches: Batches) -> tuple[str, Memory]:
        """Return the name of the loader's order, and the memory of this process and of the
        loader's."""
        assert isinstance(batches, Loader)  # from `open`
        order = str(batches.stream.identity()["shuffle"] or IN_ORDER)
        return order, memory_with(batches.process_ids)

    def transfers_of(self, batches: Batches) -> dict[str, int] | None:
        """Return what has come over the network, for a dataset on a store."""
        counts = vars(batches.stats())
        return {name: counts[name] for name in NETWORK_COUNTS} if is_url(self.place) else None

    @property
    def files(self) -> list[Path]:
        """The files of the shards; none of a dataset on a store. Raises DatasetError."""
        if is_url(self.place):
            return []
        dataset = dataset_in(Path(self.place))
        return list(map(dataset.path, ShardTable(dataset).paths))


def opened(place: str | Path, options: BenchOptions) -> Dataset:
    """Open a dataset as the options say. Raises DatasetError."""
    return open_dataset(place, options.split, cache=options.cache, cache_limit=options.cache_limit)


def open_loader(
    place: str | Path, options: BenchOptions, repeat: int | None, drop_last: bool = False
) -> Loader:
    """Open the dataset, and return a loader that reads it `repeat` times (None: for ever). Raises
    DatasetError."""
    dataset = opened(place, options)
    if not len(dataset):
        of_split = f" in split {options.split}" if options.split else ""
        raise DatasetError(f"{printable(place)}: there is no sample to read{of_split}")
    read = columns_of_blocks(dataset.schema.names, dataset.roles) or dataset.schema.names
    loader = dataset.loader(
        options.batch_size,
        shuffle=options.shuffle,
        threads=options.threads,
        decode=options.decode,
        repeat=repeat,
        drop_last=drop_last and len(dataset) >= options.batch_size,
        profile=True,
        fill={name: value for name, value in zeros(dataset.schema).items() if name in read},
        processes=options.processes or "auto",
        recipe=options.recipe,
        step=options.steps,
        transform=() if options.baseline else options.transforms,
    )
    loader.start()
    return loader


WARM_UP_SECONDS = 0.5
"""Seconds of warm-up before measuring: the decoders are loaded, and the number of threads ("auto")
settles."""

ROOM, OTHER = "room", "other"
"""Parts of the threads' time beside the reader's stages: waiting until a batch is taken, and the
rest."""


@dataclass
class ThreadTime:
    """Seconds of all of a loader's threads together, by stage."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _before: dict[str, float] = field(default_factory=dict)

    def begin(self, loader: Batches) -> None:
        """Start to count the time of this loader."""
        self._before = loader.stats().stages

    def add(self, loader: Batches) -> None:
        """Add the iteration of the loader that has just ended."""
        stats = loader.stats()
        spent = {
            name: seconds - self._before.get(name, 0.0) for name, seconds in stats.stages.items()
        }
        self._before = stats.stages
        for name, seconds in spent.items():
            self.seconds[name] += seconds
        self.seconds[ROOM] += stats.wait_put_s
        self.seconds[OTHER] += max(0.0, stats.making_s - sum(spent.values()))

    def shares(self) -> dict[str, float]:
        """Return each part as a share of the threads' time."""
        total = sum(self.seconds.values())
        return (
            {name: round(seconds / total, 4) for name, seconds in self.seconds.items()}
            if total
            else {}
        )


@dataclass
class Run:
    """One run: the samples and batches read, its seconds, and the processor seconds that this
    process used."""

    samples: int = 0
    batches: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


@dataclass
class Throughput:
    """The measurements of several runs.

    `memory` and `peak` (with mapped files) are in 10^6 bytes, of all processes together; `memory`
    is None if the system does not report it.

    `shuffle` is the name of their order. `left_in_cache` is the largest share of the dataset (0 to
    1) that was still in the page cache after dropping it; None if nothing was dropped or the system
    does not report it. `transfers` is what came over a network during the runs; None for local
    files.
    """

    runs: list[Run] = field(default_factory=list)
    first_batches: list[float] = field(default_factory=list)
    series: RateSeries = field(default_factory=RateSeries)
    weights: Weights = field(default_factory=Weights)
    time: ThreadTime = field(default_factory=ThreadTime)
    cpu: CpuMeter = field(default_factory=CpuMeter)
    threads: int = 0
    shuffle: str = IN_ORDER
    memory: float | None = None
    peak: float = 0.0
    left_in_cache: float | None = None
    transfers: dict[str, int] | None = None

    @property
    def rate(self) -> float:
        """The median of the runs, in samples per second."""
        return statistics.median(run.rate for run in self.runs)

    @property
    def total(self) -> Run:
        """All runs as one."""
        total = Run()
        for run in self.runs:
            total.samples += run.samples
            total.batches += run.batches
            total.seconds += run.seconds
            total.latencies.join(run.latencies)
        return total

    def note(self, subject: Subject, batches: Batches) -> None:
        """Record what the reader decided, and its memory: the number of threads, and the order."""
        self.shuffle, (own, peak) = subject.order_and_memory(batches)
        self.threads = batches.threads
        self.memory = max(self.memory or 0.0, own or 0.0) or None
        self.peak = max(self.peak, peak)

    def add_transfers(
        self, subject: Subject, batches: Batches, before: dict[str, int] | None
    ) -> None:
        """Count what came over a network since `before`."""
        now = subject.transfers_of(batches)
        if now is not None and before is not None:
            counted = self.transfers or dict.fromkeys(now, 0)
            self.transfers = {name: counted[name] + now[name] - before[name] for name in now}

    def run(
        self,
        loader: Batches,
        most_seconds: float | None,
        report: Report = lambda count: None,
    ) -> float:
        """Begin a run, and iterate over a loader to its end, or for `most_seconds`. Return the
        seconds to the first batch."""
        self.runs.append(Run())
        return self.read(loader, most_seconds, report)

    def read(self, loader: Batches, most_seconds: float | None, report: Report) -> float:
        """Go on with the last run, as `run` does."""
        run, earlier, batches = self.runs[-1], self.total.seconds, iter(loader)
        elsewhere = loader.stats().processes_cpu_s
        self.cpu.begin()
        began = last = time.perf_counter()
        samples, first = 0, 0.0
        with closing(batches):  # type: ignore[type-var]  # a generator, whose threads are to end now
            for batch in batches:
                now = time.perf_counter()
                count = count_of(batch)
                if samples:
                    run.latencies.add(now - last)
                else:
                    first = now - began
                samples += count
                run.batches += 1
                self.series.add(earlier + now - began, count)
                self.weights.add(batch, count)
                report(count)
                last = now
                if most_seconds is not None and now - began >= most_seconds:
                    break
            run.cpu_seconds += self.cpu.end(loader.stats().processes_cpu_s - elsewhere)
        run.samples += samples
        run.seconds += last - began
        return first


def measure(subjects: Sequence[Subject], options: BenchOptions, report: Report) -> list[Throughput]:
    """Measure the requested runs of each subject; they take turns, so that a slow moment of the
    machine affects all of them.

    `report` gets the number of samples of every batch. Raises DatasetError, InputError,
    InstallError.
    """
    results = [Throughput() for _ in subjects]
    if options.cold:
        for _ in range(options.runs):
            for subject, result in zip(subjects, results, strict=True):
                _cold_run(subject, options, result, report)
        return results
    opened: list[Batches] = []
    try:
        for subject, result in zip(subjects, results, strict=True):
            opened.append(_warm(subject, options, result))
        for _ in range(options.runs):
            for subject, batches, result in zip(subjects, opened, results, strict=True):
                before = subject.transfers_of(batches)
                result.run(batches, options.run_seconds, report)
                result.time.add(batches)
                result.note(subject, batches)
                result.add_transfers(subject, batches, before)
    finally:
        for batches in opened:
            batches.close()
    return results


def _warm(subject: Subject, options: BenchOptions, result: Throughput) -> Batches:
    """Return a reader whose number of threads and whose page cache have settled."""
    batches, seconds = subject.open(options.run_epochs)
    try:
        result.first_batches.append(seconds + Throughput().run(batches, WARM_UP_SECONDS))
    except BaseException:
        batches.close()
        raise
    # the warm-up stopped in the middle of an epoch; the first run begins with a new one
    batches.set_epoch(0)
    result.time.begin(batches)
    return batches


def _cold_run(subject: Subject, options: BenchOptions, result: Throughput, report: Report) -> None:
    """Read epochs that each begin with an empty page cache, for the epochs or seconds of a run: the
    shards are dropped from it, opened, and read once, or as much as the time allows.

    Nothing is read twice without dropping the cache in between: the second time would come from
    memory.
    """
    result.runs.append(run := Run())
    epochs = 0
    while options.run_epochs is None or epochs < options.run_epochs:
        left = None if options.run_seconds is None else options.run_seconds - run.seconds
        if left is not None and left <= 0:
            break
        files = subject.files
        drop(files)
        stayed = residency(files)
        if stayed is not None:
            result.left_in_cache = max(stayed, result.left_in_cache or 0.0)
        batches, seconds = subject.open(1)
        try:
            result.time.begin(batches)
            result.first_batches.append(seconds + result.read(batches, left, report))
            result.time.add(batches)
            result.note(subject, batches)
        finally:
            batches.close()
        epochs += 1


def summarize(
    dataset: dict[str, Any],
    root: Path,
    options: BenchOptions,
    found: Throughput,
    page_cache: dict[str, float | None],
    tokens: float | None = None,
) -> BenchResult:
    """Return the figures of a `dataset`, as BenchResult has it, at `root`. `page_cache` has the
    share of the shards that was in memory before, and `tokens` a sample where it has some."""
    if options.cold:
        page_cache = {**page_cache, "after_drop": found.left_in_cache}
    cpu, total, samples = found.cpu.read(), found.total, max(1, dataset["samples"])
    rates = [run.rate for run in found.runs]
    halves, tails = (
        [value for run in found.runs if (value := run.latencies.percentile(share)) is not None]
        for share in (0.5, 0.99)
    )
    of_runs: dict[str, tuple[list[float], int]] = {
        "samples_per_s": (rates, 1),
        "mb_per_s": ([rate * found.weights.per_sample / 1e6 for rate in rates], 1),
        "stored_mb_per_s": ([rate * dataset["bytes"] / samples / 1e6 for rate in rates], 1),
        "first_batch_s": (found.first_batches, 4),
        "batch_ms_mean": ([run.seconds * 1e3 / run.batches for run in found.runs], 3),
        "batch_ms_p50": (halves, 3),
        "batch_ms_p99": (tails, 3),
    }
    medians: dict[str, Any] = {
        name: round(statistics.median(values), digits) if values else None
        for name, (values, digits) in of_runs.items()
    }
    of_runs["cores_used"] = [run.cpu_seconds / run.seconds for run in found.runs], 3
    by_run = {name: _rounded(*values) for name, values in of_runs.items()}
    return BenchResult(
        **medians,
        rss_mb=round(found.peak, 1),
        own_mb=round(found.memory, 1) if found.memory is not None else None,
        threads=found.threads,
        processes=options.processes or 0,
        samples=total.samples,
        batches=total.batches,
        seconds=round(total.seconds, 3),
        epochs=round(total.samples / samples, 3),
        batch_size=options.batch_size,
        shuffle=found.shuffle,
        split=options.split,
        cold=options.cold,
        decode=options.decode,
        runs=tuple(by_run["samples_per_s"]),
        spread=round((max(rates) - min(rates)) / (found.rate or 1.0), 4),
        by_run=by_run,
        cores_used=cpu.cores,
        core_busy=tuple(cpu.busy),
        other_load=round(cpu.others, 3) if cpu.others is not None else None,
        time=found.time.shares(),
        page_cache=page_cache,
        latencies=total.latencies.histogram(),
        series=found.series.points(total.seconds),
        dataset=dataset,
        environment=environment(root),
        network=None if found.transfers is None else _network(found.transfers, total.seconds),
        tokens_per_s=None if tokens is None else round(found.rate * tokens, 1),
    )


def _network(transfers: dict[str, int], seconds: float) -> NetworkResult:
    blocks, kept = transfers["network_blocks"], transfers["cached_blocks"]
    return NetworkResult(
        requests=transfers["requests"],
        bytes=transfers["network_bytes"],
        blocks=blocks,
        mb_per_s=round(transfers["network_bytes"] / 1e6 / seconds, 1),
        from_cache=round(kept / (kept + blocks), 4) if blocks else 1.0,
    )


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) for value in values]


def compare_readers(
    samples: int, records: int, stored: int, theirs: Throughput, own: Throughput
) -> AgainstResult:
    """Return shardctl's loader beside another reader: it read `samples` of the `records` records,
    in `stored` bytes."""
    ratios = [mine.rate / other.rate for mine, other in zip(own.runs, theirs.runs, strict=True)]
    return AgainstResult(
        samples=samples,
        records=records,
        bytes_per_sample=round(stored / samples, 1),
        samples_per_s=round(own.rate, 1),
        runs=tuple(_rounded([run.rate for run in own.runs], 1)),
        ratio=round(statistics.median(ratios), 3),
        ratios=tuple(_rounded(ratios, 3)),
        threads=own.threads,
        cores_used=own.cpu.read().cores,
    )
