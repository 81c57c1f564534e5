"""Consumers of batches: a simulated GPU with a given rate in samples per second, that of a
published run in samples of a dataset, or a user's function.

Utilisation is the consumer's busy time / the elapsed time, without the first step, and 0.9 is
enough: the definitions of MLPerf Storage (https://github.com/mlcommons/storage,
Submission_guidelines.md).
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.benchmark.measure.meters import count_of, drop
from shardctl.benchmark.measure.result import ENOUGH, ConsumerResult
from shardctl.benchmark.measure.throughput import (
    Batches,
    Report,
    Subject,
    ThreadTime,
    Throughput,
    open_loader,
    opened,
)
from shardctl.benchmark.options import BenchOptions, Preset, find_preset
from shardctl.errors import ConsumerError, ShardctlError, UsageError
from shardctl.format.roles import Roles
from shardctl.format.token_columns import DOCUMENT_LENGTHS, packed_column
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.memory import Batch
from shardctl.loader.dataset import Dataset
from shardctl.loader.metrics import Sink
from shardctl.loader.watching import watch
from shardctl.system.packages import find_function, needed
from shardctl.system.permutation import evenly_spaced
from shardctl.system.text import printable

OWN_SECONDS = 3.0
"""Seconds that a function is called with the same batch, to measure its own rate."""

_WARM_UP_CALLS = 2


@dataclass(frozen=True)
class Fed:
    """The run of a consumer, after its first step: `steps` and `samples` in `seconds`, of which
    `busy` seconds were work."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    busy: float = 0.0

    @property
    def utilization(self) -> float:
        """Share of the time that the consumer was busy."""
        return min(1.0, self.busy / self.seconds) if self.seconds > 0 else 1.0


def check_patience(
    rate: float, batch_size: int, seconds: float, remedy: str = "give a smaller --batch-size"
) -> None:
    """Raise UsageError if two steps of a consumer take too long to measure. `remedy` says what the
    user can do."""
    step, most = batch_size / rate, max(seconds, 60.0)
    if 2 * step > most:
        raise UsageError(
            f"at {rate:g} samples/s a step of {batch_size} samples takes {step:,.0f} s,"
            f" too long to measure in {most:.0f} s; {remedy}"
        )


def feed_paced(
    batches: Iterator[Batch], rate: float, seconds: float, report: Report = lambda count: None
) -> Fed:
    """Simulate a consumer of `rate` samples/s that takes batches for about `seconds` s, at least
    for two steps.

    The end of each step is computed from the end of the step before, not from the time of waking
    up, so that sleeping a little too long does not add up. Waiting for a batch moves the schedule
    by the time waited.
    """
    first = next(batches, None)
    if first is None:
        return Fed()
    due = time.perf_counter() + count_of(first) / rate
    _sleep_until(due)
    began, steps, samples = due, 0, 0
    while True:
        since = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        waited, count = time.perf_counter() - since, count_of(batch)
        due += waited + count / rate
        steps, samples = steps + 1, samples + count
        report(count)
        _sleep_until(due)
        if steps >= 2 and due - began >= seconds:
            break
    return Fed(steps, samples, due - began, samples / rate)


def _sleep_until(due: float) -> None:
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)


@dataclass(frozen=True)
class Step:
    """A user's function that is called with every batch. `finish` waits until the work that it
    started is done."""

    name: str
    function: Callable[[Any], Any]
    finish: Callable[[], None]

    def __call__(self, batch: Any) -> None:
        """Take a batch. Raises ConsumerError if the function raises."""
        try:
            self.function(batch)
        except ShardctlError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}, line {place.lineno}"
            raise ConsumerError(
                f"consumer {self.name} raised {type(error).__name__}: {error} ({where})"
            ) from error


@dataclass
class Pulse:
    """The time of the last progress of watched work, and what it is doing."""

    at: float
    doing: str
    stopped: bool = False

    def beat(self, doing: str) -> None:
        """Record that a new step begins. Raises ConsumerError if the watcher has given up."""
        if self.stopped:
            raise ConsumerError("stopped")
        self.at, self.doing = time.monotonic(), doing


