"""What a worker process of a conversion does (forkserver.py calls `handle`): it builds shards."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from shardctl.making.shards.engines.local import ExamineTask, ShardTask
from shardctl.making.shards.inputs import compare_reads
from shardctl.making.shards.job import Job
from shardctl.making.shards.probing import probe_records
from shardctl.making.shards.scan import run_task
from shardctl.making.shards.task import build_shard, try_units
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.forkserver import Tell
from shardctl.system.processes.worker_state import WorkerProgress

# the usual formats: loaded once, before workers are forked, and not by each of them
Image.preinit()


def handle(task: ExamineTask | ShardTask, tell: Tell, progress: WorkerProgress) -> Any:
    """Do a task of engines/local.py."""
    if isinstance(task, ExamineTask):
        return run_task(task.task, progress, task.lost)
    # the folder of a probe may have another job the next time
    job, hints = (_read if task.shard is None else _job)(task.folder), task.hints
    if task.suspect is not None:
        unit, attempt = task.suspect
        compare_reads(job, unit, attempt, progress, given_up=(unit, None) in hints.lost)
    if task.shard is None:
        return probe_records(job, progress, hints)
    if task.trial is not None:
        try_units(job, task.shard, task.trial, task.on, progress, hints)
    return build_shard(job, task.shard, tell, progress, hints)


def _read(folder: str) -> Job:
    return Job.load(LocalFolder(Path(folder)))


_job = lru_cache(maxsize=1)(_read)
