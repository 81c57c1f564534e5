"""The current work of a worker, in memory that its parent can still read when the worker is dead."""

from __future__ import annotations

import mmap
import struct

_FORM = struct.Struct("<qB")
SIZE = 16
"""Bytes of a breadcrumb."""

STAGES = ("read", "decode", "transform", "encode", "write", "compare")
"""What can be happening to an input. The first four are stages of rejects.

`write`: a block that holds nothing but its sample is written. `compare`: it is read to see whether its source answers.
"""

NOWHERE = -1
"""The place of a worker that is on no input: it starts, writes a file, or waits."""


class Breadcrumb:
    """A place (the row of the plan, for instance) and the stage of the work on it.

    Writing one costs under a microsecond. `memory` is shared with the process that reads it; by default there is none.
    """

    def __init__(self, memory: mmap.mmap | bytearray | None = None) -> None:
        self._memory = memory if memory is not None else bytearray(SIZE)
        self.leave()

    @classmethod
    def shared(cls, descriptor: int) -> Breadcrumb:
        """Return the breadcrumb in a file of SIZE bytes that both processes have open."""
        return cls(mmap.mmap(descriptor, SIZE))

    def drop(self, place: int, stage: str = STAGES[0]) -> None:
        """Record that the work on a place begins, or reaches another stage."""
        self._place = place
        _FORM.pack_into(self._memory, 0, place, STAGES.index(stage))

    def enter(self, stage: str) -> None:
        """Record that the work on the same place reaches another stage."""
        self.drop(self._place, stage)

    def leave(self) -> None:
        """Record that the work is on no place."""
        self.drop(NOWHERE)

    @property
    def place(self) -> int:
        """The place that was dropped last, in whichever process."""
        return int(_FORM.unpack_from(self._memory)[0])

    @property
    def timed_place(self) -> int:
        """The place whose time runs: NOWHERE while a file is written, since a slow disk is no fault of an input."""
        return NOWHERE if self.stage == "write" else self.place

    @property
    def stage(self) -> str:
        """The stage that was dropped last, in whichever process."""
        return STAGES[_FORM.unpack_from(self._memory)[1]]
