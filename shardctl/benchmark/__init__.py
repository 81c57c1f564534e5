"""How fast a dataset can be read on this machine, through the loader that training uses, and whether that is fast enough."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardctl.benchmark.baseline import run_baseline
from shardctl.benchmark.consumers import (
    Fed,
    Pulse,
    Step,
    check_patience,
    feed_paced,
    feed_step,
    own_rate,
    watched,
)
from shardctl.benchmark.environment import environment
from shardctl.benchmark.meters import count_of, peak_memory_mb
from shardctl.benchmark.options import BenchOptions
from shardctl.benchmark.page_cache import evict, residency
from shardctl.benchmark.presets import PRESETS, Preset, find_preset
from shardctl.benchmark.result import BaselineResult, BenchResult, ConsumerResult, SweepPoint, best_of, spread_of
from shardctl.benchmark.sweeping import sweep
from shardctl.benchmark.throughput import ThreadTime, Throughput, measure, open_loader
from shardctl.benchmark.tokens import samples_per_s, tokens_per_sample
from shardctl.dataset import open_dataset
from shardctl.errors import InstallError, UsageError
from shardctl.importing import find_function
from shardctl.loader import Loader
from shardctl.manifest import Manifest

__all__ = [
    "PRESETS",
    "BaselineResult",
    "BenchOptions",
    "BenchResult",
    "ConsumerResult",
    "Listener",
    "Preset",
    "SweepPoint",
    "bench",
    "best_of",
]


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of `bench`: `phase` gets the name of the next phase, `samples` the size of each batch."""

    phase: Callable[[str], None] = lambda name: None
    samples: Callable[[int], None] = lambda count: None


def bench(path: str | Path, listener: Listener | None = None, **options: Any) -> BenchResult:
    """Read a dataset and measure the rate of batches; `options` are those of BenchOptions.

    With a consumer, its utilisation is measured too. Raises UsageError, DatasetError, InputError (a baseline without its
    raw inputs), ConsumerError, InstallError.
    """
    chosen, root, listener = BenchOptions(**options), Path(path), listener or Listener()
    chosen.check()
    manifest = Manifest.load(root)
    consumer = _consumer(root, chosen)
    page_cache = {"before": residency(root)}
    listener.phase("reading")
    found = measure(root, chosen, listener.samples)
    if chosen.cold:
        page_cache["after_drop"] = found.left_in_cache
    result = _result(root, manifest, chosen, found, page_cache)
    if consumer is not None:
        listener.phase("feeding")
        result = replace(result, consumer=consumer.feed(root, found, listener))
    if chosen.baseline:
        listener.phase("reading raw")
        result = replace(result, baseline=run_baseline(root, manifest, chosen, found, listener.samples))
    if chosen.sweep:
        listener.phase("sweeping")
        result = replace(result, sweep=sweep(root, chosen, listener.samples))
    return result


def _result(
    root: Path, manifest: Manifest, options: BenchOptions, found: Throughput, page_cache: dict[str, float | None]
) -> BenchResult:
    splits = [split for split in manifest.splits if options.split in (None, split.name)]
    samples, stored = sum(split.samples for split in splits), sum(split.bytes for split in splits)
    rates, cpu = [run.rate for run in found.runs], found.cpu.read()
    tokens = tokens_per_sample(open_dataset(root, options.split))
    medians, nineties = ([run.latencies.percentile(share) for run in found.runs] for share in (0.5, 0.99))
    return BenchResult(
        samples_per_s=round(found.rate, 1),
        mb_per_s=round(found.rate * found.weights.per_sample / 1e6, 1),
        stored_mb_per_s=round(found.rate * stored / samples / 1e6, 1),
        first_batch_s=round(statistics.median(found.first_batches), 4),
        batch_ms_mean=round(statistics.median(run.batch_ms for run in found.runs), 3),
        batch_ms_p50=_median(medians),
        batch_ms_p99=_median(nineties),
        rss_mb=round(max(found.peak, peak_memory_mb()), 1),
        own_mb=round(found.memory, 1) if found.memory is not None else None,
        threads=found.threads,
        processes=options.processes or 0,
        samples=found.samples,
        batches=found.batches,
        seconds=round(found.seconds, 3),
        epochs=round(found.samples / samples, 3),
        batch_size=options.batch_size,
        shuffle=found.shuffle,
        split=options.split,
        cold=options.cold,
        decode=options.decode,
        runs=tuple(round(rate, 1) for rate in rates),
        spread=round(spread_of(rates), 4),
        by_run={
            "samples_per_s": [round(rate, 1) for rate in rates],
            "mb_per_s": [round(rate * found.weights.per_sample / 1e6, 1) for rate in rates],
            "stored_mb_per_s": [round(rate * stored / samples / 1e6, 1) for rate in rates],
            "first_batch_s": [round(seconds, 4) for seconds in found.first_batches],
            "batch_ms_mean": [round(run.batch_ms, 3) for run in found.runs],
            "batch_ms_p50": [round(value, 3) for value in medians if value is not None],
            "batch_ms_p99": [round(value, 3) for value in nineties if value is not None],
            "cores_used": [round(run.cores, 3) for run in found.runs],
        },
        cores_used=cpu.cores,
        core_busy=tuple(cpu.busy),
        other_load=round(cpu.others, 3) if cpu.others is not None else None,
        time=found.time.shares(),
        page_cache=page_cache,
        latencies=found.latencies.histogram(),
        series=found.series.points(found.seconds),
        dataset={
            "path": str(root),
            "fingerprint": manifest.fingerprint,
            "samples": samples,
            "bytes": stored,
            "recipe": manifest.recipe,
        },
        environment=environment(root),
        tokens_per_s=None if tokens is None else round(found.rate * tokens, 1),
    )


