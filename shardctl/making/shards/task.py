"""The unit of work: build one shard. The same function runs in-process, in a worker process, or
anywhere else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.tables import Reject
from shardctl.making.shards.builder import ShardBuilder
from shardctl.making.shards.inputs import prefetched_units
from shardctl.making.shards.job import Job
from shardctl.making.shards.marker import ShardMarker, WorkDone, write_marker
from shardctl.making.shards.planned import BuildAgain, PlannedShard, RecordUnit, RetryHints
from shardctl.making.shards.previous_samples import PreviousUnits
from shardctl.making.shards.shard_build import ShardBuild
from shardctl.making.shards.upload import upload_shard
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
    place, reporter = job.planned_shard(shard), _Reporter(report)
    hints = (hints or RetryHints()).after(_known_rejects(job, place))
    while True:
        try:
            built = _build(job, shard, progress, hints, reporter)
            break
        except BuildAgain as again:
            if again.hints == hints:
                raise AssertionError(f"shard {shard} would be built in the same way") from again
            hints = again.hints
            reporter.take_back()  # it is built again from its first unit
    write_marker(job.marker_path(shard), built)
    if job.url:
        progress.begin(NOWHERE, stage="deliver")
        upload_shard(job, shard)
        progress.leave()
    reporter.flush()


def _known_rejects(job: Job, place: PlannedShard) -> dict[RecordUnit, Rejection]:
    """Return the rejects that are known of a shard of a finished dataset."""
    return {
        (unit, record): reason
        for unit in range(place.first_unit, place.first_unit + place.units)
        for record, reason in job.known.get(unit, {}).items()
    }


def _build(
    job: Job, shard: int, progress: WorkerProgress, hints: RetryHints, reporter: _Reporter
) -> ShardMarker:
    """Build a shard once. Its files are there only if that is done. Raises BuildAgain."""
    path, place = job.rejects_path(shard), job.planned_shard(shard)
    with replacing(job.shard_path(shard), StreamedFile) as sink, _RejectsFile(path) as rejects:
        build = ShardBuild(job, place, progress, hints, sink, rejects.write)
        builder, output = ShardBuilder(build), build.output
        _add_all(build, builder, reporter)
        samples, rejected = output.samples, output.rejected
        done = builder.finish()
        reporter.count(0, output.samples - samples, output.rejected - rejected, 0)
        if not done.rejected:
            with naming_the_path(path):
                path.unlink(missing_ok=True)  # of an earlier attempt
    return replace(done, facts=replace(done.facts, bytes=sink.tell(), sha256=sink.sha256))


def _previous(build: ShardBuild) -> list[PreviousUnits]:
    """Return what a shard takes from the dataset before."""
    job, place = build.job, build.planned
    if job.previous is None or build.hints.anew:
        return []
    found = job.previous.units(place.first_unit, place.units)
    return [each for each in found if not build.hints.loses(each.first_unit, each.end)]


def _others(place: PlannedShard, previous: Sequence[PreviousUnits]) -> npt.NDArray[np.int64]:
    """Return the units of a shard that are made anew, by their rows of the plan: (units,)."""
    made = np.zeros(place.units, bool)
    for each in previous:
        made[each.first_unit - place.first_unit : each.end - place.first_unit] = True
    return place.first_unit + np.flatnonzero(~made)


def _add_all(build: ShardBuild, builder: ShardBuilder, reporter: _Reporter) -> None:
    """Add the units of a shard: what the dataset before has of them as it is there, and what is
    made of the others."""
    job, output, previous = build.job, build.output, _previous(build)
    waiting = deque(previous)

    def add_previous() -> None:
        assert job.previous is not None, "the units are of it"
        units = waiting.popleft()
        output.add_previous(job.previous, units)
        reporter.count(len(units.samples), units.run.rows, 0, 0)

    for planned in prefetched_units(job, job.units_at(_others(build.planned, previous))):
        while waiting and waiting[0].first_unit < planned.number:
            add_previous()
        samples, rejected = output.samples, output.rejected
        builder.add(planned)
        reporter.count(
            planned.unit.records,
            output.samples - samples,
            output.rejected - rejected,
            planned.unit.size,
        )
    while waiting:
        add_previous()


def try_units(
    job: Job, shard: int, first: int, on: bool, progress: WorkerProgress, hints: RetryHints
) -> None:
    """Make the samples of a unit, and with `on` those of all units of the shard that come after it,
    and write nothing.

    Where a model is called with several units together, it is done with all of these.

    Whatever ends the process does it here, before the whole shard is built once more. What would
    have the shard built again is left to that.
    """
    place = job.planned_shard(shard)
    sink = pa.MockOutputStream()
    build = ShardBuild(job, place, progress, hints, sink, lambda reject: None)
    builder = ShardBuilder(build)
    slot, end = builder.maker.slot_of(first), place.first_unit + place.units
    units = _others(place, _previous(build))
    for planned in prefetched_units(
        job, job.units_at(units[(units >= slot.start) & (units < (end if on else slot.stop))])
    ):
        with suppress(BuildAgain):
            builder.add(planned)
    builder.maker.flush()


class _RejectsFile(ExitStack):
    """The file of the rejects of a shard, made for the first of them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: HashingFile | None = None

    def write(self, reject: Reject) -> None:
        """Add a line."""
        if self._file is None:
            self._file = self.enter_context(replacing(self._path))
        self._file.write(reject.line())


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
