"""The worker process of a check (forkserver.py calls `handle`). If damaged bytes crash it, its
parent survives."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.dataset_location import DatasetFolder, from_json
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.shard import ShardReader
from shardctl.format.tables import ShardEntry
from shardctl.inspection.verify.check import Block, Fault, Provenance, Shard, ShardRecord
from shardctl.inspection.verify.result import LEVELS, REBUILD, Finding, error, reading, unreadable
from shardctl.inspection.verify.shard_checks import SHARD_CHECKS
from shardctl.inspection.verify.tables import TABLE_CHECKS, check_file
from shardctl.system.folders import Folder, hash_file, is_regular_file
from shardctl.system.processes.forkserver import Tell
from shardctl.system.processes.worker_state import WorkerProgress


def handle(task: dict[str, Any], _tell: Tell, progress: WorkerProgress) -> Any:
    """Do one check of a dataset and return its findings; of a shard without its dataset the samples
    too."""
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
def _stored(folder: DatasetFolder) -> DatasetTables:
    return DatasetTables(folder)


def _record(stored: DatasetTables, shard: int, use_plan: bool) -> ShardRecord:
    """Return what a dataset records of a shard; of its rows, if the plan can be read and is
    needed."""
    provenance = Provenance(stored, shard) if use_plan else None
    entry, jpegs = stored.shards[shard], stored.shards.jpegs
    plain = jpegs.only(entry.first, entry.rows) if jpegs is not None else None
    return ShardRecord(stored.manifest, entry, provenance, plain)


# --- the verification of one shard, with or without its dataset ---


def check_shard(
    folder: Folder, record: ShardRecord, level: str, progress: WorkerProgress, fatal: dict[int, str]
) -> Iterator[Finding]:
    """Yield the findings of a shard of a dataset, at a level. A shard that is missing or cannot be
    read is a finding too.

    `fatal` is that of Shard: images that ended a process.
    """
    missing = error("missing-shard", f"the shard is missing; {REBUILD}", record.entry.path)
    if not is_regular_file(folder, record.entry.path):
        yield missing
        return
    for _ in range(2):  # what a store sends is asked for once more
        found = list(
            reading(
                missing, "the shard", REBUILD, _findings(folder, record, level, progress, fatal)
            )
        )
        if not found or not folder.forget(record.entry.path):
            break
    yield from found


def _findings(
    folder: Folder, record: ShardRecord, level: str, progress: WorkerProgress, fatal: dict[int, str]
) -> Iterator[Finding]:
    reader = yield from _open(folder, record.entry)
    if reader is None:
        return
    for fault in ShardWalk(Shard(reader, record, progress, fatal)).faults(level):
        origin = (fault.key, None) if fault.row is None else record.origin_of(fault.row, fault.key)
        yield error(fault.kind, fault.message, record.entry.path, fault.block, fault.row, *origin)


def _open(folder: Folder, entry: ShardEntry) -> Generator[Finding, None, ShardReader | None]:
    """Yield what is wrong with the file as a whole, and return its reader if there is nothing.

    Raises OSError if the file cannot be read.
    """
    found = folder.stat(entry.path)
    if found is not None and found.size != entry.bytes:
        yield error(
            "wrong-size",
            f"it has {found.size} bytes where {entry.bytes} were written; {REBUILD}",
            entry.path,
        )
        return None
    try:
        return ShardReader(folder, entry.path)
    except DatasetError as problem:
        hash_file(folder, entry.path)  # raises OSError where it is not the content that is wrong
        yield error("unreadable-shard", f"{problem}; {REBUILD}", entry.path)
        return None


def check_lone_shard(
    folder: Folder, name: str, level: str, progress: WorkerProgress, fatal: dict[int, str]
) -> tuple[int, list[Finding]]:
    """Check one shard without its dataset; return its number of samples, those in damaged blocks
    left out.

    There is no table to tell how many it should have, so that every block is read, at `quick` too.
    """
    try:
        try:
            reader = ShardReader(folder, name)
        except DatasetError as problem:
            hash_file(folder, name)  # raises OSError where it is not the content that is wrong
            return 0, [error("unreadable-shard", str(problem), name)]
        walk = ShardWalk(Shard(reader, None, progress, fatal))
        faults = walk.faults("full" if level == "quick" else level)
    except OSError as fault:
        return 0, [
            unreadable(name, fault, "nothing else is known of a shard without its dataset", name)
        ]
    return walk.samples, [
        error(each.kind, each.message, name, each.block, each.row, each.key) for each in faults
    ]


class ShardWalk:
    """All checks of the table, done with one shard. `samples` is the number of samples in the
    intact blocks."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.samples = 0

    def faults(self, level: str) -> list[Fault]:
        """Return the faults of the lowest level that finds any, `level` or one before it. They have
        the order of the table.

        Raises OSError if the file cannot be read.
        """
        for each in LEVELS[: LEVELS.index(level) + 1]:
            if found := self._faults_of(each):
                return found
        return []

    def _faults_of(self, level: str) -> list[Fault]:
        """Return the faults of one level alone. Damaged blocks hide all others: the checks need
        every sample."""
        checks = [row.check(self._shard) for row in SHARD_CHECKS if row.level == level]
        damaged = []
        for block in self._blocks(level):
            if isinstance(block, Fault):
                damaged.append(block)
                continue
            for check in checks:
                check.look(block)
        found = damaged or [fault for check in checks for fault in check.faults()]
        if found and level != "quick":
            # Of a mapped file, what the system cannot read looks like zeros. Only a plain read
            # raises OSError.
            hash_file(self._shard.reader.folder, self._shard.reader.name)
        return found

    def _blocks(self, level: str) -> Iterator[Block | Fault]:
        """Yield the blocks that a level reads, with the fault of each damaged one in its place."""
        if level == "full":
            yield from self._compared_blocks()
        elif level == "deep":  # `full` has compared them
            first = 0
            for number, data in enumerate(self._shard.reader.blocks()):
                yield Block(number, first, data)
                first += data.num_rows

    def _compared_blocks(self) -> Iterator[Block | Fault]:
        record, first = self._shard.record, 0
        for number in range(len(self._shard.reader)):
            data, wrong = _read_block(self._shard.reader, number)
            held = 0 if data is None else data.num_rows
            rows = held if record is None else record.entry.block_rows[number]
            if data is not None and held != rows:
                wrong = "rows-differ", f"the block has {held} rows where {rows} were written"
            if wrong is not None:
                yield self._damage(number, first, *wrong)
            elif data is not None:
                yield Block(number, first, data)
            first += rows
            self.samples += held

    def _damage(self, block: int, first: int, kind: str, what: str) -> Fault:
        """Return the fault of a damaged block. `first` is its first row; without a dataset, earlier
        damage may hide others."""
        if self._shard.record is None:
            return Fault(kind, what, block)
        return Fault(
            kind,
            f"{what}; it holds {self._shard.record.content_of(block, first)}; {REBUILD}",
            block,
            first,
        )


def _read_block(
    reader: ShardReader, block: int
) -> tuple[pa.RecordBatch | None, tuple[str, str] | None]:
    """Return a block if it is intact, else the kind and the description of what is wrong with
    it."""
    try:
        data, intact = reader.checked_block(block)
    except DatasetError as problem:
        return None, ("unreadable-block", str(problem))
    if not intact:
        return None, ("wrong-checksum", "the block is damaged: its checksum differs")
    return data, None
