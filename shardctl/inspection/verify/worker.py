"""The worker process of a check (forkserver.py calls `handle`). If damaged bytes crash it, its
parent survives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from shardctl.errors import DatasetError
from shardctl.format.dataset_location import AnyDataset, from_json
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.shard import ShardReader
from shardctl.inspection.verify.check import Block, Shard, ShardRecord
from shardctl.inspection.verify.result import (
    LEVELS,
    MISSING_SHARD,
    REBUILD,
    Finding,
    error,
    reading,
    unreadable,
)
from shardctl.inspection.verify.shard_checks import SHARD_CHECKS
from shardctl.inspection.verify.tables import TABLE_CHECKS, check_file
from shardctl.system.folders import Folder, hash_file
from shardctl.system.processes.forkserver import Tell
from shardctl.system.processes.worker_state import WorkerProgress


def handle(task: dict[str, Any], _tell: Tell, progress: WorkerProgress) -> Any:
    """Do one check of a dataset, or of a shard without its dataset. Return the number of samples in
    the intact blocks of a shard, and the findings."""
    folder, level, what = from_json(task["folder"]), task["level"], task["check"]
    samples = 0

    def shard(name: str, record: ShardRecord | None) -> list[Finding]:
        nonlocal samples
        found, samples = check_shard(folder, name, record, level, progress, dict(task["fatal"]))
        return found

    if what == "lone shard":
        name = task["lone"]
        try:
            findings = shard(name, None)
        except OSError as fault:
            remedy = "nothing else is known of a shard without its dataset"
            findings = [unreadable(name, fault, remedy, name)]
    elif what == "shard":
        record = ShardRecord(_stored(folder), task["shard"], task["plan"])
        name, called = record.entry.path, record.entry.name
        check = partial(shard, name, record)
        for _ in range(2):  # what a store sends is asked for once more
            findings = reading(folder, name, REBUILD, check, called, "the shard")
            is_missing = [each.kind for each in findings] == [MISSING_SHARD]
            if not findings or is_missing or not folder.forget(name):
                break
    elif what == "file":
        findings = check_file(folder, _stored(folder).manifest, task["name"], level)
    else:
        findings = list(TABLE_CHECKS[what].findings(folder, _stored(folder).manifest))
    return samples, findings


@lru_cache(maxsize=1)
def _stored(folder: AnyDataset) -> DatasetTables:
    return DatasetTables(folder)


# --- the verification of one shard, with or without its dataset ---


def check_shard(
    folder: Folder,
    name: str,
    record: ShardRecord | None,
    level: str,
    progress: WorkerProgress,
    fatal: dict[int, str],
) -> tuple[list[Finding], int]:
    """Return the findings of a shard at a level, and the number of samples in its intact blocks.

    `record` is what its dataset says of it, `fatal` that of Shard: images that ended a process.
    Without its dataset there is no table to tell how many samples it should have, so that every
    block is read, at `quick` too. Raises OSError if the file cannot be read.
    """
    called, there = name if record is None else record.entry.name, folder.stat(name)
    if record is not None and there is not None and there.size != record.entry.bytes:
        what = f"it has {there.size} bytes where {record.entry.bytes} were written"
        return [error("wrong-size", f"{what}; {REBUILD}", called)], 0
    try:
        shard = Shard(ShardReader(folder, name), record, progress, fatal)
    except DatasetError as problem:
        hash_file(folder, name)  # raises OSError where it is not the content that is wrong
        remedy = "" if record is None else f"; {REBUILD}"
        return [error("unreadable-shard", f"{problem}{remedy}", called)], 0
    last = "full" if record is None and level == "quick" else level
    # the faults of the lowest level that finds any
    each_level = (_faults_of(shard, each) for each in LEVELS[: LEVELS.index(last) + 1])
    findings = []
    for found in next(filter(None, each_level), ()):
        key, source = found.key, None
        if record is not None and found.row is not None:
            key, source = record.origin_of(found.row, key)
        findings.append(replace(found, shard=called, key=key, source=source))
    return findings, sum(block.data.num_rows for block in shard.keys)


def _faults_of(shard: Shard, level: str) -> list[Finding]:
    """Return the faults of one level alone, in the order of the table. Damaged blocks hide all
    others: the checks need every sample. Raises OSError if the file cannot be read."""
    if level == "full" and shard.record is not None:
        # Read from its beginning to its end first: a disk gives it faster so than as mapped blocks,
        # which are in the page cache then. A cold dataset of 2.6 GiB took 3.5 s the other way
        # round, and takes 2.7 s (2026-11-27).
        _ = shard.sha256
    checks = [(row, list[Finding]()) for row in SHARD_CHECKS if row.level == level]
    damaged = []
    for block in _blocks(shard, level) if level != "quick" else ():
        if isinstance(block, Finding):
            damaged.append(block)
            continue
        for row, faults in checks:
            faults += row.in_block(shard, block)
    found = damaged or [
        fault for row, faults in checks for fault in (*faults, *row.in_shard(shard))
    ]
    if found and level != "quick":
        # Of a mapped file, what the system cannot read looks like zeros. Only a plain read
        # raises OSError.
        hash_file(shard.reader.folder, shard.reader.name)
    return found


def _blocks(shard: Shard, level: str) -> Iterator[Block | Finding]:
    """Yield the blocks of a shard, with the fault of each damaged one in its place. At `deep` they
    are not compared: `full` has done that."""
    record, first = shard.record, 0
    for number in range(len(shard.reader)):
        rows = None if record is None else record.entry.block_rows[number]
        kind, held = "", 0
        try:
            data, intact = (
                (shard.reader.block(number), True)
                if level == "deep"
                else shard.reader.checked_block(number)
            )
            held = data.num_rows if intact else 0
            if not intact:
                kind, what = "wrong-checksum", "the block is damaged: its checksum differs"
            elif rows not in (None, held):
                kind, what = "rows-differ", f"the block has {held} rows where {rows} were written"
        except DatasetError as problem:
            kind, what = "unreadable-block", str(problem)
        if not kind:
            block = Block(number, first, data)
            if level == "full":
                names = [name for name in ("key", "variant") if name in data.schema.names]
                shard.keys.append(replace(block, data=data.select(names)))
            yield block
        elif record is None:  # earlier damage may hide which row is its first
            yield error(kind, what, None, number)
        else:
            what = f"{what}; it holds {record.content_of(number, first)}; {REBUILD}"
            yield error(kind, what, None, number, first)
        first += held if rows is None else rows
