"""The time of the loader's threads by stage: waiting for the disk, decompressing, decoding,
copying."""

from __future__ import annotations

import resource
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

DISK, DECOMPRESS, DECODE, GATHER, WAITING = "disk", "decompress", "decode", "gather", "waiting"
NETWORK, CACHE = "network", "cache"
NETWORK_COUNTS = ("requests", "network_bytes", "network_blocks", "cached_blocks")
"""What is counted since a dataset was opened. Blocks count at their first use, and again when they
are read anew."""

STAGE = "stage "
"""What the names of stages begin with among other counts."""

STEP = "step "
"""What the names of steps begin with among stages."""

STAGES = (DISK, DECOMPRESS, DECODE, GATHER, WAITING, NETWORK, CACHE)
"""`disk` is time without the processor in a stretch that read from storage, `waiting` that for a
block that another thread is fetching, `network` that for a block from a store; in `cache`, blocks
that are in the local cache are opened and checked."""


@dataclass
class _Thread:
    """What one thread is in, innermost last, and what it had used when it last changed."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    stack: list[str] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0
    read: int = 0

    def charge(self) -> None:
        """Add the time since the last change to the stage that the thread is in."""
        wall, cpu, read = time.perf_counter(), time.thread_time(), _reads()
        if self.stack:
            spent = wall - self.wall
            waited = max(0.0, spent - (cpu - self.cpu)) if read != self.read else 0.0
            self.seconds[DISK] += waited
            self.seconds[self.stack[-1]] += spent - waited
        self.wall, self.cpu, self.read = wall, cpu, read


def _reads() -> int:
    """Return how often this thread has had something read from storage. Always 0 where the system
    does not tell."""
    if not hasattr(resource, "RUSAGE_THREAD"):
        return 0
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_inblock + usage.ru_majflt


class Stages:
    """The time of a reader's threads by stage; nothing where that is not `measured`.

    A change of stage costs about 4 microseconds, so it is per batch and per block, not per sample.
    """

    def __init__(self, measured: bool) -> None:
        self._measured = measured
        self._local = threading.local()
        self._threads: list[_Thread] = []

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager for a stage of this thread; stages may be nested."""
        return self._entered(name) if self._measured else _NOTHING

    @contextmanager
    def _entered(self, name: str) -> Iterator[None]:
        if not hasattr(self._local, "thread"):
            self._local.thread = _Thread()
            self._threads.append(self._local.thread)
        thread: _Thread = self._local.thread
        thread.charge()
        thread.stack.append(name)
        try:
            yield
        finally:
            thread.charge()
            thread.stack.pop()

    def step(self, name: str, seconds: float) -> None:
        """Take time of the stage that this thread is in for a step of a recipe."""
        if not self._measured:
            return
        thread: _Thread = self._local.thread
        thread.seconds[f"{STEP}{name}"] += seconds
        thread.seconds[thread.stack[-1]] -= seconds

    def seconds(self) -> dict[str, float]:
        """Return the seconds of all threads together that each stage has taken so far, without
        those inside it; and each step, by its name after STEP."""
        if not self._measured:
            return {}
        each = [dict(thread.seconds) for thread in self._threads]
        names = dict.fromkeys([*STAGES, *(name for seconds in each for name in seconds)])
        return {name: sum(seconds.get(name, 0.0) for seconds in each) for name in names}


_NOTHING = nullcontext()
