"""Files of one image or text each: written, and named so that no two of a folder are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from shardctl.exports.file_names import folded
from shardctl.storage import FileFacts, naming_the_path


def write_file(path: Path, data: bytes) -> FileFacts:
    """Write a file. It counts only when its part is done, so that it needs no temporary name."""
    with naming_the_path(path):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return FileFacts(len(data), hashlib.sha256(data).hexdigest())


def repeated(names: Iterable[str]) -> frozenset[str]:
    """Return the names, folded, that are there more than once."""
    seen: set[str] = set()
    found: set[str] = set()
    for name in map(folded, names):
        (found if name in seen else seen).add(name)
    return frozenset(found)
