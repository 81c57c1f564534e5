"""What a training script shows on stderr while its dataset is made: a line now and then, as logs of jobs need it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from shardctl.build.convert.estimate import Estimate
from shardctl.build.convert.listener import Listener
from shardctl.build.convert.result import ConvertResult
from shardctl.build.convert.update.update_plan import Changes
from shardctl.build.shards.task import WorkDone
from shardctl.format.names import REJECTS
from shardctl.system.text import counted, printable

MOST_SUFFIXES = 6
"""How many kinds of files that are not converted are named."""

LINE_SECONDS = 10.0
"""Seconds between lines."""


def changes_of(changes: Changes) -> str:
    """Return what an update follows, as `convert --update` says it."""
    return f"+{changes.added:,} -{changes.removed:,} ~{changes.changed:,} inputs"


class Teller:
    """Writes lines about the dataset at a place that is `shown` so. With `show` False it says nothing."""

    def __init__(self, shown: str, show: bool) -> None:
        self._shown, self._show = shown, show
        self._next = self._began = time.monotonic()
        self._done = self._records = 0
        self._told: tuple[str, ...] = ()

    def listener(self) -> Listener:
        """Return the callbacks for a conversion in this process."""
        return Listener(announce=self._announce, resuming=self._resuming, progress=self._progress)

    def waiting(self, owner: str) -> None:
        """Say for whom this process waits."""
        self._say(f"waiting for {owner}, which is making the dataset")
        self._next = time.monotonic() + LINE_SECONDS

    def leaving(self) -> None:
        """Say that this process leaves it to another rank to begin."""
        self._say("waiting for rank 0 to begin; if it does not, this process makes the dataset")

    def looking(self, how_far: Callable[[], tuple[int, int] | None], every: float) -> None:
        """Say how far another process is, which `how_far` finds out: once in so many seconds."""
        if self._show and self._is_time(every):
            far = how_far()
            done = "listing the inputs" if far is None else f"{far[0]:,} of {counted(far[1], 'shard')} done"
            self._say(f"waiting: {done}")

    def ended(self, result: ConvertResult) -> None:
        """Say what was made, and of what there are no samples: nothing is left out without a word."""
        of = "" if result.changes is None else f" ({changes_of(result.changes)})"
        self._say(f"{result.status}: {counted(result.samples, 'sample')} in {result.seconds:.1f} s{of}")
        if result.rejected:
            self._say(f"{counted(result.rejected, 'input')} rejected; {REJECTS} has the reasons")
        for notice in (*result.notices, *result.warnings):
            if notice not in self._told:
                self._say(notice)

    def _announce(self, estimate: Estimate) -> None:
        self._records, self._began, self._told = estimate.records, time.monotonic(), (*estimate.notices, *estimate.warnings)
        changes = estimate.changes
        shards = estimate.shards if changes is None or changes.anew else changes.rebuilt + changes.new
        inputs = counted(estimate.inputs, f"{estimate.kind} input")
        if changes is None or changes.anew:
            self._say(f"making {counted(shards, 'shard')} of {inputs}")
        else:
            self._say(f"{changes_of(changes)}: making {counted(shards, 'shard')}, of {inputs} in all")
        if estimate.ignored:
            others = ", ".join(
                f"{count:,} {printable(suffix)}" for suffix, count in list(estimate.ignored.items())[:MOST_SUFFIXES]
            )
            self._say(f"other files, not converted: {others}")
        for notice in self._told:
            self._say(notice)
        self._next = self._began + LINE_SECONDS

    def _resuming(self, done: int, shards: int) -> None:
        self._say(f"resuming: {done:,} of {counted(shards, 'shard')} done")

    def _progress(self, progress: WorkDone) -> None:
        self._done += progress.records
        if self._is_time():
            rate = self._done / max(time.monotonic() - self._began, 1e-6)
            self._say(f"{self._done:,} of {self._records:,} records, {rate:,.0f}/s")

    def _is_time(self, every: float = LINE_SECONDS) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + every
        return True

    def _say(self, line: str) -> None:
        if self._show:
            sys.stderr.write(f"shardctl {printable(self._shown)}: {printable(line)}\n")
