"""How fast a dataset can be read on this machine, through the loader that training uses, and
whether that is fast enough."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardctl.benchmark.measure.consumers import consumer_of, tokens_per_sample
from shardctl.benchmark.measure.meters import drop, residency
from shardctl.benchmark.measure.result import (
    IN_ORDER,
    BaselineResult,
    BenchResult,
    SweepPoint,
    best_of,
)
from shardctl.benchmark.measure.throughput import (
    OwnDataset,
    Report,
    Throughput,
    measure,
    open_loader,
    opened,
    summarize,
)
from shardctl.benchmark.options import BenchOptions
from shardctl.errors import InputError, Rejection, UsageError, explaining_interrupts
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.names import PLAN
from shardctl.format.python_values import python_rows
from shardctl.format.roles import Sample
from shardctl.format.tables import ShardTable, is_written
from shardctl.images.codecs.image import ImageEncoding
from shardctl.loader.dataset import Dataset
from shardctl.loader.order import MODES
from shardctl.loader.prefetch import Prefetcher
from shardctl.making.shards.inputs import check_digest, digest_of, read_whole
from shardctl.making.shards.job import Job, PlannedUnit, RecordReading, RetryHints, SourceBase
from shardctl.making.shards.records import RecordChoice, read_unit, sample_of
from shardctl.sources.formats import Misfit
from shardctl.sources.kinds import KINDS
from shardctl.system.arguments import instance
from shardctl.system.files import ordinary
from shardctl.system.locations import is_url
from shardctl.system.machine import usable_cores
from shardctl.system.options import declared_in, taken_arguments
from shardctl.system.permutation import Permutation
from shardctl.system.processes.worker_state import WorkerProgress
from shardctl.system.progress import Phase, Progress, progress_of
from shardctl.system.python_names import with_options
from shardctl.system.text import printable
from shardctl.transforms.pipeline.samples import SamplePipeline
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.table import refuse_unnamed_functions


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of `bench`: `phase` gets the name of the next phase, `samples` the
    size of each batch."""

    phase: Callable[[str], None] = lambda name: None
    samples: Callable[[int], None] = lambda count: None

    @classmethod
    def showing(cls, progress: Progress) -> Listener:
        """Return callbacks that show the phase of the measurement, and how many samples it has
        read."""
        read = 0

        def phase(name: str) -> None:
            nonlocal read
            read = 0
            progress.begin(Phase(name, "samples"))

        def samples(count: int) -> None:
            nonlocal read
            read += count
            progress.report(read)

        return cls(phase, samples)


@with_options(declared_in(BenchOptions))
@explaining_interrupts("interrupted, without a result. Fewer runs or seconds take less time")
def bench(
    path: str | Path, listener: Listener | None = None, *, progress: bool = True, **options: Any
) -> BenchResult:
    """Read a dataset and measure the rate of batches; docs/commands/bench.md explains the options.

    With a consumer, its utilisation is measured too. `progress` False shows no progress on stderr;
    a `listener` has callbacks instead. Raises UsageError, DatasetError, InputError (a baseline
    without its raw inputs), ConsumerError, InstallError.
    """
    instance("listener", listener, Listener)
    chosen = BenchOptions(**taken_arguments("bench", options, declared_in(BenchOptions)))
    chosen.check()
    with progress_of(progress, listener) as shown:
        return _bench(path, listener or Listener.showing(shown), chosen)


