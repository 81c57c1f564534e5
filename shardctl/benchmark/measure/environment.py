"""The machine and the versions of a measurement: without them its figures cannot be compared with
others."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shardctl.images.codecs import backend
from shardctl.system.machine import memory_bytes, usable_cores
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
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
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
