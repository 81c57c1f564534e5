"""The unit of work: build one shard. The same function runs in-process, in a worker process
(forkserver.py calls `handle`), or anywhere else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from shardctl.format.arrays import Numbers
from shardctl.making.shards.builder import ShardBuilder
from shardctl.making.shards.inputs import compare_reads, prefetched_units
from shardctl.making.shards.job import BuildAgain, Job, RetryHints, ShardTask
from shardctl.making.shards.marker import ShardMarker, WorkDone, upload_shard, write_marker
from shardctl.making.shards.previous_samples import PreviousUnits
from shardctl.making.shards.probing import probe_records
from shardctl.making.shards.rows import ShardInMaking
from shardctl.making.shards.scan import ExamineTask, run_task
from shardctl.system.files import StreamedFile, naming_the_path, replacing
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.forkserver import Tell
from shardctl.system.processes.worker_state import NOWHERE, WorkerProgress

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
    write_marker(job.marker_path(shard), built)
    if job.url:
        progress.begin(NOWHERE, stage="deliver")
        upload_shard(job, shard)
        progress.leave()
    reporter.flush()


def _build_once(
    job: Job, shard: int, progress: WorkerProgress, hints: RetryHints, reporter: _Reporter
) -> ShardMarker:
    """Build a shard once. Its files are there only if that is done. Raises BuildAgain."""
    path = job.rejects_path(shard)
    with ExitStack() as files:
        sink = files.enter_context(replacing(job.shard_path(shard), StreamedFile))
        # made for the first of them
        rejects = cache(lambda: files.enter_context(replacing(path)))
        making = ShardInMaking(
            job,
            job.planned_shard(shard),
            progress,
            hints,
            sink,
            lambda reject: rejects().write(reject.line()),
        )
        builder = ShardBuilder(making)
        _add_all(making, builder, reporter)
        reporter.count(making)
        builder.finish()
        reporter.count(making)
        if not making.rejected:
            with naming_the_path(path):
                path.unlink(missing_ok=True)  # of an earlier attempt
    return builder.marker(sink.tell(), sink.sha256)


def _divided(making: ShardInMaking) -> tuple[list[PreviousUnits], Numbers]:
    """Return what a shard takes from the dataset before, and the units that are made anew, by their
    rows of the plan: (units,)."""
    job, planned_shard = making.job, making.planned_shard
    taken, anew = list[PreviousUnits](), np.ones(planned_shard.units, bool)
    if job.previous is not None and not making.hints.anew:
        lost = np.array([unit for unit, _ in making.hints.lost], np.int64)
        for each in job.previous.units(planned_shard.first_unit, planned_shard.units):
            if not np.any((lost >= each.first_unit) & (lost < each.end)):
                taken.append(each)
                anew[
                    each.first_unit - planned_shard.first_unit : each.end - planned_shard.first_unit
                ] = False
    return taken, planned_shard.first_unit + np.flatnonzero(anew)


def _add_all(making: ShardInMaking, builder: ShardBuilder, reporter: _Reporter) -> None:
    """Add the units of a shard: what the dataset before has of them as it is there, and what is
    made of the others."""
    job = making.job
    previous, units = _divided(making)
    waiting = deque(previous)

    def add_previous(before: int) -> None:
        while waiting and waiting[0].first_unit < before:
            assert job.previous is not None, "the units are of it"
            each = waiting.popleft()
            making.add_previous(job.previous, each)
            reporter.count(making, len(each.samples))

    for planned in prefetched_units(job, job.units_at(units)):
        add_previous(planned.number)
        builder.add(planned)
        reporter.count(making, planned.unit.records, planned.unit.size)
    add_previous(making.planned_shard.first_unit + making.planned_shard.units)


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
    sink = pa.MockOutputStream()
    making = ShardInMaking(job, planned_shard, progress, hints, sink, lambda reject: None)
    builder = ShardBuilder(making)
    together, (_, units) = builder.maker.units_together(first), _divided(making)
    end = planned_shard.first_unit + planned_shard.units if on else together.stop
    tried = units[(units >= together.start) & (units < end)]
    for planned in prefetched_units(job, job.units_at(tried)):
        with suppress(BuildAgain):
            builder.add(planned)
    builder.maker.flush()


class _Reporter:
    """Tells now and then how far the build of a shard is: its samples, its rejects, and the records
    and bytes that were counted."""

    def __init__(self, report: Callable[[WorkDone], None]) -> None:
        self._report, self._told = report, WorkDone()
        self._records = self._bytes = 0
        self._next = time.monotonic() + REPORT_SECONDS

    def count(self, making: ShardInMaking, records: int = 0, size: int = 0) -> None:
        """Add a unit."""
        self._making = making
        self._records += records
        self._bytes += size
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Pass on what has not been passed on."""
        making = self._making
        done = WorkDone(self._records, making.samples, making.rejected, self._bytes)
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
    job, hints = (_read if task.shard is None else _job)(task.folder), task.hints
    if task.suspect is not None:
        unit, attempt = task.suspect
        compare_reads(job, unit, attempt, progress, given_up=(unit, None) in hints.lost)
    if task.shard is None:
        return probe_records(job, progress, hints)
    if task.trial is not None:
        try_units(job, task.shard, task.trial, task.on, progress, hints)
    return build_shard(job, task.shard, tell, progress, hints)


def _read(folder: str) -> Job:
    return Job.load(LocalFolder(Path(folder)))


_job = lru_cache(maxsize=1)(_read)
