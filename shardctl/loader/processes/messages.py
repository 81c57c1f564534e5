"""What a loader and its worker processes send to each other, over a Unix socket for each thread of
a worker.

A question is one object (system/processes/channel.py), and so is an answer: what was found, and the
pickle of the batch. The descriptors of new segments of shared memory follow it, up to DESCRIPTORS
with a byte each time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from shardctl.errors import WorkerError
from shardctl.format.arrays import Bools, Numbers
from shardctl.system.machine import MORE_FILES, NO_DESCRIPTORS, allow_open_files
from shardctl.system.processes.channel import Ended, receive, send

DESCRIPTORS = 64
"""The most descriptors in one message: Linux allows 253."""

_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

CPU_S = "processes_cpu_s"
"""Among the counts of a process: its processor time in seconds."""

Place = tuple[int, int, int]
"""The number of a segment, the first byte in it, and the number of bytes."""


Question = tuple[Numbers, int, list[int], list[int]]
"""The samples that are wanted, the epoch, and the numbers of segments that are free again, or whose
memory is to be given up."""


@dataclass(frozen=True)
class Found:
    """What an answer says besides the batch.

    `there` (n,) is which samples are present; None says that the batch is an error. `arrays`
    has, for each array of the batch that is not in its pickle, the number of the segment, the first
    byte in it, and the size; a large pickle is the last of them. `segments` are the numbers and sizes of new segments, `dropped` the numbers of those
    that are no longer used. `counts` are those of the process so far, with CPU_S.
    """

    there: Bools | None
    arrays: list[Place]
    segments: list[tuple[int, int]]
    dropped: list[int]
    counts: dict[str, float]


def send_answer(
    channel: socket.socket, found: Found, batch: bytes, descriptors: Sequence[int]
) -> None:
    """Send an answer. Raises OSError."""
    send(channel, (found, batch))
    for first in range(0, len(descriptors), DESCRIPTORS):
        socket.send_fds(channel, [b"d"], descriptors[first : first + DESCRIPTORS])


def receive_answer(channel: socket.socket) -> tuple[Found, bytes, list[int]]:
    """Return what is known of a batch, its pickle, and the descriptors of new segments.

    Raises Ended, and WorkerError where this process may have no more descriptors. The channel is of
    no more use then.
    """
    found, batch = receive(channel)
    count = len(found.segments)
    return found, batch, _receive_descriptors(channel, count) if count else []


def _receive_descriptors(channel: socket.socket, count: int) -> list[int]:
    """Return the descriptors that come behind an answer. Raises Ended and WorkerError; none is left
    open then."""
    if not allow_open_files(count + DESCRIPTORS):  # other threads receive some too
        allow_open_files(count)
    no_descriptors = WorkerError(
        f"this process has no file descriptors left for batches; {MORE_FILES}"
    )
    descriptors: list[int] = []
    with ExitStack() as opened:
        while len(descriptors) < count:
            wanted = min(DESCRIPTORS, count - len(descriptors))
            try:
                data, more, flags, _ = socket.recv_fds(channel, 1, DESCRIPTORS, _CLOSE_ON_EXEC)
            except OSError as error:
                raise (no_descriptors if error.errno in NO_DESCRIPTORS else Ended()) from error
            descriptors += more
            for descriptor in more:
                opened.callback(os.close, descriptor)
            if not data:
                raise Ended
            # A process that may not have so many gets some, or none. The rest is lost.
            if flags & socket.MSG_CTRUNC or len(more) != wanted:
                raise no_descriptors
        opened.pop_all()
    return descriptors


@contextmanager
def shared_memory(size: int) -> Iterator[None]:
    """Raise WorkerError for memory of this size that the system does not give, or for which there is
    no file descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise WorkerError(
                f"no file descriptor is left for {size} bytes of shared memory; {MORE_FILES}"
            ) from error
        raise WorkerError(
            f"no {size} bytes of shared memory can be had ({error.strerror or error}); keep fewer "
            "batches"
        ) from error
