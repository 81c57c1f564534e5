"""Shared memory in which worker processes make batches, as the worker has it.

A segment is a file in memory without a name, mapped by the worker and by the loader's process: it
is gone when both are. The worker makes it and writes to it; the loader's process says when nothing
refers to its arrays any more, and the worker uses it again. (Not multiprocessing.shared_memory: its
names outlive a process that is killed.)
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.errors import WorkerError
from shardctl.loader.blocks import BatchMemory, rounded
from shardctl.system.machine import MORE_FILES, NO_DESCRIPTORS
from shardctl.system.mmap import SharedPages

SMALL = 64 << 10
"""Bytes below which memory is not shared: to send so few takes 10 microseconds, and a segment a
system call or two."""

_WASTE = 4
"""A segment that is more than this many times too large is left for a larger array."""


class Segment:
    """A piece of shared memory. `descriptor` is None once the answer that sends it to the loader's
    process has been begun."""

    def __init__(self, number: int, size: int) -> None:
        """Make one. Raises WorkerError."""
        self.number = number
        try:
            self.descriptor: int | None = file_in_memory(size)
            try:
                self.pages = SharedPages(self.descriptor, size)
            except OSError:
                os.close(self.descriptor)
                raise
        except OSError as error:
            raise no_shared_memory(size, error) from error
        self.bytes = self.pages.bytes()

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.pages.size

    def handed_over(self) -> int:
        """Return the descriptor, which the caller sends and closes.

        It is not that of the segment from then on: as soon as it is sent, the loader's process may
        say that the segment is free, and another thread may take it.
        """
        assert self.descriptor is not None
        descriptor, self.descriptor = self.descriptor, None
        return descriptor


class SegmentPool:
    """The segments of a worker process. Threads may share it. At most `spare` that are free are
    kept."""

    def __init__(self, spare: int) -> None:
        self._spare = spare
        self._lock = threading.Lock()
        self._used: dict[int, Segment] = {}
        self._free: OrderedDict[int, Segment] = OrderedDict()
        self._dropped: list[int] = []
        self._made = 0

    def take(self, size: int) -> Segment:
        """Return a segment of at least `size` bytes that nobody uses, whatever is in it."""
        with self._lock:
            fitting = [
                segment for segment in self._free.values() if size <= segment.size <= _WASTE * size
            ]
            if fitting:
                segment = min(fitting, key=lambda each: each.size)
                del self._free[segment.number]
            else:
                self._made += 1
                segment = Segment(self._made, rounded(size))
            self._used[segment.number] = segment
            return segment

    def give_back(self, numbers: list[int], given_up: list[int]) -> None:
        """Note that segments are no longer used, and forget those that must not be used again."""
        with self._lock:
            for number in numbers:
                self._free[number] = self._used.pop(number)
            for number in given_up:
                del self._used[number]
                self._dropped.append(number)
            while len(self._free) > self._spare:
                number, segment = self._free.popitem(last=False)
                if segment.descriptor is None:
                    self._dropped.append(number)
                else:  # the loader's process has never heard of it
                    os.close(segment.handed_over())

    def dropped(self) -> list[int]:
        """Return the numbers of the segments that were given up since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, []
            return dropped


class SharedMemory(BatchMemory):
    """The memory of the arrays of one batch: large ones are in segments."""

    views = False

    def __init__(self, pool: SegmentPool) -> None:
        super().__init__()
        self._pool = pool
        self.segments: list[Segment] = []

    def take(self, size: int) -> Segment:
        """Return a segment of at least `size` bytes."""
        segment = self._pool.take(size)
        self.segments.append(segment)
        return segment

    def _allocate(self, size: int) -> Any:
        return np.empty(size, np.uint8) if size < SMALL else self.take(size).bytes

    def place_of(self, array: npt.NDArray[np.uint8]) -> tuple[int, int] | None:
        """Return the number of the segment that these bytes are in, and the first byte; None if
        they are in none."""
        address = array.__array_interface__["data"][0]
        for segment in self.segments:
            first = address - segment.pages.address
            if 0 <= first < segment.size:
                return segment.number, first
        return None

    def keep(self, numbers: set[int]) -> list[Segment]:
        """Give back the segments that are not among these, and return those that are."""
        self._pool.give_back(
            [segment.number for segment in self.segments if segment.number not in numbers], []
        )
        return [segment for segment in self.segments if segment.number in numbers]


def no_shared_memory(size: int, error: OSError) -> WorkerError:
    """Return the error for memory that the system does not give, or for which there is no file
    descriptor."""
    if error.errno in NO_DESCRIPTORS:
        return WorkerError(
            f"no file descriptor is left for {size} bytes of shared memory; {MORE_FILES}"
        )
    return WorkerError(
        f"no {size} bytes of shared memory can be had ({error.strerror or error}); keep fewer "
        "batches"
    )


def file_in_memory(size: int) -> int:
    """Return the descriptor of a new file of this size, of zeros, that is in memory and has no
    name. Raises OSError."""
    descriptor = (
        os.memfd_create("shardctl", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else _unlinked()
    )
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unlinked() -> int:
    """Return the descriptor of POSIX shared memory whose name is taken away at once: where Linux's
    memfd is not there."""
    import _posixshmem  # type: ignore[import-not-found]  # has no stubs; what multiprocessing.shared_memory is made of

    name = f"/shardctl-{os.getpid()}-{os.urandom(6).hex()}"
    descriptor: int = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    _posixshmem.shm_unlink(name)
    os.set_inheritable(descriptor, False)
    return descriptor
