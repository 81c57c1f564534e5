"""The plan of a conversion: of a new dataset, or of one that is brought up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from shardctl.errors import InputError, StorageError, TypesDifferError
from shardctl.format.names import FILES
from shardctl.format.roles import Image
from shardctl.making.commit import publish
from shardctl.making.convert.conversion import Conversion, Inputs
from shardctl.making.convert.conversion_plan import ConversionPlan, Material, plan_conversion
from shardctl.making.convert.listener import SPARE_DISK, Changes, Estimate
from shardctl.making.convert.manifest_writer import changes_of
from shardctl.making.convert.previous import Matching, PreviousDataset, match_files
from shardctl.making.convert.rejects import moved_records, refuse_failing
from shardctl.making.plan.labels import LABEL, write_files
from shardctl.making.plan.listing import Listing, Numbers
from shardctl.making.shards.job import DatasetJob, Job
from shardctl.sources.annotations.objects import annotated_columns
from shardctl.sources.formats.base import FOLDER
from shardctl.system.text import format_bytes, printable

RUN_AGAIN = "run the conversion again"


@dataclass(frozen=True)
class PlannedJob:
    """A job that is decided on, by this call or by an earlier one: `status` is that of the result.

    The listing of `inputs` has the notices of the plan. `before` is the dataset that the job brings
    up to date, None for none, and `matching` has what an update changes in its inputs; None where
    an earlier call has planned it. `tables` makes the tables of the job, and has the row in the
    plan before of each row of its plan (UpdatePlan), None where all are new; None once they are
    written.
    """

    job: DatasetJob
    inputs: Inputs
    status: str
    before: PreviousDataset | None
    warnings: tuple[str, ...] = ()
    tables: tuple[Callable[[Path], None], Numbers | None] | None = None
    matching: Matching | None = None


def plan(
    conversion: Conversion,
    inputs: Inputs,
    before: PreviousDataset | None,
    folder: Path,
    all_types: bool,
) -> PlannedJob:
    """Plan the conversion, whose job will be in `folder`, once some records were tried.

    `before` is the dataset that is brought up to date, None for none. With `all_types` the types of
    fields are found in all records; without, in some of them, and only where these do not show all,
    in all. Raises InputError, TooManyRejectsError, and TypesDifferError with `all_types`.
    """
    status = "updated" if conversion.is_there else "created"

    def fresh() -> Material:
        return Material(
            inputs.listing.fresh(),
            conversion.recipe,
            conversion.rules,
            conversion.options,
            inputs.bases,
            conversion.engine,
            inputs.scratch,
            conversion.listener,
            inputs.parts,
        )

    why = "new records have other types" if all_types else ""
    if before is not None and not all_types:
        from shardctl.making.convert.update_plan import UpdatePlan, plan_update

        material = fresh()
        found = plan_update(material, before)
        if isinstance(found, UpdatePlan):
            conversion.target.refuse_lost(before, found.kept)
            job = replace(found.job, folder=folder)
            inputs = replace(inputs, listing=material.listing)
            warnings = tuple(moved_records(job, found.matching))
            tables = (found.write, found.of_old)
            return PlannedJob(job, inputs, status, before, warnings, tables, found.matching)
        why = found
    if before is not None and conversion.options.append:
        raise InputError(
            f"{conversion.folder.shown()}: --append only adds shards, but these inputs would "
            f"change all shards, since {why}; use --update"
        )

    def attempt(all_types: bool) -> ConversionPlan:
        return plan_conversion(fresh(), all_types)

    new = attempt(True) if all_types else with_types(attempt, RUN_AGAIN)
    if conversion.options.max_rejects is None:
        refuse_failing(new.probe, new.listing)
    inputs, job = replace(inputs, listing=new.listing), replace(new.job, folder=folder)
    if before is None:
        return PlannedJob(job, inputs, status, None, tables=(new.write, None))
    # all shards of the dataset are made anew
    files = inputs.scratch / f"anew-{FILES}"
    write_files(files, new.listing, new.labelling)
    matching, old = match_files(before, new.listing, files), len(before.table)
    changes = Changes(*matching.counts, min(old, job.shards), max(0, job.shards - old), 0, why)
    lineage = replace(job.lineage, changes=asdict(changes), updates=before.digest)
    job = replace(job, lineage=lineage)
    warnings = tuple(moved_records(job, matching))
    return PlannedJob(job, inputs, status, before, warnings, (new.write, None), matching)


def announce(
    conversion: Conversion, job: DatasetJob, listing: Listing, is_new: bool = False
) -> Estimate:
    """Tell what a job will do and cost. Raises StorageError if files of a person are in its way,
    and if the disk cannot hold the dataset of a new one."""
    publish.refuse_others(conversion.folder.root, job)
    free = conversion.target.free_bytes()
    expected = estimate(job, listing, conversion.engine.at_once(), free, changes_of(job))
    conversion.listener.announce(expected)
    need = expected.bytes * SPARE_DISK
    if is_new and free is not None and need > free:
        raise StorageError(
            f"{conversion.folder.shown()}: the dataset needs about {format_bytes(need)} and "
            f"{format_bytes(free)} are free; free some space, or store less (--store, "
            "--compression)"
        )
    return expected


Made = TypeVar("Made")


def with_types(make: Callable[[bool], Made], advice: str) -> Made:
    """Call `make` and return its result. Its argument says whether it finds the types of fields in
    all records.

    The first time it finds them in some records. If another record does not fit these types, `make`
    is called once more, and finds them in all records. Raises InputError if a record does not fit
    the types of all records; the error ends with `advice`.
    """
    try:
        return make(False)
    except TypesDifferError:
        # which is known to no process before it reads the record: it may be the last one of all
        pass
    try:
        return make(True)
    except TypesDifferError as error:
        raise InputError(
            f"{error}; if it has changed since its type was found, {advice}; else give all files "
            "one type"
        ) from error


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


def estimate(
    job: DatasetJob, listing: Listing, at_once: int, free: int | None, changes: Changes | None
) -> Estimate:
    """Estimate what a job will write, and how long it will take where `at_once` shards are built at
    the same time.

    So many bytes are `free` there; None: no limit.
    """
    classes, costs = job.layout.classes, job.costs
    built = 1 - job.lineage.kept_records / max(1, job.records)
    rows = round(job.inputs * costs.samples_per_record)
    samples = rows * (1 - costs.probe_rejects / costs.probed) if costs.probed else rows
    if job.recipe.batch_transforms:
        rows = round(samples)
    return Estimate(
        kind=job.recipe.kind,
        inputs=job.inputs,
        input_bytes=listing.total_bytes,
        splits=job.splits,
        records=job.records,
        rows=rows,
        shards=job.shards,
        classes=len(classes) if classes is not None else None,
        labelled_by=_origin_of_labels(job, listing),
        annotated=annotated_columns(listing.annotations),
        bytes=int(built * samples * costs.sample_bytes) + job.shards * costs.shard_bytes,
        free_bytes=free,
        seconds=built * job.inputs * costs.record_seconds / at_once,
        probed=costs.probed,
        probe_rejects=costs.probe_rejects,
        ignored=dict(listing.ignored),
        notices=tuple(listing.notices),
        warnings=tuple(listing.warnings),
        changes=changes,
    )
