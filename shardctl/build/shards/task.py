"""The unit of work: build one shard. The same function runs in-process, in a worker process, or
anywhere else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.build.shards.builder import ShardBuilder
from shardctl.build.shards.inputs import prefetched_units
from shardctl.build.shards.job import Job
from shardctl.build.shards.marker import MARKER_SCHEMA, ShardMarker, WorkDone, write_marker
from shardctl.build.shards.planned import ShardPlace
from shardctl.build.shards.previous_samples import PreviousUnits
from shardctl.build.shards.shard_build import BuildAgain, RecordUnit, RetryHints, ShardBuild
from shardctl.build.shards.upload import upload_shard
from shardctl.errors import Rejection
from shardctl.format.shard import ShardFacts
from shardctl.format.tables import Reject
from shardctl.system.files import HashingFile, StreamedFile, naming_the_path, replacing
from shardctl.system.processes.worker_state import NOWHERE, WorkerProgress

REPORT_SECONDS = 0.5
"""Seconds between progress reports of a task. Every report wakes the parent, which then takes a
core from a worker."""


def build_shard(
    job: Job,
    shard: int,
    report: Callable[[WorkDone], None],
    progress: WorkerProgress,
    hints: RetryHints | None = None,
) -> None:
    """Build one shard: its units in, the shard file and then its done marker out, each by rename.

    A job whose plan is that of a finished dataset makes the same shard again, and rejects what its
    source no longer gives.
    """
    place, reporter = job.place(shard), _Reporter(report)
    hints = hints or RetryHints()
    hints = replace(hints, lost={**_known_rejects(job, shard), **hints.lost})
    while True:
        built = _build(ShardBuild(job, place, progress, hints), shard, reporter)
        if isinstance(built, ShardMarker):
            break
        assert built.hints != hints, (
            f"shard {shard} would be built in the same way again: {built.why}"
        )
        hints = built.hints
        reporter.take_back()  # it is built again from its first unit
    write_marker(job.marker_path(shard), built)
    if job.url:
        progress.begin(NOWHERE, stage="deliver")
        upload_shard(job, shard)
        progress.leave()
    reporter.flush()


def _known_rejects(job: Job, shard: int) -> dict[RecordUnit, Rejection]:
    """Return the rejects that are known of a shard of a finished dataset."""
    place = job.place(shard)
    units = range(place.first_unit, place.first_unit + place.units)
    return {
        (unit, record): reason
        for unit in units
        for record, reason in job.known.get(unit, {}).items()
    }


def _build(build: ShardBuild, shard: int, reporter: _Reporter) -> ShardMarker | BuildAgain:
    """Build a shard once. Its files are there only if that is done."""
    job = build.job
    with (
        replacing(job.shard_path(shard), StreamedFile) as sink,
        _rejects_file(job.rejects_path(shard)) as rejects,
    ):
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
    return ShardMarker(
        facts=ShardFacts(
            sum(content.block_rows), sink.tell(), content.raw_bytes, sink.sha256, content.block_rows
        ),
        inputs=totals.inputs,
        rejected=totals.rejected,
        shapes=tuple(sorted(totals.shapes)),
        labels=dict(totals.labels),
        objects=content.objects,
        cut_off=content.cut_off,
        units=pa.Table.from_pylist([vars(outcome) for outcome in totals.outcomes], MARKER_SCHEMA),
        jpegs=content.jpegs,
        steps=content.steps,
        first_frames=content.first_frames,
    )


def _previous(build: ShardBuild) -> list[PreviousUnits]:
    """Return what a shard takes from the dataset before."""
    job, place = build.job, build.place
    if job.previous is None or build.hints.anew:
        return []
    found = job.previous.units(place.first_unit, place.units)
    return [each for each in found if not build.hints.loses(each.first_unit, each.end)]


def _others(place: ShardPlace, previous: Sequence[PreviousUnits]) -> npt.NDArray[np.int64]:
    """Return the units of a shard that are made anew, by their rows of the plan: (units,)."""
    made = np.zeros(place.units, bool)
    for each in previous:
        made[each.first_unit - place.first_unit : each.end - place.first_unit] = True
    return place.first_unit + np.flatnonzero(~made)


def _add_all(build: ShardBuild, builder: ShardBuilder, reporter: _Reporter) -> BuildAgain | None:
    """Add the units of a shard: what the dataset before has of them as it is there, and what is
    made of the others."""
    job, totals, previous = build.job, builder.totals, _previous(build)
    waiting = deque(previous)
    for planned in prefetched_units(job, job.units_at(_others(build.place, previous))):
        while waiting and waiting[0].first_unit < planned.number:
            if (again := _add_previous(job, waiting.popleft(), builder, reporter)) is not None:
                return again
        samples, rejected = totals.samples, totals.rejected
        if (again := builder.add(planned)) is not None:
            return again
        reporter.count(
            planned.unit.records,
            totals.samples - samples,
            totals.rejected - rejected,
            planned.unit.size,
        )
    for units in waiting:
        if (again := _add_previous(job, units, builder, reporter)) is not None:
            return again
    return None


def _add_previous(
    job: Job, units: PreviousUnits, builder: ShardBuilder, reporter: _Reporter
) -> BuildAgain | None:
    assert job.previous is not None, "the units are of it"
    again = builder.add_previous(job.previous, units)
    if again is None:
        reporter.count(len(units.samples), units.run.rows, 0, 0)
    return again


def try_units(
    job: Job, shard: int, first: int, on: bool, progress: WorkerProgress, hints: RetryHints
) -> None:
    """Make the samples of a unit, and with `on` those of all units of the shard that come after it,
    and write nothing.

    Where a model is called with several units together, it is done with all of these.

    Whatever ends the process does it here, before the whole shard is built once more. What would
    have the shard built again is left to that.
    """
    build = ShardBuild(job, job.place(shard), progress, hints)
    builder = ShardBuilder(build, pa.MockOutputStream(), lambda reject: None)
    slot, end = builder.slot_of(first), build.place.first_unit + build.place.units
    units = _others(build.place, _previous(build))
    for planned in prefetched_units(
        job, job.units_at(units[(units >= slot.start) & (units < (end if on else slot.stop))])
    ):
        builder.add(planned)
    builder.flush()


class _RejectsFile:
    """The file of the rejects of a shard, made for the first of them. `path` is where it comes to
    be, within `stack`."""

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


class _Reporter:
    """Adds up what is done, and passes it on now and then."""

    def __init__(self, report: Callable[[WorkDone], None]) -> None:
        self._report = report
        self._reported = WorkDone(0, 0, 0, 0)
        # Numbers, and not a WorkDone that is added to: there may be millions of tiny units.
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
        done = WorkDone(self._records, self._samples, self._rejected, self._bytes)
        self._reported += done
        self._report(done)
        self._begin()

    def take_back(self) -> None:
        """Take back all that was passed on, and begin anew."""
        self._report(-self._reported)
        self._reported = WorkDone(0, 0, 0, 0)
        self._begin()

    def _begin(self) -> None:
        self._records = self._samples = self._rejected = self._bytes = 0
        self._next = time.monotonic() + REPORT_SECONDS
