"""The unit of work: build one shard. The same function runs in-process, in a worker process
(forkserver.py calls `handle`), or anywhere else. So does a probe, which only tries some records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache, partial
from heapq import merge
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Numbers
from shardctl.format.layout import ENCODED_IMAGE, Layout, image_tensor
from shardctl.format.roles import Mask, Objects, Role
from shardctl.format.shard import Compression, ShardWriter, new_shard, shard_schema
from shardctl.format.tables import Reject, count_reasons
from shardctl.format.token_columns import packed_column
from shardctl.images.codecs.deep_gray import warnings_on_gray
from shardctl.images.codecs.image import look_at_gray
from shardctl.making.shards.builder import ShardBuilder, builder_of
from shardctl.making.shards.first_records import inspect_first_records, refuse_unmoved
from shardctl.making.shards.inputs import ExamineTask, compare_reads, prefetched_units, run_task
from shardctl.making.shards.job import (
    PROBE,
    BuildAgain,
    Job,
    PlannedShard,
    PlannedUnit,
    Probe,
    RetryHints,
    ShardTask,
    job_in,
)
from shardctl.making.shards.marker import ShardMarker, WorkDone, marker_bytes, upload_shard
from shardctl.making.shards.previous_samples import PreviousUnits
from shardctl.making.shards.records import FirstRecords, TableImages, parsed_ahead, sample_of
from shardctl.system.files import naming_the_path, replacing, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.forkserver import Tell
from shardctl.system.processes.worker_state import NOWHERE, WorkerProgress
from shardctl.system.text import counted
from shardctl.transforms.pipeline.functions import MadeSample
from shardctl.transforms.pipeline.samples import SamplePipeline
from shardctl.transforms.values import (
    UnfitValue,
    array_type,
    describe,
    for_column,
    plain_value,
    type_for,
)

# the usual formats: loaded once, before workers are forked, and not by each of them
Image.preinit()

REPORT_SECONDS = 0.5
"""Seconds between progress reports of a task. Every report wakes the parent, which then takes a
core from a worker."""


def build_shard(
    job: Job,
    shard: int,
    report: Callable[[WorkDone], None],
    progress: WorkerProgress,
    hints: RetryHints,
) -> None:
    """Build one shard: its units in, the shard file and then its done marker out, each by rename.

    A job whose plan is that of a finished dataset makes the same shard again, and rejects what its
    source no longer gives.
    """
    planned_shard, reporter = job.planned_shard(shard), _Reporter(report)
    known = {
        (unit, record): reason
        for unit in range(planned_shard.first_unit, planned_shard.first_unit + planned_shard.units)
        for record, reason in job.known.get(unit, {}).items()
    }
    hints = replace(hints, lost={**known, **hints.lost})
    while True:
        try:
            built = _build_once(job, shard, progress, hints, reporter)
            break
        except BuildAgain as again:
            if again.hints == hints:
                raise AssertionError(f"shard {shard} would be built in the same way") from again
            hints = again.hints
            reporter.take_back()  # it is built again from its first unit
    marker = marker_bytes(built)
    if job.url:
        progress.begin(NOWHERE, stage="deliver")
        upload_shard(job, shard, built.path, marker)
        progress.leave()
    # last, as a shard counts as finished from now on
    write_atomically(job.marker_path(shard), marker)
    reporter.flush()


def _build_once(
    job: Job, shard: int, progress: WorkerProgress, hints: RetryHints, reporter: _Reporter
) -> ShardMarker:
    """Build a shard once. Its files are there only if that is done. Raises BuildAgain."""
    path, planned = job.rejects_path(shard), job.planned_shard(shard)
    place = job.shards_root, job.id, job.layout, planned.split_name, planned.number
    with ExitStack() as files:
        writer = new_shard(*place, job.recipe.compression, planned.blocks)
        # made for the first of them
        rejects = cache(lambda: files.enter_context(replacing(path)))
        builder = builder_of(job)(
            job,
            planned,
            progress,
            hints,
            files.enter_context(writer),
            lambda reject: rejects().write(reject.line()),
        )
        _add_all(builder, reporter)
        reporter.count(builder)
        builder.finish()
        reporter.count(builder)
        if not builder.rejected:
            with naming_the_path(path):
                path.unlink(missing_ok=True)  # of an earlier attempt
    return builder.marker()


def _divided(builder: ShardBuilder) -> tuple[list[PreviousUnits], Numbers]:
    """Return what a shard takes from the dataset before, and the units that are made anew, by their
    rows of the plan: (units,)."""
    before, first = builder.job.samples_before, builder.planned_shard.first_unit
    taken, anew = list[PreviousUnits](), np.ones(builder.planned_shard.units, bool)
    if before is not None and not builder.hints.anew:
        lost = np.array([unit for unit, _ in builder.hints.lost], np.int64)
        for each in before.units(first, len(anew)):
            if not np.any((lost >= each.number) & (lost < each.end)):
                taken.append(each)
                anew[each.number - first : each.end - first] = False
    return taken, first + np.flatnonzero(anew)


def _add_all(builder: ShardBuilder, reporter: _Reporter) -> None:
    """Add the units of a shard: what the dataset before has of them as it is there, and what is
    made of the others."""
    job, (previous, anew) = builder.job, _divided(builder)
    wanted = prefetched_units(job, job.units_at(anew))
    if not (job.whole or job.draw or job.recorded or job.on_store or builder.hints.apart):
        wanted = parsed_ahead(job, wanted, builder.progress, builder.ahead)
    in_order: Iterable[PreviousUnits | PlannedUnit]
    in_order = merge(previous, wanted, key=attrgetter("number"))
    for each in in_order:
        if isinstance(each, PlannedUnit):
            builder.add(each)
            reporter.count(builder, each.unit.records, each.unit.size)
        else:
            builder.add_previous(each)
            reporter.count(builder, len(each.samples))


def try_units(
    job: Job, shard: int, first: int, on: bool, progress: WorkerProgress, hints: RetryHints
) -> None:
    """Make the samples of a unit, and with `on` those of all units of the shard that come after it,
    and write nothing.

    Where a model is called with several units together, it is done with all of these.

    Whatever ends the process does it here, before the whole shard is built once more. What would
    have the shard built again is left to that.
    """
    planned_shard = job.planned_shard(shard)
    schema, blocks = job.layout.columns, planned_shard.blocks
    nowhere = ShardWriter(pa.MockOutputStream(), schema, job.recipe.compression, blocks)
    builder = builder_of(job)(job, planned_shard, progress, hints, nowhere, lambda reject: None)
    together, (_, units) = builder.units_together(first), _divided(builder)
    end = planned_shard.first_unit + planned_shard.units if on else together.stop
    tried = units[(units >= together.start) & (units < end)]
    for planned in prefetched_units(job, job.units_at(tried)):
        with suppress(BuildAgain):
            builder.add(planned)
    builder.flush()


class _Reporter:
    """Tells now and then how far the build of a shard is: its samples, its rejects, and the records
    and bytes that were counted."""

    def __init__(self, report: Callable[[WorkDone], None]) -> None:
        self._report, self._told = report, WorkDone()
        self._records = self._bytes = 0
        self._next = time.monotonic() + REPORT_SECONDS

    def count(self, builder: ShardBuilder, records: int = 0, size: int = 0) -> None:
        """Add a unit."""
        self._builder = builder
        self._records += records
        self._bytes += size
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Pass on what has not been passed on."""
        builder = self._builder
        done = WorkDone(self._records, builder.samples, builder.rejected, self._bytes)
        self._report(done + -self._told)
        self._told, self._next = done, time.monotonic() + REPORT_SECONDS

    def take_back(self) -> None:
        """Take back all that was passed on, and begin anew."""
        self._report(-self._told)
        self._told, self._records, self._bytes = WorkDone(), 0, 0


