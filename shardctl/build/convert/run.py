"""A conversion from its request to its result: discover the inputs, decide, plan, build the shards,
commit."""

from __future__ import annotations

import contextlib
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardctl.build.commit import generations, publish
from shardctl.build.commit.staging import begin, finished_shards, go_on, refuse_to_lose, unfinished
from shardctl.build.convert.conversion import Conversion, Inputs, discover
from shardctl.build.convert.conversion_plan import ConversionPlan
from shardctl.build.convert.decision import UPDATING, Action, Decision, Wanted, decide
from shardctl.build.convert.known_records import hide_pruned, write_known
from shardctl.build.convert.listener import SPARE_DISK, Estimate, Listener, Pace
from shardctl.build.convert.manifest_writer import (
    changes_of,
    leave_out_others,
    manifest_facts,
    write_dataset,
)
from shardctl.build.convert.planning import (
    RUN_AGAIN,
    PlannedJob,
    announce,
    check_space,
    plan,
    with_types,
)
from shardctl.build.convert.previous import PreviousDataset, match_files
from shardctl.build.convert.rejects import (
    Checked,
    NewInputs,
    check_new,
    count_rejects,
    refuse_many_rejects,
)
from shardctl.build.convert.request import ConvertRequest
from shardctl.build.convert.result import ConvertResult, explained, finished, planned, up_to_date
from shardctl.build.convert.targets import Target, WriteLease
from shardctl.build.options import reject_limit
from shardctl.build.plan.fingerprint import fingerprint
from shardctl.build.plan.plan import NOT_KEPT
from shardctl.build.shards import engines
from shardctl.build.shards.engines.local import Engine
from shardctl.build.shards.job import NEW_FOLDER, DatasetJob, Job
from shardctl.build.shards.marker import WorkDone
from shardctl.errors import (
    BusyError,
    DatasetError,
    DiskFullError,
    InputError,
    SourceGoneError,
    StorageError,
    TooManyRejectsError,
)
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, MANIFEST
from shardctl.inspection.verify.verification import checks_ahead
from shardctl.loader.metrics import CONVERSION, EVERY_SECONDS, Sink, sinks_at, tell
from shardctl.sources.files import in_use
from shardctl.sources.roots import SourceRoot
from shardctl.system.files import free_bytes, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.pool import Pool
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import format_bytes, printable


def run(
    request: ConvertRequest, listener: Listener, target: Target, held: WriteLease | None = None
) -> ConvertResult:
    """Convert as requested. `held` is the lease of the target where the caller has it. Raises what
    `convert` does."""
    options = request.options
    with in_use(), metered(listener, options.metrics) as metering:
        engine = engines.start(options.engine, options.workers, options.limits(), metering.on_line)
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


def answer(conversion: Conversion, inputs: Inputs) -> ConvertResult | Inputs | None:
    """Return the result where nothing is to be built, else the inputs. Raises the error of a
    refusal.

    None: another process has changed the dataset meanwhile, so that all is to be looked at again.
    """
    if conversion.options.explain:
        return explained(conversion, inputs)
    there = conversion.existing.manifest()
    # no job is looked at yet: it may be another user's
    situation = find_situation(conversion, inputs, there, {})
    if situation is None:
        return None
    if situation.up_to_date is not None:
        return _use_existing(conversion, inputs, situation.up_to_date)
    if not publish.needs_recovery(conversion.folder.root):
        publish.refuse_to_replace(conversion.folder.root, conversion.recipe.files)
    return _plan_only(conversion, inputs, there) if conversion.options.dry_run else inputs


def use_as_it_is(
    conversion: Conversion, inputs: Inputs, manifest: Manifest
) -> ConvertResult | None:
    """Return the result where the dataset of a manifest is there, with all of its files. None: see
    `answer`."""
    try:
        conversion.target.refuse_lost_files(manifest)
    except DatasetError:
        if conversion.existing.is_replaced(manifest):
            return None  # they were files of the dataset before
        raise
    return up_to_date(conversion, inputs, manifest)


def _use_existing(
    conversion: Conversion, inputs: Inputs, manifest: Manifest
) -> ConvertResult | None:
    """Return the result where the dataset of a manifest is the wanted one. None: see `answer`."""
    keep = conversion.options.keep_generations
    if not conversion.options.dry_run:
        _complete_replacement(conversion)
        if keep is not None and keep != manifest.keep:
            manifest = _with_keep(conversion, keep)
    return use_as_it_is(conversion, inputs, manifest)