def own_rate(step: Step, batch: Any, samples: int, pulse: Pulse) -> float:
    """Return the rate of a function that never waits, in samples/s: it gets the same batch again
    and again."""
    for _ in range(_WARM_UP_CALLS):
        pulse.beat("its first steps")
        step(batch)
        step.finish()
    calls, began = 0, time.perf_counter()
    while calls < 2 or time.perf_counter() - began < OWN_SECONDS:
        pulse.beat("a step with a repeated batch")
        step(batch)
        calls += 1
    step.finish()
    return calls * samples / (time.perf_counter() - began)


def feed_step(
    batches: Iterator[Any],
    step: Step,
    rate: float,
    seconds: float,
    report: Report,
    pulse: Pulse,
) -> Fed:
    """Call a function with batches for about `seconds` s. Its busy time is computed from its own
    `rate` without waits.

    If the function only starts work on a GPU, the next batch is fetched without waiting for that
    work, as in training.
    """
    first = next(batches, None)
    if first is None:
        return Fed()
    pulse.beat("step 1")
    step(first)
    step.finish()
    began, steps, samples = time.perf_counter(), 0, 0
    for batch in batches:
        count = count_of(batch)
        pulse.beat(f"step {steps + 2}")
        step(batch)
        steps, samples = steps + 1, samples + count
        report(count)
        if steps >= 2 and time.perf_counter() - began >= seconds:
            break
    step.finish()
    return Fed(steps, samples, time.perf_counter() - began, samples / rate)


def watched(name: str, work: Callable[[Pulse], Any], patience: float) -> Any:
    """Do some work in a separate thread, and return its result.

    Raises ConsumerError if there is no progress for `patience` seconds. The thread is then
    abandoned, because a function that does not return cannot be stopped.
    """
    pulse, outcome = Pulse(time.monotonic(), "the beginning"), Future[Any]()

    def run() -> None:
        try:
            outcome.set_result(work(pulse))
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            outcome.set_exception(error)

    threading.Thread(target=run, name="shardctl-consumer", daemon=True).start()
    try:
        while not wait([outcome], min(0.2, patience / 4)).done:
            if time.monotonic() - pulse.at > patience:
                raise ConsumerError(
                    f"consumer {name} has not returned from {pulse.doing} after {patience:g} s;"
                    " --consumer-timeout sets the limit"
                )
    except BaseException:  # also for Ctrl-C: the thread ends at its next step
        pulse.stopped = True
        raise
    return outcome.result()


TOKEN_COLUMNS = ("tokens", "input_ids", "token_ids", "ids")
BYTES_PER_TOKEN = 4
"""Of English text under the usual vocabularies (OpenAI, "What are tokens and how to count them?":
about 4 characters)."""

_LOOKED_AT = 512


def samples_per_s(dataset: Dataset, preset: Preset, shown: str) -> tuple[float, tuple[str, ...]]:
    """Return the rate of a preset in samples/s of a dataset, and a description of how it was
    computed.

    `shown` names the dataset in messages. Raises UsageError if the dataset does not have what the
    preset needs.
    """
    roles, columns = dataset.roles, [Column.of(field) for field in dataset.schema]
    if preset.unit == "images":
        if not roles.images:
            raise UsageError(
                f"{preset.name} takes images, but {printable(shown)} has none; give a "
                "--consumer-rate"
            )
        return preset.rate, ()
    found = _token_columns(columns, roles)
    if not found:
        raise UsageError(
            f"{preset.name} takes tokens, but {printable(shown)} has no tokens or text; give a "
            "--consumer-rate"
        )
    mean = max(1.0, _mean_tokens(dataset, found))
    names = " and ".join(column.name for column in found)
    padded = any(column.name == packed_column(roles) for column in found)
    how = (
        f"a quarter of the bytes of {names}"
        if found[0].is_text
        else f"the mean of {names}{' without padding' if padded else ''}"
    )
    return preset.rate / mean, (
        f"{preset.rate:,.0f} tokens/s at {mean:,.1f} tokens per sample ({how})",
    )


