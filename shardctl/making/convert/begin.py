"""The job of a conversion: an unfinished one, or a new one that is planned and begins."""

from __future__ import annotations

import contextlib
from pathlib import Path

from shardctl.errors import DatasetError
from shardctl.making.commit.commit import sweep, upgrade_format_2
from shardctl.making.commit.jobs import begin, refuse_to_discard, unfinished
from shardctl.making.commit.target import WriteLease
from shardctl.making.convert.conversion import Inputs
from shardctl.making.convert.conversion_plan import RESUMED, PlannedJob, plan_job, write_plan
from shardctl.making.convert.decision import Decision, followed, job_name
from shardctl.making.convert.estimate import announce, refuse_full_disk
from shardctl.making.convert.previous import DatasetReplacedError, PreviousDataset
from shardctl.making.convert.result import ConvertResult
from shardctl.making.plan.fingerprint import fingerprint
from shardctl.system.files import naming_the_path


def plan_only(inputs: Inputs, decision: Decision) -> ConvertResult:
    """Return what would be done. Raises the errors of the real conversion before it starts to
    write."""
    conversion = inputs.conversion
    conversion.target.check_writable()
    before, folder = followed(inputs, decision), conversion.staging.path(job_name(inputs, decision))
    planned = _unfinished_job(inputs, folder, before) or plan_job(inputs, before, inputs.scratch)
    job, expected = planned.job, announce(planned)
    refuse_full_disk(planned, expected)
    facts = (expected.rows, expected.shards, expected.bytes, 0, conversion.seconds, 0.0)
    return ConvertResult(
        "planned",
        *facts,
        fingerprint(inputs.fingerprint_parts),
        estimate=expected,
        notices=tuple(job.notices),
        warnings=tuple(job.warnings),
        changes=expected.changes,
    )


def begin_job(
    inputs: Inputs, decision: Decision, held: WriteLease, all_types: bool = False
) -> PlannedJob:
    """Return the unfinished job that was decided on. Without one, plan a job and begin it.

    `all_types` throws an unfinished one away: the types of fields are found in all records. The
    caller holds the lease. Raises DatasetReplacedError if the dataset is another one than that
    beside which the inputs were listed, and StorageError if the disk cannot hold the dataset.
    """
    conversion, target = inputs.conversion, inputs.conversion.target
    conversion.refuse_replaced(inputs.manifest)
    gives_way = (DatasetError,) if conversion.options.overwrite else ()
    with contextlib.suppress(*gives_way):  # damaged or not
        if upgrade_format_2(target, held):  # the inputs were listed beside the old one
            raise DatasetReplacedError
    before, folder = followed(inputs, decision), conversion.staging.path(job_name(inputs, decision))
    if all_types:
        # the disk has its room before the plan asks for it
        sweep(target, held, [folder.name])
    elif (resumed := _unfinished_job(inputs, folder, before)) is not None:
        return resumed
    planned = plan_job(inputs, before, folder, all_types)
    refuse_full_disk(planned, announce(planned))
    # a plan takes its time, and what is taken away now must not be the work of one that has taken
    # over
    held.check()
    sweep(target, held, [other.name for other in target.jobs()])
    with naming_the_path(folder):
        folder.mkdir(parents=True)
    planned.job.warnings.extend(write_plan(planned))
    begin(planned.job)
    target.begun(planned.job)
    return planned


def _unfinished_job(
    inputs: Inputs, folder: Path, before: PreviousDataset | None
) -> PlannedJob | None:
    """Return the unfinished job in a folder, which updates the dataset `before`; None for a new
    one. Raises DatasetError where that would throw away finished shards of another one."""
    conversion = inputs.conversion
    if not conversion.options.overwrite and before is None:
        refuse_to_discard(conversion.staging, folder, inputs.fingerprint_parts, inputs.recipe)
    job = unfinished(folder, inputs.bases, inputs.recipe)
    if job is None or job.digest_before != ("" if before is None else before.digest):
        return None
    return PlannedJob(job, inputs, inputs.listing, RESUMED, before)