def handle(task: ExamineTask | ShardTask, tell: Tell, progress: WorkerProgress) -> Any:
    """Do a task of an engine, in a worker process."""
    if isinstance(task, ExamineTask):
        return run_task(task.task, progress, task.lost)
    # the folder of a probe may have another job the next time; that of a dataset has none before
    # this process has ended (Pool.run)
    is_probe, hints = task.shard == PROBE, task.hints
    job = Job.load(LocalFolder(Path(task.folder))) if is_probe else job_in(task.folder)
    if task.suspect is not None:
        unit, attempt = task.suspect
        compare_reads(job, unit, attempt, progress, given_up=(unit, None) in hints.lost)
    if is_probe:
        return probe_records(job, progress, hints)
    if task.trial is not None:
        try_units(job, task.shard, task.trial, task.on, progress, hints)
    return build_shard(job, task.shard, tell, progress, hints)


# --- a few records pushed through the recipe before anything is written: what the columns are, and what it
# will all cost. This is done where shards are built, since any of the records may be fatal to the
# process that decodes it ---


READ_AGAIN_SECONDS = 0.01
"""No more units are read again, to see what that takes, once it has taken so long: a row group may
have a gigabyte."""


def probe_records(job: Job, progress: WorkerProgress, hints: RetryHints) -> Probe:
    """Push every record of the plan of a small job through its recipe, into a shard in memory.

    The job's layout is what is known without looking at any sample. Raises UsageError for images,
    places and masks that the recipe would leave behind where it moves the pixels of others,
    InputError if user functions return no sample for any of them, or fields without a type,
    SourceGoneError if a source does not answer.
    """
    units = list(job.units_at(range(job.plan.num_rows)))
    notices: list[str] = []
    records = FirstRecords(job, units, progress, hints)
    job, frames, first, warnings = inspect_first_records(records)
    records = replace(records, job=job)
    beside = refuse_unmoved(records)
    if job.recipe.sample_transforms:
        samples, setters, notices = _own_samples(records)
        layout, on_roles = _with_own_fields(job, samples, setters)
        notices += on_roles
        job = replace(job, layout=layout)
    sink = pa.BufferOutputStream()
    rejects: list[Reject] = []  # the conversion meets them again, and writes them
    gray = list[tuple[float, float] | None]()
    writer = ShardWriter(sink, shard_schema(job.layout, "probe", 0), job.recipe.compression)
    builder = builder_of(job)(
        job,
        PlannedShard(0, "probe", 0, 0, 0, 0),
        progress,
        hints,
        writer,
        rejects.append,
        partial(look_at_gray, found=gray),
    )
    added = [_timed(partial(builder.add, planned)) for planned in prefetched_units(job, units)]
    started = time.monotonic()
    builder.finish()
    writer.finish()
    finishing = time.monotonic() - started
    size, rows = int(sink.getvalue().size), builder.samples
    inputs = max(1, builder.inputs)
    # more are padding in the blocks of a few records than in those of a shard
    padding = sum(step.get("padding", 0) for step in builder.step_counts)
    packed = packed_column(job.layout.roles)
    tokens = 1 if packed is None else int(job.layout.columns.field(packed).type.list_size)
    full = rows - padding / tokens
    record_seconds, unit_seconds = _seconds(builder, units, added)
    nothing = pa.BufferOutputStream()  # names of classes and columns are in every shard, twice
    ShardWriter(nothing, shard_schema(job.layout, "probe", 0), Compression("none")).finish()
    empty = int(nothing.getvalue().size)
    reasons, examples = count_reasons(rejects)
    return Probe(
        layout=job.layout,
        sample_bytes=(size - empty) / max(1, rows),
        record_bytes=fmean(planned.unit.size for planned in units) if job.whole else 0.0,
        shard_bytes=empty,
        record_seconds=record_seconds + finishing / inputs,
        unit_seconds=unit_seconds,
        samples_per_record=full / max(1, inputs - builder.rejected),
        records=inputs,
        rejected=builder.rejected,
        notices=[*first, *beside, *notices],
        warnings=[*warnings, *warnings_on_gray(gray)],
        frames=frames,
        reasons=reasons,
        examples=examples,
    )


