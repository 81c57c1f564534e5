"""A conversion from its request to its result: list the inputs, decide, plan, build the shards,
commit."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from shardctl.errors import (
    BusyError,
    DatasetError,
    DiskFullError,
    InputError,
    SourceGoneError,
    StorageError,
    TooManyRejectsError,
)
from shardctl.format.arrays import Bools
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES
from shardctl.format.roles import Image
from shardctl.making.commit.commit import sweep, upgrade
from shardctl.making.commit.staging import (
    begin,
    clear_partial_files,
    finished_shards,
    has_made,
    refuse_to_lose,
    unfinished,
)
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.convert.conversion import Conversion, ConvertRequest, Inputs, list_inputs
from shardctl.making.convert.conversion_plan import PlannedJob, plan_job, with_types
from shardctl.making.convert.decision import UPDATING, Decision, decide, job_name
from shardctl.making.convert.listener import SPARE_DISK, Estimate, Listener, metered
from shardctl.making.convert.previous import (
    DatasetReplacedError,
    PreviousDataset,
    match_files,
)
from shardctl.making.convert.rejects import (
    check_new,
    count_rejects,
    refuse_many_rejects,
)
from shardctl.making.convert.result import ConvertResult, explained, finished, has_some_rejects
from shardctl.making.convert.table_writer import (
    commit_made,
    made_before,
    provenance_of,
    tables_of,
    write_dataset,
)
from shardctl.making.options import reject_limit
from shardctl.making.plan.fingerprint import VERSIONS, fingerprint, version_changes
from shardctl.making.plan.labels import LABEL
from shardctl.making.plan.listing import Listing
from shardctl.making.plan.plan import NOT_KEPT
from shardctl.making.shards import engines
from shardctl.making.shards.engines.local import Engine
from shardctl.making.shards.job import DatasetJob, Job
from shardctl.making.shards.marker import WorkDone
from shardctl.sources.annotations.objects import annotated_columns
from shardctl.sources.files import in_use
from shardctl.sources.formats.base import FOLDER
from shardctl.system.files import free_bytes, naming_the_path
from shardctl.system.processes.pool import Pool
from shardctl.system.scratch import scratch_folder
from shardctl.system.text import format_bytes, printable

Made = TypeVar("Made")


def run(
    request: ConvertRequest, listener: Listener, target: Target, held: WriteLease | None = None
) -> ConvertResult:
    """Convert as requested. `held` is the lease of the target where the caller has it. Raises what
    `convert` does."""
    options = request.options
    with in_use(), metered(listener, options.metrics) as metering:
        engine = engines.start(options.engine, options.workers, options.limits(), metering.on_line)
        try:
            return with_inputs(Conversion(request, metering, engine, target, held), _convert)
        except TooManyRejectsError as error:
            if options.copy_rejects is None or options.dry_run:
                raise
            raise TooManyRejectsError(
                f"{error} (no rejected input was copied: --copy-rejects needs a complete "
                "conversion)"
            ) from error
        finally:
            engine.close()


def with_inputs(
    conversion: Conversion, act: Callable[[Inputs, Decision], Made]
) -> ConvertResult | Made:
    """List the inputs, decide, and return the result where nothing is to be built, else what `act`
    makes of them. All begins again where another process has replaced the dataset meanwhile."""
    while True:
        with scratch_folder() as scratch, contextlib.suppress(DatasetReplacedError):
            inputs = list_inputs(conversion, scratch)
            if conversion.options.explain:
                return explained(inputs)
            decision = decide(inputs)
            if decision is Decision.NOTHING:
                return _use_existing(inputs)
            if conversion.options.dry_run:
                return _plan_only(inputs, decision)
            return act(inputs, decision)


def _convert(inputs: Inputs, decision: Decision) -> ConvertResult:
    """Plan a job or find an unfinished one, execute it, and commit. No other process writes."""
    with inputs.conversion.leased() as held:

        def make(all_types: bool) -> ConvertResult:
            planned = begin_job(inputs, decision, held, all_types)
            if isinstance(planned, ConvertResult):
                return planned
            with _checks_ahead(planned) as checks:
                samples, made = _execute(planned, held)
                return _commit(planned, held, samples, made, checks)

        try:
            return with_types(make)
        finally:
            # before the lease is released: workers of two must not write side by side
            inputs.conversion.engine.close()


# --- nothing is to be built ---


def _use_existing(inputs: Inputs) -> ConvertResult:
    """Return the result where the wanted dataset is there, with all of its files. Raises
    TooManyRejectsError, as making it would have."""
    conversion, manifest = inputs.conversion, inputs.manifest
    assert manifest is not None, "there is nothing to do"
    options, target = conversion.options, conversion.target
    if options.update or options.append:
        conversion.before(manifest)  # a damaged one is refused
    if not options.dry_run:
        manifest = _settled(conversion, manifest)
    with conversion.staying(manifest):
        target.refuse_lost_files(manifest)
    refuse_many_rejects(conversion.folder, manifest, options.max_rejects)
    if manifest.fingerprint != fingerprint(inputs.parts):
        before, now = (of.get(VERSIONS, "") for of in (manifest.fingerprint_parts, inputs.parts))
        inputs.listing.note("other-versions", changes=version_changes(before, now))
    if has_some_rejects(manifest):
        target.fetch_dataset()
    return finished(inputs, "up-to-date", None, inputs.listing)


def _settled(conversion: Conversion, manifest: Manifest) -> Manifest:
    """Have the dataset keep as many generations as was asked for, and sweep what a process has left
    that was killed after its commit. Return its manifest.

    Nothing else is deleted: this is a check. It stays if another process works on the dataset, or
    if that cannot be written.
    """
    keep = conversion.options.keep_generations
    if keep is None or keep == manifest.keep:
        target = conversion.target
        # this user may not read what another one has left there, either
        with contextlib.suppress(BusyError, StorageError, DatasetError):
            left = any(has_made(job, manifest) for job in target.jobs()) or target.is_leased()
            if left and conversion.held is None:
                with target.lease(None) as held:
                    sweep(target, held)
        return manifest
    with conversion.leased() as held:
        upgrade(conversion.target, held)
        manifest = Manifest.load(conversion.folder).keeping(keep)
        conversion.target.replace_manifest(manifest.to_json().encode(), held)
        sweep(conversion.target, held)
    return manifest


def _plan_only(inputs: Inputs, decision: Decision) -> ConvertResult:
    """Return what would be done. Raises the errors of the real conversion before it starts to
    write."""
    conversion = inputs.conversion
    conversion.target.check_writable()
    planned = _job_to_resume(inputs, decision)
    planned = planned or plan_job(inputs, _followed(inputs, decision), inputs.scratch)
    job, expected = planned.job, announce(planned)
    facts = (expected.rows, expected.shards, expected.bytes, 0, conversion.seconds, 0.0)
    return ConvertResult(
        "planned",
        *facts,
        fingerprint(inputs.parts),
        estimate=expected,
        notices=tuple(job.notices),
        warnings=tuple(job.warnings),
        changes=expected.changes,
    )


# --- plan: a job, which may have been begun before ---


def begin_job(
    inputs: Inputs, decision: Decision, held: WriteLease, all_types: bool = False
) -> PlannedJob | ConvertResult:
    """Begin a job, or return an unfinished one. If a killed process has all but committed it, return
    the result.

    `all_types` begins anew where there is an unfinished one: the types of fields are found in all
    records. The caller holds the lease. Raises DatasetReplacedError if the dataset is another one
    than that beside which the inputs were listed, and StorageError if the disk cannot hold the
    dataset.
    """
    conversion, target = inputs.conversion, inputs.conversion.target
    name = job_name(inputs, decision)
    made = fingerprint(inputs.parts)
    if {made, f"{made}{UPDATING}"}.intersection(sweep(target, held)):
        target.fetch_dataset()
        return finished(inputs, "resumed", 0, inputs.listing)
    conversion.refuse_replaced(inputs.manifest)
    gives_way = (DatasetError,) if conversion.options.overwrite else ()
    with contextlib.suppress(*gives_way):  # damaged or not
        if upgrade(target, held):
            raise DatasetReplacedError
    folder = conversion.staging.path(name)
    if all_types:
        # the disk has its room before the plan asks for it
        sweep(target, held, [name])
    elif (resumed := _job_to_resume(inputs, decision)) is not None:
        return resumed
    planned = plan_job(inputs, _followed(inputs, decision), folder, all_types)
    announce(planned)
    # a plan takes its time, and what is taken away now must not be the work of one that has taken
    # over
    held.check()
    sweep(target, held, [other.name for other in target.jobs()])
    with naming_the_path(folder):
        folder.mkdir(parents=True)
    planned.job.warnings.extend(planned.write())
    begin(planned.job)
    target.begun(planned.job)
    return planned


def _followed(inputs: Inputs, decision: Decision) -> PreviousDataset | None:
    """Return the dataset that is followed, None if a new one is made. Raises DatasetError if it is
    damaged."""
    if decision is not Decision.FOLLOW:
        return None
    assert inputs.manifest is not None, "there is one"
    return inputs.conversion.before(inputs.manifest)


def _job_to_resume(inputs: Inputs, decision: Decision) -> PlannedJob | None:
    """Return the unfinished job that was decided on, None for a new one. Raises DatasetError where
    that would throw away finished shards of another one."""
    conversion, before = inputs.conversion, _followed(inputs, decision)
    folder = conversion.staging.path(job_name(inputs, decision))
    if not conversion.options.overwrite and before is None:
        refuse_to_lose(conversion.staging, folder, inputs.parts, inputs.recipe)
    job = unfinished(folder, inputs.bases, inputs.recipe)
    if job is None or job.digest_before != ("" if before is None else before.digest):
        return None
    return PlannedJob(job, inputs, inputs.listing, "resumed", before)


def announce(planned: PlannedJob) -> Estimate:
    """Tell what a job will do and cost. Raises StorageError if the disk cannot hold the dataset of a
    new one."""
    job, listing, conversion = planned.job, planned.listing, planned.inputs.conversion
    free, classes = conversion.target.free_bytes(), job.layout.classes
    built = 1 - job.kept_records / max(1, job.records)
    rows = round(job.expected * job.samples_per_record)  # if only repeats are rejected
    samples = rows * (1 - job.probe_rejects / job.probed) if job.probed else rows
    expected = Estimate(
        kind=job.recipe.kind,
        inputs=job.expected,
        input_bytes=listing.total_bytes,
        splits=job.splits,
        records=job.records,
        rows=round(samples) if job.recipe.batch_transforms else rows,
        shards=job.shards,
        classes=len(classes) if classes is not None else None,
        labelled_by=_origin_of_labels(job, listing),
        annotated=annotated_columns(listing.annotations),
        bytes=int(built * samples * job.sample_bytes) + job.shards * job.shard_bytes,
        free_bytes=free,
        seconds=built * job.expected * job.record_seconds / conversion.engine.at_once(),
        probed=job.probed,
        probe_rejects=job.probe_rejects,
        ignored=dict(listing.ignored),
        notices=tuple(job.notices),
        warnings=tuple(job.warnings),
        changes=job.changes,
    )
    conversion.listener.announce(expected)
    need = expected.bytes * SPARE_DISK
    if planned.status != "resumed" and free is not None and need > free:
        raise StorageError(
            f"{conversion.folder.shown()}: the dataset needs about {format_bytes(need)} and "
            f"{format_bytes(free)} are free; free more, or store less (--store, --compression)"
        )
    return expected


def _origin_of_labels(job: Job, listing: Listing) -> str:
    if LABEL not in job.layout.columns.names or isinstance(job.layout.roles.get(LABEL), Image):
        return "nothing"
    if any(each.classes is not None for each in listing.annotations):
        return "lists of ImageNet"
    if listing.side is not None:
        return "labels file"
    named = job.recipe.label_source
    if named == FOLDER:
        return "folder"
    return (
        f"field {printable(named)}"
        if job.by_field or (job.fields is not None and named in job.fields.names)
        else "folder"
    )


# --- build: the shards of the job, but for those that are there already, and the tables ---


def _execute(planned: PlannedJob, held: WriteLease) -> tuple[int, Manifest]:
    """Build what is left of a job: shards, tables and manifest. Return the number of samples that
    were made, and the manifest."""
    job, before, conversion = planned.job, planned.before, planned.inputs.conversion
    target, options = conversion.target, conversion.options
    if (made := made_before(job, target, options.keep_generations)) is not None:
        refuse_many_rejects(tables_of(job, target, made), made, options.max_rejects)
        return 0, made
    target.entrust(job, held)
    if planned.status == "resumed":
        clear_partial_files(job)
        job.save()  # workers find the sources where they are now
        announce(planned)
    shards = np.ones(job.shards, bool)
    target.fetch_done(job, shards)
    with telling_what_is_done(job):
        samples = build_shards(
            job, shards, before, conversion.engine, options.max_rejects, conversion.listener
        )
        held.check()
        of_all = before is None and planned.status != "resumed"
        seconds = conversion.seconds if of_all else None
        provenance = provenance_of(planned.inputs, before, seconds)
        try:
            made = write_dataset(job, provenance, before, target)
        except InputError:  # the sources hold no records: there is nothing to go on with
            sweep(target, held, [job.folder.name])
            raise
    return samples, made


def build_shards(
    job: Job,
    chosen: Bools,
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
    limit, rejected, samples = reject_limit(max_rejects, job.expected), 0, 0

    def add(work: WorkDone) -> None:
        nonlocal rejected, samples
        rejected, samples = rejected + work.rejected, samples + work.samples
        listener.progress(work)
        if rejected > limit:
            raise TooManyRejectsError(
                f"{count_rejects(rejected, job.expected)} so far, more than --max-rejects allows; "
                "nothing was committed. Fix or remove them, or run this again with a higher "
                "limit"
            )

    left = chosen.copy()
    for shard, done in finished_shards(job, chosen):
        left[shard] = False
        add(WorkDone(job.planned_shard(shard).records, done.facts.rows, done.rejected))
    if (left != chosen).any():
        listener.resuming(int(chosen.sum() - left.sum()), int(chosen.sum()))
    for shard in np.flatnonzero(chosen & (job.kept != NOT_KEPT)).tolist():
        assert before is not None, "only then is a shard kept"
        left[shard] = False
        entry = before.table[int(job.kept[shard])]
        add(WorkDone(job.planned_shard(shard).records, entry.rows, entry.rejected))
    there = samples
    listener.building()
    engine.run(job, np.flatnonzero(left).tolist(), add)
    engine.let_go()  # while this process writes the tables
    return samples - there


@contextlib.contextmanager
def telling_what_is_done(job: DatasetJob, chosen: Bools | None = None) -> Iterator[None]:
    """Add to an error or an interrupt how many of the chosen shards are done, and how to go on."""
    chosen = np.ones(job.shards, bool) if chosen is None else chosen
    try:
        yield
    except (KeyboardInterrupt, StorageError, SourceGoneError) as error:
        done, said, more = list[int](), str(error), ""
        try:
            done = [job.planned_shard(shard).records for shard, _ in finished_shards(job, chosen)]
            state = (
                f"{len(done):,} of {int(chosen.sum()):,} shards are done; run the same command "
                "again to continue"
            )
        except OSError as fault:
            state = f"shardctl cannot read what is done ({job.working.shown()}: {fault.strerror})"
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {state}") from error
        if isinstance(error, DiskFullError) and job.url and "TMPDIR" not in said:
            scratch = Path(tempfile.gettempdir())
            said = (
                f"{printable(scratch)}: the disk is full "
                f"({format_bytes(free_bytes(scratch))} free); each worker builds a shard there "
                "before the upload. Set TMPDIR to a larger disk, or use fewer --workers"
            )
        elif isinstance(error, DiskFullError) and not job.url:
            samples = (1 - sum(done) / max(1, job.records)) * job.expected
            need = samples * job.samples_per_record * job.sample_bytes * SPARE_DISK
            more = f"; about {format_bytes(need)} more are needed"
        raise type(error)(f"{said}{more}. {state}") from error


# --- commit: the job becomes the dataset ---


def _checks_ahead(planned: PlannedJob) -> contextlib.AbstractContextManager[Pool | None]:
    """Have the process started that checks the result of an update of a folder."""
    if planned.before is None or planned.inputs.conversion.folder.url:
        return contextlib.nullcontext()
    from shardctl.inspection.verify.verification import checks_ahead  # 20 ms

    return checks_ahead(True)


def _commit(
    planned: PlannedJob,
    held: WriteLease,
    samples: int,
    made: Manifest,
    checks: Pool | None,
) -> ConvertResult:
    """Make a job that is done the dataset. This call has made so many of its samples. Raises
    TooManyRejectsError."""
    job, before, conversion = planned.job, planned.before, planned.inputs.conversion
    listing, target = planned.listing, conversion.target
    if before is not None and (made.rejected or (job.changes and job.changes.changed)):
        # `matching` is None where the job was planned by a process that was stopped.
        matching = planned.matching or match_files(before, listing, job.folder / FILES)
        checked, loses = check_new(job, tables_of(job, target, made), matching, before, listing)
        if loses and conversion.options.max_rejects is None:
            raise TooManyRejectsError(
                f"{loses}. The dataset is as it was before. To update it anyway: --max-rejects 100%"
            )
        job.warnings.extend(checked)
    commit_made(job, made, target, held, checks)
    result = finished(planned.inputs, planned.status, samples, job)
    return replace(result, changes=job.changes)
