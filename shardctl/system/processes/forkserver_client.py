"""The process that workers are forked from (forkserver.py), as the process that needs workers sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from shardctl.errors import WorkerError
from shardctl.system.processes import forkserver
from shardctl.system.processes.forkserver import ANSWER, KILL, ORDER, START, WAIT

COMMAND = (
    "import sys; sys.path[:] = filter(None, sys.path); from shardctl.system.processes.forkserver import main; main({!r}, {})"
)
"""Like `python -m`, which would look for modules in the current folder first: it may be a dataset from an unknown source."""

PATIENCE_SECONDS = 5.0
"""How long a worker may take to end that was told to, or was killed. One whose disk stalls cannot be ended at all."""

TAIL_BYTES = 4096
"""How much of what a worker prints is kept for its last words, and the longest line that is passed on whole."""

Sockets = tuple[socket.socket, socket.socket]


class _Child(Protocol):
    """A child process: what `subprocess.Popen` and `_Forked` have in common."""

    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def kill(self) -> None: ...


class ForkServer:
    """The process that workers are forked from, and that ends them and waits for them. `begin` starts it.

    `begin(control, log)` is given the sockets that orders go into and come out of, and a file for what it prints.
    """

    def __init__(self, serves: tuple[str, int], begin: Callable[[Sockets, IO[bytes]], _Child]) -> None:
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
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - TAIL_BYTES))
        self._last_line = self._log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        self._log.close()


def start_server(module: str, memory: int) -> ForkServer:
    """Start a process that workers can be forked from, whatever this process has loaded and started."""

    def begin(control: Sockets, log: IO[bytes]) -> _Child:
        try:
            return subprocess.Popen(
                [sys.executable, "-c", COMMAND.format(module, memory)],
                stdin=control[1].fileno(),
                stdout=log,
                stderr=log,
                env=_environment(memory),
                start_new_session=True,  # Ctrl-C is the parent's to handle: it stops its workers itself
            )
        except OSError as error:
            raise WorkerError(f"no worker process can be started: {sys.executable}: {error.strerror or error}") from error

    return ForkServer((module, memory), begin)


_early: list[ForkServer] = []


@contextlib.contextmanager
def forked_early(module: str, memory: int) -> Iterator[None]:
    """Fork this process for the first pool of a module that is made within the block: it has the modules loaded already.

    Only for a command of ours, at its beginning: it has loaded no user's code yet, whose files and connections
    workers must not share. Where it has threads, or a limit of memory asks for another allocator, nothing is done.
    """
    if memory or _threads() != 1:
        yield
        return
    server = ForkServer((module, 0), lambda control, log: _Forked(module, control, log))
    _early.append(server)
    try:
        yield
    finally:
        if server in _early:
            _early.remove(server)
            server.close()


def _threads() -> int | None:
    """Return how many threads this process has, those that libraries have started too; None if that is unknown."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None


class _Forked:
    """A copy of this process, from which workers are forked."""

    def __init__(self, module: str, control: Sockets, log: IO[bytes]) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()  # else both processes print what is waiting there
        sys.stderr.flush()
        self._number = os.fork()
        if self._number:
            return
        try:
            control[0].close()  # the parent's, whose end tells that it is gone
            os.setsid()
            for received in (signal.SIGINT, signal.SIGTERM):
                signal.signal(received, signal.SIG_DFL)
            forkserver.redirect(log.fileno())
            os.environ.update(_environment(0))
            sys.path[:] = os.environ["PYTHONPATH"].split(os.pathsep)
            forkserver.run(control[1], module, 0)
        except BaseException:  # noqa: BLE001 - a forked process must never return into the code of its parent
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._look(os.WNOHANG)

    def wait(self) -> int:
        """Return the exit code once it has ended."""
        code = self._look(0)
        assert code is not None, "it was waited for"
        return code

    def kill(self) -> None:
        """Kill it, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self._number, signal.SIGKILL)

    def _look(self, how: int) -> int | None:
        if self.returncode is None:
            try:
                process, status = os.waitpid(self._number, how)
            except ChildProcessError:  # whoever started the command has it told of no children: how this one ended is lost
                process, status = self._number, signal.SIGKILL
            if process:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def take_early(module: str, memory: int) -> ForkServer | None:
    """Return the process that was forked early for this, if there is one that nobody has taken."""
    for server in _early:
        if server.serves == (module, memory):
            _early.remove(server)
            return server
    return None


def _environment(memory: int) -> dict[str, str]:
    """Return the environment of the workers: they must find the same modules as this process, a user's transforms too."""
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    # Arrow's own allocator takes a gigabyte of addresses at once, which would count towards a limit.
    pool = {"ARROW_DEFAULT_MEMORY_POOL": "system"} if memory else {}
    return {**os.environ, "PYTHONPATH": path, **pool}
