"""Small sources whose files come, go and change, and datasets that follow them."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dataset_files import shards_in, tables_in

import shardctl
from shardctl.system.files import sha256_of


def convert(source: Any, out: Any, **options: Any) -> Any:
    """Convert in this process, 6 samples to a shard."""
    return shardctl.convert(source, out, **{"workers": 0, "samples_per_shard": 6, **options})


def update(source: Any, out: Any, **options: Any) -> Any:
    return convert(source, out, update=True, **options)


def files_of(source: Path) -> list[Path]:
    """Return all files below a folder but labels.csv, in the order of their paths."""
    return sorted(
        path for path in source.rglob("*") if path.is_file() and path.name != "labels.csv"
    )


def write(path: Path, data: str | bytes) -> Path:
    """Write a file, and the folders above it; compressed where its name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    """Write JSON lines, as `write` does. A text is a line as it is."""
    lines = (each if isinstance(each, str) else json.dumps(each) for each in records)
    return write(path, "".join(f"{line}\n" for line in lines))


def change_to(path: Path, data: bytes) -> None:
    """Give a file another content, at another time."""
    path.write_bytes(data)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000_007))


def change(path: Path, other: Path) -> None:
    """Give a file the content of another one, at another time."""
    change_to(path, other.read_bytes())


def make_unreadable(path: Path) -> None:
    """Put zeros in the place of the content, which size and time do not show."""
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(1, status.st_mtime_ns))


def digests_of(out: Path) -> dict[str, str]:
    """Return the digest of each file of a dataset but its manifest, which has a date."""
    files = [*tables_in(out).iterdir(), *shards_in(out)]
    return {path.name: sha256_of(path) for path in files if path.name != "manifest.json"}
