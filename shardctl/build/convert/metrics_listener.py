"""The progress of a conversion, for the tools that watch jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shardctl.build.convert.estimate import Estimate
from shardctl.build.convert.listener import Listener
from shardctl.build.shards.task import WorkDone
from shardctl.loader.metrics import CONVERSION, EVERY_SECONDS, Sink, sinks_at, tell


@contextmanager
def metered(listener: Listener, targets: Sequence[str | Path]) -> Iterator[Listener]:
    """Yield a listener that also writes figures to `targets` every few seconds, and in the end."""
    if not targets:
        yield listener
        return
    with sinks_at(targets) as sinks:
        meter = _Meter(listener, sinks)
        try:
            yield replace(listener, announce=meter.announce, resuming=meter.resuming, progress=meter.progress)
        finally:
            if meter.has_begun:
                meter.tell()


class _Meter:
    """Adds up the progress."""

    def __init__(self, listener: Listener, sinks: list[Sink]) -> None:
        self._listener, self._sinks = listener, sinks
        self._done, self._all = WorkDone(0, 0, 0, 0), 0
        self._began = self._due = time.monotonic()
        self._steps = self._before = 0
        self.has_begun = False

    def announce(self, estimate: Estimate) -> None:
        """The work begins."""
        self.has_begun = True
        self._listener.announce(estimate)
        self._all, self._began = estimate.records, time.monotonic()
        self._due = self._began + EVERY_SECONDS

    def resuming(self, done: int, shards: int) -> None:
        """What was reported until now was done by an earlier run: the speed is that of what follows."""
        self._listener.resuming(done, shards)
        self._before, self._began = self._done.records, time.monotonic()

    def progress(self, progress: WorkDone) -> None:
        """Some more is done."""
        self._listener.progress(progress)
        self._done += progress
        if time.monotonic() >= self._due:
            self.tell()

    def tell(self) -> None:
        """Write the figures."""
        now = time.monotonic()
        self._due = now + EVERY_SECONDS
        rate = (self._done.records - self._before) / max(now - self._began, 1e-6)
        values = {
            "records": self._done.records,
            "all_records": self._all,
            "samples": self._done.samples,
            "rejected": self._done.rejected,
            "bytes": self._done.bytes,
            "records_per_s": round(rate, 3),
        }
        if rate > 0:
            values["left_s"] = round(max(0, self._all - self._done.records) / rate, 1)
        self._steps += 1
        tell(self._sinks, CONVERSION, values, self._steps)
