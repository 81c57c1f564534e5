"""The end of a conversion in parts: what they have built becomes the dataset, all at once."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardctl.build.commit import publish
from shardctl.build.commit.staging import finished_shards
from shardctl.build.convert.execute import telling_what_is_done
from shardctl.build.convert.manifest_writer import changes_of, leave_out_others, write_dataset
from shardctl.build.convert.parts import Parted, before_of, parted_jobs, parts_of
from shardctl.build.convert.rejects import refuse_many_rejects
from shardctl.build.convert.result import ConvertResult, result_of
from shardctl.build.convert.targets import open_target
from shardctl.build.convert.targets.base import Target, WriteLease
from shardctl.build.options import check_if_running, reject_limit
from shardctl.build.part import Part
from shardctl.build.plan.plan import NOT_KEPT
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.job import NEW_FOLDER
from shardctl.errors import CONTINUES, DatasetError, UnfinishedError, explaining_interrupts
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST, STAGING
from shardctl.system.file_lease import Waiting
from shardctl.system.files import exists
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.locations import is_url
from shardctl.system.progress import Phase, Progress, Report, progress_of
from shardctl.system.text import counted, printable
from shardctl.transforms.recipe import Recipe

NAMED_PARTS = 8
"""Parts with missing shards that are named."""


@explaining_interrupts(CONTINUES)
def finish(
    dst: str | Path,
    max_rejects: str | int | None = None,
    if_running: str = "wait",
    waiting: Waiting = lambda owner: None,
    progress: bool = True,
) -> ConvertResult:
    """Complete the dataset at `dst` from the shards that the parts of a conversion have built.

    `progress` False shows no progress on stderr.

    Raises UnfinishedError if shards are missing; it names their parts. Raises DatasetError if there
    is nothing to finish, TooManyRejectsError, BusyError and StorageError. A dataset that was
    finished before is up to date.
    """
    began = time.monotonic()
    check_if_running(if_running)
    reject_limit(max_rejects, 1)
    wait = waiting if if_running == "wait" else None
    _refuse_other_folder(dst)
    with progress_of(progress) as shown, open_target(dst, []) as target:
        folder = target.folder
        if not parted_jobs(folder) and not publish.needs_recovery(folder.root):
            return _finished_before(target, began)
        with target.planning(wait) as held:
            publish.recover(folder.root)
            jobs = parted_jobs(folder)
            if not jobs:
                return _finished_before(target, began)
            return _finish(jobs[0], target, max_rejects, held, wait, began, shown)


def _refuse_other_folder(dst: str | Path) -> None:
    """Raise DatasetError for a folder of this machine with files, and with nothing of a dataset or
    a conversion."""
    here = Path(dst) if not is_url(dst) else None
    if here is None or not here.is_dir() or exists(here / MANIFEST) or exists(here / STAGING):
        return
    if any(here.iterdir()) and not publish.needs_recovery(here):
        raise _nothing_to_finish(printable(str(dst)))


def _nothing_to_finish(shown: str) -> DatasetError:
    return DatasetError(
        f"{shown}: there are no parts to finish; build them first (`shardctl convert SRC DST "
        "--part I/N`)"
    )


def _finished_before(target: Target, began: float) -> ConvertResult:
    folder = target.folder
    target.fetch_dataset()
    if not folder.path(MANIFEST).exists():
        raise _nothing_to_finish(folder.shown())
    target.refuse_lost_files(Manifest.load(folder))
    return result_of(folder, "up-to-date", time.monotonic() - began)


def _finish(
    job_folder: LocalFolder,
    target: Target,
    max_rejects: str | int | None,
    held: WriteLease,
    waiting: Waiting | None,
    began: float,
    shown: Progress,
) -> ConvertResult:
    """Make the dataset of the job in a folder."""
    folder, new = target.folder, job_folder.path(NEW_FOLDER)
    parted = Parted.load(job_folder.root)
    if parted is None:
        raise DatasetError(
            f"{job_folder.shown()}: not a job of this version of shardctl; finish it with the "
            "version that built the parts"
        )
    recipe = Recipe.without_functions(JobFolder(job_folder.root).record()["recipe"], new)
    job = DatasetJob.load(job_folder, recipe)
    before = before_of(job, target)
    target.entrust(job, held)
    target.fetch_done(job, np.ones(job.shards, bool))
    # a call that was killed may have taken away shards without samples
    if not (new / MANIFEST).exists():
        _refuse_missing(job, parted, target, shown.counter(Phase("checking", "shards")))
        shown.close()
    # one that was given up for dead may still be writing the same bytes again
    target.await_parts(waiting)
    status = "created" if before is None and not folder.path(MANIFEST).exists() else "updated"
    notices: tuple[str, ...] = ()
    with telling_what_is_done(job):
        if not (new / MANIFEST).exists():
            notices = write_dataset(
                job, parted.closing, before, target, shown.counter(Phase("finishing", "shards"))
            )
        refuse_many_rejects(folder, Manifest.load(LocalFolder(new)), max_rejects)
    held.check()
    leave_out_others(job, target)
    target.publish(new, updates=before is not None)
    seconds = time.monotonic() - began
    result = result_of(
        folder, status, seconds, (*parted.notices, *notices), parted.warnings, parted.labelled
    )
    return replace(result, changes=changes_of(job))


def _refuse_missing(job: DatasetJob, parted: Parted, target: Target, report: Report) -> None:
    """Raise UnfinishedError if shards are missing, with the parts that they are of."""
    missing = job.kept == NOT_KEPT
    for done, (shard, _) in enumerate(finished_shards(job, missing.copy())):
        missing[shard] = False
        report(done, job.shards)
    if not missing.any():
        return
    building = target.parts_being_built()
    counts = Counter(parts_of(np.flatnonzero(missing), job.shards, parted.parts).tolist())
    parts = [Part(number, parted.parts) for number in sorted(counts)]
    said = []
    for part in parts:
        builder = f", which {building[part.name]} builds" if part.name in building else ""
        said.append(f"{counts[part.number]:,} of part {part}{builder}")
    more = f"; and {len(said) - NAMED_PARTS:,} more parts" if len(said) > NAMED_PARTS else ""
    first = next((part for part in parts if part.name not in building), None)
    advice = f"run them (`shardctl convert … --part {first}`)" if first else "wait for their ends"
    raise UnfinishedError(
        f"{target.folder.shown()}: {counted(int(missing.sum()), 'shard')} of {job.shards:,} are "
        "missing:"
        f" {'; '.join(said[:NAMED_PARTS])}{more}. {advice[0].upper()}{advice[1:]}, and finish again"
    )