def _seconds(
    builder: ShardBuilder, units: list[PlannedUnit], added: list[float]
) -> tuple[float, float]:
    """Return what a record and what a unit of many records take, given what all of each unit took
    that was tried.

    The first one is left out where there are others: it also loaded the decoders.
    """
    some = slice(1 if len(units) > 1 else 0, None)
    if builder.job.whole:
        return sum(added[some]) / len(added[some]), 0.0
    read: list[float] = []
    for planned in units[some]:
        if sum(read) < READ_AGAIN_SECONDS:
            read.append(_timed(partial(builder.read_only, planned)))
    rest = zip(added[some], read, units[some], strict=False)  # strict: some may not be read again
    each = [max(0.0, whole - own) / planned.unit.records for whole, own, planned in rest]
    return median(each), median(read)


def _timed(work: Callable[[], object]) -> float:
    """Return how long work on a unit took that may be rejected, or would have its shard built
    again."""
    started = time.monotonic()
    with suppress(Rejection, BuildAgain):  # what it gave before counts all the same
        work()
    return time.monotonic() - started


def _own_samples(
    records: FirstRecords,
) -> tuple[list[MadeSample], dict[str, str], list[str]]:
    """Return what a user's functions make of a few records, by field the function that set it, if
    one did, and notices."""
    job, progress = records.job, records.progress
    pipeline = SamplePipeline(job.recipe, None, progress.enter, job.layout, job.annotation_rules)
    samples: list[MadeSample] = []
    setters: dict[str, str] = {}
    images = TableImages(job, progress)
    reason: Rejection | MemoryError | None = next(reversed(list(records.hints.lost.values())), None)
    for planned in prefetched_units(job, records.units):
        try:
            for record, fields in records.of_unit(planned):
                try:
                    if job.has_image_columns:
                        fields = images.take(fields, planned)
                    made = pipeline.make(sample_of(job, planned, record, fields))
                except Rejection as rejection:
                    reason = rejection
                    continue
                samples += made
                for each in made:
                    setters = {**pipeline.setters(each), **setters}
        except (Rejection, MemoryError) as rejection:
            reason = rejection
    progress.leave()
    notices = [
        f"{who} changes pixels and not {name}: what moves pixels must move {name} too"
        for name, who in pipeline.unmoved.items()
    ]
    if not samples:
        count = sum(planned.unit.records for planned in records.units)
        why = f", the last one because: {reason}" if reason else ""
        raise InputError(f"none of {counted(count, 'input')} came through the recipe{why}")
    return samples, setters, notices


