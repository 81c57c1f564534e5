"""What a measurement knows beside the batches themselves: meters of them in constant memory
(latencies, rates over time, bytes, processor time and memory), the machine, and what of a dataset is
in its page cache."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.errors import UsageError
from shardctl.images.codecs import backend
from shardctl.loader.blocks.memory import Batch
from shardctl.system.files import open_ordinary
from shardctl.system.machine import memory_bytes, usable_core_numbers, usable_cores
from shardctl.system.mmap import resident_pages
from shardctl.system.permutation import evenly_spaced
from shardctl.version import __version__

_FIRST_MS, _PER_DECADE = 1e-3, 100
_EDGES_MS = np.logspace(-3, 7, 10 * _PER_DECADE + 1)
"""Latencies from a microsecond to three hours, in steps of 2.3 %."""

_SERIES = 120
"""The largest number of points of a rate over time; if there are more, neighbours are joined."""

_WEIGHED = 16
"""The bytes of this many first batches are counted, then those of every n-th. It takes 20 us for a
batch of text."""


class Latencies:
    """A histogram of the times between batches, in ms."""

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(len(_EDGES_MS) + 1, np.int64)

    def add(self, seconds: float) -> None:
        """Note one."""
        place = 1 + int(math.log10(max(seconds * 1e3, _FIRST_MS) / _FIRST_MS) * _PER_DECADE)
        self._counts[min(place, len(self._counts) - 1)] += 1

    def join(self, others: Latencies) -> None:
        """Add the counts of another histogram."""
        self._counts += others._counts

    def percentile(self, share: float) -> float | None:
        """Return the quantile `share` (0 to 1) of the latencies in ms, to 1.2 %; None if there are
        no latencies."""
        total = int(self._counts.sum())
        if not total:
            return None
        place = int(np.searchsorted(np.cumsum(self._counts), max(1, math.ceil(share * total))))
        low, high = _EDGES_MS[max(0, place - 1)], _EDGES_MS[min(place, len(_EDGES_MS) - 1)]
        return float(math.sqrt(low * high))

    def histogram(self) -> dict[str, list[float]]:
        """Return the range that is not empty: `edges_ms` (n + 1) and `counts` (n), ten bins to a
        decade."""
        step = _PER_DECADE // 10
        counts = self._counts[1:]
        coarse = np.add.reduceat(counts, np.arange(0, len(counts), step))
        there = np.flatnonzero(coarse)
        if not len(there):
            return {"edges_ms": [], "counts": []}
        first, last = int(there[0]), int(there[-1]) + 1
        edges = _EDGES_MS[::step][first : last + 1]
        return {
            "edges_ms": [float(f"{edge:.4g}") for edge in edges],
            "counts": coarse[first : first + len(edges) - 1].tolist(),
        }


class RateSeries:
    """Samples by time since the beginning, in bins that double in width when there are too many."""

    def __init__(self) -> None:
        self._width = 0.05
        self._bins = [0] * _SERIES

    def add(self, seconds: float, samples: int) -> None:
        """Add samples that arrived at this time after the beginning."""
        while seconds >= self._width * _SERIES:
            self._bins = [self._bins[i] + self._bins[i + 1] for i in range(0, _SERIES, 2)] + [0] * (
                _SERIES // 2
            )
            self._width *= 2
        self._bins[int(seconds / self._width)] += samples

    def points(self, seconds: float) -> dict[str, list[float]]:
        """Return the middle of each complete bin within the first `seconds`, in s, and its samples
        per second."""
        whole = min(_SERIES, int(seconds / self._width))
        return {
            "seconds": [round((place + 0.5) * self._width, 3) for place in range(whole)],
            "samples_per_s": [float(f"{count / self._width:.6g}") for count in self._bins[:whole]],
        }


@dataclass
class Weights:
    """The bytes of samples as returned by the loader, from some of the batches."""

    bytes: int = 0
    samples: int = 0
    batches: int = 0

    def add(self, batch: Batch, samples: int) -> None:
        """Count the bytes of a batch, or skip it."""
        self.batches += 1
        if self.batches <= _WEIGHED or self.batches % _WEIGHED == 0:
            self.bytes += bytes_of(batch)
            self.samples += samples

    @property
    def per_sample(self) -> float:
        """Bytes of a sample."""
        return self.bytes / max(1, self.samples)


def bytes_of(value: Any) -> int:
    """Return the bytes of a batch as returned by the loader, or of values in it: pixels, numbers,
    text."""
    if isinstance(value, list):
        return sum(map(bytes_of, value))
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    return int(
        getattr(value, "nbytes", None) or (len(value) if isinstance(value, str | bytes) else 8)
    )


@dataclass(frozen=True)
class CpuUse:
    """Processor time of a measurement: cores used by this process, and the busy share of each core
    by all processes.

    `busy` is empty, and `others` None, if the system does not report them.
    """

    cores: float
    busy: list[float]

    @property
    def others(self) -> float | None:
        """The share of the cores (0 to 1) that other processes used."""
        if not self.busy:
            return None
        return min(1.0, max(0.0, (sum(self.busy) - self.cores) / len(self.busy)))


class CpuMeter:
    """Adds up the processor time of several periods, each between `begin` and `end`."""

    def __init__(self) -> None:
        self._wall = self._own = 0.0
        self._idle, self._ticks = Counter[int](), Counter[int]()
        self._began: tuple[float, float, dict[int, tuple[int, int]]] = (0.0, 0.0, {})

    def begin(self) -> None:
        """Begin a stretch."""
        self._began = time.perf_counter(), time.process_time(), _core_ticks()

    def end(self, elsewhere: float = 0.0) -> float:
        """End the period, and return the processor seconds used in it by this process, and by
        others (`elsewhere`)."""
        wall, own, before = self._began
        used = time.process_time() - own + elsewhere
        self._wall += time.perf_counter() - wall
        self._own += used
        for core, (idle, total) in _core_ticks().items():
            if core in before:
                self._idle[core] += idle - before[core][0]
                self._ticks[core] += total - before[core][1]
        return used

    def read(self) -> CpuUse:
        """Return the use over all periods."""
        busy = [
            round(1 - self._idle[core] / total, 3) if (total := self._ticks[core]) > 0 else 0.0
            for core in usable_core_numbers()
            if core in self._ticks
        ]
        return CpuUse(round(self._own / self._wall, 2) if self._wall else 0.0, busy)


def _core_ticks() -> dict[int, tuple[int, int]]:
    """Return the idle ticks and all ticks of each core since the machine started (proc_stat(5))."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    ticks = {}
    for line in lines:
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            counts = [int(number) for number in numbers[:8]]
            ticks[int(name[3:])] = counts[3] + counts[4], sum(counts)
    return ticks


