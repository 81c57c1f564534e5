"""The unit of work: build one shard. The same function runs in-process, in a worker process, or anywhere else."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.shards.builder import ShardBuilder
from shardctl.build.shards.job import Job, ShardPlace
from shardctl.build.shards.job_units import ahead
from shardctl.build.shards.previous_samples import Stretch
from shardctl.build.shards.retry_hints import BuildAgain, Place, RetryHints
from shardctl.build.shards.shard_build import ShardBuild
from shardctl.build.shards.upload import deliver
from shardctl.errors import Rejection
from shardctl.format.jpeg_record import JpegRecord
from shardctl.format.shard import ShardFacts
from shardctl.format.step_counts import Counts
from shardctl.format.tables import Reject
from shardctl.system.files import HashingFile, StreamedFile, naming_the_path, replacing
from shardctl.system.processes.progress_slot import NOWHERE, Breadcrumb
from shardctl.transforms.pipeline.samples import Shape

REPORT_SECONDS = 0.5
"""Seconds between progress reports of a task. Every report wakes the parent, which then takes a core from a worker."""

MARKER_SCHEMA = pa.schema(
    [("first_row", pa.int64()), ("samples", pa.int64()), ("rejected", pa.int64()), ("digest", pa.uint64())]
)
"""What became of each unit of a shard: its samples are among the rows from `first_row` on."""


@dataclass(frozen=True)
class Progress:
    """Work done since the last report: records of the plan, samples made, records rejected, and bytes read."""

    records: int
    samples: int
    rejected: int
    bytes: int

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            self.records + other.records,
            self.samples + other.samples,
            self.rejected + other.rejected,
            self.bytes + other.bytes,
        )

    def __neg__(self) -> Progress:
        return Progress(-self.records, -self.samples, -self.rejected, -self.bytes)


@dataclass(frozen=True)
class Done:
    """A finished shard, as its marker records it. `shapes` are the first few different decoded shapes in it.

    Of `inputs` records `rejected` became no sample. `labels` counts its samples by class. `objects` are marked in its images,
    and `cut_off` of them are no longer (None: it is not known how many). `units` has MARKER_SCHEMA. `jpegs` is what its images
    are as JPEG, None where that is not recorded. `steps` counts what became of its records in each step of text and tables.
    """

    facts: ShardFacts
    inputs: int
    rejected: int
    shapes: tuple[Shape, ...]
    labels: dict[int, int]
    objects: int
    cut_off: int | None
    units: pa.Table
    jpegs: JpegRecord | None = None
    steps: tuple[Counts, ...] = ()


def run_shard(
    job: Job, shard: int, report: Callable[[Progress], None], crumb: Breadcrumb, hints: RetryHints | None = None
) -> None:
    """Build one shard: its units in, the shard file and then its done marker out, each by rename.

    A job whose plan is that of a finished dataset makes the same shard again, and rejects what its source no longer gives.
    """
    place, reporter = job.place(shard), _Reporter(report)
    hints = hints or RetryHints()
    hints = replace(hints, lost={**_known_rejects(job, shard), **hints.lost})
    while True:
        built = _build(ShardBuild(job, place, crumb, hints), shard, reporter)
        if isinstance(built, Done):
            break
        assert built.hints != hints, f"shard {shard} would be built in the same way again: {built.why}"
        hints = built.hints
        reporter.take_back()  # it is built again from its first unit
    _write_marker(job.marker_path(shard), built)
    if job.url:
        crumb.drop(NOWHERE, stage="deliver")
        deliver(job, shard)
        crumb.leave()
    reporter.flush()


def _known_rejects(job: Job, shard: int) -> dict[Place, Rejection]:
    """Return the rejects that are known of a shard of a finished dataset."""
    place = job.place(shard)
    units = range(place.first_unit, place.first_unit + place.units)
    return {(unit, record): reason for unit in units for record, reason in job.known.get(unit, {}).items()}


def _build(build: ShardBuild, shard: int, reporter: _Reporter) -> Done | BuildAgain:
    """Build a shard once. Its files are there only if that is done."""
    job = build.job
    with replacing(job.shard_path(shard), StreamedFile) as sink, _rejects_file(job.rejects_path(shard)) as rejects:
        builder = ShardBuilder(build, sink, rejects.write)
        again = _add_all(build, builder, reporter)
        if again is not None:
            sink.abandon()
            rejects.abandon()
            return again
        totals = builder.totals
        samples, rejected = totals.samples, totals.rejected
        content = builder.finish()
        reporter.count(0, totals.samples - samples, totals.rejected - rejected, 0)
    return Done(
        facts=ShardFacts(sum(content.block_rows), sink.tell(), content.raw_bytes, sink.sha256, content.block_rows),
        inputs=totals.inputs,
        rejected=totals.rejected,
        shapes=tuple(sorted(totals.shapes)),
        labels=dict(totals.labels),
        objects=content.objects,
        cut_off=content.cut_off,
        units=pa.Table.from_pylist([vars(outcome) for outcome in totals.outcomes], MARKER_SCHEMA),
        jpegs=content.jpegs,
        steps=content.steps,
    )


def _stretches(build: ShardBuild) -> list[Stretch]:
    """Return what a shard takes from the dataset before."""
    job, place = build.job, build.place
    if job.reused is None or build.hints.anew:
        return []
    found = job.reused.stretches(place.first_unit, place.units)
    return [each for each in found if not build.hints.loses(each.first_unit, each.end)]


def _others(place: ShardPlace, stretches: Sequence[Stretch]) -> npt.NDArray[np.int64]:
    """Return the units of a shard that are made anew, by their rows of the plan: (units,)."""
    made = np.zeros(place.units, bool)
    for stretch in stretches:
        made[stretch.first_unit - place.first_unit : stretch.end - place.first_unit] = True
    return place.first_unit + np.flatnonzero(~made)


def _add_all(build: ShardBuild, builder: ShardBuilder, reporter: _Reporter) -> BuildAgain | None:
    """Add the units of a shard: what the dataset before has of them as it is there, and what is made of the others."""
    job, totals, stretches = build.job, builder.totals, _stretches(build)
    waiting = deque(stretches)
    for planned in ahead(job, job.units_at(_others(build.place, stretches))):
        while waiting and waiting[0].first_unit < planned.number:
            if (again := _add_previous(job, waiting.popleft(), builder, reporter)) is not None:
                return again
        samples, rejected = totals.samples, totals.rejected
        if (again := builder.add(planned)) is not None:
            return again
        reporter.count(planned.unit.records, totals.samples - samples, totals.rejected - rejected, planned.unit.size)
    for stretch in waiting:
        if (again := _add_previous(job, stretch, builder, reporter)) is not None:
            return again
    return None


def _add_previous(job: Job, stretch: Stretch, builder: ShardBuilder, reporter: _Reporter) -> BuildAgain | None:
    assert job.reused is not None, "the stretch is of it"
    again = builder.add_previous(job.reused, stretch)
    if again is None:
        reporter.count(len(stretch.samples), stretch.run.rows, 0, 0)
    return again


def try_units(job: Job, shard: int, first: int, on: bool, crumb: Breadcrumb, hints: RetryHints) -> None:
    """Make the samples of a unit, and with `on` those of all units of the shard that come after it, and write nothing.

    Where a model is called with several units together, it is done with all of these.

    Whatever ends the process does it here, before the whole shard is built once more. What would have the shard built again is
    left to that.
    """
    build = ShardBuild(job, job.place(shard), crumb, hints)
    builder = ShardBuilder(build, pa.MockOutputStream(), lambda reject: None)
    slot, end = builder.slot_of(first), build.place.first_unit + build.place.units
    units = _others(build.place, _stretches(build))
    for planned in ahead(job, job.units_at(units[(units >= slot.start) & (units < (end if on else slot.stop))])):
        builder.add(planned)
    builder.flush()


class _RejectsFile:
    """The file of the rejects of a shard, made for the first of them. `path` is where it comes to be, within `stack`."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._file: HashingFile | None = None
        self._abandoned = False

    def write(self, reject: Reject) -> None:
        """Add a line."""
        if self._file is None:
            self._file = self._stack.enter_context(replacing(self._path))
        self._file.write(reject.line())

    def abandon(self) -> None:
        """Leave everything as it was before."""
        self._abandoned = True
        if self._file is not None:
            self._file.abandon()

    def finish(self) -> None:
        """Delete the file of an earlier attempt, where there are no rejects now."""
        if self._file is None and not self._abandoned:
            with naming_the_path(self._path):
                self._path.unlink(missing_ok=True)


