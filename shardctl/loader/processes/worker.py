"""A process that makes batches for a loader in another process (pool.py). It has a thread for each channel.

It begins as a new interpreter with this module alone: nothing of the program that uses the loader
is imported or run again. It ends when the loader's process does, whatever becomes of that.

Large arrays are made in shared memory. A segment is a file in memory without a name, mapped by the
worker and by the loader's process: it is gone when both are. The worker makes it and writes to it;
the loader's process says when nothing refers to its arrays any more, and the worker uses it again.
(Not multiprocessing.shared_memory: its names outlive a process that is killed.)
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from typing import Any

import numpy as np

from shardctl.errors import DatasetError, ShardctlError
from shardctl.format.arrays import Bytes
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.loader.blocks.memory import Batch, BatchMemory, rounded
from shardctl.loader.processes.messages import (
    CPU_S,
    Found,
    Place,
    Question,
    send_answer,
    shared_memory,
)
from shardctl.loader.stream import Stream
from shardctl.system.machine import keep_pandas_out_of_arrow, reuse_memory
from shardctl.system.mmap import SharedPages, mended
from shardctl.system.processes.channel import Ended, portable, receive, send

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
        with shared_memory(size), ExitStack() as opened:
            self.descriptor: int | None = file_in_memory(size)
            opened.callback(os.close, self.descriptor)
            self.pages = SharedPages(self.descriptor, size)
            opened.pop_all()
        self.bytes = self.pages.bytes()

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
        self._free: dict[int, Segment] = {}
        self._dropped: list[int] = []
        self._made = 0

    def take(self, size: int) -> Segment:
        """Return a segment of at least `size` bytes that nobody uses, whatever is in it."""
        with self._lock:
            fitting = [
                (segment.pages.size, number)
                for number, segment in self._free.items()
                if size <= segment.pages.size <= _WASTE * size
            ]
            if fitting:
                segment = self._free.pop(min(fitting)[1])
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
                number = next(iter(self._free))
                segment = self._free.pop(number)
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

    def place_of(self, array: Bytes) -> tuple[int, int] | None:
        """Return the number of the segment that these bytes are in, and the first byte; None if
        they are in none."""
        address = array.__array_interface__["data"][0]
        for segment in self.segments:
            first = address - segment.pages.address
            if 0 <= first < segment.pages.size:
                return segment.number, first
        return None

    def keep(self, numbers: set[int]) -> list[Segment]:
        """Give back the segments that are not among these, and return those that are."""
        self._pool.give_back(
            [segment.number for segment in self.segments if segment.number not in numbers], []
        )
        return [segment for segment in self.segments if segment.number in numbers]


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


ALIGNED = 64
"""Arrays begin at multiples of so many bytes, as Arrow's do."""

_IN_PICKLE = 2 << 10
"""Bytes of the largest array that is copied into the pickle of its batch."""

_SPARE = 4
"""Segments of a worker that may be free, for each thread: those of batches that were given up at
the same time."""


def main(lifeline: int, channels: list[int]) -> None:
    """Serve until the other end of `lifeline` is gone. All arguments are descriptors of sockets.

    The first message on the lifeline is the stream; the answer to it is None, or the error that
    opening it raised.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the loader's process to handle
    code = 0
    try:
        _run(
            socket.socket(fileno=lifeline),
            [socket.socket(fileno=descriptor) for descriptor in channels],
        )
    except (Ended, OSError):
        pass  # the loader's process is gone
    except BaseException:  # noqa: BLE001 - a fault of ours
        code = 1
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)  # at once: the threads may be in the middle of a batch that nobody waits for


def _run(lifeline: socket.socket, channels: list[socket.socket]) -> None:
    keep_pandas_out_of_arrow()
    reuse_memory()
    try:
        stream = receive(lifeline)
    except Ended:
        raise
    except BaseException as error:  # noqa: BLE001 - the loader's process raises it
        send(lifeline, _sent(error))
        return
    pool = SegmentPool(_SPARE * len(channels) + _SPARE)
    for channel in channels:
        threading.Thread(target=_serve, args=(stream, pool, channel), daemon=True).start()
    send(lifeline, None)
    lifeline.recv(1)  # nothing comes but the end


def _serve(stream: Stream, pool: SegmentPool, channel: socket.socket) -> None:
    """Answer the questions on a channel until it ends."""
    try:
        while True:
            _answer(stream, pool, channel, receive(channel))
    except (Ended, OSError):
        pass
    except BaseException:  # noqa: BLE001 - a fault of ours: the end of the process is noticed, that of a thread is not
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _answer(stream: Stream, pool: SegmentPool, channel: socket.socket, question: Question) -> None:
    samples, epoch, free, given_up = question
    pool.give_back(free, given_up)
    memory = SharedMemory(pool)
    try:
        batch, there = stream.gather(samples, epoch, memory)
        message, arrays = _packed(batch, memory)
    except Exception as error:  # noqa: BLE001 - the loader's process raises it
        message, arrays, there = pickle.dumps(_sent(error), protocol=5), [], None
    used = memory.keep({segment for segment, _, _ in arrays})
    new = [segment for segment in used if segment.descriptor is not None]
    found = Found(
        there,
        arrays,
        [(segment.number, segment.pages.size) for segment in new],
        pool.dropped(),
        {**stream.counts(), CPU_S: time.process_time()},
    )
    descriptors = [segment.handed_over() for segment in new]
    try:
        send_answer(channel, found, message, descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _packed(batch: Batch, memory: SharedMemory) -> tuple[bytes, list[Place]]:
    """Return the pickle of a batch without its large arrays, and where these are. Those that are
    not in shared memory yet are copied there, unless they are small together, and so is a large
    pickle: it is the last one then."""
    before, outside, left = mended(), [], 0

    def leave_in(buffer: pickle.PickleBuffer) -> bool:
        nonlocal left
        raw = buffer.raw()
        if raw.nbytes < _IN_PICKLE:
            return True
        array = np.frombuffer(raw, np.uint8)
        if memory.place_of(array) is None and left + raw.nbytes < SMALL:
            left += raw.nbytes
            return True
        outside.append(array)
        return False

    message = pickle.dumps(batch, protocol=5, buffer_callback=leave_in)
    if len(message) >= SMALL:
        outside.append(np.frombuffer(message, np.uint8))
        message = b""
    found = [memory.place_of(array) for array in outside]
    sizes = [-(-array.nbytes // ALIGNED) * ALIGNED for array in outside]
    room = sum(size for size, place in zip(sizes, found, strict=True) if place is None)
    segment, first = memory.take(room) if room else None, 0
    places: list[Place] = []
    for array, size, place in zip(outside, sizes, found, strict=True):
        if place is None and segment is not None:
            place = segment.number, first
            segment.bytes[first : first + array.nbytes] = array
            first += size
        assert place is not None
        places.append((*place, array.nbytes))
    if mended() != before:  # a mapped file shrank, perhaps one of those that were copied now
        raise DatasetError(f"a shard was cut short while it was copied; {VERIFY_ADVICE}")
    return message, places


def _sent(error: BaseException) -> BaseException:
    """Return an error as the loader's process gets it: one of ours says enough without its
    traceback."""
    return error if isinstance(error, ShardctlError) else portable(error)
