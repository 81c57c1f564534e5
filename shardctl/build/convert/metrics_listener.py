"""The progress of a conversion, for the tools that watch jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shardctl.build.convert.estimate import Estimate
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.pace import Pace
from shardctl.build.shards.work_done import WorkDone
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
            yield replace(listener, announce=meter.announce, building=meter.building, progress=meter.progress)
        finally:
            if meter.has_begun:
                meter.tell()


class _Meter:
    """Tells the sinks how far the conversion is, while its callbacks go on to the listener."""

    def __init__(self, listener: Listener, sinks: list[Sink]) -> None:
        self._listener, self._sinks = listener, sinks
        self._pace, self._steps = Pace(), 0
        self._due = time.monotonic()
        self.has_begun = False

    def announce(self, estimate: Estimate) -> None:
        """The work begins."""
        self.has_begun = True
        self._listener.announce(estimate)
        self._pace.begin(estimate.records)
        self._due = time.monotonic() + EVERY_SECONDS

    def building(self) -> None:
        """The work of this run begins."""
        self._listener.building()
        self._pace.resume()

    def progress(self, progress: WorkDone) -> None:
        """Some more is done."""
        self._listener.progress(progress)
        self._pace.add(progress)
        if time.monotonic() >= self._due:
            self.tell()

    def tell(self) -> None:
        """Write the figures."""
        self._due = time.monotonic() + EVERY_SECONDS
        pace, done = self._pace, self._pace.done
        values = {
            "records": done.records,
            "all_records": pace.records,
            "samples": done.samples,
            "rejected": done.rejected,
            "bytes": done.bytes,
            "records_per_s": round(pace.records_per_s, 3),
        }
        if (left := pace.seconds_left) is not None:
            values["left_s"] = round(left, 1)
        self._steps += 1
        tell(self._sinks, CONVERSION, values, self._steps)
