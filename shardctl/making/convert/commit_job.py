"""The commit of a conversion: a job that is done becomes the dataset."""

from __future__ import annotations

import contextlib

import numpy as np

from shardctl.errors import DatasetError, TooManyRejectsError
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST
from shardctl.making.commit.commit import commit, kept_bytes, new_generation
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.convert.conversion_plan import PlannedJob
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.convert.rejects import check_new, count_rejects, too_many
from shardctl.making.convert.write_tables import tables_of
from shardctl.making.notices import notice
from shardctl.making.options import reject_limit
from shardctl.making.plan.plan import NOT_KEPT
from shardctl.making.shards.job import DatasetJob
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.pool import Pool
from shardctl.system.text import format_bytes

MUCH_KEPT = 0.1
"""How much may stay for readers of earlier generations, as a share of the dataset, without a
notice."""


def manifest_of_earlier_call(
    job: DatasetJob, target: Target, keep: int | None, max_rejects: str | int | None
) -> Manifest | None:
    """Return the manifest of a job whose tables an earlier call has written, which keeps as many
    generations (None: as it says); None if none has. Raises TooManyRejectsError."""
    folder, there = LocalFolder(new_generation(target, job.id)), target.manifest()
    known = {each.path for each in there.history} if there is not None else set[str]()
    with contextlib.suppress(DatasetError):  # it is not there, or was torn when the power failed
        manifest = Manifest.load(folder)
        kept = known.issuperset(each.path for each in manifest.kept)  # none was swept since
        if kept and keep in (None, manifest.keep):
            refuse_many(manifest, max_rejects)
            return manifest
    return None


def refuse_many(manifest: Manifest, max_rejects: str | int | None) -> None:
    """Raise TooManyRejectsError if a job that is done has more rejects than a limit allows."""
    if manifest.rejected > reject_limit(max_rejects, manifest.inputs):
        raise too_many(count_rejects(manifest.rejected, manifest.inputs))


def checking_pool(planned: PlannedJob) -> contextlib.AbstractContextManager[Pool | None]:
    """Have the process started that checks the result of an update of a folder."""
    if planned.previous is None or planned.inputs.conversion.folder.url:
        return contextlib.nullcontext()
    from shardctl.inspection.verify import verification  # 20 ms

    return verification.checks_ahead(True)


def commit_job(
    job: DatasetJob,
    manifest: Manifest,
    previous: PreviousDataset | None,
    target: Target,
    held: WriteLease,
    max_rejects: str | int | None,
    checks: Pool | None = None,
) -> None:
    """Make a job that is done the dataset, which may update the `previous` one. Raises
    TooManyRejectsError, without a limit `max_rejects`, if most of what an update has read could not
    be converted and samples would be lost.

    An update of the dataset of before on this machine is checked first, in the processes
    `checks`, None for new ones: its tables, and the footers of its new shards. Raises DatasetError.
    """
    folder = tables_of(job, target, manifest)
    if previous is not None and (manifest.rejected or (job.changes and job.changes.changed)):
        checked, loses = check_new(job, folder, previous)
        if loses and max_rejects is None:
            raise TooManyRejectsError(
                f"{loses}. The dataset is as it was before. To update it anyway: --max-rejects 100%"
            )
        job.warnings.extend(checked)
    if job.digest_before and not target.folder.url:
        # which most conversions never need
        from shardctl.inspection.verify.verification import verify_with

        built = np.flatnonzero(job.kept == NOT_KEPT).tolist()
        findings = verify_with(checks, folder.root, "quick", False, built).findings
        found = next((each for each in findings if each.severity == "error"), None)
        if found is not None:
            folder.path(MANIFEST).unlink()  # the next try makes the tables once more
            raise DatasetError(
                f"{folder.shown()}: {found.message}; the dataset is as it was before"
            )
    commit(target, held, folder.root, job.folder, manifest.shards < job.shards)
    kept = kept_bytes(target)
    if kept > manifest.bytes * MUCH_KEPT:
        job.notices.append(notice("earlier-generations", size=format_bytes(kept)))