def tokens_per_sample(dataset: Dataset) -> float | None:
    """Return the mean number of tokens of a sample, without padding; None if none of its fields has
    the role of tokens."""
    columns = _lists_of_numbers(
        [Column.of(field) for field in dataset.schema if field.name in dataset.roles.tokens]
    )
    return _mean_tokens(dataset, columns[:1]) if columns else None


def _token_columns(columns: list[Column], roles: Roles) -> list[Column]:
    """Return the column that holds tokens: by role, by name, or the first of lists of whole
    numbers; else all text."""
    rows = _lists_of_numbers(columns)
    tokens = [column for column in rows if column.name in roles.tokens]
    named = [column for column in rows if column.name in TOKEN_COLUMNS]
    return (tokens + named + rows)[:1] or [
        column for column in columns if column.is_text and column.name != "key"
    ]


def _lists_of_numbers(columns: list[Column]) -> list[Column]:
    """Return the columns of lists of whole numbers, of any length or of one."""
    whole = [column for column in columns if column.dtype is not None and column.dtype.kind in "iu"]
    return [column for column in whole if column.kind == "variable" or len(column.shape) == 1]


def _mean_tokens(dataset: Dataset, columns: list[Column]) -> float:
    """Return the mean number of tokens of some samples from all over the dataset; those of padding
    do not count."""
    places = evenly_spaced(len(dataset), _LOOKED_AT)
    if columns[0].name == packed_column(dataset.roles) and DOCUMENT_LENGTHS in dataset.schema.names:
        lengths = dataset.take(places, columns=[DOCUMENT_LENGTHS])[DOCUMENT_LENGTHS]
        total = sum(float(np.sum(of_block)) for of_block in lengths if of_block is not None)
    else:
        batch = dataset.take(places, columns=[column.name for column in columns])
        total = sum(_tokens(value) for values in batch.values() for value in values)
    return total / max(1, len(places))


def _tokens(value: Any) -> float:
    if isinstance(value, str):
        return len(value.encode()) / BYTES_PER_TOKEN
    return 0.0 if value is None else len(value)


RateOf = Callable[[Preset], tuple[float, tuple[str, ...]]]
"""Returns the rate of a preset in samples/s of what is measured, and a description of how it was
computed."""


@dataclass(frozen=True)
class Consumer:
    """Takes batches at a fixed `rate` (samples/s of one GPU), as `options.gpus` GPUs would."""

    name: str
    options: BenchOptions
    rate: float = 0.0
    notes: tuple[str, ...] = ()

    def feed(self, subject: Subject, found: Throughput, report: Report) -> ConsumerResult:
        """Feed it batches, and return its utilisation."""
        time = ThreadTime()
        rate, fed = self._fed(subject, report, time)
        if not fed.steps:
            raise UsageError(
                "an epoch has too few batches for a consumer; give a smaller --batch-size"
            )
        return ConsumerResult(
            consumer=self.name,
            consumer_rate=round(rate, 3),
            gpus=self.options.gpus,
            accelerator_utilization=round(fed.utilization, 4),
            stall_fraction=round(1 - fed.utilization, 4),
            steps=fed.steps,
            seconds=round(fed.seconds, 3),
            limit=round(found.rate, 1),
            time=time.shares(),
            notes=self.notes,
        )

    def _fed(self, subject: Subject, report: Report, time: ThreadTime) -> tuple[float, Fed]:
        """Return the rate of one GPU, and what it took."""
        opened, total = _open_for_training(subject, self.options), self.rate * self.options.gpus
        with closing(opened), closing(iter(opened)) as batches:  # type: ignore[type-var]  # a generator
            fed = feed_paced(batches, total, self.options.consumer_seconds, report)
        time.add(opened)
        return self.rate, fed


