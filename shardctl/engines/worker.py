"""What a worker process of a conversion does (forkserver.py calls `handle`): it builds shards."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy.ma  # noqa: F401 - the first array that a worker gives to Arrow would import it
from PIL import Image

from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.inputs import compare_reads
from shardctl.engines.job import Job
from shardctl.engines.probe import probe_inputs
from shardctl.engines.serve import Tell
from shardctl.engines.task import Progress, run_shard
from shardctl.errors import Rejection

Image.preinit()  # the usual formats: loaded once, before workers are forked, and not by each of them


def handle(task: dict[str, Any], tell: Tell, crumb: Breadcrumb) -> Any:
    """Build a shard of a job, or probe the inputs of one: {"job": folder, "shard": number or None, "lost": …}.

    `suspect` is [row, attempt] of an input that could not be read in time.
    """
    job = _job(task["job"])
    lost = {row: Rejection(*reason) for row, *reason in task["lost"]}
    if task["suspect"] is not None:
        row, attempt = task["suspect"]
        compare_reads(job, row, attempt, crumb, given_up=row in lost)
    if task["shard"] is None:
        return probe_inputs(job, crumb, lost).record()

    def report(progress: Progress) -> None:
        tell([progress.inputs, progress.rejected, progress.bytes])

    run_shard(job, task["shard"], report, crumb, lost)
    return None


@lru_cache(maxsize=1)
def _job(folder: str) -> Job:
    return Job.load(Path(folder))
