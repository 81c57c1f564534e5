"""The machine of a measurement: its hardware and software, and what of a dataset is in its page cache."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shardctl.errors import UsageError
from shardctl.images.codecs import backend
from shardctl.system.files import open_ordinary
from shardctl.system.machine import memory_bytes, usable_cores
from shardctl.system.mmap import resident_pages
from shardctl.system.permutation import evenly_spaced
from shardctl.version import __version__

PACKAGES = ("pyarrow", "numpy", "simplejpeg", "torch")


def environment(root: Path) -> dict[str, Any]:
    """Return processor, cores, memory (bytes), the file system that holds `root`, and versions, as
    plain data."""
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(root),
        "python": platform.python_version(),
        "versions": {"shardctl": __version__, **_versions()},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    name, _, number = backend.require_one().partition(
        " "
    )  # the one that is imported: both Pillow and Pillow-SIMD may be installed
    return {**found, name.lower(): number}


def _file_system(root: Path) -> str | None:
    """Return the type of the file system, from the longest mount point above `root`; None if it is
    unknown."""
    if sys.platform != "linux":
        return None
    path = os.path.realpath(root)
    best, kind = "", None
    for line in (
        Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    ):
        _, point, type_, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape")  # spaces are written \040
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, type_
    return kind


LOOKED_AT = 256
"""The largest number of files whose pages are looked up, from all over them."""


def residency(files: Sequence[Path]) -> float | None:
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


def drop(paths: Iterable[Path]) -> None:
    """Ask the system to drop files from its page cache; what cannot be opened is skipped. Raises
    UsageError if it has no such call.

    Mapped pages stay: datasets that were opened before must have been released.
    """
    gc.collect()
    if not hasattr(os, "posix_fadvise"):
        raise UsageError("a cold measurement needs posix_fadvise, which this system does not have")
    for path in paths:
        try:
            file = open_ordinary(path)
        except OSError:
            continue
        with file:
            os.fsync(file.fileno())  # unwritten pages cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
