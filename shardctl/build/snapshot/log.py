"""What a training script shows on stderr while its dataset is made: a line now and then, as logs of jobs need it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from shardctl.build.convert import narration
from shardctl.build.convert.estimate import Estimate
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.pace import Pace
from shardctl.build.convert.result import ConvertResult
from shardctl.build.shards.task import WorkDone
from shardctl.system.text import printable

LINE_SECONDS = 10.0
"""Seconds between lines."""


class ProgressLog:
    """Writes lines about the dataset at a place that is `shown` so. With `show` False it says nothing."""

    def __init__(self, shown: str, show: bool) -> None:
        self._shown, self._show = shown, show
        self._next = time.monotonic()
        self._pace = Pace()
        self._printed: tuple[str, ...] = ()

    def listener(self) -> Listener:
        """Return the callbacks for a conversion in this process."""
        return Listener(announce=self._announce, resuming=self._resuming, progress=self._progress)

    def waiting(self, owner: str) -> None:
        """Say for whom this process waits."""
        self._say([narration.waiting_log_line(owner)])
        self._next = time.monotonic() + LINE_SECONDS

    def leaving(self) -> None:
        """Say that this process leaves it to another rank to begin."""
        self._say(["waiting for rank 0 to begin; if it does not, this process makes the dataset"])

    def looking(self, how_far: Callable[[], tuple[int, int] | None], every: float) -> None:
        """Say how far another process is, which `how_far` finds out: once in so many seconds."""
        if self._show and self._is_time(every):
            self._say([narration.watching_log_line(how_far())])

    def ended(self, result: ConvertResult) -> None:
        """Say what was made, and of what there are no samples: nothing is left out without a word."""
        self._say(narration.result_log_lines(result, self._printed))

    def _announce(self, estimate: Estimate) -> None:
        self._pace.begin(estimate.records)
        self._printed = narration.notices_of(estimate)
        self._say(narration.estimate_log_lines(estimate))
        self._next = time.monotonic() + LINE_SECONDS

    def _resuming(self, done: int, shards: int) -> None:
        self._say([narration.resuming_log_line(done, shards)])
        self._pace.resume()

    def _progress(self, progress: WorkDone) -> None:
        self._pace.add(progress)
        if self._is_time():
            self._say([narration.pace_log_line(self._pace)])

    def _is_time(self, every: float = LINE_SECONDS) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + every
        return True

    def _say(self, lines: Iterable[str]) -> None:
        if self._show:
            for line in lines:
                sys.stderr.write(f"shardctl {printable(self._shown)}: {printable(line)}\n")
