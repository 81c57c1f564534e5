"""The process that workers are forked from (forkserver.py), as the process that needs workers sees
it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Protocol

from shardctl.errors import WorkerError
from shardctl.system.processes import forkserver
from shardctl.system.processes.death import PATIENCE_SECONDS, last_line_of
from shardctl.system.processes.fork import ForkedProcess, redirect
from shardctl.system.processes.forkserver import ANSWER, KILL, ORDER, START, WAIT
from shardctl.system.processes.interpreter import environment, start_python

Sockets = tuple[socket.socket, socket.socket]


class _Child(Protocol):
    """A child process: what `subprocess.Popen` and `ForkedProcess` have in common."""

    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def kill(self) -> None: ...


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

    def begin(control: Sockets, log: IO[bytes]) -> _Child:
        return start_python(
            forkserver.__name__, (module, memory), _environment(memory), control[1].fileno(), log
        )

    return ForkServer((module, memory), begin)


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
    forkserver.run(control[1], module, 0)


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