def _median(values: list[float | None]) -> float | None:
    """Return the median of the runs that have a value, or None."""
    there = [value for value in values if value is not None]
    return round(statistics.median(there), 3) if there else None


@dataclass(frozen=True)
class _PacedConsumer:
    """Takes batches at a fixed rate (samples/s of one GPU), as `options.gpus` GPUs would."""

    name: str
    rate: float
    options: BenchOptions
    notes: tuple[str, ...] = ()

    def feed(self, root: Path, found: Throughput, listener: Listener) -> ConsumerResult:
        """Feed it batches, and return its utilisation."""
        loader = _training_loader(root, self.options)
        total = self.rate * self.options.gpus
        with closing(iter(loader)) as batches:  # type: ignore[type-var]  # a generator
            fed = feed_paced(batches, total, self.options.consumer_seconds, listener.samples)
        time = ThreadTime()
        time.add(loader)
        loader.close()
        return _consumer_result(self.name, self.rate, self.options.gpus, fed, found, time, self.notes)


@dataclass(frozen=True)
class _FunctionConsumer:
    """Calls a function of the user with every batch. How fast the function is without the loader is measured first."""

    name: str
    function: Callable[[Any], Any]
    options: BenchOptions

    def feed(self, root: Path, found: Throughput, listener: Listener) -> ConsumerResult:
        """Measure the function alone, then with the loader, and return its utilisation."""
        time = ThreadTime()

        def run(pulse: Pulse) -> tuple[float, Fed]:
            source, finish = _on_device(_training_loader(root, self.options), self.options.device)
            step = Step(self.name, self.function, finish)
            with closing(iter(source)) as batches:
                first = next(batches)
                rate = own_rate(step, first, count_of(first), pulse)
            del source, batches, first  # the pages that they map cannot be dropped from the page cache
            loader = _training_loader(root, self.options)
            with closing(iter(_on_device(loader, self.options.device)[0])) as batches:
                fed = feed_step(batches, step, rate, self.options.consumer_seconds, listener.samples, pulse)
            time.add(loader)
            loader.close()
            return rate, fed

        rate, fed = watched(self.name, run, self.options.consumer_timeout)
        note = "this rate was measured by calling the function with the same batch again and again, without the loader"
        return _consumer_result(self.name, rate, 1, fed, found, time, (note,))


def _training_loader(root: Path, options: BenchOptions) -> Loader:
    """Return a loader of full batches, so that all steps are alike. A cold one has one epoch: a second would be warm."""
    if options.cold:
        evict(root)
    return open_loader(root, options, 1 if options.cold else None, drop_last=True)


def _consumer_result(
    name: str, rate: float, gpus: int, fed: Fed, found: Throughput, time: ThreadTime, notes: tuple[str, ...]
) -> ConsumerResult:
    if not fed.steps:
        raise UsageError("an epoch has too few batches to measure a consumer with; give a smaller --batch-size")
    return ConsumerResult(
        consumer=name,
        consumer_rate=round(rate, 3),
        gpus=gpus,
        accelerator_utilization=round(fed.utilization, 4),
        stall_fraction=round(1 - fed.utilization, 4),
        steps=fed.steps,
        seconds=round(fed.seconds, 3),
        limit=round(found.rate, 1),
        time=time.shares(),
        notes=notes,
    )


def _consumer(root: Path, options: BenchOptions) -> _PacedConsumer | _FunctionConsumer | None:
    """Return the consumer, or None. Raises UsageError before anything is measured."""
    if options.consumer is not None and options.calls_function:
        return _FunctionConsumer(options.consumer, find_function(options.consumer, "consumer"), options)
    if options.consumer is not None:
        preset = find_preset(options.consumer)
        rate, notes = samples_per_s(open_dataset(root, options.split), preset, str(root))
        consumer = _PacedConsumer(preset.name, rate, options, (f"{preset.what}: {preset.source}, {preset.date}", *notes))
    elif options.consumer_rate is not None:
        consumer = _PacedConsumer("rate", options.consumer_rate, options)
    else:
        return None
    remedy = "give a smaller --batch-size, or more --seconds"
    check_patience(consumer.rate * options.gpus, options.batch_size, options.consumer_seconds, remedy)
    return consumer


def _on_device(loader: Any, device: str | None) -> tuple[Any, Callable[[], None]]:
    """Return a function for batches on a device, and one that waits for the device. Raises InstallError without PyTorch."""
    if device is None:
        return loader, lambda: None
    try:
        from shardctl import torch as on_torch
    except ImportError as error:
        raise InstallError(f"batches on {device} need PyTorch: pip install 'shardctl[torch]'") from error
    return on_torch.Loader(loader, device), on_torch.synchronizer(device)
