"""The process that workers are forked from: it has their modules loaded, and only forks, kills and
waits.

Modules take 0.3 s to import and a fork takes 5 ms, so they are imported once. This process never
does any work and never starts a thread, so that forking it is safe. Its children die with it.

Orders come in on a socket, each ORDER long; START brings three descriptors along: the worker's
channel, its output and its progress slot. WAIT is answered with the worker's exit code, an ANSWER.
The end of the input ends everything.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

from shardctl import errors
from shardctl.errors import WorkerError
from shardctl.system.machine import one_thread_each, quick_imports, reuse_memory
from shardctl.system.processes.channel import Ended, receive_pickle, send
from shardctl.system.processes.fork import (
    CLOSED_IN_FORKS,
    ForkedProcess,
    end_with_parent,
    environment,
    redirect,
    start_python,
)
from shardctl.system.processes.worker_state import (
    OUT_OF_MEMORY,
    PATIENCE_SECONDS,
    WorkerProgress,
    last_line_of,
)
from shardctl.system.stores.base import end_uploads

LIKELY_VICTIM = 800
"""Where memory runs out, Linux is to end a worker, which costs little, and not its parent. -1000 to
1000, 0 is usual."""

Tell = Callable[[Any], None]
Handler = Callable[[Any, Tell, WorkerProgress], Any]


def serve(handle: Handler, channel: socket.socket, progress: WorkerProgress, memory: int) -> None:
    """Call `handle(task, tell, progress)` for every incoming task until the input ends.

    `memory` is the limit of the process in bytes, 0 for none.
    """
    _limit_memory(memory)
    CLOSED_IN_FORKS.add(channel.fileno())
    orders: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
    idle = threading.Event()
    idle.set()
    threading.Thread(target=_listen, args=(channel, orders, idle), daemon=True).start()
    while (task := orders.get()) is not None:
        answer = _answer(
            handle, task, lambda message: send(channel, {"progress": message}), progress
        )
        idle.set()  # before the answer, which brings the next order
        send(channel, answer)


def _answer(
    handle: Handler, task: bytearray, tell: Tell, progress: WorkerProgress
) -> dict[str, Any]:
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
    if limit:
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
    channel: socket.socket, orders: queue.SimpleQueue[bytearray | None], idle: threading.Event
) -> None:
    """Pass orders on. If they end during a task, stop at once: the result is not needed any
    more."""
    with contextlib.suppress(Ended):
        while True:
            task = receive_pickle(channel)
            idle.clear()
            orders.put(task)
    if not idle.is_set():
        end_uploads()
        os._exit(1)
    orders.put(None)


ORDER = struct.Struct("<cI")
"""What to do, and the number of the worker."""

ANSWER = struct.Struct("<i")
START, KILL, WAIT = b"s", b"k", b"w"


def main(module: str, memory: int) -> None:
    """Fork workers in a process of its own, whose stdin brings the orders: `run`, after the
    imports."""
    run(socket.socket(fileno=os.dup(0)), module, memory)


def run(control: socket.socket, module: str, memory: int) -> None:
    """Fork workers that run `handle` of a module, each with at most `memory` bytes (0: no limit),
    until `control` ends."""
    # whoever started the command may have it ignored: no exit codes then
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reuse_memory()
    one_thread_each()
    with quick_imports():
        handle = importlib.import_module(module).handle
    # what is loaded now stays shared: the collector of a worker would write to every page of it
    gc.freeze()
    processes: dict[int, ForkedProcess] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 3)
        if not data:
            break
        order, number = ORDER.unpack(data)
        if order == START:
            processes[number] = ForkedProcess(
                partial(_serve, os.getpid(), control, handle, descriptors, memory)
            )
            for descriptor in descriptors:
                os.close(descriptor)
        elif order == KILL:
            processes[number].kill()
        else:
            control.sendall(ANSWER.pack(processes.pop(number).wait()))
    for process in processes.values():
        process.kill()


def _serve(
    parent: int, control: socket.socket, handle: Handler, descriptors: list[int], memory: int
) -> None:
    """Do the work of a worker, in the process that was forked for it."""
    try:
        control.close()
        end_with_parent(parent)
        channel, output, progress = descriptors
        # a command that a user function starts must not keep the channel open
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        redirect(output)
        os.close(output)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # what a function prints is shown at once
        # every worker would draw the same numbers where a function draws its own
        if "numpy.random" in sys.modules:
            sys.modules["numpy"].random.seed()
        serve(handle, socket.socket(fileno=channel), WorkerProgress.shared(progress), memory)
    finally:
        # As multiprocessing ends its children. Taking the interpreter down would take 25 ms more.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()


Sockets = tuple[socket.socket, socket.socket]


_Child = subprocess.Popen[bytes] | ForkedProcess


class ForkServer:
    """The process that workers are forked from, and that ends them and waits for them. `begin`
    starts it.

    `begin(control, log)` is given the sockets that orders go into and come out of, and a file for
    what it prints.
    """

    def __init__(
        self, serves: tuple[str, int], begin: Callable[[Sockets, IO[bytes]], _Child]
    ) -> None:
        self.serves = serves
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close closes it
        self._control, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = begin((self._control, theirs), self._log)
            except WorkerError:
                self._control.close()
                self._log.close()
                raise
        self._control.settimeout(PATIENCE_SECONDS)
        self._started = 0

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def start(self, descriptors: list[int]) -> int:
        """Have a worker forked, and return its number. If that does not happen, its socket ends."""
        self._started += 1
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [ORDER.pack(START, self._started)], descriptors)
        return self._started

    def kill(self, number: int) -> None:
        """Kill a worker."""
        with contextlib.suppress(OSError):
            self._control.sendall(ORDER.pack(KILL, number))

    def wait(self, number: int) -> int | None:
        """Wait until a worker is gone, and return its exit code; None if that cannot be known."""
        try:
            self._control.sendall(ORDER.pack(WAIT, number))
            answer = self._control.recv(ANSWER.size)
        except OSError:
            answer = b""
        if len(answer) < ANSWER.size:
            self._process.kill()  # its workers end with it
            return None
        return int(ANSWER.unpack(answer)[0])

    def death(self) -> tuple[int, str]:
        """Return how it ended, and the last line that it printed."""
        self.close()
        return self._process.wait(), self._last_line

    def close(self) -> None:
        """End it. What it has forked is gone before, or ends with it."""
        if self._log.closed:
            return
        self._process.kill()
        self._process.wait()
        self._control.close()
        self._last_line = last_line_of(self._log)
        self._log.close()


def start_server(module: str, memory: int) -> ForkServer:
    """Start a process that workers can be forked from, whatever this process has loaded and
    started."""
    serves = module, memory
    return ForkServer(
        serves,
        lambda control, log: start_python(
            __name__, serves, _environment(memory), control[1].fileno(), log
        ),
    )


_early: list[ForkServer] = []


@contextlib.contextmanager
def forked_early(module: str, memory: int) -> Iterator[None]:
    """Fork this process for the first pool of a module that is made within the block: it has numpy
    and Arrow loaded already.

    Only for a command of ours, at its beginning: it has loaded no user's code yet, whose files and
    connections workers must not share. Where it has threads, or a limit of memory asks for another
    allocator, nothing is done.
    """
    if memory or _threads() != 1:
        yield
        return
    server = ForkServer(
        (module, 0),
        lambda control, log: ForkedProcess(partial(_run_as_server, module, control, log)),
    )
    _early.append(server)
    try:
        yield
    finally:
        if server in _early:
            _early.remove(server)
            server.close()


def _threads() -> int | None:
    """Return how many threads this process has, those that libraries have started too; None if that
    is unknown."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None


def _run_as_server(module: str, control: Sockets, log: IO[bytes]) -> None:
    """Be the process that workers are forked from, in a copy of the one that needs them."""
    control[0].close()  # the parent's, whose end tells that it is gone
    os.setsid()
    for received in (signal.SIGINT, signal.SIGTERM):
        signal.signal(received, signal.SIG_DFL)
    redirect(log.fileno())
    os.environ.update(_environment(0))
    sys.path[:] = os.environ["PYTHONPATH"].split(os.pathsep)
    run(control[1], module, 0)


def take_early(module: str, memory: int) -> ForkServer | None:
    """Return the process that was forked early for this, if there is one that nobody has taken."""
    for server in _early:
        if server.serves == (module, memory):
            _early.remove(server)
            return server
    return None


def _environment(memory: int) -> dict[str, str]:
    """Return the environment of the process that workers are forked from."""
    # Arrow's own allocator takes a gigabyte of addresses at once, which would count towards a
    # limit.
    pool = {"ARROW_DEFAULT_MEMORY_POOL": "system"} if memory else {}
    return {**environment(), **pool}
