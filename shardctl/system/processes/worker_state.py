"""The current work of a worker, in memory that its parent can still read when the worker is dead,
and how it ended."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import IO

_FORM = struct.Struct("<qqB")
_CALL = struct.Struct("<qB")
_RECORD_AT, _STAGE_AT = 8, 16

SIZE = 24
"""Bytes of a progress slot."""

STAGES = ("read", "decode", "transform", "encode", "write", "compare", "deliver", "keys")
"""What can be happening to an input. The first four are stages of rejects.

`write`: a block that holds nothing but its sample is written. `compare`: it is read to see whether
its source answers. `deliver`: the shard is on its way to a store, and the work is on no input.
`keys`: the keys of the records of a unit are read, which decide their splits.
"""

KEYS = STAGES[-1]

_NUMBERS = {stage: number for number, stage in enumerate(STAGES)}
_TRANSFORM = _NUMBERS["transform"]

NOWHERE = -1
"""The place of a worker that is on no input: it starts, writes a file, or waits."""


WHOLE = -1
"""The record of a worker that works on all records of its place together."""


TOGETHER = -2
"""The record, as this number or a lower one, of a worker that calls a model with several records:
those of its place, or where places are records, those of its place and of the next ones. Each call
has another number, so that its time can be told."""


class WorkerProgress:
    """What a worker works on: a place (the row of the plan, for instance), the record in it, and
    the stage.

    It is left behind like breadcrumbs, for the process that finds the worker dead. The worker asks
    it too where memory runs out: whether it must end (Rows.ends_worker).

    Writing one costs under a microsecond. `memory` is shared with the process that reads it; by
    default there is none.
    """

    def __init__(self, memory: mmap.mmap | bytearray | None = None) -> None:
        self._memory = memory if memory is not None else bytearray(SIZE)
        self.leave()

    @classmethod
    def shared(cls, descriptor: int) -> WorkerProgress:
        """Return the slot in a file of SIZE bytes that both processes have open."""
        return cls(mmap.mmap(descriptor, SIZE))

    def begin(self, place: int, record: int = WHOLE, stage: str = STAGES[0]) -> None:
        """Record that the work on a place, or on a record in it, begins."""
        _FORM.pack_into(self._memory, 0, place, record, _NUMBERS[stage])

    def enter(self, stage: str) -> None:
        """Record that the work on the same place and record reaches another stage."""
        self._memory[_STAGE_AT] = _NUMBERS[stage]

    def enter_call(self, record: int) -> None:
        """Record that a user's function is called with a record of the same place."""
        _CALL.pack_into(self._memory, _RECORD_AT, record, _TRANSFORM)

    def leave(self) -> None:
        """Record that the work is on no place."""
        self.begin(NOWHERE)

    @property
    def at(self) -> tuple[int, int]:
        """The place and the record that began last, in whichever process."""
        place, record, _ = _FORM.unpack_from(self._memory)
        return place, record

    @property
    def timed_place(self) -> tuple[int, int]:
        """The place and record whose time runs: NOWHERE while a file is written, since a slow disk
        is no fault of a record."""
        return (NOWHERE, WHOLE) if self.stage == "write" else self.at

    @property
    def stage(self) -> str:
        """The stage that began last, in whichever process."""
        return STAGES[self._memory[_STAGE_AT]]


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
