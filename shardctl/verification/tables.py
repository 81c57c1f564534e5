"""The checks of the files beside the shards. Those of Arrow tables run in a process of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from shardctl.engines.job import JOB
from shardctl.errors import DatasetError
from shardctl.manifest import (
    CHECKSUMS,
    MANIFEST,
    PLAN,
    REJECTS,
    SHARDS,
    STAGING,
    Manifest,
    ShardTable,
    open_checked_table,
    read_checksums,
    read_rejects,
)
from shardctl.storage import exists, is_regular_file, printable, sha256_of
from shardctl.verification.finding import MISSING, Finding, error, reading, unreadable

MEND = "`shardctl repair` repairs it"
MOVE_AWAY = "if it is lost, move it away, and `shardctl repair` makes a new one"
PLAN_COLUMNS = ("key", "source", "root", "offset", "size", "split", "variant", "label", "shard", "row", "outcome", "digest")


def check_manifest(root: Path) -> tuple[Manifest | None, list[Finding]]:
    """Read the manifest. A damaged one is a finding; raises DatasetError if there is no dataset at all."""
    path = root / MANIFEST
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        lost = all(exists(root / name) for name in (PLAN, SHARDS, CHECKSUMS))
        if not lost or any((root / STAGING).glob(f"*/{JOB}")):
            Manifest.load(root)  # says what this is instead: no dataset, or a conversion that is not finished
        return None, [error("missing-manifest", f"{MANIFEST} is missing, and the rest of a dataset is there; {MEND}")]
    except OSError as fault:
        if not exists(root):
            Manifest.load(root)  # says why nothing is known of the folder
        return None, [unreadable(MANIFEST, fault, MOVE_AWAY)]
    try:
        manifest = Manifest.load(root)
        text = path.read_bytes()
    except DatasetError as problem:
        if isinstance(problem.__cause__, OSError):
            return None, [unreadable(MANIFEST, problem.__cause__, MOVE_AWAY)]
        return None, [error("damaged-manifest", f"{problem}")]
    except OSError as fault:
        return None, [unreadable(MANIFEST, fault, MOVE_AWAY)]
    if json.dumps(json.loads(text), indent=1).encode() + b"\n" != text:
        what = f"{MANIFEST} has the right content, but not the bytes that were written; {MEND}"
        return manifest, [error("damaged-manifest", what)]
    return manifest, []


def check_file(root: Path, manifest: Manifest, name: str, level: str) -> Iterator[Finding]:
    """Compare one of the files beside the shards with what the manifest says of it."""
    missing = error(MISSING, f"{name} is missing; {MEND}")
    if is_regular_file(root / name):
        yield from reading(missing, name, MEND, _compare_file(root, manifest, name, level))
    else:
        yield missing


def _compare_file(root: Path, manifest: Manifest, name: str, level: str) -> Iterator[Finding]:
    facts, path = manifest.files[name], root / name
    if (size := path.stat().st_size) != facts.bytes:
        yield error("wrong-size", f"{name} has {size} bytes, the manifest says {facts.bytes}; {MEND}")
    elif level == "quick":
        with open(path, "rb") as file:
            file.read(1)  # for the OSError of a file that may not, or cannot, be read
    elif sha256_of(path) != facts.sha256:
        yield error("wrong-checksum", f"{name} is damaged: its SHA-256 differs; {MEND}")


def check_shard_table(root: Path, manifest: Manifest) -> Iterator[Finding]:
    """Compare shards.arrow with the manifest."""
    try:
        table = ShardTable(root / SHARDS)
    except DatasetError as problem:
        yield error("unreadable-table", str(problem))
        return
    entries = list(table)
    said = (manifest.shards, manifest.samples, manifest.bytes, manifest.inputs)
    counted = (len(entries), *(sum(getattr(entry, name) for entry in entries) for name in ("rows", "bytes", "inputs")))
    if said != counted:
        yield error("counts-differ", f"{MANIFEST} says {said} shards, samples, bytes, inputs; {SHARDS} {counted}; {MEND}")
    splits = [(facts.name, facts.shards) for facts in manifest.splits]
    if splits != [(name, [entry.split for entry in entries].count(name)) for name, _ in splits]:
        yield error("counts-differ", f"{MANIFEST} and {SHARDS} do not have the same splits; {MEND}")


def check_checksums(root: Path, manifest: Manifest) -> Iterator[Finding]:
    """Compare SHA256SUMS with the table of shards."""
    try:
        sums, table = read_checksums(root / CHECKSUMS), ShardTable(root / SHARDS)
    except DatasetError as problem:
        yield error("damaged-checksums", f"{problem}; {MEND}")
        return
    for entry in table:
        if sums.get(entry.path) != entry.sha256:
            yield error("checksums-differ", f"{CHECKSUMS} and {SHARDS} disagree on it; {MEND}", entry.path)
    listed = {entry.path for entry in table} | set(manifest.files) - {CHECKSUMS}
    for name in sorted(set(sums) ^ listed):
        yield error("checksums-differ", f"{CHECKSUMS} and {SHARDS} do not list the same files: {printable(name)}; {MEND}")


def check_rejects(root: Path, manifest: Manifest) -> Iterator[Finding]:
    """Read every line of rejects.jsonl."""
    try:
        count = sum(1 for _ in read_rejects(root / REJECTS))
    except DatasetError as problem:
        yield error("damaged-rejects", f"{problem}")
        return
    if count != manifest.rejected:
        yield error("rejects-differ", f"{REJECTS} has {count} lines, {MANIFEST} says {manifest.rejected}; {MEND}")


def check_plan(root: Path, manifest: Manifest) -> Iterator[Finding]:
    """Look at every value of the plan, and compare its counts with the manifest's."""
    try:
        plan = open_checked_table(root / PLAN)
    except DatasetError as problem:
        yield error("unreadable-table", str(problem))
        return
    missing = [name for name in PLAN_COLUMNS if name not in plan.column_names]
    if missing:
        yield error("plan-differs", f"{PLAN} has no column {', '.join(missing)}; {MEND}")
        return
    rejected = pc.sum(pc.equal(plan["outcome"], "rejected")).as_py() or 0
    said, counted = (manifest.inputs, manifest.rejected), (plan.num_rows, rejected)
    if said != counted:
        yield error("plan-differs", f"{PLAN} has {counted} inputs and rejects, the manifest says {said}; {MEND}")
    if twice := _first_duplicate(plan):
        yield error("duplicate-key", f"{PLAN} has it twice; {MEND}", key=twice)


def _first_duplicate(plan: pa.Table) -> str | None:
    """Return a key that is repeated with the same variant, by 64-bit hashes: 16 bytes of memory per input."""
    hashes = np.empty(plan.num_rows, np.uint64)
    place = 0
    for batch in plan.select(["key", "variant"]).to_batches(max_chunksize=65536):
        for key, variant in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            hashes[place] = xxhash.xxh3_64_intdigest(f"{variant}\0{key}".encode())
            place += 1
    order = np.sort(hashes)
    twice = order[1:][order[1:] == order[:-1]]
    if not len(twice):
        return None
    found: str = plan["key"][int(np.flatnonzero(hashes == twice[0])[0])].as_py()
    return found
