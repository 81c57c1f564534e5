"""Which part of a dataset's shards the system holds in memory, and asking it to let them go."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from pathlib import Path

from shardctl.errors import UsageError
from shardctl.manifest import SHARDS, ShardTable
from shardctl.mapping import resident_pages
from shardctl.spread import spread

LOOKED_AT = 256
"""Most shards whose pages are looked up, from all over the dataset."""


def residency(root: Path) -> float | None:
    """Return the share of the shards' pages that are in memory (0 to 1); None where the system does not tell.

    Raises DatasetError.
    """
    names = ShardTable(root / SHARDS).names
    chosen = spread(len(names), LOOKED_AT)
    found = [resident_pages(root / names[place]) for place in chosen if (root / names[place]).exists()]
    pages = [counts for counts in found if counts is not None]
    total = sum(count for count, _ in pages)
    return round(sum(there for _, there in pages) / total, 4) if total else None


def evict(root: Path) -> None:
    """Ask the system to drop a dataset's shards from its page cache. Raises UsageError where it has no such call.

    Pages that somebody has mapped stay: datasets that were opened before must have been let go.
    """
    gc.collect()
    drop(root / name for name in ShardTable(root / SHARDS).names)


def drop(paths: Iterable[Path]) -> None:
    """Ask the system to drop files from its page cache; those that are not there are passed over. Raises UsageError."""
    if not hasattr(os, "posix_fadvise"):
        raise UsageError("a cold measurement needs posix_fadvise, which this system does not have")
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)  # what is not written yet cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