def _with_own_fields(
    job: Job, samples: list[MadeSample], setters: dict[str, str]
) -> tuple[Layout, list[str]]:
    """Return the layout after a user's functions: fields that they dropped are gone, those that
    they made are added; and notices on objects and masks that they made fields of another type."""
    image, known = job.layout.image, {f.name: f for f in job.layout.columns}
    models = {step.settings()["target"] for step in job.recipe.models}
    if image is not None:
        shape = samples[0].fields["image"].shape if image.store == "raw" else None
        image = replace(image, shape=shape)
        if shape is not None:
            known["image"] = pa.field("image", image_tensor(shape))
    names = dict.fromkeys(name for sample in samples for name in sample.fields)
    result = {name: f for name, f in known.items() if name in names}
    for name in names:
        if name == "variant" or (
            name in known and (name not in setters or name in ("key", "image", "label"))
        ):
            continue
        before, type_ = known[name].type if name in known else None, None
        if before is None and setters[name] in models:
            type_ = array_type([sample.fields.get(name) for sample in samples])
        type_ = type_ or _own_type(name, samples, setters[name], before)
        result[name] = pa.field(name, type_)
    if "variant" not in known and any(sample.fields["variant"] for sample in samples):
        # a function makes several samples of one
        result["variant"] = pa.field("variant", pa.int32())
    kept = [
        name for name in job.kept_images if name in result and result[name].type == ENCODED_IMAGE
    ]
    roles, notices = dict[str, Role](), list[str]()
    for name, role in job.layout.roles.by_name.items():
        if not isinstance(role, Mask | Objects) or name not in result:
            continue
        if result[name].type == known[name].type:
            roles[name] = role
            continue
        what = "a column of objects" if isinstance(role, Objects) else "a mask"
        notices.append(
            f"{name} is no longer {what}, because {setters[name]} made it {result[name].type}; "
            "return the type that it had"
        )
    layout = Layout.by_name(
        job.layout.kind, pa.schema(result.values()), image, job.layout.classes, kept, roles
    )
    return layout, notices


def _own_type(
    name: str, samples: list[MadeSample], who: str, known: pa.DataType | None
) -> pa.DataType:
    """Return the type of a field that the function `who` set: the one that it had if that holds all
    values, else a new one.

    A value that no column can hold is left out: its sample becomes a reject. Raises InputError if
    none is left, or if the others have no type in common.
    """
    values: list[Any] = []
    unfit = None
    for sample in samples:
        try:
            plain = plain_value(sample.fields.get(name))
        except UnfitValue as problem:
            unfit = problem
            continue
        if (known is not None and _fits(plain, known)) or type_for([plain]) is not None:
            values.append(plain)
        else:
            unfit = UnfitValue(describe(plain))
    if not values:
        raise InputError(f"{who} set {name} to {unfit}; no column can hold that")
    if known is not None and all(_fits(value, known) for value in values):
        return known
    if (type_ := type_for(values)) is not None:
        return type_
    given = [value for value in values if value is not None]
    other = next((value for value in given if type(value) is not type(given[0])), given[-1])
    raise InputError(
        f"{who} set {name} to values of several types, such as {describe(other)} and "
        f"{describe(given[0])}"
    )


def _fits(value: Any, type_: pa.DataType) -> bool:
    try:
        for_column(value, type_)
    except UnfitValue:
        return False
    return True
