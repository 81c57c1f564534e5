"""The part of a dataset's shards that is in the page cache, and dropping it from there."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardctl.errors import UsageError
from shardctl.format.tables import ShardTable
from shardctl.system.files import ordinary
from shardctl.system.folders import LocalFolder
from shardctl.system.mmap import resident_pages
from shardctl.system.permutation import evenly_spaced

LOOKED_AT = 256
"""The largest number of files whose pages are looked up, from all over them."""


def residency(root: Path) -> float | None:
    """Return the share of the shards' pages that are in memory (0 to 1); None if the system does
    not report it.

    Raises DatasetError.
    """
    return residency_of([root / name for name in ShardTable(LocalFolder(root)).names])


def residency_of(files: Sequence[Path]) -> float | None:
    """Return the share of the pages of files that are in memory (0 to 1); None if the system does
    not report it."""
    found = [_pages_of(files[place]) for place in evenly_spaced(len(files), LOOKED_AT)]
    pages = [counts for counts in found if counts is not None]
    total = sum(count for count, _ in pages)
    return round(sum(there for _, there in pages) / total, 4) if total else None


def _pages_of(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):  # gone, or no ordinary file: who reads it says so
        return resident_pages(path)
    return None


def evict(root: Path) -> None:
    """Ask the system to drop a dataset's shards from its page cache. Raises UsageError if it has no
    such call.

    Mapped pages stay: datasets that were opened before must have been released.
    """
    gc.collect()
    drop(root / name for name in ShardTable(LocalFolder(root)).names)


def drop(paths: Iterable[Path]) -> None:
    """Ask the system to drop files from its page cache; what cannot be opened is skipped. Raises
    UsageError."""
    if not hasattr(os, "posix_fadvise"):
        raise UsageError("a cold measurement needs posix_fadvise, which this system does not have")
    for path in paths:
        try:
            descriptor = ordinary(str(path), os.O_RDONLY)
        except OSError:
            continue
        try:
            os.fsync(descriptor)  # unwritten pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
