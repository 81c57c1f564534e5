"""Is a dataset whole? Everything that is wrong, as findings: nothing here prints, and nothing stops at the first fault."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.manifest import (
    CHECKSUMS,
    MANIFEST,
    PLAN,
    REJECTS,
    SHARDS,
    STAGING,
    Manifest,
    ShardEntry,
    ShardTable,
    open_table,
    read_checksums,
    shard_name,
)
from shardctl.shard import ShardReader
from shardctl.storage import is_regular_file, printable, sha256_of

LEVELS = ("quick", "full")
"""`quick` reads the manifest, the tables, the sizes and every shard's footer; `full` reads every byte."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `kind` is a short stable name to count by, `message` says what to do about it."""

    severity: str
    shard: str | None
    block: int | None
    row: int | None
    key: str | None
    kind: str
    message: str


@dataclass(frozen=True)
class VerifyResult:
    """What a check found. `ok` is true where there is no finding of severity `error`."""

    ok: bool
    level: str
    shards: int
    samples: int
    findings: tuple[Finding, ...]


def verify(
    path: str | Path, level: str = "full", progress: Callable[[int, int], None] = lambda done, total: None
) -> VerifyResult:
    """Check a dataset, or one shard without its dataset. `progress` hears (shards done, shards).

    Raises DatasetError where there is no dataset at all, UsageError for a level that there is not.
    """
    if level not in LEVELS:
        raise UsageError(f"level {level!r} is not known; there are {', '.join(LEVELS)}")
    target = Path(path)
    if target.is_file():
        return _verify_lone_shard(target, level)
    return _Check(target, level, progress).run()


def error(kind: str, message: str, shard: str | None = None, block: int | None = None, key: str | None = None) -> Finding:
    """Return a finding that makes a dataset unsound."""
    return Finding("error", shard, block, None, key, kind, message)


def _verify_lone_shard(path: Path, level: str) -> VerifyResult:
    try:
        reader = ShardReader(path)
    except DatasetError as problem:
        return VerifyResult(False, level, 1, 0, (error("unreadable-shard", str(problem), path.name),))
    findings = list(_check_blocks(reader, path.name)) if level == "full" else []
    samples = 0
    for block in range(len(reader)):
        try:
            samples += reader.block(block).num_rows
        except DatasetError:
            continue  # _check_blocks has reported it, and quick does not read blocks
    return VerifyResult(not findings, level, 1, samples, tuple(findings))


