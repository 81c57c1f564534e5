"""The worker process of a check (worker_loop.py calls `handle`). If damaged bytes crash it, its parent survives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from shardctl.format.dataset_place import DatasetFolder, from_json
from shardctl.format.stored import StoredDataset
from shardctl.inspection.verify.check import ShardRecord
from shardctl.inspection.verify.finding import Finding
from shardctl.inspection.verify.provenance import Provenance
from shardctl.inspection.verify.shards import check_lone_shard, check_shard
from shardctl.inspection.verify.tables import TABLE_CHECKS, check_file
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.system.processes.worker_loop import Tell


def handle(task: dict[str, Any], _tell: Tell, progress: WorkerProgress) -> Any:
    """Do one check of a dataset and return its findings; of a shard without its dataset the samples too."""
    folder, level, what = from_json(task["folder"]), task["level"], task["check"]
    if what == "lone shard":
        samples, lone = check_lone_shard(folder, task["lone"], level, progress, dict(task["fatal"]))
        return [samples, [asdict(finding) for finding in lone]]
    findings: Iterable[Finding]
    if what == "shard":
        record = _record(_stored(folder), task["shard"], task["plan"])
        findings = check_shard(folder, record, level, progress, dict(task["fatal"]))
    elif what == "file":
        findings = check_file(folder, _stored(folder).manifest, task["name"], level)
    else:
        findings = TABLE_CHECKS[what].check(folder, _stored(folder).manifest)
    return [asdict(finding) for finding in findings]


@lru_cache(maxsize=1)
def _stored(folder: DatasetFolder) -> StoredDataset:
    return StoredDataset(folder)


def _record(stored: StoredDataset, shard: int, use_plan: bool) -> ShardRecord:
    """Return what a dataset records of a shard; of its rows, if the plan can be read and is needed."""
    provenance = Provenance(stored, shard) if use_plan else None
    entry, jpegs = stored.shards[shard], stored.shards.jpegs
    plain = jpegs.only(entry.first, entry.rows) if jpegs is not None else None
    return ShardRecord(stored.manifest, entry, provenance, plain)
