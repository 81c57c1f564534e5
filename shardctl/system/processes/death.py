"""The end of a child process: how it ended, and its last words."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Hashable
from typing import IO

from shardctl.system.dataclass import dataclass

OUT_OF_MEMORY = 86
"""Exit code of a worker that could get no more memory at a point where no input could be given up
for it."""

OUT_OF_MEMORY_MESSAGE = "needs more memory than there is, or than --worker-memory allows"
"""What is said of an input that is given up for it."""

KILLED_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)

FATAL_KILLS = 4
"""Deaths of workers that were killed from outside, in the same place, after which that place is not
tried again."""

PATIENCE_SECONDS = 5.0
"""How long a process may take to end that was told to, or was killed. One whose disk stalls cannot
be ended at all."""

TAIL_BYTES = 4096
"""How much of what a process prints is kept for its last words, and the longest line that is passed
on whole."""


@dataclass(frozen=True)
class Death:
    """How a worker ended in the middle of a task, and where it was: `place` is None if it was on no
    input, `record` is None if it was on all records of its place.

    `code` is its exit code, negative for the signal that killed it; `overtime` says that the pool
    killed it for that.
    """

    code: int
    overtime: bool
    place: int | None
    stage: str
    last_words: str
    record: int | None = None

    @property
    def out_of_memory(self) -> bool:
        """Whether it could get no more memory."""
        return self.code == OUT_OF_MEMORY

    @property
    def from_outside(self) -> bool:
        """Whether a person, or a system out of memory, has killed it: what it was working on may be
        innocent."""
        return self.code in KILLED_FROM_OUTSIDE and not self.overtime

    def __str__(self) -> str:
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"was ended by signal {-self.code}"


class Deaths:
    """Counts deaths of workers by where they were: what is tried again, and how often."""

    def __init__(self) -> None:
        self.times: Counter[Hashable] = Counter()

    def is_fatal(self, where: Hashable, death: Death, crashes: int = 1) -> bool:
        """Count a death, and return whether what was done there is not to be tried again.

        So many `crashes` at one place show that it was no accident, and FATAL_KILLS that were from
        outside.
        """
        self.times[where] += 1
        return self.times[where] >= (FATAL_KILLS if death.from_outside else crashes)


def await_end(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process that was told to end. One that still runs after
    PATIENCE_SECONDS is killed."""
    try:
        return process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return -signal.SIGKILL


def last_line_of(log: IO[bytes]) -> str:
    """Return the last line in the file that a process prints to, an empty string if it printed
    nothing."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
    return log.read().decode("utf-8", "replace").strip().rpartition("\n")[2].strip()