def _complete_replacement(conversion: Conversion) -> None:
    """Complete what a process has begun that was killed while the dataset took its place, or before
    it released its lease.

    Nothing else is deleted here: this is a check, and the next command that writes sees to what was
    left.

    It stays if another process works on it, or if the folder cannot be written. Who holds the lease
    has seen to it.
    """
    if conversion.held is None and conversion.target.needs_recovery():
        with contextlib.suppress(BusyError, StorageError), conversion.target.lease(None):
            publish.recover(conversion.folder.root)
            generations.settle(conversion.folder.root)


def _with_keep(conversion: Conversion, keep: int) -> Manifest:
    """Have a dataset that is up to date keep so many generations from now on, and return its
    manifest."""
    with conversion.leased() as held:
        manifest = replace(Manifest.load(conversion.folder), keep=keep)
        held.check()
        write_atomically(conversion.folder.path(MANIFEST), manifest.to_json().encode())
        generations.settle(conversion.folder.root)
    return manifest


def _plan_only(
    conversion: Conversion, inputs: Inputs, there: Manifest | None
) -> ConvertResult | None:
    """Return what would be done. Raises the errors of the real conversion before it starts to
    write. None: see `answer`."""
    conversion.target.check_writable()
    situation = find_situation(conversion, inputs, there, begun_jobs(conversion, inputs))
    if situation is None:
        return None
    decision, folder = situation.decision, conversion.staging.path(situation.decision.job)
    if not conversion.options.overwrite and not decision.follows:
        refuse_to_lose(conversion.staging, folder, inputs.parts, conversion.recipe)
    job = unfinished(folder, inputs.bases, conversion.recipe)
    if decision.action is Action.RESUME and job is not None:
        return planned(
            conversion,
            inputs,
            announce(conversion, job, inputs.listing),
            decision.job,
            (),
            changes_of(job),
        )
    found = plan(conversion, inputs, situation.before, inputs.scratch, all_types=False)
    expected = announce(conversion, found.job, found.inputs.listing)
    check_space(expected, conversion.folder)
    return planned(
        conversion, found.inputs, expected, decision.job, found.warnings, changes_of(found.job)
    )


@dataclass(frozen=True)
class Situation:
    """The dataset that is `there`, None for none, and the decision what the conversion does.

    `before` is the same dataset with its tables, if the job updates it or adds to it; else None.
    """

    there: Manifest | None
    decision: Decision
    before: PreviousDataset | None

    @property
    def up_to_date(self) -> Manifest | None:
        """The dataset that is there, if the conversion would make the same one; else None."""
        return self.there if self.decision.action is Action.UP_TO_DATE else None


def find_situation(
    conversion: Conversion, inputs: Inputs, there: Manifest | None, begun: Mapping[str, str]
) -> Situation | None:
    """Decide by the dataset that is there now, and by the unfinished jobs that have `begun` (see
    `decide`).

    None: another dataset has taken its place, so that all is to be looked at again. Raises the
    error of a refusal, and DatasetError if a table of the dataset is damaged that is to be
    followed.
    """
    options = conversion.options
    moved = options.moved_from if there is not None else ()
    wanted = Wanted(
        shown=conversion.folder.text,
        parts=inputs.parts,
        sources=inputs.sources,
        moved=[SourceRoot.of(old).recorded for old in moved],
        updates=options.update,
        appends=options.append,
        overwrites=options.overwrite,
        recipe=conversion.recipe.to_json(),
        settings=conversion.request.recorded_settings(conversion.recipe),
        existing=inputs.existing,
    )
    decision = decide(wanted, there, begun)
    if decision.refusal is not None:
        raise decision.refusal
    if decision.action is Action.LOOK_AGAIN:
        return None
    before = conversion.existing.before(there) if there is not None and decision.follows else None
    return None if decision.follows and before is None else Situation(there, decision, before)


def begun_jobs(conversion: Conversion, inputs: Inputs) -> dict[str, str]:
    """Return the names of the unfinished jobs of this conversion, each with the digest of the
    dataset that it updates."""
    name = fingerprint(inputs.parts)
    names = (name, f"{name}{UPDATING}")
    jobs = {
        name: unfinished(conversion.staging.path(name), inputs.bases, conversion.recipe)
        for name in names
    }
    return {name: job.lineage.updates for name, job in jobs.items() if job is not None}


