"""Datasets as they were before format 3 (docs/format.md, section 7)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from dataset_files import tables_in
from forged_datasets import read_table, replace_column, signed, write_table

from shardctl.format.dataset_folder import dataset_in
from shardctl.format.names import CHECKSUMS, SHARDS
from shardctl.format.tables import ShardTable, write_checksums
from shardctl.system.files import sha256_of


def as_format_2(dataset: Path, to: Path, base: str = "") -> Path:
    """Write the present generation of a dataset as format 2 has it: tables and shards in the folder
    `base`, and the manifest above it, which names that. Returns `to`."""
    tables, folder = tables_in(dataset), dataset_in(dataset)
    shutil.copytree(tables, to / base)
    shards = {f"{each.name}.arrow": each for each in ShardTable(folder)}
    for name, each in shards.items():
        shutil.copy(folder.path(each.path), to / base / name)
    table = read_table(tables / SHARDS).drop_columns(["number"])
    write_table(to / base / SHARDS, replace_column(table, "path", list(shards)))
    record = json.loads((to / base / "manifest.json").read_text())
    listed = [(name, each.sha256) for name, each in shards.items()]
    listed += [(each, sha256_of(to / base / each)) for each in record["files"] if each != CHECKSUMS]
    write_checksums(to / base / CHECKSUMS, listed)
    for name in (SHARDS, CHECKSUMS):
        path = to / base / name
        record["files"][name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    del record["job"], record["needs"]
    for each in record["history"]:
        each.pop("path", None)
    record["history"][-1]["digest"] = record["files"][CHECKSUMS]["sha256"]
    record["format_version"] = 2
    write_manifest_2(to / base, record)
    if base:
        write_manifest_2(to, {**record, "base": base})
    return to


def write_manifest_2(folder: Path, record: dict[str, Any]) -> None:
    """Write a manifest of format 2, with a digest that holds."""
    text = json.dumps(json.loads(signed(record)), indent=1) + "\n"
    (folder / "manifest.json").write_text(text)
