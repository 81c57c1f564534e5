"""How fast a dataset can be read on this machine, through the loader that training uses."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.dataset import open_dataset
from shardctl.errors import DatasetError, UsageError
from shardctl.manifest import SHARDS, ShardTable
from shardctl.reader import Batch

LEAST_SECONDS = 2.0
"""How long is measured where nothing is said: below that, starting the threads weighs too much."""


@dataclass(frozen=True)
class BenchResult:
    """One measurement. `mb_per_s` counts the decoded bytes handed over, in units of 10^6; times of batches in ms."""

    samples_per_s: float
    mb_per_s: float
    first_batch_s: float
    batch_ms_p50: float
    batch_ms_p99: float
    rss_mb: float
    threads: int
    samples: int
    batches: int
    seconds: float
    epochs: int
    batch_size: int
    shuffle: bool
    cold: bool


def bench(
    path: str | Path,
    split: str | None = None,
    batch_size: int = 256,
    threads: int | str = "auto",
    shuffle: bool = False,
    epochs: int | None = None,
    seconds: float | None = None,
    cold: bool = False,
    decode: bool = True,
    progress: Callable[[int], None] = lambda samples: None,
) -> BenchResult:
    """Read a dataset and report the rate at which batches came.

    It is read for so many whole `epochs`, or for so many `seconds`; with neither, for whole epochs until LEAST_SECONDS have
    passed. `first_batch_s` counts from opening the dataset. `progress` hears the samples of every batch. Raises
    DatasetError, UsageError.
    """
    if epochs is not None and seconds is not None:
        raise UsageError("epochs and seconds contradict each other; give one of them")
    if (epochs is not None and epochs < 1) or (seconds is not None and seconds <= 0):
        raise UsageError("there is nothing to measure in no epochs or no time; give at least 1")
    if cold:
        evict(Path(path))
    started = time.perf_counter()
    dataset = open_dataset(path, split)
    if not len(dataset):
        raise DatasetError(f"{path}: there is no sample to read{f' in split {split}' if split else ''}")
    loader = dataset.loader(batch_size, shuffle=shuffle, threads=threads, decode=decode)
    meter = _Meter(started, progress)
    passes = 0
    while not passes or (passes < epochs if epochs else meter.elapsed < (seconds or LEAST_SECONDS)):
        for batch in loader:
            meter.take(batch)
            if seconds is not None and meter.elapsed >= seconds:
                break
        passes += 1
    return BenchResult(
        **meter.rates(),
        rss_mb=round(peak_memory_mb(), 1),
        threads=loader.threads,
        epochs=passes,
        batch_size=batch_size,
        shuffle=shuffle,
        cold=cold,
    )


class _Meter:
    """Times batches as they arrive. `opened` is when the dataset began to be opened, now is when reading begins."""

    def __init__(self, opened: float, progress: Callable[[int], None]) -> None:
        self._opened, self._progress = opened, progress
        self._started = self._last = time.perf_counter()
        self._gaps: list[float] = []
        self._samples = self._bytes = 0

    @property
    def elapsed(self) -> float:
        """Seconds of reading so far."""
        return self._last - self._started

    def take(self, batch: Batch) -> None:
        """Count one batch."""
        now = time.perf_counter()
        self._gaps.append(now - self._last)
        self._last = now
        count = len(next(iter(batch.values())))
        self._samples += count
        self._bytes += batch_bytes(batch)
        self._progress(count)

    def rates(self) -> dict[str, Any]:
        """Return the rates over the whole time: batches made while the first was waited for cost time too."""
        steady = np.array(self._gaps[1:] or self._gaps)
        return {
            "samples_per_s": round(self._samples / self.elapsed, 1),
            "mb_per_s": round(self._bytes / 1e6 / self.elapsed, 1),
            "first_batch_s": round(self._started - self._opened + self._gaps[0], 4),
            "batch_ms_p50": round(float(np.percentile(steady, 50)) * 1e3, 3),
            "batch_ms_p99": round(float(np.percentile(steady, 99)) * 1e3, 3),
            "samples": self._samples,
            "batches": len(self._gaps),
            "seconds": round(self.elapsed, 3),
        }


def batch_bytes(batch: Batch) -> int:
    """Return the bytes of a batch as it is handed over: pixels, numbers, text."""
    return sum(_value_bytes(values) for values in batch.values())


def _value_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, list):
        return sum(_value_bytes(item) for item in value)
    if isinstance(value, dict):
        return sum(_value_bytes(item) for item in value.values())
    return len(value) if isinstance(value, str | bytes) else 8


def peak_memory_mb() -> float:
    """Return the most memory that this process has held so far, in units of 10^6 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def evict(root: Path) -> None:
    """Ask the system to drop a dataset's shards from its page cache. Raises UsageError where it has no such call."""
    if not hasattr(os, "posix_fadvise"):
        raise UsageError("a cold measurement needs posix_fadvise, which this system does not have")
    for entry in ShardTable(root / SHARDS):
        descriptor = os.open(root / entry.path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
