"""The worker process of an export (forkserver.py calls `handle`): it writes one part after the
other."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError
from shardctl.interop.exports.job import ExportJob
from shardctl.interop.exports.staging import Staging
from shardctl.system.job_folder import JobFolder
from shardctl.system.processes.forkserver import Tell
from shardctl.system.processes.worker_state import WorkerProgress


def handle(task: dict[str, Any], tell: Tell, _progress: WorkerProgress) -> Any:
    """Write the part with the number `part` of the export in the folder `folder`, and return what
    was written.

    Raises DatasetError if the dataset is not in the `state` for which the export was planned.
    """
    staging = Staging(Path(task["folder"]))
    job = _job(staging.job, task["state"], task["version"])
    part = job.parts[task["part"]]
    written = job.write(part, staging.files, tell)
    staging.mark_done(part, written)
    return written.to_json()


@lru_cache(maxsize=1)
def _job(folder: JobFolder, state: str, _version: int) -> ExportJob:
    """Return the job, which is read once for all parts of an export. Raises DatasetError if its
    dataset is another one."""
    job = ExportJob.from_json(folder.record())
    # moved away, and another one put in its place, since the export was planned
    if job.source.state != state:
        raise DatasetError(
            f"{job.source.shown}: was changed while it was exported; run the same command again"
        )
    return job
