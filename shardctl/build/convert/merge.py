"""The end of a conversion in parts: what they have built becomes the dataset, all at once."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardctl.build.commit import publish
from shardctl.build.commit.staging import finished_shards
from shardctl.build.convert.execute import telling_what_is_done
from shardctl.build.convert.manifest_writer import changes_of, leave_out_others, write_dataset
from shardctl.build.convert.options import Part, check_if_running, reject_limit
from shardctl.build.convert.parts import Parted, before_of, parted_jobs, parts_of
from shardctl.build.convert.rejects import refuse_many_rejects
from shardctl.build.convert.result import ConvertResult, result_of
from shardctl.build.convert.targets import destination
from shardctl.build.convert.targets.base import Destination, Held
from shardctl.build.plan.plan import NOT_KEPT
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.job import NEW_FOLDER, Job
from shardctl.errors import DatasetError, UnfinishedError
from shardctl.format.manifest import Manifest
from shardctl.format.names import JOB, MANIFEST
from shardctl.system.lease.file_lease import Waiting
from shardctl.system.text import counted, printable
from shardctl.transforms.recipe import Recipe

NAMED_PARTS = 8
"""Parts with missing shards that are named."""


def merge(
    dst: str | Path, max_rejects: str | int | None = None, if_running: str = "wait", waiting: Waiting = lambda owner: None
) -> ConvertResult:
    """Make the shards that the parts of a conversion have built the dataset at `dst`.

    Raises UnfinishedError, which names the parts of which shards are missing, TooManyRejectsError, DatasetError if there is
    nothing to merge, BusyError, StorageError. A dataset that was merged before is up to date.
    """
    began = time.monotonic()
    check_if_running(if_running)
    reject_limit(max_rejects, 1)
    wait = waiting if if_running == "wait" else None
    with destination(dst, []) as place:
        target = place.target
        if not parted_jobs(target) and not publish.is_broken_off(target):
            return _merged_before(place, began)
        with place.planning(wait) as held:
            publish.recover(target)
            jobs = parted_jobs(target)
            if not jobs:
                return _merged_before(place, began)
            return _merge(jobs[0], place, max_rejects, held, wait, began)


def _merged_before(place: Destination, began: float) -> ConvertResult:
    target = place.target
    place.bring_dataset()
    if not (target / MANIFEST).exists():
        raise DatasetError(
            f"{printable(str(target))}: there are no parts to merge; build them first (`shardctl convert SRC DST --part I/N`)"
        )
    place.refuse_lost_files(Manifest.load(target))
    return result_of(target, "up-to-date", time.monotonic() - began)


def _merge(
    folder: Path, place: Destination, max_rejects: str | int | None, held: Held, waiting: Waiting | None, began: float
) -> ConvertResult:
    """Merge the parts of the job in a folder."""
    target = place.target
    parted = Parted.load(folder)
    if parted is None:
        raise DatasetError(
            f"{printable(str(folder))}: not a job of this version of shardctl; merge it with the one of the parts"
        )
    recipe = Recipe.without_functions(json.loads((folder / JOB).read_bytes())["recipe"], folder / NEW_FOLDER)
    job = DatasetJob.load(folder, recipe)
    before = before_of(job, place)
    place.entrust(job, held)
    place.bring_done(job, np.ones(job.shards, bool))
    new = folder / NEW_FOLDER
    if not (new / MANIFEST).exists():  # a merge that was killed may have taken away shards without samples
        _refuse_missing(job, parted, place)
    place.await_parts(waiting)  # one that was given up for dead may still be writing the same bytes again
    status = "created" if before is None and not (target / MANIFEST).exists() else "updated"
    with telling_what_is_done(job):
        if not (new / MANIFEST).exists():
            write_dataset(job, parted.closing, before, place)
        refuse_many_rejects(target, Manifest.load(new), max_rejects)
    held.check()
    leave_out_others(job, place)
    place.publish(new, updates=before is not None)
    seconds = time.monotonic() - began
    result = result_of(target, status, seconds, parted.notices, parted.warnings, parted.labelled)
    return replace(result, changes=changes_of(job))


def _refuse_missing(job: Job, parted: Parted, place: Destination) -> None:
    """Raise UnfinishedError if shards are missing, with the parts that they are of."""
    missing = job.kept == NOT_KEPT
    for shard, _ in finished_shards(job, missing.copy()):
        missing[shard] = False
    if not missing.any():
        return
    building = place.parts_being_built()
    counts = Counter(parts_of(np.flatnonzero(missing), job.shards, parted.parts).tolist())
    parts = [Part(number, parted.parts) for number in sorted(counts)]
    said = []
    for part in parts:
        builder = f", which {building[str(part)]} builds" if str(part) in building else ""
        said.append(f"{counts[part.number]:,} of part {part}{builder}")
    more = f"; and {len(said) - NAMED_PARTS:,} more parts" if len(said) > NAMED_PARTS else ""
    first = next((part for part in parts if str(part) not in building), None)
    advice = f"run them (`shardctl convert … --part {first.ordinal}/{first.parts}`)" if first else "wait for their ends"
    raise UnfinishedError(
        f"{printable(str(place.target))}: {counted(int(missing.sum()), 'shard')} of {job.shards:,} are missing:"
        f" {'; '.join(said[:NAMED_PARTS])}{more}. {advice[0].upper()}{advice[1:]}, and merge again"
    )
