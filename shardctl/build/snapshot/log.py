"""What a training script shows on stderr while its dataset is made: a line now and then, as logs of
jobs need it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from shardctl.build.convert import narration
from shardctl.build.convert.listener import ConversionProgress, Estimate, Listener
from shardctl.build.convert.result import ConvertResult
from shardctl.system.progress import Lines, Progress
from shardctl.system.text import printable

LINE_SECONDS = 10.0
"""Seconds between lines."""


class ProgressLog(ConversionProgress):
    """Writes lines about the dataset at a place that is `shown` so, at a terminal too: a job has
    many processes.

    With `show` False it says nothing.
    """

    def __init__(self, shown: str, show: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._printed = show, tuple[str, ...]()
        self._lines = Lines(
            clock=clock, every=LINE_SECONDS, prefix=f"shardctl {printable(shown)}: "
        )
        super().__init__(self._lines if show else Progress())

    def listener(self) -> Listener:
        """Return the callbacks for a conversion in this process."""
        return replace(super().listener(), resuming=self._resuming)

    def waiting(self, owner: str) -> None:
        """Say for whom this process waits."""
        self._say([narration.waiting_log_line(owner)])
        self._lines.postpone()

    def leaving(self) -> None:
        """Say that this process leaves it to another rank to begin."""
        self._say(["waiting for rank 0 to begin; if it does not, this process makes the dataset"])

    def looking(self, how_far: Callable[[], tuple[int, int] | None], every: float) -> None:
        """Say how far another process is, which `how_far` finds out: once in so many seconds."""
        if self._show and self._lines.is_due(every):
            self._say([narration.watching_log_line(how_far())])

    def ended(self, result: ConvertResult) -> None:
        """Say what was made, and of what there are no samples: nothing is left out without a
        word."""
        self._say(narration.result_log_lines(result, self._printed))

    def announce(self, estimate: Estimate) -> None:
        """The work is planned."""
        super().announce(estimate)
        self._printed = narration.notices_of(estimate)
        self._say(narration.estimate_log_lines(estimate))
        self._lines.postpone()

    def _resuming(self, done: int, shards: int) -> None:
        self._say([narration.resuming_log_line(done, shards)])

    def _say(self, lines: Iterable[str]) -> None:
        if self._show:
            for line in lines:
                self._lines.write(printable(line))
