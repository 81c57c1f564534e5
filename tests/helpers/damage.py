"""Damaged files of a dataset."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

SHARD = "train-00002.arrow"


def flip(path: Path, place: int | None = None) -> None:
    """Change a bit of the byte at a place, or of the one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 0x40
    path.write_bytes(data)


def middle(root: Path, name: str) -> int:
    return (root / name).stat().st_size // 2


def edit_manifest(root: Path) -> None:
    record = json.loads((root / "manifest.json").read_text())
    record["samples"] += 1
    (root / "manifest.json").write_text(json.dumps(record))


DAMAGE: list[tuple[str, Callable[[Path], object], str, str | None]] = [
    ("quick", lambda d: (d / SHARD).unlink(), "missing-shard", SHARD),
    ("quick", lambda d: (d / SHARD).rename(d / "other.arrow"), "missing-shard", SHARD),
    ("quick", lambda d: os.truncate(d / SHARD, 1000), "wrong-size", SHARD),
    ("quick", lambda d: os.truncate(d / SHARD, 1 << 20), "wrong-size", SHARD),
    ("quick", lambda d: flip(d / SHARD, -5), "unreadable-shard", SHARD),
    ("quick", lambda d: (d / "plan.arrow").unlink(), "missing-file", None),
    ("quick", lambda d: (d / "files.arrow").unlink(), "missing-file", None),
    ("quick", lambda d: (d / "SHA256SUMS").write_text(""), "wrong-size", None),
    ("quick", edit_manifest, "damaged-manifest", None),
    ("quick", lambda d: (d / "manifest.json").write_text("{"), "damaged-manifest", None),
    ("quick", lambda d: (d / "shards.arrow").write_bytes(b"junk"), "unreadable-table", None),
    ("full", lambda d: flip(d / SHARD), "wrong-checksum", SHARD),
    ("full", lambda d: flip(d / "plan.arrow"), "wrong-checksum", None),
    ("full", lambda d: flip(d / "files.arrow"), "wrong-checksum", None),
    ("full", lambda d: flip(d / "shards.arrow"), "wrong-checksum", None),
    ("full", lambda d: flip(d / "SHA256SUMS", 10), "wrong-checksum", None),
]