class _Check:
    """One check of a whole dataset."""

    def __init__(self, root: Path, level: str, progress: Callable[[int, int], None]) -> None:
        self.root, self.level, self.progress = root, level, progress
        self.full = level == "full"
        self.findings: list[Finding] = []

    def run(self) -> VerifyResult:
        manifest = self._manifest()
        if manifest is None:
            return self._result(0, 0)
        self._check_files(manifest)
        try:
            table = ShardTable(self.root / SHARDS)
            entries = list(table)
        except DatasetError as problem:
            self.findings.append(error("unreadable-table", str(problem)))
            return self._result(0, 0)
        self._check_counts(manifest, entries)
        self._check_presence(entries)
        plan = self._plan(entries)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            checks = pool.map(lambda entry: self._check_shard(entry, manifest, plan), entries)
            for done, findings in enumerate(checks, 1):
                self.findings += findings
                self.progress(done, len(entries))
        return self._result(len(entries), sum(entry.rows for entry in entries))

    def _result(self, shards: int, samples: int) -> VerifyResult:
        ok = not any(finding.severity == "error" for finding in self.findings)
        return VerifyResult(ok, self.level, shards, samples, tuple(self.findings))

    def _manifest(self) -> Manifest | None:
        """Read the manifest. A damaged one is a finding, none at all means that this is no dataset."""
        if not (self.root / MANIFEST).exists():
            Manifest.load(self.root)
        try:
            return Manifest.load(self.root)
        except DatasetError as problem:
            self.findings.append(error("damaged-manifest", str(problem)))
            return None

    def _check_files(self, manifest: Manifest) -> None:
        """Compare the tables with the manifest, and the list of checksums with itself."""
        for name, facts in manifest.files.items():
            path = self.root / name
            if not is_regular_file(path):
                self.findings.append(error("missing-file", f"{name} is missing"))
            elif path.stat().st_size != facts.bytes:
                size = path.stat().st_size
                self.findings.append(error("wrong-size", f"{name} has {size} bytes, the manifest says {facts.bytes}"))
            elif self.full and sha256_of(path) != facts.sha256:
                self.findings.append(error("wrong-checksum", f"{name} is not what was written: its SHA-256 differs"))

    def _check_counts(self, manifest: Manifest, entries: list[ShardEntry]) -> None:
        said = (manifest.shards, manifest.samples, manifest.bytes)
        counted = (len(entries), sum(entry.rows for entry in entries), sum(entry.bytes for entry in entries))
        if said != counted:
            self.findings.append(error("counts-differ", f"the manifest says {said} shards, samples, bytes; {SHARDS} {counted}"))
        if self.full and (self.root / CHECKSUMS).exists():
            self._check_list_of_checksums(entries)

    def _check_list_of_checksums(self, entries: list[ShardEntry]) -> None:
        try:
            sums = read_checksums(self.root / CHECKSUMS)
        except DatasetError as problem:
            self.findings.append(error("damaged-checksums", str(problem)))
            return
        for entry in entries:
            if sums.get(entry.path) != entry.sha256:
                self.findings.append(error("checksums-differ", f"{CHECKSUMS} and {SHARDS} disagree on it", entry.path))

    def _check_presence(self, entries: list[ShardEntry]) -> None:
        """Find files that do not belong to the dataset. Those that do are looked for one by one."""
        known = {entry.path for entry in entries} | {MANIFEST, PLAN, SHARDS, REJECTS, CHECKSUMS, STAGING}
        for name in sorted(set(os.listdir(self.root)) - known):
            shown = printable(name)
            self.findings.append(
                Finding("warning", None, None, None, None, "extra-file", f"{shown} is not part of the dataset")
            )

    def _plan(self, entries: list[ShardEntry]) -> pa.Table | None:
        """Return the plan where the keys of the shards are to be compared with it."""
        if not self.full:
            return None
        try:
            plan = open_table(self.root / PLAN)
        except DatasetError as problem:
            self.findings.append(error("unreadable-table", str(problem)))
            return None
        inputs = sum(entry.inputs for entry in entries)
        if plan.num_rows != inputs or "key" not in plan.column_names or "row" not in plan.column_names:
            self.findings.append(error("plan-differs", f"{PLAN} has {plan.num_rows} rows, {SHARDS} says {inputs}"))
            return None
        return plan

    def _check_shard(self, entry: ShardEntry, manifest: Manifest, plan: pa.Table | None) -> list[Finding]:
        path = self.root / entry.path
        if "/" in entry.path or not is_regular_file(path):
            return [error("missing-shard", "the shard is missing; convert the sources again with --overwrite", entry.path)]
        size = path.stat().st_size
        if size != entry.bytes:
            return [error("wrong-size", f"{size} bytes where {entry.bytes} were written", entry.path)]
        try:
            reader = ShardReader(path)
        except DatasetError as problem:
            return [error("unreadable-shard", str(problem), entry.path)]
        findings = []
        if len(reader) != len(entry.block_rows):
            findings.append(
                error("blocks-differ", f"{len(reader)} blocks where {len(entry.block_rows)} were written", entry.path)
            )
        columns = tuple((f.name, str(f.type)) for f in reader.schema)
        if columns != manifest.schema:
            findings.append(error("schema-differs", "its columns are not those of the dataset", entry.path))
        own = shard_name(reader.info["split"], reader.info["shard"], reader.info["shards"])
        if own != entry.path:
            findings.append(error("wrong-shard", f"this was written as {own}; give it its name back", entry.path))
        if self.full and not findings:
            findings += self._check_content(entry, path, reader, plan)
        return findings

    def _check_content(self, entry: ShardEntry, path: Path, reader: ShardReader, plan: pa.Table | None) -> Iterator[Finding]:
        blocks = list(_check_blocks(reader, entry.path, entry.block_rows))
        yield from blocks
        if not blocks and sha256_of(path) != entry.sha256:
            yield error("wrong-checksum", "its SHA-256 differs, outside the blocks: in the file's own metadata", entry.path)
        if not blocks and plan is not None:
            yield from _check_keys(entry, reader, plan)


def _check_blocks(reader: ShardReader, shard: str, rows: tuple[int, ...] = ()) -> Iterator[Finding]:
    for block in range(len(reader)):
        try:
            intact = reader.block_is_intact(block)
            if rows and reader.block(block).num_rows != rows[block]:
                yield error("rows-differ", f"the block does not have the {rows[block]} rows that were written", shard, block)
        except DatasetError as problem:
            yield error("unreadable-block", str(problem), shard, block)
        else:
            if not intact:
                yield error("wrong-checksum", "the block is not what was written: its checksum differs", shard, block)


def _check_keys(entry: ShardEntry, reader: ShardReader, plan: pa.Table) -> Iterator[Finding]:
    """Compare the keys of a shard with those that the plan gives it."""
    planned = plan.slice(entry.first_input, entry.inputs).select(["key", "row"]).combine_chunks()
    kept = planned.filter(planned["row"].is_valid())
    row = np.asarray(kept["row"].to_numpy())
    if len(row) != entry.rows or not np.array_equal(row, np.arange(entry.rows)):
        yield error("plan-differs", f"{PLAN} gives it {len(row)} samples, {SHARDS} {entry.rows}", entry.path)
        return
    stored = pa.chunked_array([block.column("key") for block in reader.blocks()], pa.string())
    if not stored.combine_chunks().equals(kept["key"].combine_chunks()):
        yield error("keys-differ", f"its samples are not those that {PLAN} gives it", entry.path)
