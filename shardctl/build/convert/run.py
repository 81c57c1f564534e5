"""A conversion from its request to its result: discover the inputs, decide, plan, build the shards, commit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardctl.build.commit import generations, publish
from shardctl.build.commit.staging import begin, go_on, refuse_to_lose, unfinished
from shardctl.build.convert.conversion import Conversion
from shardctl.build.convert.conversion_plan import ConversionPlan
from shardctl.build.convert.decision import UPDATING, Action, Decision, Wanted, decide
from shardctl.build.convert.execute import build, telling_what_is_done
from shardctl.build.convert.inputs import Inputs, discover
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.manifest_writer import ManifestFacts, changes_of, environment_of, leave_out_others, write_dataset
from shardctl.build.convert.metrics_listener import metered
from shardctl.build.convert.new_inputs import Checked, NewInputs, check_new
from shardctl.build.convert.planning import PlannedJob, announce, check_space, differing_types, plan
from shardctl.build.convert.rejects import refuse_many_rejects
from shardctl.build.convert.reporting import explained, finished, planned, up_to_date
from shardctl.build.convert.request import ConvertRequest
from shardctl.build.convert.result import ConvertResult
from shardctl.build.convert.targets.base import Target, WriteLease
from shardctl.build.convert.update.known_records import hide_pruned, write_known
from shardctl.build.convert.update.match import match_files
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.plan.fingerprint import fingerprint
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.engines import registry
from shardctl.build.shards.job import NEW_FOLDER
from shardctl.errors import BusyError, DatasetError, InputError, StorageError, TooManyRejectsError, TypesDifferError
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, MANIFEST
from shardctl.sources.files import in_use
from shardctl.sources.roots import SourceRoot
from shardctl.system.files import write_atomically
from shardctl.system.locations.local import LocalFolder
from shardctl.system.scratch import scratch_folder


@dataclass(frozen=True)
class BegunJob:
    """A job that is begun, by this call or by an earlier one: `status` is that of the result.

    `before` is the dataset that it brings up to date, `new_inputs` are those that it adds, if this call has planned it.
    """

    job: DatasetJob
    inputs: Inputs
    status: str
    before: PreviousDataset | None
    warnings: tuple[str, ...]
    new_inputs: NewInputs | None = None

    def warned(self, warnings: Iterable[str]) -> BegunJob:
        """Return the same with more warnings, each of them once."""
        return replace(self, warnings=tuple(dict.fromkeys((*self.warnings, *warnings))))


def run(request: ConvertRequest, listener: Listener, target: Target, held: WriteLease | None = None) -> ConvertResult:
    """Convert as requested. `held` is the lease of the target where the caller has it. Raises what `convert` does."""
    options = request.options
    with in_use(), metered(listener, options.metrics) as metering:
        engine = registry.start(options.engine, options.workers, options.limits(), metering.on_line)
        try:
            return _run(Conversion.of(request, metering, engine, target, held))
        except TooManyRejectsError as error:
            if options.copy_rejects is None or options.dry_run:
                raise
            said = f"{error} (no rejected input was copied: --copy-rejects needs a complete conversion)"
            raise TooManyRejectsError(said) from error
        finally:
            engine.close()


def _run(conversion: Conversion) -> ConvertResult:
    while True:
        with scratch_folder() as scratch:
            found = look(conversion, scratch)
            if isinstance(found, Inputs):
                with conversion.leased() as held:
                    try:
                        found = _write(conversion, found, held)
                    finally:
                        conversion.engine.close()  # before the lease is released: workers of two must not write side by side
        if found is not None:
            return found


def look(conversion: Conversion, scratch: Path) -> ConvertResult | Inputs | None:
    """Find the inputs, and return them if something is to be written; else return the result.

    None: another process has changed the dataset meanwhile, so that all is to be looked at again.
    """
    options = conversion.options
    if options.update or options.append or options.explain or options.copy_rejects is not None:
        conversion.target.fetch_dataset()
    if options.overwrite or not conversion.existing.is_there():
        conversion.engine.prepare()  # a second process imports the modules of the workers while the inputs are listed
    inputs = discover(conversion, scratch)
    if inputs is None:
        return None
    if options.explain:
        return explained(conversion, inputs)
    there = conversion.existing.manifest()
    decision = _decide(conversion, inputs, there, {})  # no job is looked at yet: it may be another user's
    if decision.action is Action.LOOK_AGAIN or _lacks_previous(conversion, there, decision):
        return None
    if decision.action is Action.UP_TO_DATE and there is not None:
        return _use_existing(conversion, inputs, there)
    if not publish.is_broken_off(conversion.folder.root):
        publish.refuse_to_replace(conversion.folder.root, conversion.recipe.files)
    return _plan_only(conversion, inputs, there) if options.dry_run else inputs


def _write(conversion: Conversion, inputs: Inputs, held: WriteLease) -> ConvertResult | None:
    """Make the dataset, or complete an unfinished one. This process holds the lease: no other process writes."""
    for all_types in (False, True):
        try:
            begun = begin_job(conversion, inputs, held, all_types)
            return complete(conversion, begun, held) if isinstance(begun, BegunJob) else begun
        except TypesDifferError as error:
            # Some records did not show all types. The dataset is the one that it would be if all had been read first.
            if all_types:
                raise differing_types(error) from error
    raise AssertionError("unreachable")


def begin_job(
    conversion: Conversion, inputs: Inputs, held: WriteLease, all_types: bool = False
) -> BegunJob | ConvertResult | None:
    """Begin a job, or return an unfinished one; the result where the dataset is there by now. None: see `look`.

    `all_types` begins anew where there is an unfinished one: the types of fields are found in all records. The caller holds
    the lease.
    """
    name = fingerprint(inputs.parts)
    if publish.recover(conversion.folder.root) in (name, f"{name}{UPDATING}"):
        return finished(conversion, inputs, "resumed", 0)
    there = conversion.existing.manifest()
    # Once more: another converter may have finished while this one waited.
    decision = _decide(conversion, inputs, there, _begun(conversion, inputs))
    if decision.action is Action.LOOK_AGAIN or _lacks_previous(conversion, there, decision):
        return None
    before = _previous(conversion, there, decision)
    if decision.action is Action.UP_TO_DATE and there is not None:
        return _up_to_date(conversion, inputs, there)
    folder = conversion.staging.path(decision.job)
    if all_types:
        held.check()
        conversion.target.discard(folder)
    elif not conversion.options.overwrite and not decision.follows:
        refuse_to_lose(conversion.staging, folder, inputs.parts, conversion.recipe)
    job = None if all_types else unfinished(folder, inputs.bases, conversion.recipe)
    if decision.action is Action.RESUME and job is not None:
        return BegunJob(job, inputs, "resumed", before, job.lineage.warnings)
    found = plan(conversion, inputs, before, folder, all_types)
    return _begin(conversion, replace(inputs, listing=found.listing), found, before, held)


def _begin(
    conversion: Conversion, inputs: Inputs, found: PlannedJob, before: PreviousDataset | None, held: WriteLease
) -> BegunJob:
    """Write the plan of a new job. Raises StorageError if the disk cannot hold the dataset."""
    job, folder = found.job, found.job.folder
    status = "updated" if conversion.folder.path(MANIFEST).exists() else "created"
    check_space(announce(conversion, job, inputs.listing), conversion.folder)
    held.check()  # a plan takes its time, and what is taken away now must not be the work of one that has taken over
    conversion.target.make_room(folder)
    job = conversion.target.prepared(job)
    found.tables.write(folder)
    warnings = list(found.warnings)
    if before is not None:
        hide_pruned(job, before)
        warnings += write_known(job, before, None if isinstance(found.tables, ConversionPlan) else found.tables.of_old)
    job = replace(job, lineage=replace(job.lineage, warnings=tuple(dict.fromkeys(warnings))))
    begin(job)
    conversion.target.begun(job)
    return BegunJob(job, inputs, status, before, job.lineage.warnings, found.new_inputs)


def complete(conversion: Conversion, begun: BegunJob, held: WriteLease) -> ConvertResult:
    """Build what is left of a job, and make it the dataset."""
    job, target, made = begun.job, conversion.target, 0
    new = job.folder / NEW_FOLDER
    if (new / MANIFEST).exists():
        refuse_many_rejects(conversion.folder, Manifest.load(LocalFolder(new)), conversion.options.max_rejects)
    else:
        made = _build(conversion, begun, held)
    if begun.before is not None:
        checked = _check_new(begun, begun.before)
        if checked.loses and conversion.options.max_rejects is None:
            raise TooManyRejectsError(
                f"{checked.loses}. The dataset is as it was before. To update it anyway: --max-rejects 100%"
            )
        begun = begun.warned(checked.warnings)
    held.check()
    leave_out_others(job, target)
    target.publish(new, updates=begun.before is not None)
    return finished(conversion, begun.inputs, begun.status, made, begun.warnings, changes_of(job))


def _build(conversion: Conversion, begun: BegunJob, held: WriteLease) -> int:
    """Build the shards that are left, and the tables and the manifest beside them. Return the number of samples made."""
    job, target = begun.job, conversion.target
    target.entrust(job, held)
    if begun.status == "resumed":
        go_on(job)
        announce(conversion, job, begun.inputs.listing)
    shards = np.ones(job.shards, bool)
    target.fetch_done(job, shards)
    with telling_what_is_done(job):
        made = build(job, shards, begun.before, conversion.engine, conversion.options.max_rejects, conversion.listener)
        held.check()
        closing = closing_of(conversion, begun, conversion.seconds if begun.status == "created" else None)
        try:
            write_dataset(job, closing, begun.before, target)
        except InputError:  # the sources hold no records: there is nothing to go on with
            target.discard(job.folder)
            raise
    return made


def closing_of(conversion: Conversion, begun: BegunJob, seconds: float | None) -> ManifestFacts:
    """Return what the manifest says of the conversion beside what its job knows."""
    return ManifestFacts(
        settings=conversion.request.recorded_settings(conversion.recipe),
        sources=tuple(begun.inputs.sources),
        keep=_keep(conversion, begun.before),
        appends=conversion.options.append,
        environment=environment_of(conversion.recipe),
        seconds=None if seconds is None else round(seconds, 3),
    )


def _keep(conversion: Conversion, before: PreviousDataset | None) -> int:
    """Return how many generations are kept: as before, if nothing else is said."""
    if conversion.options.keep is not None:
        return conversion.options.keep
    return 0 if before is None else before.manifest.keep


def _check_new(begun: BegunJob, before: PreviousDataset) -> Checked:
    """Return what should be checked of the inputs that an update has added or that have changed, in a job that is done."""
    job, listing, changes = begun.job, begun.inputs.listing, changes_of(begun.job)
    if not Manifest.load(LocalFolder(job.folder / NEW_FOLDER)).rejected and changes is not None and not changes.changed:
        return Checked()
    # None where the job was planned by a process that was stopped.
    new_inputs = begun.new_inputs or NewInputs.of(match_files(before, listing, job.folder / FILES), before)
    return check_new(job, new_inputs, listing)


# --- decisions, and what is there already ---


def _decide(conversion: Conversion, inputs: Inputs, there: Manifest | None, begun: Mapping[str, str]) -> Decision:
    """Decide by the dataset that is there now, and by unfinished jobs (see `decide`). Raises the error of a refusal."""
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
        existing=inputs.existing,
    )
    decision = decide(wanted, there, begun)
    if decision.refusal is not None:
        raise decision.refusal
    return decision


def _begun(conversion: Conversion, inputs: Inputs) -> dict[str, str]:
    """Return the names of the unfinished jobs of this conversion, each with the digest of the dataset that it updates."""
    name = fingerprint(inputs.parts)
    names = (name, f"{name}{UPDATING}")
    jobs = {name: unfinished(conversion.staging.path(name), inputs.bases, conversion.recipe) for name in names}
    return {name: job.lineage.updates for name, job in jobs.items() if job is not None}


def _previous(conversion: Conversion, there: Manifest | None, decision: Decision) -> PreviousDataset | None:
    """Return the dataset that an update or addition follows; None where none is followed, or another one is there by now.

    Raises DatasetError if one of its tables is damaged.
    """
    return conversion.existing.before(there) if there is not None and decision.follows else None


def _lacks_previous(conversion: Conversion, there: Manifest | None, decision: Decision) -> bool:
    """Return whether another dataset has taken the place of the one that is to be followed."""
    return decision.follows and _previous(conversion, there, decision) is None


def _use_existing(conversion: Conversion, inputs: Inputs, manifest: Manifest) -> ConvertResult | None:
    """Return the result where the dataset of a manifest is the wanted one. None: see `look`."""
    keep = conversion.options.keep
    if not conversion.options.dry_run:
        _complete_replacement(conversion)
        if keep is not None and keep != manifest.keep:
            manifest = _with_keep(conversion, keep)
    return _up_to_date(conversion, inputs, manifest)


def _up_to_date(conversion: Conversion, inputs: Inputs, manifest: Manifest) -> ConvertResult | None:
    """Return the result where the dataset of a manifest is there, with all of its files. None: see `look`."""
    try:
        conversion.target.refuse_lost_files(manifest)
    except DatasetError:
        if conversion.existing.is_replaced(manifest):
            return None  # they were files of the dataset before
        raise
    return up_to_date(conversion, inputs, manifest)


def _complete_replacement(conversion: Conversion) -> None:
    """Complete what a process has begun that was killed while the dataset took its place, or before it released its lease.

    Nothing else is deleted here: this is a check, and the next command that writes sees to what was left.

    It stays if another process works on it, or if the folder cannot be written. Who holds the lease has seen to it.
    """
    if conversion.held is None and conversion.target.is_broken_off():
        with contextlib.suppress(BusyError, StorageError), conversion.target.writing(None):
            publish.recover(conversion.folder.root)
            generations.settle(conversion.folder.root)


def _with_keep(conversion: Conversion, keep: int) -> Manifest:
    """Have a dataset that is up to date keep so many generations from now on, and return its manifest."""
    with conversion.leased() as held:
        manifest = replace(Manifest.load(conversion.folder), keep=keep)
        held.check()
        write_atomically(conversion.folder.path(MANIFEST), manifest.to_json().encode())
        generations.settle(conversion.folder.root)
    return manifest


def _plan_only(conversion: Conversion, inputs: Inputs, there: Manifest | None) -> ConvertResult | None:
    """Return what would be done. Raises the same errors as the real conversion before it starts to write. None: see `look`."""
    conversion.target.check_writable()
    decision = _decide(conversion, inputs, there, _begun(conversion, inputs))
    if _lacks_previous(conversion, there, decision):
        return None
    folder, before = conversion.staging.path(decision.job), _previous(conversion, there, decision)
    if not conversion.options.overwrite and not decision.follows:
        refuse_to_lose(conversion.staging, folder, inputs.parts, conversion.recipe)
    job = unfinished(folder, inputs.bases, conversion.recipe)
    if decision.action is Action.RESUME and job is not None:
        return planned(conversion, inputs, announce(conversion, job, inputs.listing), decision.job, (), changes_of(job))
    found = plan(conversion, inputs, before, inputs.scratch, all_types=False)
    expected = announce(conversion, found.job, found.listing)
    check_space(expected, conversion.folder)
    inputs = replace(inputs, listing=found.listing)
    return planned(conversion, inputs, expected, decision.job, found.warnings, changes_of(found.job))