Chosen = npt.NDArray[np.bool_]
"""Which shards of a job are meant: (shards,)."""


def build(
    job: Job,
    chosen: Chosen,
    before: PreviousDataset | None,
    engine: Engine,
    max_rejects: str | int | None,
    listener: Listener,
) -> int:
    """Build those of the chosen shards that are not finished, and return the number of samples
    made.

    Shards that are kept of the dataset `before` count as finished. Raises TooManyRejectsError if
    more is rejected than `max_rejects` allows for all inputs, and what the engine raises.
    """
    left = chosen.copy()
    tally = Tally(max_rejects, job.inputs, listener.progress)
    for shard, done in finished_shards(job, chosen):
        left[shard] = False
        tally.add(WorkDone(job.place(shard).records, done.facts.rows, done.rejected, 0))
    if (left != chosen).any():
        listener.resuming(int(chosen.sum() - left.sum()), int(chosen.sum()))
    for shard in np.flatnonzero(chosen & (job.kept != NOT_KEPT)).tolist():
        assert before is not None, "only then is a shard kept"
        left[shard] = False
        entry = before.table[int(job.kept[shard])]
        tally.add(WorkDone(job.place(shard).records, entry.rows, entry.rejected, 0))
    samples = tally.samples
    listener.building()
    engine.run(job, array("q", np.flatnonzero(left).tobytes()), tally.add)
    engine.let_go()  # while this process writes the tables
    return tally.samples - samples


@contextmanager
def telling_what_is_done(job: DatasetJob, chosen: Chosen | None = None) -> Iterator[None]:
    """Add to an error or an interrupt how many of the chosen shards are done, and how to go on."""
    chosen = np.ones(job.shards, bool) if chosen is None else chosen
    try:
        yield
    except (KeyboardInterrupt, StorageError, SourceGoneError) as error:
        state, done = _what_is_done(job, chosen)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {state}") from error
        if isinstance(error, DiskFullError) and job.url:
            advice = "" if "TMPDIR" in str(error) else _advice_for_scratch()
            raise DiskFullError(f"{advice or error}. {state}") from error
        if isinstance(error, DiskFullError):
            need = format_bytes(
                (1 - done)
                * job.inputs
                * job.costs.samples_per_record
                * job.costs.sample_bytes
                * SPARE_DISK
            )
            raise DiskFullError(f"{error}; about {need} more are needed. {state}") from error
        raise type(error)(f"{error}. {state}") from error


def _advice_for_scratch() -> str:
    """Return what to do where shards go to a store, and the disk is full on which they are
    built."""
    place = Path(tempfile.gettempdir())
    return (
        f"{printable(str(place))}: the disk is full ({format_bytes(free_bytes(place))} free); a "
        "shard for each worker is built"
        " there before the upload. Set TMPDIR to a folder on a larger disk, or use fewer --workers"
    )


def _what_is_done(job: Job, chosen: Chosen) -> tuple[str, float]:
    """Return how much of the chosen shards is done, as a sentence and as a share of the records of
    all."""
    try:
        done = [job.place(shard).records for shard, _ in finished_shards(job, chosen)]
    except OSError as error:
        return f"shardctl cannot read what is done ({job.working.shown()}: {error.strerror})", 0.0
    sentence = (
        f"{len(done):,} of {int(chosen.sum()):,} shards are done; run the same command "
        "again to continue"
    )
    return sentence, sum(done) / max(1, job.records)


# --- the work that is done so far, and its limit of rejects ---


class Tally:
    """Counts the work that the workers report, and stops the conversion if too much is rejected."""

    def __init__(
        self, limit: str | int | None, inputs: int, listen: Callable[[WorkDone], None]
    ) -> None:
        self._limit = reject_limit(limit, inputs)
        self._inputs, self._listen = inputs, listen
        self.rejected = self.samples = 0

    def add(self, progress: WorkDone) -> None:
        """Add finished work. Raises TooManyRejectsError."""
        self.rejected += progress.rejected
        self.samples += progress.samples
        self._listen(progress)
        if self.rejected > self._limit:
            raise TooManyRejectsError(
                f"{count_rejects(self.rejected, self._inputs)} so far, more than --max-rejects "
                "allows;"
                " nothing was committed. Fix or remove them, or run the same command with a higher "
                "limit to continue"
            )
