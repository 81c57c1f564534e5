"""What a job will do and cost, and whether the disk can hold it."""

from __future__ import annotations

from shardctl.errors import StorageError
from shardctl.format.roles import Image
from shardctl.making.convert.conversion_plan import PlannedJob
from shardctl.making.convert.listener import SPARE_DISK, Estimate
from shardctl.making.plan.labels import LABEL
from shardctl.making.plan.listing import Listing
from shardctl.making.shards.job import Job
from shardctl.sources.annotations.objects import annotated_columns
from shardctl.sources.formats.base import FOLDER
from shardctl.system.text import format_bytes, printable


def announce(planned: PlannedJob) -> Estimate:
    """Tell what a job will do and cost, and return it."""
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
    return expected


def refuse_full_disk(planned: PlannedJob, expected: Estimate) -> None:
    """Raise StorageError if the disk cannot hold the dataset of a new job."""
    need, free = expected.bytes * SPARE_DISK, expected.free_bytes
    if not planned.is_resumed and free is not None and need > free:
        raise StorageError(
            f"{planned.inputs.conversion.folder.shown()}: the dataset needs about "
            f"{format_bytes(need)} and {format_bytes(free)} are free; free more, or store less "
            "(--store, --compression)"
        )


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