def memory_with(processes: Sequence[int]) -> tuple[float | None, float]:
    """Return the current memory of this process without mapped files, None if the system does not
    report it, and its peak with them, in 10^6 bytes.

    Those of other `processes` are added where the system reports them, with the memory that they
    share in each.
    """
    own, peak = _status_mb("self", "RssAnon"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mb = peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
    others, peaks = memory_of_others(processes)
    return None if own is None else own + (others or 0.0), peak_mb + peaks


def memory_of_others(processes: Sequence[int]) -> tuple[float | None, float]:
    """Return the current memory of other processes without mapped files, None if it is unknown, and
    their peak with them.

    Both are sums over the processes in 10^6 bytes, and what they share counts in each.
    """
    own = [_status_mb(process, part) for process in processes for part in ("RssAnon", "RssShmem")]
    there = [part for part in own if part is not None]
    return sum(there) if there else None, sum(
        _status_mb(process, "VmHWM") or 0.0 for process in processes
    )


def _status_mb(process: int | str, part: str) -> float | None:
    """Return a line of a process's status (proc_pid_status(5)) in 10^6 bytes."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return None
    return next(
        (
            int(line.split()[1]) * 1024 / 1e6
            for line in status.splitlines()
            if line.startswith(part)
        ),
        None,
    )


def count_of(batch: Batch) -> int:
    """Return the number of samples of a batch."""
    return len(next(iter(batch.values())))


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
