"""How fast batches come when whoever takes them does nothing else: several runs, and what is noted in each."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardctl.benchmark.meters import CpuMeter, CpuUse, Latencies, RateSeries, Weights, count_of, own_memory_mb
from shardctl.benchmark.options import BenchOptions
from shardctl.benchmark.page_cache import evict
from shardctl.dataset import open_dataset
from shardctl.errors import DatasetError
from shardctl.loader import Loader
from shardctl.reader import Batch
from shardctl.storage import printable

WARM_UP_SECONDS = 0.5
"""What is read before anything is measured: the decoders and, where nothing is said of threads, their number settle."""

IN_ORDER = "in-order"
"""The name of the order that is none of the random ones."""

ROOM, OTHER = "room", "other"
"""Parts of the threads' time beside the reader's stages: waiting until somebody takes a batch, and the rest."""


def open_loader(root: Path, options: BenchOptions, repeat: int | None, drop_last: bool = False) -> Loader:
    """Open the dataset, and return what gives its batches for so many epochs (None: for ever). Raises DatasetError."""
    dataset = open_dataset(root, options.split)
    if not len(dataset):
        of_split = f" in split {options.split}" if options.split else ""
        raise DatasetError(f"{printable(str(root))}: there is no sample to read{of_split}")
    return dataset.loader(
        options.batch_size,
        shuffle=options.shuffle,
        threads=options.threads,
        decode=options.decode,
        repeat=repeat,
        drop_last=drop_last and len(dataset) >= options.batch_size,
        profile=True,
    )


@dataclass
class ThreadTime:
    """Seconds of all of a loader's threads together, by what they did."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _before: dict[str, float] = field(default_factory=dict)

    def begin(self, loader: Loader) -> None:
        """Count from now on what this loader does."""
        self._before = loader.stats().stages

    def add(self, loader: Loader) -> None:
        """Add an iteration of the loader, which has just ended."""
        stats = loader.stats()
        spent = {name: seconds - self._before.get(name, 0.0) for name, seconds in stats.stages.items()}
        self._before = stats.stages
        for name, seconds in spent.items():
            self.seconds[name] += seconds
        self.seconds[ROOM] += stats.wait_put_s
        self.seconds[OTHER] += max(0.0, stats.making_s - sum(spent.values()))

    def shares(self) -> dict[str, float]:
        """Return each part as a share of the threads' time."""
        total = sum(self.seconds.values())
        return {name: round(seconds / total, 4) for name, seconds in self.seconds.items()} if total else {}


@dataclass
class Throughput:
    """What some runs came to. `rates` are samples/s, one per run; `memory` in 10^6 bytes, None where nobody tells.

    `shuffle` is the name of the order that they had.
    """

    rates: list[float] = field(default_factory=list)
    first_batches: list[float] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)
    series: RateSeries = field(default_factory=RateSeries)
    weights: Weights = field(default_factory=Weights)
    time: ThreadTime = field(default_factory=ThreadTime)
    samples: int = 0
    batches: int = 0
    seconds: float = 0.0
    threads: int = 0
    shuffle: str = IN_ORDER
    memory: float | None = None
    cpu: CpuUse = field(default_factory=lambda: CpuUse(0.0, []))

    @property
    def rate(self) -> float:
        """The median of the runs, in samples per second."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """How far apart the runs are: from the slowest to the fastest, as a share of the median."""
        return (max(self.rates) - min(self.rates)) / self.rate

    def note(self, loader: Loader) -> None:
        """Note what was left to the loader: how many threads, and which order."""
        self.threads = loader.threads
        self.shuffle = str(loader.stream.identity()["shuffle"] or IN_ORDER)

    def run(self, batches: Iterator[Batch], most_seconds: float | None, heard: Callable[[int], None]) -> float:
        """Read until the batches end, or so many seconds are over. Return the seconds to the first batch."""
        began = last = time.perf_counter()
        samples, first = 0, 0.0
        for batch in batches:
            now = time.perf_counter()
            count = count_of(batch)
            if samples:
                self.latencies.add(now - last)
            else:
                first = now - began
            samples += count
            self.batches += 1
            self.series.add(self.seconds + now - began, count)
            self.weights.add(batch, count)
            heard(count)
            last = now
            if most_seconds is not None and now - began >= most_seconds:
                break
        self.rates.append(samples / (last - began))
        self.samples += samples
        self.seconds += last - began
        self.memory = max(self.memory or 0.0, own_memory_mb() or 0.0) or None
        return first


def measure(root: Path, options: BenchOptions, heard: Callable[[int], None]) -> Throughput:
    """Measure the runs that are asked for. `heard` is told the samples of every batch. Raises DatasetError."""
    result = Throughput()
    if options.cold:
        cpu = CpuMeter()
        for _ in range(options.runs):
            evict(root)
            _cold_run(root, options, result, heard)
    else:
        loader = _warm_loader(root, options, result)
        cpu = CpuMeter()
        for _ in range(options.runs):
            result.run(iter(loader), options.run_seconds, heard)
            result.time.add(loader)
        result.note(loader)
    result.cpu = cpu.read()
    return result


def _warm_loader(root: Path, options: BenchOptions, result: Throughput) -> Loader:
    """Return a loader whose number of threads and whose page cache have settled."""
    opened = time.perf_counter()
    loader = open_loader(root, options, options.run_epochs)
    opening = time.perf_counter() - opened
    result.first_batches.append(opening + Throughput().run(iter(loader), WARM_UP_SECONDS, lambda _: None))
    result.time.begin(loader)
    return loader


def _cold_run(root: Path, options: BenchOptions, result: Throughput, heard: Callable[[int], None]) -> None:
    """Open and read the dataset anew, and let go of all of it."""
    opened = time.perf_counter()
    loader = open_loader(root, options, options.run_epochs)
    opening = time.perf_counter() - opened
    result.time.begin(loader)
    result.first_batches.append(opening + result.run(iter(loader), options.run_seconds, heard))
    result.time.add(loader)
    result.note(loader)
