"""Consumers that are fed from shards: whether they are kept busy, and how many of them the reader
can feed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from shardctl.benchmark.measure.consumers import (
    ENOUGH,
    Fed,
    Pulse,
    Step,
    check_patience,
    feed_paced,
    feed_step,
    own_rate,
    watched,
)
from shardctl.benchmark.measure.meters import count_of
from shardctl.benchmark.measure.result import ConsumerResult
from shardctl.benchmark.measure.subjects import Batches, Subject
from shardctl.benchmark.measure.throughput import ThreadTime, Throughput
from shardctl.benchmark.options import BenchOptions
from shardctl.benchmark.presets import Preset, find_preset
from shardctl.errors import InstallError, UsageError
from shardctl.system.packages import find_function, to_install

Report = Callable[[int], None]
RateOf = Callable[[Preset], tuple[float, tuple[str, ...]]]
"""Returns the rate of a preset in samples/s of what is measured, and a description of how it was
computed."""


@dataclass(frozen=True)
class PacedConsumer:
    """Takes batches at a fixed rate (samples/s of one GPU), as `options.gpus` GPUs would."""

    name: str
    rate: float
    options: BenchOptions
    notes: tuple[str, ...] = ()

    def feed(self, subject: Subject, found: Throughput, report: Report) -> ConsumerResult:
        """Feed it batches, and return its utilisation."""
        opened = _open_for_training(subject, self.options)
        total = self.rate * self.options.gpus
        with closing(opened), closing(iter(opened)) as batches:  # type: ignore[type-var]  # a generator
            fed = feed_paced(batches, total, self.options.consumer_seconds, report)
        time = ThreadTime()
        time.add(opened)
        return _consumer_result(
            self.name, self.rate, self.options.gpus, fed, found, time, self.notes
        )


@dataclass(frozen=True)
class FunctionConsumer:
    """Calls a function of the user with every batch. How fast the function is without the loader is
    measured first."""

    name: str
    function: Callable[[Any], Any]
    options: BenchOptions

    def feed(self, subject: Subject, found: Throughput, report: Report) -> ConsumerResult:
        """Measure the function alone, then with the loader, and return its utilisation."""
        time = ThreadTime()

        def run(pulse: Pulse) -> tuple[float, Fed]:
            source, finish = _on_device(
                _open_for_training(subject, self.options), self.options.device
            )
            step = Step(self.name, self.function, finish)
            with closing(iter(source)) as batches:
                first = next(batches)
                rate = own_rate(step, first, count_of(first), pulse)
            # the pages that they map cannot be dropped from the page cache
            del source, batches, first
            loader = _open_for_training(subject, self.options)
            with closing(iter(_on_device(loader, self.options.device)[0])) as batches:
                fed = feed_step(batches, step, rate, self.options.consumer_seconds, report, pulse)
            time.add(loader)
            loader.close()
            return rate, fed

        rate, fed = watched(self.name, run, self.options.consumer_timeout)
        note = (
            "this rate was measured by calling the function with the same batch again and "
            "again, without the loader"
        )
        return _consumer_result(self.name, rate, 1, fed, found, time, (note,))


def find_consumer(
    options: BenchOptions, rate_of: RateOf
) -> PacedConsumer | FunctionConsumer | None:
    """Return the consumer, or None. Raises UsageError before anything is measured."""
    if options.consumer is not None and options.calls_function:
        return FunctionConsumer(
            options.consumer, find_function(options.consumer, "consumer"), options
        )
    if options.consumer is not None:
        preset = find_preset(options.consumer)
        rate, notes = rate_of(preset)
        consumer = PacedConsumer(
            preset.name, rate, options, (f"{preset.what}: {preset.source}, {preset.date}", *notes)
        )
    elif options.consumer_rate is not None:
        consumer = PacedConsumer("rate", options.consumer_rate, options)
    else:
        return None
    remedy = "give a smaller --batch-size, or more --seconds"
    check_patience(
        consumer.rate * options.gpus, options.batch_size, options.consumer_seconds, remedy
    )
    return consumer


def _open_for_training(subject: Subject, options: BenchOptions) -> Batches:
    """Open full batches, so that all steps are alike. A cold reader has one epoch: a second would
    be warm."""
    if options.cold:
        subject.evict()
    return subject.open(1 if options.cold else None, drop_last=True).batches


def _consumer_result(
    name: str,
    rate: float,
    gpus: int,
    fed: Fed,
    found: Throughput,
    time: ThreadTime,
    notes: tuple[str, ...],
) -> ConsumerResult:
    if not fed.steps:
        raise UsageError(
            "an epoch has too few batches to measure a consumer with; give a smaller --batch-size"
        )
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


def without_reading_ahead(found: ConsumerResult) -> ConsumerResult:
    """Return a result for a reader that makes no batch while the consumer is busy: their times add
    up.

    With a reader of L samples/s and consumers of R in all, utilisation is L / (L + R), which is
    ENOUGH up to R = L * (1 - ENOUGH) / ENOUGH. So it feeds as many as one that reads ahead at L *
    (1 - ENOUGH).
    """
    note = "this reader makes no batch while the GPU is busy: the GPU waits for each"
    return replace(found, limit=round(found.limit * (1 - ENOUGH), 1), notes=(*found.notes, note))


def _on_device(loader: Any, device: str | None) -> tuple[Any, Callable[[], None]]:
    """Return a function for batches on a device, and one that waits for the device. Raises
    InstallError without PyTorch."""
    if device is None:
        return loader, lambda: None
    try:
        from shardctl import torch as on_torch
    except ImportError as error:
        raise InstallError(
            f"batches on {device} need PyTorch: pip install {to_install('torch')}"
        ) from error
    return on_torch.Loader(loader, device), on_torch.synchronizer(device)
