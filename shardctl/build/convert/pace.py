"""How far a conversion is, and how fast it goes: what its workers report, added up."""

from __future__ import annotations

import time

from shardctl.build.shards.marker import WorkDone

NOTHING = WorkDone(0, 0, 0, 0)

SHORTEST_SECONDS = 1e-6
"""The time that a rate divides by is at least this: the first report may come at once."""


class Pace:
    """Adds up the work that is done, and knows the rates and the time that is left. Its clock
    starts with `begin`."""

    def __init__(self) -> None:
        self.done = NOTHING
        self.records = 0
        self._before = NOTHING
        self._began = time.monotonic()

    def begin(self, records: int) -> None:
        """The work on so many records begins now."""
        self.records, self._began = records, time.monotonic()

    def resume(self) -> None:
        """Take what was added until now as work of before. The rates count only the work from now
        on."""
        self._before, self._began = self.done, time.monotonic()

    def add(self, progress: WorkDone) -> None:
        """Some more is done."""
        self.done += progress

    @property
    def records_per_s(self) -> float:
        """Records of the plan that are done in a second."""
        return (self.done.records - self._before.records) / self._seconds

    @property
    def bytes_per_s(self) -> float:
        """Bytes that are read in a second."""
        return (self.done.bytes - self._before.bytes) / self._seconds

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the remaining records take at this rate. None while no record is done."""
        rate = self.records_per_s
        return max(0, self.records - self.done.records) / rate if rate > 0 else None

    @property
    def _seconds(self) -> float:
        return max(time.monotonic() - self._began, SHORTEST_SECONDS)
