"""The worker process of an export (forkserver.py calls `handle`): it writes one part after the other."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.serve import Tell
from shardctl.exports.job import ExportJob
from shardctl.exports.staging import Staging


def handle(task: dict[str, Any], tell: Tell, _crumb: Breadcrumb) -> Any:
    """Write the part with the number `part` of the export in the folder `folder`, and return what was written."""
    staging = Staging(Path(task["folder"]))
    job = _job(staging.job, task["state"])
    part = job.parts[task["part"]]
    written = job.write(part, staging.files, tell)
    staging.mark_done(part, written)
    return written.to_json()


@lru_cache(maxsize=1)
def _job(path: Path, _state: str) -> ExportJob:
    return ExportJob.load(path)