@dataclass(frozen=True)
class FunctionConsumer(Consumer):
    """Calls a function of the user with every batch. How fast the function is without the loader is
    measured first."""

    function: Callable[[Any], Any] = field(kw_only=True)

    def _fed(self, subject: Subject, report: Report, time: ThreadTime) -> tuple[float, Fed]:
        options = self.options

        def run(pulse: Pulse) -> tuple[float, Fed]:
            source, finish = _on_device(_open_for_training(subject, options), options.device)
            step = Step(self.name, self.function, finish)
            with closing(iter(source)) as batches:
                first = next(batches)
                rate = own_rate(step, first, count_of(first), pulse)
            # the pages that they map cannot be dropped from the page cache
            del source, batches, first
            loader = _open_for_training(subject, options)
            with closing(iter(_on_device(loader, options.device)[0])) as batches:
                fed = feed_step(batches, step, rate, options.consumer_seconds, report, pulse)
            time.add(loader)
            loader.close()
            return rate, fed

        rate, fed = watched(self.name, run, options.consumer_timeout)
        return rate, fed


def find_consumer(options: BenchOptions, rate_of: RateOf) -> Consumer | None:
    """Return the consumer, or None. Raises UsageError before anything is measured."""
    if options.consumer is not None and options.calls_function:
        function = find_function(options.consumer, "consumer")
        note = "this rate is of the function alone, called with the same batch again and again"
        return FunctionConsumer(options.consumer, options, notes=(note,), function=function)
    if options.consumer is not None:
        preset = find_preset(options.consumer)
        rate, notes = rate_of(preset)
        source = f"{preset.what}: {preset.source}, {preset.date}"
        consumer = Consumer(preset.name, options, rate, (source, *notes))
    elif options.consumer_rate is not None:
        consumer = Consumer("rate", options, options.consumer_rate)
    else:
        return None
    check_patience(
        consumer.rate * options.gpus,
        options.batch_size,
        options.consumer_seconds,
        "give a smaller --batch-size, or more --seconds",
    )
    return consumer


def consumer_of(path: str | Path, options: BenchOptions) -> Consumer | None:
    """Return the consumer of a dataset, as `find_consumer` does."""
    return find_consumer(
        options, lambda preset: samples_per_s(opened(path, options), preset, str(path))
    )


def _open_for_training(subject: Subject, options: BenchOptions) -> Batches:
    """Open full batches, so that all steps are alike. A cold reader has one epoch: a second would
    be warm."""
    if options.cold:
        drop(subject.files)
    return subject.open(1 if options.cold else None, drop_last=True)[0]


def without_reading_ahead(found: ConsumerResult) -> ConsumerResult:
    """Return a result for a reader that makes no batch while the consumer is busy: their times add
    up.

    With a reader of L samples/s and consumers of R in all, utilisation is L / (L + R), which is
    ENOUGH up to R = L * (1 - ENOUGH) / ENOUGH. So it feeds as many as one that reads ahead at L *
    (1 - ENOUGH).
    """
    note = "this reader makes no batch while the GPU is busy"
    return replace(found, limit=round(found.limit * (1 - ENOUGH), 1), notes=(*found.notes, note))


def _on_device(loader: Any, device: str | None) -> tuple[Any, Callable[[], None]]:
    """Return a function for batches on a device, and one that waits for the device. Raises
    InstallError without PyTorch."""
    if device is None:
        return loader, lambda: None
    needed("torch", "torch", f"--device {device}")
    from shardctl import torch as on_torch

    return on_torch.Loader(loader, device), on_torch.synchronizer(device)


def watch_dataset(
    path: str | Path, targets: Sequence[str | Path | Sink], every: float, options: BenchOptions
) -> None:
    """Read a dataset as training does, and tell the figures of the loader every few seconds, for
    `seconds` or without end.

    With a rate or a preset, a consumer takes the batches at that rate. Raises UsageError,
    DatasetError, InstallError.
    """
    options.check()
    consumer = consumer_of(path, options)
    if (
        options.calls_function
        or options.baseline
        or options.sweep
        or options.cold
        or options.epochs
    ):
        raise UsageError(
            "--watch takes no function: use it alone, with --consumer-rate or a preset"
        )
    seconds = math.inf if options.seconds is None else options.seconds
    with closing(open_loader(path, options, None)) as loader:
        batches = iter(watch(loader, *targets, every=every))
        rate = math.inf if consumer is None else consumer.rate * options.gpus
        feed_paced(batches, rate, seconds)
        batches.close()  # type: ignore[attr-defined]  # a generator: it tells the last figures
