"""The worker process of a check (forkserver.py calls `handle`). If damaged bytes crash it, its parent survives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardctl.format.stored import StoredDataset
from shardctl.inspection.verify.check import ShardRecord
from shardctl.inspection.verify.finding import Finding
from shardctl.inspection.verify.provenance import Provenance
from shardctl.inspection.verify.shards import check_lone_shard, check_shard
from shardctl.inspection.verify.tables import TABLE_CHECKS, check_file
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.system.processes.worker_loop import Tell


def handle(task: dict[str, Any], _tell: Tell, progress: WorkerProgress) -> Any:
    """Do one check of the dataset at `root` and return its findings; of a shard without its dataset the samples too."""
    root, level, what = Path(task["root"]), task["level"], task["check"]
    if what == "lone shard":
        samples, lone = check_lone_shard(root, level, progress, dict(task["fatal"]))
        return [samples, [asdict(finding) for finding in lone]]
    findings: Iterable[Finding]
    if what == "shard":
        record = _record(_stored(task["root"]), task["shard"], task["plan"])
        findings = check_shard(root / record.entry.path, record, level, progress, dict(task["fatal"]))
    elif what == "file":
        findings = check_file(root, _stored(task["root"]).manifest, task["name"], level)
    else:
        findings = TABLE_CHECKS[what].check(root, _stored(task["root"]).manifest)
    return [asdict(finding) for finding in findings]


@lru_cache(maxsize=1)
def _stored(root: str) -> StoredDataset:
    return StoredDataset(Path(root))


def _record(stored: StoredDataset, shard: int, use_plan: bool) -> ShardRecord:
    """Return what a dataset records of a shard; of its rows, if the plan can be read and is needed."""
    provenance = Provenance(stored, shard) if use_plan else None
    entry, jpegs = stored.shards[shard], stored.shards.jpegs
    plain = jpegs.only(entry.first, entry.rows) if jpegs is not None else None
    return ShardRecord(stored.manifest, entry, provenance, plain)
