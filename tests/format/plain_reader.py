"""A reader of datasets that was written from docs/format.md alone, with Python and pyarrow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

KNOWN_NEEDS: set[str] = set()


class PlainReader:
    """A generation of the dataset in a folder: the present one, or another one by its number."""

    def __init__(self, root: Path, generation: int | None = None) -> None:
        self.root = root
        self.manifest = json.loads((root / "manifest.json").read_text())
        if self.manifest["format"] != "shardctl" or self.manifest["format_version"] not in (2, 3):
            raise ValueError("another format")
        if unknown := set(self.manifest.get("needs", [])) - KNOWN_NEEDS:
            raise ValueError(f"it needs {unknown}")
        self.tables = root
        if self.manifest["format_version"] == 3:
            there = {
                each["number"]: each["path"] for each in self.manifest["history"] if "path" in each
            }
            number = self.manifest["history"][-1]["number"] if generation is None else generation
            self.tables = root / there[number]
            self.manifest = json.loads((self.tables / "manifest.json").read_text())
        self.shards = self.table("shards.arrow").to_pylist()
        for shard in self.shards:
            if {"", ".", ".."} & set(shard["path"].split("/")) or set("\\\0") & set(shard["path"]):
                raise ValueError("a path that leads out of the dataset")

    def table(self, name: str) -> pa.Table:
        """Return one of the tables, whose SHA-256 the manifest has."""
        data = (self.tables / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != self.manifest["files"][name]["sha256"]:
            raise ValueError(f"{name} is damaged")
        return pa.ipc.open_file(data).read_all()

    def __len__(self) -> int:
        return sum(shard["rows"] for shard in self.shards)

    def samples(self, split: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the samples in the order of the dataset."""
        for shard in self.shards:
            if split in (None, shard["split"]):
                data = (self.root / shard["path"]).read_bytes()
                if hashlib.sha256(data).hexdigest() != shard["sha256"]:
                    raise ValueError(f"{shard['path']} is damaged")
                file = pa.ipc.open_file(data)
                rows = [file.get_batch(block).num_rows for block in range(file.num_record_batches)]
                assert rows == shard["block_rows"]
                for block in range(file.num_record_batches):
                    yield from file.get_batch(block).to_pylist()

    def sample(self, index: int) -> dict[str, Any]:
        """Return a sample by its place in the dataset: section 4 of the page."""
        for shard in self.shards:
            if index < shard["rows"]:
                file = pa.ipc.open_file(pa.memory_map(str(self.root / shard["path"])))
                for block, rows in enumerate(shard["block_rows"]):
                    if index < rows:
                        return file.get_batch(block).slice(index, 1).to_pylist()[0]
                    index -= rows
            index -= shard["rows"]
        raise IndexError(index)