def _bench(path: str | Path, listener: Listener, chosen: BenchOptions) -> BenchResult:
    if chosen.baseline and is_url(path):
        raise UsageError(
            f"{printable(path)}: a baseline reads raw inputs of this machine; leave out --baseline"
        )
    if chosen.cold and is_url(path):
        raise UsageError(
            f"{printable(path)}: only files of this machine can be dropped; leave out --cold"
        )
    subject, manifest = OwnDataset(path, chosen), opened(path, chosen).manifest
    consumer = consumer_of(path, chosen)
    read = opened(path, chosen)
    dataset, root, tokens = _described(str(path), read), read.root, tokens_per_sample(read)
    del read  # nothing stays open that a cold measurement could not drop
    page_cache = {"before": residency(subject.files)}
    listener.phase("reading")
    (found,) = measure([subject], chosen, listener.samples)
    result = summarize(dataset, root, chosen, found, page_cache, tokens)
    if consumer is not None:
        listener.phase("feeding")
        result = replace(result, consumer=consumer.feed(subject, found, listener.samples))
    if chosen.baseline:
        listener.phase("reading raw")
        result = replace(
            result, baseline=run_baseline(Path(path), manifest, chosen, found, listener.samples)
        )
    if chosen.sweep:
        listener.phase("sweeping")
        result = replace(result, sweep=sweep(path, chosen, listener.samples))
    return result


def _described(place: str, read: Dataset) -> dict[str, Any]:
    """Return what is measured of a dataset, one split or all, as BenchResult has it."""
    manifest = read.manifest
    splits = manifest.splits_of(read.split, place)
    return {
        "path": place,
        "fingerprint": manifest.fingerprint,
        "samples": sum(entry.samples for entry in splits),
        "bytes": sum(entry.bytes for entry in splits),
        "recipe": manifest.recipe,
    }


# --- the baseline: the same recipe on the raw inputs in every epoch, as a training job without
# shards works ---

INPUTS = 2048
"""The largest number of files that are read, where a file is one record, from all over the
dataset."""

UNITS = 64
"""The largest number of units of files of many records that are read."""

BASELINE_SECONDS = 4.0


def run_baseline(
    root: Path,
    manifest: Manifest,
    options: BenchOptions,
    found: Throughput,
    report: Report,
) -> BaselineResult:
    """Measure batches from the raw inputs with as many threads as `found` had. `report` gets the
    samples of every batch.

    Raises InputError if the raw inputs no longer exist, UsageError for user functions that the
    options do not allow.
    """
    refuse_unnamed_functions(manifest.recipe, options.transforms, printable(root), "a baseline")
    inputs = _Inputs(root, manifest, options)
    inputs.drop() if options.cold else inputs.read()
    samples, rejected, seconds = inputs.run(found.threads, options, report)
    if not samples:
        raise InputError(
            f"{printable(root)}: all its raw inputs, which --baseline reads, have changed "
            "or are gone"
        )
    splits = manifest.splits_of(options.split, printable(root))
    size, rate = sum(split.samples for split in splits), samples / seconds
    return compare(size, rate, found.rate, manifest.seconds, rejected)


def compare(
    samples: int, raw: float, shards: float, conversion: float | None, rejected: int
) -> BaselineResult:
    """Compare an epoch from raw inputs with one from shards; rates in samples/s, `conversion` in
    s."""
    raw_epoch, shards_epoch = samples / raw, samples / shards
    cost = raw_epoch if conversion is None else conversion
    return BaselineResult(
        raw_samples_per_s=round(raw, 1),
        raw_epoch_s=round(raw_epoch, 3),
        shards_epoch_s=round(shards_epoch, 3),
        ratio=round(raw_epoch / shards_epoch, 2),
        conversion_s=round(cost, 3),
        conversion_measured=conversion is not None,
        pays_after=math.ceil(cost / (raw_epoch - shards_epoch))
        if raw_epoch > shards_epoch
        else None,
        rejected=rejected,
    )


