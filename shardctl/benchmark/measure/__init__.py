"""How fast a dataset can be read on this machine, through the loader that training uses, and whether that is fast enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardctl.benchmark.measure.baseline import run_baseline
from shardctl.benchmark.measure.environment import environment
from shardctl.benchmark.measure.feeding import find_consumer
from shardctl.benchmark.measure.result import (
    AgainstResult,
    BaselineResult,
    BenchResult,
    ConsumerResult,
    NetworkResult,
    SweepPoint,
    best_of,
)
from shardctl.benchmark.measure.subjects import OwnDataset, opened
from shardctl.benchmark.measure.summary import Measured, summarize
from shardctl.benchmark.measure.sweeping import sweep
from shardctl.benchmark.measure.throughput import measure
from shardctl.benchmark.measure.tokens import samples_per_s, tokens_per_sample
from shardctl.benchmark.options import BenchOptions
from shardctl.errors import UsageError, explaining_interrupts
from shardctl.loader.dataset import Dataset
from shardctl.system.arguments import instance
from shardctl.system.dataclass import dataclass
from shardctl.system.options import declared_in, taken_arguments
from shardctl.system.progress import Phase, Progress, progress_of
from shardctl.system.python_names import with_options
from shardctl.system.stores import is_url
from shardctl.system.text import printable

__all__ = [
    "AgainstResult",
    "BaselineResult",
    "BenchOptions",
    "BenchResult",
    "ConsumerResult",
    "Listener",
    "NetworkResult",
    "SweepPoint",
    "bench",
    "best_of",
]


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of `bench`: `phase` gets the name of the next phase, `samples` the size of each batch."""

    phase: Callable[[str], None] = lambda name: None
    samples: Callable[[int], None] = lambda count: None

    @classmethod
    def showing(cls, progress: Progress) -> Listener:
        """Return callbacks that show the phase of the measurement, and how many samples it has read."""
        read = 0

        def phase(name: str) -> None:
            nonlocal read
            read = 0
            progress.begin(Phase(name, "samples"))
            progress.report(0)

        def samples(count: int) -> None:
            nonlocal read
            read += count
            progress.report(read)

        return cls(phase, samples)


@with_options(declared_in(BenchOptions))
@explaining_interrupts("interrupted; the measurement has no result. Fewer runs or seconds make it shorter")
def bench(path: str | Path, listener: Listener | None = None, *, progress: bool = True, **options: Any) -> BenchResult:
    """Read a dataset and measure the rate of batches. BenchOptions has the `options`.

    With a consumer, its utilisation is measured too. `progress` False shows no progress on stderr; a `listener` has callbacks
    instead. Raises UsageError, DatasetError, InputError (a baseline without its
    raw inputs), ConsumerError, InstallError.
    """
    instance("listener", listener, Listener)
    taken = taken_arguments("bench", options, declared_in(BenchOptions))
    chosen = BenchOptions(**taken)
    chosen.check()
    with progress_of(progress, listener) as shown:
        return _bench(path, listener or Listener.showing(shown), chosen)


def _bench(path: str | Path, listener: Listener, chosen: BenchOptions) -> BenchResult:
    if chosen.baseline and is_url(path):
        raise UsageError(f"{printable(str(path))}: a baseline reads raw inputs of this machine; leave out --baseline")
    subject, manifest = OwnDataset(path, chosen), opened(path, chosen).manifest
    consumer = find_consumer(chosen, lambda preset: samples_per_s(opened(path, chosen), preset, str(path)))
    measured = _measured(str(path), opened(path, chosen))  # nothing stays open that a cold measurement could not drop
    page_cache = {"before": subject.residency()}
    listener.phase("reading")
    (found,) = measure([subject], chosen, listener.samples)
    result = summarize(measured, chosen, found, page_cache)
    if consumer is not None:
        listener.phase("feeding")
        result = replace(result, consumer=consumer.feed(subject, found, listener.samples))
    if chosen.baseline:
        listener.phase("reading raw")
        result = replace(result, baseline=run_baseline(Path(path), manifest, chosen, found, listener.samples))
    if chosen.sweep:
        listener.phase("sweeping")
        result = replace(result, sweep=sweep(path, chosen, listener.samples))
    return result


def _measured(place: str, read: Dataset) -> Measured:
    """Return what is measured of a dataset: one split, or all."""
    manifest = read.manifest
    splits = [entry for entry in manifest.splits if read.split in (None, entry.name)]
    samples, stored = sum(entry.samples for entry in splits), sum(entry.bytes for entry in splits)
    dataset = {
        "path": place,
        "fingerprint": manifest.fingerprint,
        "samples": samples,
        "bytes": stored,
        "recipe": manifest.recipe,
    }
    return Measured(samples, stored, dataset, environment(read.root), tokens_per_sample(read))
