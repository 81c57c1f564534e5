"""What a finished dataset holds: its checksums, the keys and values of its samples, its
duplicates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from dataset_files import shards_in, tables_in

import shardctl
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.tables import ShardTable, read_checksums, read_rejects
from shardctl.system.files import sha256_of


def sums(dataset: Path) -> bytes:
    """Return SHA256SUMS, having made sure that it is true."""
    folder = dataset_in(dataset)
    for name, sha256 in read_checksums(folder).items():
        assert sha256_of(folder.path(name)) == sha256
    return (tables_in(dataset) / "SHA256SUMS").read_bytes()


def expect_whole(dataset: Any, level: str = "full") -> None:
    """Expect `verify` to find nothing."""
    assert shardctl.verify(dataset, level).findings == ()


def rejects_of(dataset: Path) -> list[Any]:
    return list(read_rejects(dataset_in(dataset)))


def shards_of(dataset: Path) -> ShardTable:
    return ShardTable(dataset_in(dataset))


def keys(out: Path) -> list[str]:
    return [sample["key"] for sample in shardctl.open(out)]


def dropped(out: Path) -> dict[str, str]:
    """Return the message of every reject that is a duplicate, by its key."""
    rejects = (
        json.loads(line) for line in (tables_in(out) / "rejects.jsonl").read_text().splitlines()
    )
    return {
        reject["key"]: reject["message"]
        for reject in rejects
        if (reject["stage"], reject["error"]) == ("plan", "duplicate")
    }


def stored(dataset: Path, name: str) -> list[Any]:
    tables = [pa.ipc.open_file(shard).read_all() for shard in shards_in(dataset)]
    values: list[Any] = pa.concat_tables(tables)[name].to_pylist()
    return values


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, by their names."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
