"""A conversion from its request to its result: discover the inputs, decide, plan, build the shards,
commit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardctl.build.commit import publish
from shardctl.build.commit.staging import begin, go_on, refuse_to_lose, unfinished
from shardctl.build.convert.answers import answer, use_as_it_is
from shardctl.build.convert.conversion import Conversion
from shardctl.build.convert.conversion_plan import ConversionPlan
from shardctl.build.convert.decision import UPDATING, Action
from shardctl.build.convert.estimate import Estimate
from shardctl.build.convert.execute import build, telling_what_is_done
from shardctl.build.convert.field_types import with_types
from shardctl.build.convert.inputs import Inputs, discover
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.manifest_writer import (
    changes_of,
    leave_out_others,
    manifest_facts,
    write_dataset,
)
from shardctl.build.convert.new_inputs import Checked, NewInputs, check_new
from shardctl.build.convert.pace import Pace
from shardctl.build.convert.planning import RUN_AGAIN, PlannedJob, announce, check_space, plan
from shardctl.build.convert.rejects import refuse_many_rejects
from shardctl.build.convert.reporting import finished
from shardctl.build.convert.request import ConvertRequest
from shardctl.build.convert.result import ConvertResult
from shardctl.build.convert.situation import begun_jobs, find_situation
from shardctl.build.convert.targets.base import Target, WriteLease
from shardctl.build.convert.update.known_records import hide_pruned, write_known
from shardctl.build.convert.update.match import match_files
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.fingerprint import fingerprint
from shardctl.build.shards.engines import registry
from shardctl.build.shards.job import NEW_FOLDER
from shardctl.build.shards.work_done import WorkDone
from shardctl.errors import InputError, TooManyRejectsError
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, MANIFEST
from shardctl.inspection.verify.verification import checks_ahead
from shardctl.loader.metrics import CONVERSION, EVERY_SECONDS, Sink, sinks_at, tell
from shardctl.sources.files import in_use
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.pool import Pool
from shardctl.system.scratch import scratch_folder


def run(
    request: ConvertRequest, listener: Listener, target: Target, held: WriteLease | None = None
) -> ConvertResult:
    """Convert as requested. `held` is the lease of the target where the caller has it. Raises what
    `convert` does."""
    options = request.options
    with in_use(), metered(listener, options.metrics) as metering:
        engine = registry.start(options.engine, options.workers, options.limits(), metering.on_line)
        try:
            conversion, result = Conversion.of(request, metering, engine, target, held), None
            while result is None:
                with scratch_folder() as scratch:
                    result = _convert(conversion, scratch)
            return result
        except TooManyRejectsError as error:
            if options.copy_rejects is None or options.dry_run:
                raise
            said = (
                f"{error} (no rejected input was copied: --copy-rejects needs a complete "
                "conversion)"
            )
            raise TooManyRejectsError(said) from error
        finally:
            engine.close()


def _convert(conversion: Conversion, scratch: Path) -> ConvertResult | None:
    """Discover the inputs, decide whether anything is to be built, and then have it planned,
    executed and committed.

    None: another process has changed the dataset meanwhile, so that all is to be looked at again.
    """
    inputs = discover(conversion, scratch)
    decided = None if inputs is None else answer(conversion, inputs)
    if not isinstance(decided, Inputs):
        return decided
    with conversion.leased() as held:
        try:
            return with_types(
                lambda all_types: _make(conversion, decided, held, all_types), RUN_AGAIN
            )
        finally:
            # before the lease is released: workers of two must not write side by side
            conversion.engine.close()


def _make(
    conversion: Conversion, inputs: Inputs, held: WriteLease, all_types: bool
) -> ConvertResult | None:
    """Plan a job or find an unfinished one, execute it, and commit. This process holds the lease:
    no other process writes."""
    planned = begin_job(conversion, inputs, held, all_types)
    if not isinstance(planned, PlannedJob):
        return planned
    with checks_ahead(planned.before is not None and not conversion.folder.url) as checks:
        made = _execute(conversion, planned, held)
        return _commit(conversion, planned, held, made, checks)


def begin_job(
    conversion: Conversion, inputs: Inputs, held: WriteLease, all_types: bool = False
) -> PlannedJob | ConvertResult | None:
    """Begin a job, or return an unfinished one; the result where the dataset is there by now. None:
    see `_convert`.

    `all_types` begins anew where there is an unfinished one: the types of fields are found in all
    records. The caller holds the lease.
    """
    name = fingerprint(inputs.parts)
    if publish.recover(conversion.folder.root) in (name, f"{name}{UPDATING}"):
        return finished(conversion, inputs, "resumed", 0)
    # Once more: another converter may have finished while this one waited.
    situation = find_situation(
        conversion, inputs, conversion.existing.manifest(), begun_jobs(conversion, inputs)
    )
    if situation is None:
        return None
    if situation.up_to_date is not None:
        return use_as_it_is(conversion, inputs, situation.up_to_date)
    decision, before, folder = (
        situation.decision,
        situation.before,
        conversion.staging.path(situation.decision.job),
    )
    if all_types:
        held.check()
        conversion.target.discard(folder)
    elif not conversion.options.overwrite and not decision.follows:
        refuse_to_lose(conversion.staging, folder, inputs.parts, conversion.recipe)
    job = None if all_types else unfinished(folder, inputs.bases, conversion.recipe)
    if decision.action is Action.RESUME and job is not None:
        return PlannedJob(job, inputs, "resumed", before, job.lineage.warnings)
    return _begin(conversion, plan(conversion, inputs, before, folder, all_types), held)


def _begin(conversion: Conversion, planned: PlannedJob, held: WriteLease) -> PlannedJob:
    """Write the plan of a new job. Raises StorageError if the disk cannot hold the dataset."""
    job, folder, before, tables = planned.job, planned.job.folder, planned.before, planned.tables
    assert tables is not None, "they are not written yet"
    check_space(announce(conversion, job, planned.inputs.listing), conversion.folder)
    # a plan takes its time, and what is taken away now must not be the work of one that has taken
    # over
    held.check()
    conversion.target.make_room(folder)
    job = conversion.target.prepared(job)
    tables.write(folder)
    warnings = list(planned.warnings)
    if before is not None:
        hide_pruned(folder / FILES, before.state.pruned)
        warnings += write_known(
            job, before, None if isinstance(tables, ConversionPlan) else tables.of_old
        )
    job = replace(job, lineage=replace(job.lineage, warnings=tuple(dict.fromkeys(warnings))))
    begin(job)
    conversion.target.begun(job)
    return replace(planned, job=job, warnings=job.lineage.warnings, tables=None)


def _execute(conversion: Conversion, planned: PlannedJob, held: WriteLease) -> int:
    """Build what is left of a job: shards, tables and manifest. Return the number of samples that
    were made."""
    job, target = planned.job, conversion.target
    new = job.folder / NEW_FOLDER
    if (new / MANIFEST).exists():
        refuse_many_rejects(
            conversion.folder, Manifest.load(LocalFolder(new)), conversion.options.max_rejects
        )
        return 0
    target.entrust(job, held)
    if planned.status == "resumed":
        go_on(job)
        announce(conversion, job, planned.inputs.listing)
    shards = np.ones(job.shards, bool)
    target.fetch_done(job, shards)
    with telling_what_is_done(job):
        made = build(
            job,
            shards,
            planned.before,
            conversion.engine,
            conversion.options.max_rejects,
            conversion.listener,
        )
        held.check()
        seconds = conversion.seconds if planned.status == "created" else None
        closing = manifest_facts(conversion, planned.inputs, planned.before, seconds)
        try:
            planned.inputs.listing.notices += write_dataset(job, closing, planned.before, target)
        except InputError:  # the sources hold no records: there is nothing to go on with
            target.discard(job.folder)
            raise
    return made


def _commit(
    conversion: Conversion, planned: PlannedJob, held: WriteLease, made: int, checks: Pool | None
) -> ConvertResult:
    """Make a job that is done the dataset. This call has made `made` of its samples. Raises
    TooManyRejectsError."""
    job, target, warnings = planned.job, conversion.target, planned.warnings
    if planned.before is not None:
        checked = _check_new(planned, planned.before)
        if checked.loses and conversion.options.max_rejects is None:
            raise TooManyRejectsError(
                f"{checked.loses}. The dataset is as it was before. To update it anyway: "
                "--max-rejects 100%"
            )
        warnings = tuple(dict.fromkeys((*warnings, *checked.warnings)))
    held.check()
    leave_out_others(job, target)
    target.publish(job.folder / NEW_FOLDER, planned.before is not None, checks)
    return finished(conversion, planned.inputs, planned.status, made, warnings, changes_of(job))


def _check_new(planned: PlannedJob, before: PreviousDataset) -> Checked:
    """Return what should be checked of the inputs that an update has added or that have changed, in
    a job that is done."""
    job, listing, changes = planned.job, planned.inputs.listing, changes_of(planned.job)
    if (
        not Manifest.load(LocalFolder(job.folder / NEW_FOLDER)).rejected
        and changes is not None
        and not changes.changed
    ):
        return Checked()
    # None where the job was planned by a process that was stopped.
    new_inputs = planned.new_inputs or NewInputs.of(
        match_files(before, listing, job.folder / FILES), before
    )
    return check_new(job, new_inputs, listing)


# --- the progress of a conversion, for the tools that watch jobs ---


@contextmanager
def metered(listener: Listener, targets: Sequence[str | Path]) -> Iterator[Listener]:
    """Yield a listener that also writes figures to `targets` every few seconds, and in the end."""
    if not targets:
        yield listener
        return
    with sinks_at(targets) as sinks:
        meter = _Meter(listener, sinks)
        try:
            yield replace(
                listener, announce=meter.announce, building=meter.building, progress=meter.progress
            )
        finally:
            if meter.has_begun:
                meter.tell()


class _Meter:
    """Tells the sinks how far the conversion is, while its callbacks go on to the listener."""

    def __init__(self, listener: Listener, sinks: list[Sink]) -> None:
        self._listener, self._sinks = listener, sinks
        self._pace, self._steps = Pace(), 0
        self._due = time.monotonic()
        self.has_begun = False

    def announce(self, estimate: Estimate) -> None:
        """The work begins."""
        self.has_begun = True
        self._listener.announce(estimate)
        self._pace.begin(estimate.records)
        self._due = time.monotonic() + EVERY_SECONDS

    def building(self) -> None:
        """The work of this run begins."""
        self._listener.building()
        self._pace.resume()

    def progress(self, progress: WorkDone) -> None:
        """Some more is done."""
        self._listener.progress(progress)
        self._pace.add(progress)
        if time.monotonic() >= self._due:
            self.tell()

    def tell(self) -> None:
        """Write the figures."""
        self._due = time.monotonic() + EVERY_SECONDS
        pace, done = self._pace, self._pace.done
        values = {
            "records": done.records,
            "all_records": pace.records,
            "samples": done.samples,
            "rejected": done.rejected,
            "bytes": done.bytes,
            "records_per_s": round(pace.records_per_s, 3),
        }
        if (left := pace.seconds_left) is not None:
            values["left_s"] = round(left, 1)
        self._steps += 1
        tell(self._sinks, CONVERSION, values, self._steps)
