"""The plan of a conversion: of a new dataset, or of one that is brought up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shardctl.build.commit import publish
from shardctl.build.convert.conversion import Conversion, Inputs, refuse_anew
from shardctl.build.convert.conversion_plan import ConversionPlan, plan_conversion
from shardctl.build.convert.known_records import moved_records
from shardctl.build.convert.listener import SPARE_DISK, Changes, Estimate
from shardctl.build.convert.manifest_writer import changes_of
from shardctl.build.convert.previous import PreviousDataset
from shardctl.build.convert.rejects import NewInputs, refuse_failing
from shardctl.build.plan.labels import LABEL
from shardctl.build.plan.listing import Listing
from shardctl.build.shards.job import DatasetJob, Job
from shardctl.errors import InputError, StorageError, TypesDifferError
from shardctl.format.roles import Image
from shardctl.sources.annotations.objects import annotated_columns
from shardctl.sources.formats.base import FOLDER
from shardctl.system.folders import LocalFolder
from shardctl.system.text import format_bytes, printable

if TYPE_CHECKING:
    from shardctl.build.convert.update_plan import UpdatePlan


RUN_AGAIN = "run the conversion again"


@dataclass(frozen=True)
class PlannedJob:
    """A job that is decided on, by this call or by an earlier one: `status` is that of the result.

    The listing of `inputs` has the notices of the plan. `before` is the dataset that the job brings
    up to date, None for none. `new_inputs` are the inputs that an update adds, or that have
    changed; None where an earlier call has planned it. `tables` makes the tables of the job, None
    once they are written.
    """

    job: DatasetJob
    inputs: Inputs
    status: str
    before: PreviousDataset | None
    warnings: tuple[str, ...] = ()
    tables: ConversionPlan | UpdatePlan | None = None
    new_inputs: NewInputs | None = None


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
    if before is None:
        return _plan_new(conversion, inputs, folder, all_types)
    from shardctl.build.convert import update_plan  # which most conversions never need

    if all_types:
        return _plan_anew(
            conversion, inputs, before, folder, "new records have other types", all_types
        )
    listing = inputs.listing.fresh()
    rules, options, engine, scanning = (
        conversion.rules,
        conversion.options,
        conversion.engine,
        conversion.listener.scanning,
    )
    found = update_plan.plan_update(
        listing,
        conversion.recipe,
        rules,
        options,
        before,
        inputs.bases,
        engine,
        inputs.scratch,
        scanning,
    )
    if not isinstance(found, update_plan.UpdatePlan):
        return _plan_anew(conversion, inputs, before, folder, found.why, all_types)
    conversion.target.refuse_lost(before, found.kept)
    job = found.job(folder, inputs.bases, inputs.parts)
    warnings = tuple(moved_records(job, listing, found.matching))
    inputs, new_inputs = replace(inputs, listing=listing), NewInputs.of(found.matching, before)
    return PlannedJob(job, inputs, _status(conversion), before, warnings, found, new_inputs)


def _plan_new(conversion: Conversion, inputs: Inputs, folder: Path, all_types: bool) -> PlannedJob:
    """Plan all shards."""
    new, listing = _with_types(conversion, inputs, all_types)
    if conversion.options.max_rejects is None:
        refuse_failing(new.probe, listing)
    job = new.job(folder, inputs.bases, conversion.recipe, inputs.parts, conversion.rules.shuffle)
    return PlannedJob(job, replace(inputs, listing=listing), _status(conversion), None, tables=new)


def _status(conversion: Conversion) -> str:
    """Return the status of the result of a job that this call plans."""
    return "updated" if conversion.existing.is_there() else "created"


def _plan_anew(
    conversion: Conversion,
    inputs: Inputs,
    before: PreviousDataset,
    folder: Path,
    why: str,
    all_types: bool,
) -> PlannedJob:
    """Plan all shards of a dataset that is brought up to date again, and say `why`.

    Raises InputError where it may only grow.
    """
    from shardctl.build.convert.update_plan import changes_anew, matching_anew

    if conversion.options.append:
        raise refuse_anew(why, conversion.folder)
    new = _plan_new(conversion, inputs, folder, all_types)
    assert isinstance(new.tables, ConversionPlan), "that of a new dataset"
    matching = matching_anew(before, new.tables, inputs.scratch)
    warnings = tuple(moved_records(new.job, new.inputs.listing, matching))
    changes = asdict(changes_anew(before, matching, new.job.shards, why))
    job = replace(new.job, lineage=replace(new.job.lineage, changes=changes, updates=before.digest))
    return replace(
        new, job=job, before=before, warnings=warnings, new_inputs=NewInputs.of(matching, before)
    )


def _with_types(
    conversion: Conversion, inputs: Inputs, all_types: bool
) -> tuple[ConversionPlan, Listing]:
    """Draft all shards, and return the listing that has the notices on them. Raises
    TypesDifferError with `all_types`."""
    if all_types:
        return _planned(conversion, inputs, all_types)
    return with_types(lambda of_all: _planned(conversion, inputs, of_all), RUN_AGAIN)


def _planned(
    conversion: Conversion, inputs: Inputs, all_types: bool
) -> tuple[ConversionPlan, Listing]:
    listing = inputs.listing.fresh()
    recipe, rules, options = conversion.recipe, conversion.rules, conversion.options
    bases, engine = inputs.bases, conversion.engine
    told = conversion.listener.comparing, conversion.listener.scanning
    return plan_conversion(
        listing, recipe, rules, options, bases, engine, inputs.scratch, all_types, *told
    ), listing


def announce(conversion: Conversion, job: DatasetJob, listing: Listing) -> Estimate:
    """Tell what a job will do and cost. Raises StorageError if files of a person are in its way."""
    publish.refuse_others(conversion.folder.root, job)
    free = conversion.target.free_bytes()
    expected = estimate(job, listing, conversion.engine.at_once(), free, changes_of(job))
    conversion.listener.announce(expected)
    return expected


def check_space(expected: Estimate, folder: LocalFolder) -> None:
    """Raise StorageError if the disk cannot hold the dataset in a folder."""
    need = expected.bytes * SPARE_DISK
    if expected.free_bytes is not None and need > expected.free_bytes:
        raise StorageError(
            f"{folder.shown()}: the dataset needs about {format_bytes(need)} and"
            f" {format_bytes(expected.free_bytes)} are free; free some space, or store less "
            "(--store, --compression)"
        )


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
