"""The worker process of a check (forkserver.py calls `handle`). If damaged bytes crash it, its parent survives."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardctl.format.names import CHECKSUMS, FILES, PLAN, REJECTS, SHARDS
from shardctl.format.stored import StoredDataset
from shardctl.inspection.verify import tables
from shardctl.inspection.verify.provenance import ShardContent
from shardctl.inspection.verify.shards import ShardCheck, check_lone_shard
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.system.processes.worker_loop import Tell

CHECKS = {
    "table of shards": (tables.check_shard_table, {SHARDS}),
    "checksums": (tables.check_checksums, {CHECKSUMS, SHARDS}),
    "rejects": (tables.check_rejects, {REJECTS}),
    "files": (tables.check_files, {FILES}),
    "plan": (tables.check_plan, {FILES, PLAN, SHARDS}),
}
"""Checks of the files beside the shards that read what is in them, each with the files that it reads."""


def handle(task: dict[str, Any], _tell: Tell, progress: WorkerProgress) -> Any:
    """Do one check of the dataset at `root` and return its findings."""
    root, level, what = Path(task["root"]), task["level"], task["check"]
    if what == "lone shard":
        samples, lone = check_lone_shard(root, level, progress, dict(task["fatal"]))
        return [samples, [asdict(finding) for finding in lone]]
    manifest = _stored(task["root"]).manifest
    if what == "shard":
        stored = _stored(task["root"])
        content = ShardContent(stored, task["shard"]) if task["plan"] else None
        entry = stored.shards[task["shard"]]
        jpegs = stored.shards.jpegs
        plain = jpegs.only(entry.first, entry.rows) if jpegs is not None else None
        findings = ShardCheck(root, manifest, entry, content, progress, dict(task["fatal"]), plain).findings(level)
    elif what == "file":
        findings = tables.check_file(root, manifest, task["name"], level)
    else:
        check, _ = CHECKS[what]
        findings = check(root, manifest)
    return [asdict(finding) for finding in findings]


@lru_cache(maxsize=1)
def _stored(root: str) -> StoredDataset:
    return StoredDataset(Path(root))