class _Inputs:
    """Some units of the raw inputs of a dataset, and its recipe."""

    def __init__(self, root: Path, manifest: Manifest, options: BenchOptions) -> None:
        if not manifest.sources:
            why = (
                "its samples were written by shardctl.write"
                if is_written(manifest.settings)
                else "its manifest names none"
            )
            raise InputError(
                f"{printable(root)}: has no raw inputs ({why}), and --baseline reads them"
            )
        if strange := manifest.strange_sources():
            raise InputError(
                f"{printable(root)}: its manifest names a source by no absolute path or "
                f"URL: {printable(strange[0])}"
            )
        for source in manifest.sources:
            if is_url(source):
                raise UsageError(
                    f"{printable(source)}: is on a store, and --baseline reads raw inputs from a "
                    "disk; leave it out"
                )
            if not Path(source).exists():
                raise InputError(
                    f"{printable(source)}: is gone, and --baseline reads the raw inputs of "
                    f"{printable(root)}"
                )
        dataset = dataset_in(root)
        tables = dataset.path(PLAN).parent
        recipe = Recipe.from_json(manifest.recipe, tables)
        bases = (
            source if Path(source).is_dir() else str(Path(source).parent)
            for source in manifest.sources
        )
        if recipe.store and recipe.store.name != "none":
            # Training needs pixels: they are not encoded again, and stored bytes are decoded.
            recipe = dataclasses.replace(recipe, store=ImageEncoding.parse("raw"))
        layout = Layout.loads(ShardTable(dataset).making.layout)
        self._job = Job(
            tables,
            tuple(map(SourceBase.anywhere, bases)),
            recipe,
            layout,
            (),
            **vars(RecordReading.from_json(manifest.records)),
            recorded=True,
        )
        self._splits = [split.name for split in manifest.splits]
        units = _some_units(DatasetTables(dataset), options.split, self._job.fields is None)
        self._units = list(units)

    def drop(self) -> None:
        """Drop the files from the page cache."""
        planned = (self._job.planned_at(number) for number, _ in self._units)
        drop({Path(self._job.path_of(each.file)) for each in planned})

    def read(self) -> None:
        """Read the inputs once, so that they are in the page cache as the shards are."""
        for number, _ in self._units:
            planned = self._job.planned_at(number)
            with (
                contextlib.suppress(OSError),
                open(self._job.path_of(planned.file), "rb", opener=ordinary) as file,
            ):
                file.seek(planned.unit.offset)
                file.read(planned.unit.size)

    def run(self, threads: int, options: BenchOptions, report: Report) -> tuple[int, int, float]:
        """Make batches for BASELINE_SECONDS, or once if the cache is cold. Return samples, rejected
        records and seconds.

        A rejected record counts once, however often its batch is made. A unit of many records is a
        batch of its own.
        """
        size = options.batch_size if self._job.fields is None else 1
        batches = [self._units[first : first + size] for first in range(0, len(self._units), size)]
        tasks = iter(batches) if options.cold else itertools.cycle(batches)
        samples, rejected, first_time = 0, 0, len(batches)
        began, seconds = time.perf_counter(), 0.0
        with closing(Prefetcher(self._make, tasks, threads, None, None)) as finished:
            for made, refused in finished:
                samples, first_time = samples + made, first_time - 1
                rejected += refused if first_time >= 0 else 0
                report(made)
                seconds = time.perf_counter() - began
                is_over = seconds >= (options.seconds or BASELINE_SECONDS)
                if is_over and (samples or first_time <= 0):
                    break
        return samples, rejected, seconds

    def _make(self, units: list[tuple[int, str]]) -> tuple[int, int]:
        """Make a batch: read, decode, transform, and stack images of one shape. Return how many
        samples it has, and how many records were rejected."""
        samples, rejected = 0, 0
        images: dict[str, list[Any]] = {}
        job = self._job
        pipeline = SamplePipeline(
            job.recipe, None, lambda stage: None, job.layout, job.annotation_rules
        )
        for number, split in units:
            planned = self._job.planned_at(number)
            made, refused = 0, 0
            try:
                for record in self._records(planned, split):
                    if isinstance(record, int):
                        made += record
                        continue
                    try:
                        finished = pipeline.make(record)
                    except Rejection:
                        refused += 1
                        continue
                    made += len(finished)
                    for sample in finished:
                        for name, value in sample.fields.items():
                            if isinstance(value, np.ndarray):
                                images.setdefault(name, []).append(value)
            except (Rejection, Misfit):
                made, refused = 0, planned.unit.records
            samples, rejected = samples + made, rejected + refused
        for values in images.values():  # one array of images of one shape, as a loader does
            if len({value.shape for value in values}) == 1:
                np.stack(values)
        return samples, rejected

    def _records(self, planned: PlannedUnit, split: str) -> Iterator[Sample | int]:
        """Yield the records of a unit of a split; where nothing more is done to them, how many were
        read at once.

        Raises Rejection for a unit that is not what the dataset was made from.
        """
        job, file = self._job, planned.file
        if job.fields is None:
            data = read_whole(job, planned)
            check_digest(job, planned, digest_of(data))
            yield sample_of(
                job,
                planned,
                None,
                KINDS[job.recipe.kind].fields(data, file.path, job.recipe.record_reading),
            )
            return
        digest = xxhash.xxh3_64()
        of_split = self._splits.index(split)
        choice = RecordChoice(job, planned, of_split, WorkerProgress(), RetryHints())
        for parsed in read_unit(job, planned, planned.unit, choice.of_split, digest):
            if not job.recipe.sample_transforms and job.recipe.store is None:
                yield len(parsed.batch.to_pydict() and parsed.numbers)
                continue
            for record, fields in zip(
                parsed.numbers.tolist(), python_rows(parsed.batch), strict=True
            ):
                yield sample_of(job, planned, record, fields)
        check_digest(job, planned, digest.intdigest())


