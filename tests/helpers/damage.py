"""Damaged files of a dataset."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from dataset_files import shard_in, tables_in

SHARD = "train-00002"


def flip(path: Path, place: int | None = None) -> None:
    """Change a bit of the byte at a place, or of the one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 0x40
    path.write_bytes(data)


def file_of(root: Path, name: str) -> Path:
    """Return a file of a dataset by what it is called: a shard, a table, the manifest."""
    if name == "manifest.json":
        return root / name
    return tables_in(root) / name if "." in name or name.isupper() else shard_in(root, name)


def middle(root: Path, name: str) -> int:
    return file_of(root, name).stat().st_size // 2


def edit_manifest(root: Path) -> None:
    record = json.loads((root / "manifest.json").read_text())
    record["samples"] += 1
    (root / "manifest.json").write_text(json.dumps(record))


DAMAGE: list[tuple[str, Callable[[Path], object], str, str | None]] = [
    ("quick", lambda d: shard_in(d, SHARD).unlink(), "missing-shard", SHARD),
    ("quick", lambda d: shard_in(d, SHARD).rename(d / "other.arrow"), "missing-shard", SHARD),
    ("quick", lambda d: os.truncate(shard_in(d, SHARD), 1000), "wrong-size", SHARD),
    ("quick", lambda d: os.truncate(shard_in(d, SHARD), 1 << 20), "wrong-size", SHARD),
    ("quick", lambda d: flip(shard_in(d, SHARD), -5), "unreadable-shard", SHARD),
    ("quick", lambda d: (tables_in(d) / "plan.arrow").unlink(), "missing-file", None),
    ("quick", lambda d: (tables_in(d) / "files.arrow").unlink(), "missing-file", None),
    ("quick", lambda d: (tables_in(d) / "SHA256SUMS").write_text(""), "wrong-size", None),
    ("quick", edit_manifest, "damaged-manifest", None),
    ("quick", lambda d: (d / "manifest.json").write_text("{"), "damaged-manifest", None),
    (
        "quick",
        lambda d: (tables_in(d) / "shards.arrow").write_bytes(b"junk"),
        "unreadable-table",
        None,
    ),
    ("full", lambda d: flip(shard_in(d, SHARD)), "wrong-checksum", SHARD),
    ("full", lambda d: flip(tables_in(d) / "plan.arrow"), "wrong-checksum", None),
    ("full", lambda d: flip(tables_in(d) / "files.arrow"), "wrong-checksum", None),
    ("full", lambda d: flip(tables_in(d) / "shards.arrow"), "wrong-checksum", None),
    ("full", lambda d: flip(tables_in(d) / "SHA256SUMS", 10), "wrong-checksum", None),
]
