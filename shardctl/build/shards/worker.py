"""What a worker process of a conversion does (forkserver.py calls `handle`): it builds shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy.ma  # noqa: F401 - the first array that a worker gives to Arrow would import it
from PIL import Image

from shardctl.build.shards.full_scan import ReadingThrough
from shardctl.build.shards.image_hashes import Hashing
from shardctl.build.shards.inputs import compare_reads
from shardctl.build.shards.job import Job
from shardctl.build.shards.probe import probe_records
from shardctl.build.shards.record_sampling import Taking
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.build.shards.scan import Look, Survey, do_survey
from shardctl.build.shards.task import Progress, run_shard, try_units
from shardctl.build.shards.text_hashes import Comparing
from shardctl.errors import Rejection
from shardctl.system.processes.progress_slot import Breadcrumb
from shardctl.system.processes.worker_loop import Tell

LOOKS: dict[str, Callable[[dict[str, Any]], Look]] = {
    Survey.task: Survey.from_json,
    Hashing.task: Hashing.from_json,
    Comparing.task: Comparing.from_json,
    ReadingThrough.task: ReadingThrough.from_json,
    Taking.task: Taking.from_json,
}
"""The tasks that look at files before there is a plan."""

Image.preinit()  # the usual formats: loaded once, before workers are forked, and not by each of them


def handle(task: dict[str, Any], tell: Tell, crumb: Breadcrumb) -> Any:
    """Do a task of casualties.py, or a survey."""
    if task["do"] in LOOKS:
        places = {place: Rejection(*reason) for place, *reason in task["lost"]}
        return do_survey(LOOKS[task["do"]](task["survey"]), crumb, places)
    job = Job.unpacked(task["job"]) if task["shard"] is None else _job(task["job"])
    lost = {(unit, record): Rejection(*reason) for unit, record, *reason in task["lost"]}
    known = RetryHints(lost, frozenset(task["careful"]), anew=task["anew"])
    if task["suspect"] is not None:
        unit, attempt = task["suspect"]
        compare_reads(job, unit, attempt, crumb, given_up=(unit, None) in known.lost)
    if task["shard"] is None:
        return probe_records(job, crumb, known).record()
    if task["trial"] is not None:
        try_units(job, task["shard"], task["trial"], task["on"], crumb, known)

    def report(progress: Progress) -> None:
        tell(astuple(progress))

    run_shard(job, task["shard"], report, crumb, known)
    return None


@lru_cache(maxsize=1)
def _job(folder: str) -> Job:
    return Job.load(Path(folder))