def _some_units(stored: DatasetTables, split: str | None, whole: bool) -> Iterator[tuple[int, str]]:
    """Yield rows of the plan that became samples, from all over the dataset, each with its split.
    Raises DatasetError."""
    splits = [entry.split for entry in stored.shards]
    most = INPUTS if whole else UNITS
    count = stored.plan.num_rows
    checked: set[int] = set()
    for number in Permutation(count, 0)(np.arange(count, dtype=np.int64)).tolist():
        shard = stored.shard_of_unit(number)
        if split not in (None, splits[shard]) or not most:
            continue
        if shard not in checked:
            stored.units(shard)  # that none of its numbers leads astray
            checked.add(shard)
        if stored.plan["samples"][number].as_py():
            most -= 1
            yield number, splits[shard]


# --- A search for better settings: short measurements with other numbers of threads, orders and
# batch sizes ---

SETTING_SECONDS = 0.7
"""Seconds that each setting is read in a round; the faster of two rounds counts, because noise only
slows down."""

ROUNDS = 2
BATCH_SIZES = (32, 128, 512, 2048)

_Setting = tuple[str, int, int]


def sweep(place: str | Path, options: BenchOptions, report: Report) -> tuple[SweepPoint, ...]:
    """Measure every order with every number of threads, then other batch sizes with the best random
    order.

    Settings take turns, round after round, so that a slow minute of the machine affects all of
    them.
    """
    least = options.processes or 1
    counts = (2**power for power in range(12) if 2**power <= 2 * usable_cores())
    threads = [count for count in counts if count >= least] or [least]
    first = [
        (order, count, options.batch_size)
        for order in (IN_ORDER, *filter(None, MODES))
        for count in threads
    ]
    points = _measure(place, options, first, report)
    best = best_of(points)
    sizes = [
        (best.shuffle, best.threads, size) for size in BATCH_SIZES if size != options.batch_size
    ]
    return points + _measure(place, options, sizes, report)


def _measure(
    place: str | Path,
    options: BenchOptions,
    settings: list[_Setting],
    report: Report,
) -> tuple[SweepPoint, ...]:
    rates: dict[_Setting, float] = dict.fromkeys(settings, 0.0)
    repeat = 1 if options.cold else None
    for order, threads, size in ROUNDS * settings:
        shuffle = False if order == IN_ORDER else order
        chosen = replace(options, shuffle=shuffle, threads=threads, batch_size=size)
        if options.cold:
            drop(OwnDataset(place, chosen).files)
        loader, run = open_loader(place, chosen, repeat), Throughput()
        run.run(loader, SETTING_SECONDS, report)
        loader.close()
        rates[order, threads, size] = max(rates[order, threads, size], run.rate)
    return tuple(SweepPoint(*setting, round(rate, 1)) for setting, rate in rates.items())
