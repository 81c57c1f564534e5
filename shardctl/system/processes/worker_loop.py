"""The worker's side of a pool (pool.py): tasks come in on a socket, answers go out, each of them
pickled, behind its length.

In: a task; the end of the input means that no more will come. Out: {"progress": ...} any number of times, then {"done": result}, {"failed": [class,
message]} for a fault that has a name, or {"bug": traceback} for one that has none.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from shardctl import errors
from shardctl.system.processes.death import OUT_OF_MEMORY
from shardctl.system.processes.fork import close_in_forks
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.system.stores.uploads import end_uploads

try:
    import resource
except ImportError:  # Windows has none, and workers no memory limit there
    resource = None  # type: ignore[assignment]

LIKELY_VICTIM = 800
"""Where memory runs out, Linux is to end a worker, which costs little, and not its parent. -1000 to
1000, 0 is usual."""

Tell = Callable[[Any], None]
Handler = Callable[[Any, Tell, WorkerProgress], Any]

HEAD = 8
"""Bytes of the length of a task or an answer, which are before it."""


def framed(value: object) -> bytes:
    """Return a task or an answer as it goes through a socket."""
    data = pickle.dumps(value)
    return len(data).to_bytes(HEAD, "little") + data


def end_of(data: bytes | bytearray) -> int:
    """Return where the first task or answer ends, from HEAD bytes of it or more."""
    return HEAD + int.from_bytes(data[:HEAD], "little")


def serve(handle: Handler, channel: socket.socket, progress: WorkerProgress, memory: int) -> None:
    """Call `handle(task, tell, progress)` for every incoming task until the input ends.

    `memory` is the limit of the process in bytes, 0 for none.
    """
    _limit_memory(memory)
    close_in_forks(channel.fileno())
    out = channel.makefile("wb")
    orders: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    idle = threading.Event()
    idle.set()
    threading.Thread(target=_listen, args=(channel, orders, idle), daemon=True).start()
    while (task := orders.get()) is not None:
        answer = _answer(handle, task, lambda message: _say(out, progress=message), progress)
        idle.set()  # before the answer, which brings the next order
        _say(out, **answer)


def _answer(handle: Handler, task: bytes, tell: Tell, progress: WorkerProgress) -> dict[str, Any]:
    try:
        return {"done": handle(pickle.loads(task), tell, progress)}
    except errors.ShardctlError as error:
        return {"failed": [type(error).__name__, str(error)]}
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except Exception:  # noqa: BLE001 - whatever it is, the parent raises it
        return {"bug": traceback.format_exc()}


def _limit_memory(limit: int) -> None:
    """Limit the memory of this process, in bytes; mapped files do not count."""
    if resource is not None and limit:
        # macOS does not hold programs to RLIMIT_DATA; there the address space as a whole is the
        # nearest thing.
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        resource.setrlimit(kind, (limit, limit))
    with (
        contextlib.suppress(OSError),
        open("/proc/self/oom_score_adj", "w", encoding="ascii") as score,
    ):
        score.write(str(LIKELY_VICTIM))


def _listen(
    channel: socket.socket, orders: queue.SimpleQueue[bytes | None], idle: threading.Event
) -> None:
    """Pass orders on. If they end during a task, stop at once: the result is not needed any
    more."""
    with (
        contextlib.suppress(ConnectionResetError),
        channel.makefile("rb") as stream,
    ):
        while len(head := stream.read(HEAD)) == HEAD:
            task = stream.read(end_of(head) - HEAD)
            idle.clear()
            orders.put(task)
    if not idle.is_set():
        end_uploads()
        os._exit(1)
    orders.put(None)


def _say(out: BinaryIO, **message: Any) -> None:
    out.write(framed(message))
    out.flush()
