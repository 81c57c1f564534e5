"""What a worker process of a conversion does (forkserver.py calls `handle`): it builds shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from shardctl.build.shards.full_scan import FullScanTask
from shardctl.build.shards.image_hashes import ImageHashTask
from shardctl.build.shards.inputs import compare_reads
from shardctl.build.shards.job import Job
from shardctl.build.shards.probing import probe_records
from shardctl.build.shards.record_sampling import RecordSampleTask
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.build.shards.scan import PrePlanTask, ScanTask, run_task
from shardctl.build.shards.task import build_shard, try_units
from shardctl.build.shards.text_hashes import TextHashTask
from shardctl.build.shards.work_done import WorkDone
from shardctl.errors import Rejection
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.forkserver import Tell
from shardctl.system.processes.worker_state import WorkerProgress

PRE_PLAN_TASKS: dict[str, Callable[[dict[str, Any]], PrePlanTask]] = {
    ScanTask.name: ScanTask.from_json,
    ImageHashTask.name: ImageHashTask.from_json,
    TextHashTask.name: TextHashTask.from_json,
    FullScanTask.name: FullScanTask.from_json,
    RecordSampleTask.name: RecordSampleTask.from_json,
}
"""The tasks that look at files before there is a plan."""

# the usual formats: loaded once, before workers are forked, and not by each of them
Image.preinit()


def handle(task: dict[str, Any], tell: Tell, progress: WorkerProgress) -> Any:
    """Do a task of engines/local.py, or one of those before there is a plan."""
    if task["do"] in PRE_PLAN_TASKS:
        places = {place: Rejection(*reason) for place, *reason in task["lost"]}
        return run_task(PRE_PLAN_TASKS[task["do"]](task["task"]), progress, places)
    job = Job.unpacked(task["job"]) if task["shard"] is None else _job(task["job"])
    lost = {(unit, record): Rejection(*reason) for unit, record, *reason in task["lost"]}
    hints = RetryHints(lost, frozenset(task["careful"]), anew=task["anew"])
    if task["suspect"] is not None:
        unit, attempt = task["suspect"]
        compare_reads(job, unit, attempt, progress, given_up=(unit, None) in hints.lost)
    if task["shard"] is None:
        return probe_records(job, progress, hints).to_json()
    if task["trial"] is not None:
        try_units(job, task["shard"], task["trial"], task["on"], progress, hints)

    def report(done: WorkDone) -> None:
        tell(astuple(done))

    build_shard(job, task["shard"], report, progress, hints)
    return None


@lru_cache(maxsize=1)
def _job(folder: str) -> Job:
    return Job.load(LocalFolder(Path(folder)))
