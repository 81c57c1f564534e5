"""The worker process of a check (forkserver.py calls `handle`). If damaged bytes crash it, its parent survives."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardctl.engines.breadcrumb import Breadcrumb
from shardctl.engines.serve import Tell
from shardctl.manifest import CHECKSUMS, PLAN, REJECTS, SHARDS, Manifest, ShardTable, open_checked_table
from shardctl.verification import tables
from shardctl.verification.shards import ShardCheck, check_lone_shard

CHECKS = {
    "table of shards": (tables.check_shard_table, {SHARDS}),
    "checksums": (tables.check_checksums, {CHECKSUMS, SHARDS}),
    "rejects": (tables.check_rejects, {REJECTS}),
    "plan": (tables.check_plan, {PLAN}),
}
"""Checks of the files beside the shards that read what is in them, each with the files that it reads."""


def handle(task: dict[str, Any], _tell: Tell, crumb: Breadcrumb) -> Any:
    """Do one check of the dataset at `root` and return its findings."""
    root, level, what = Path(task["root"]), task["level"], task["check"]
    if what == "lone shard":
        samples, lone = check_lone_shard(root, level, crumb, dict(task["fatal"]))
        return [samples, [asdict(finding) for finding in lone]]
    manifest = _manifest(task["root"])
    if what == "shard":
        entry = _table(task["root"])[task["shard"]]
        plan = _plan(task["root"]) if task["plan"] else None
        findings = ShardCheck(root, manifest, entry, plan, crumb, dict(task["fatal"])).findings(level)
    elif what == "file":
        findings = tables.check_file(root, manifest, task["name"], level)
    else:
        check, _ = CHECKS[what]
        findings = check(root, manifest)
    return [asdict(finding) for finding in findings]


@lru_cache(maxsize=1)
def _manifest(root: str) -> Manifest:
    return Manifest.load(Path(root))


@lru_cache(maxsize=1)
def _table(root: str) -> ShardTable:
    return ShardTable(Path(root) / SHARDS)


@lru_cache(maxsize=1)
def _plan(root: str) -> pa.Table:
    return open_checked_table(Path(root) / PLAN)