@contextmanager
def _rejects_file(path: Path) -> Iterator[_RejectsFile]:
    """Yield the file of the rejects of a shard. There is none after it if there are no rejects."""
    with ExitStack() as stack:
        file = _RejectsFile(path, stack)
        yield file
        file.finish()


def read_finished(job: Job, shard: int) -> Done | None:
    """Return what the marker of a shard says, None if the shard is not finished.

    Markers are written after their shard. Where the power failed, one may still be there without it, or be torn itself. On an
    object store each is there whole, and only after its shard.
    """
    try:
        done = read_marker(job.marker_path(shard))
        whole = bool(job.url) or job.shard_path(shard).stat().st_size == done.facts.bytes
        whole = whole and (bool(job.url) or bool(done.rejected) == job.rejects_path(shard).exists())
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError, AttributeError, IndexError):
        return None
    whole = whole and (done.jpegs is not None) == job.keeps_sources  # an older shardctl recorded none
    return done if whole and done.units.num_rows == job.place(shard).units else None


def read_marker(path: Path) -> Done:
    """Read what a finished shard's marker says."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    record = json.loads(table.schema.metadata[b"done"])
    facts = ShardFacts(**{**record["facts"], "block_rows": tuple(record["facts"]["block_rows"])})
    labels = {int(label): count for label, count in record["labels"].items()}
    shapes = tuple(tuple(shape) for shape in record["shapes"])
    numbers = (record["inputs"], record["rejected"])
    marked = (record["objects"], record["cut_off"])
    jpegs = JpegRecord.from_json(record["jpegs"], facts.rows) if "jpegs" in record else None
    steps = tuple(record.get("steps", ()))
    return Done(facts, *numbers, shapes, labels, *marked, table.replace_schema_metadata(), jpegs, steps)


def rows_made(path: Path) -> int:
    """Return how many samples a finished shard has, by its marker: without a look at its units."""
    metadata = pa.ipc.open_file(pa.memory_map(str(path))).schema.metadata
    return int(json.loads(metadata[b"done"])["facts"]["rows"])


def _write_marker(path: Path, done: Done) -> None:
    record = {name: getattr(done, name) for name in ("inputs", "rejected", "shapes", "labels", "objects", "cut_off")}
    if done.jpegs is not None:
        record["jpegs"] = done.jpegs.to_json()
    if done.steps:
        record["steps"] = done.steps
    schema = MARKER_SCHEMA.with_metadata({"done": json.dumps({**record, "facts": asdict(done.facts)})})
    with replacing(path) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
        writer.write_table(done.units.cast(schema))


class _Reporter:
    """Adds up progress and passes it on now and then."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report
        self._told = Progress(0, 0, 0, 0)
        # Numbers, and not a Progress that is added to: there may be millions of tiny units.
        self._records = self._samples = self._rejected = self._bytes = 0
        self._next = time.monotonic() + REPORT_SECONDS

    def count(self, records: int, samples: int, rejected: int, size: int) -> None:
        """Add what became of a unit."""
        self._records += records
        self._samples += samples
        self._rejected += rejected
        self._bytes += size
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Pass on what has not been passed on."""
        progress = Progress(self._records, self._samples, self._rejected, self._bytes)
        self._told += progress
        self._report(progress)
        self._begin()

    def take_back(self) -> None:
        """Take back all that was passed on, and begin anew."""
        self._report(-self._told)
        self._told = Progress(0, 0, 0, 0)
        self._begin()

    def _begin(self) -> None:
        self._records = self._samples = self._rejected = self._bytes = 0
        self._next = time.monotonic() + REPORT_SECONDS
