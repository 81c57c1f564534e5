"""A process that makes batches for a loader in another process (pool.py). It has a thread for each
channel.

It begins as a new interpreter with this module alone: nothing of the program that uses the loader
is imported or run again. It ends when the loader's process does, whatever becomes of that.
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

import numpy as np
import numpy.typing as npt

from shardctl.errors import DatasetError, ShardctlError
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.loader.blocks import Batch
from shardctl.loader.processes.messages import ALIGNED, INLINE, Found, Place, Question, send_answer
from shardctl.loader.processes.shared_memory import SMALL, SegmentPool, SharedMemory
from shardctl.loader.stream import Stream
from shardctl.system.mmap import mended
from shardctl.system.processes.channel import Ended, portable, receive, send
from shardctl.system.startup import keep_pandas_out_of_arrow, reuse_memory

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
    worker = _Worker(stream, SegmentPool(_SPARE * len(channels) + _SPARE))
    for channel in channels:
        threading.Thread(target=worker.serve, args=(channel,), daemon=True).start()
    send(lifeline, None)
    lifeline.recv(1)  # nothing comes but the end


class _Worker:
    """Makes batches of a stream. Threads share it."""

    def __init__(self, stream: Stream, pool: SegmentPool) -> None:
        self._stream, self._pool = stream, pool

    def serve(self, channel: socket.socket) -> None:
        """Answer the questions on a channel until it ends."""
        try:
            while True:
                self._answer(channel, receive(channel))
        except (Ended, OSError):
            pass
        except BaseException:  # noqa: BLE001 - a fault of ours: the end of the process is noticed, that of a thread is not
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _answer(self, channel: socket.socket, question: Question) -> None:
        self._pool.give_back(question.free, question.given_up)
        memory = SharedMemory(self._pool)
        small: list[memoryview] = []
        arrays: list[Place] = []
        pickled = there = None
        try:
            batch, there = self._stream.gather(question.samples, question.epoch, memory)
            message, arrays, small = _packed(batch, memory)
            if len(message) >= SMALL:
                pickled, message = _put(message, memory), b""
            failed = False
        except Exception as error:  # noqa: BLE001 - the loader's process raises it
            message, failed = pickle.dumps(_sent(error), protocol=5), True
            arrays, small, pickled = [], [], None
        used = memory.keep({segment for segment, _, _ in [*arrays, *filter(None, [pickled])]})
        new = [segment for segment in used if segment.descriptor is not None]
        found = Found(
            failed,
            there,
            arrays,
            pickled,
            [(segment.number, segment.size) for segment in new],
            self._pool.dropped(),
            self._stream.counts(),
            self._stream.stages(),
            time.process_time(),
        )
        descriptors = [segment.handed_over() for segment in new]
        try:
            send_answer(channel, found, message, small, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _put(data: bytes, memory: SharedMemory) -> Place:
    """Copy bytes into shared memory, and return where they are."""
    segment = memory.take(len(data))
    segment.bytes[: len(data)] = np.frombuffer(data, np.uint8)
    return segment.number, 0, len(data)


def _packed(batch: Batch, memory: SharedMemory) -> tuple[bytes, list[Place], list[memoryview]]:
    """Return the pickle of a batch without its large arrays, where these are, and those that are
    sent with it.

    Arrays that are not in shared memory yet are copied there, unless they are few bytes together.
    """
    before, outside = mended(), []

    def leave_in(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _IN_PICKLE:
            return True
        outside.append(np.frombuffer(raw, np.uint8))
        return False

    message = pickle.dumps(batch, protocol=5, buffer_callback=leave_in)
    arrays: list[Place] = []
    loose: list[tuple[int, npt.NDArray[np.uint8]]] = []
    for array in outside:
        place = memory.place_of(array)
        if place is None:
            loose.append((len(arrays), array))
        arrays.append((*(place or (INLINE, 0)), array.nbytes))
    first, starts = 0, []
    for _, array in loose:
        starts.append(first)
        first += -(-array.nbytes // ALIGNED) * ALIGNED
    segment = memory.take(first) if first >= SMALL else None
    small: list[memoryview] = []
    for (at, array), start in zip(loose, starts, strict=True):
        arrays[at] = (segment.number if segment else INLINE, start, array.nbytes)
        if segment is not None:
            segment.bytes[start : start + array.nbytes] = array
        else:
            small += [array.data, memoryview(bytes(-array.nbytes % ALIGNED))]
    if mended() != before:  # a mapped file shrank, perhaps one of those that were copied now
        raise DatasetError(f"a shard was cut short while it was copied; {VERIFY_ADVICE}")
    return message, arrays, small


def _sent(error: BaseException) -> BaseException:
    """Return an error as the loader's process gets it: one of ours says enough without its
    traceback."""
    return error if isinstance(error, ShardctlError) else portable(error)
