"""What a conversion will do and cost, said before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from shardctl.build.convert.update.changes import Changes
from shardctl.build.plan.labels import LABEL
from shardctl.build.plan.listing import Listing
from shardctl.build.plan.plan import SplitPlan
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.job import Job
from shardctl.format.roles import Image
from shardctl.sources.annotations.counting import annotated_columns
from shardctl.sources.formats.base import FOLDER
from shardctl.system.text import printable

SPARE_DISK = 1.05
"""Free disk space that is required, per byte of the estimate."""


@dataclass(frozen=True)
class Estimate:
    """What a conversion will do, measured on a few records before anything is written. Sizes in
    bytes.

    `inputs` are the records; `records` counts those of a unit that several splits share once for
    each. `rows` are the samples if none is rejected; where steps of text judge them, if as many are
    rejected as of those that were tried: `probe_rejects` of `probed`. `bytes` is the size of all
    shards, also of those that an earlier run finished, where as many records are rejected as of
    those that were tried. `seconds` is the time for all of it, `classes` the number of classes,
    None without names. `annotated` are the columns that mark images. `ignored` counts files that
    are no inputs by the ending of their name; `notices` say what was decided, `warnings` what
    should be looked at first. Where a dataset is brought up to date, `changes` say what changes,
    and `bytes` and `seconds` are those of the shards that are built.
    """

    kind: str
    inputs: int
    input_bytes: int
    splits: tuple[SplitPlan, ...]
    records: int
    rows: int
    shards: int
    classes: int | None
    labelled_by: str
    annotated: tuple[str, ...]
    bytes: int
    free_bytes: int | None
    seconds: float
    probed: int
    probe_rejects: int
    ignored: dict[str, int]
    notices: tuple[str, ...]
    warnings: tuple[str, ...]
    changes: Changes | None = None


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
