"""Processes that are forked from this one, and what every fork needs: an end with its parent, and
streams of its own. And new Pythons that run a module of this package."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from shardctl.errors import WorkerError
from shardctl.system.machine import MORE_FILES, NO_DESCRIPTORS

_PR_SET_PDEATHSIG = 1


class ForkedProcess:
    """A copy of this process that calls `run` and ends: with exit code 0, or with 1 and a traceback
    if that raises.

    It has the methods that `subprocess.Popen` has for a program.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._code: int | None = None
        sys.stdout.flush()  # else both processes print what is waiting there
        sys.stderr.flush()
        self._number = os.fork()
        if not self._number:
            code = 1
            try:
                run()
                code = 0
            except BaseException:  # noqa: BLE001 - a forked process must never return into the code of its parent
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._look(os.WNOHANG)

    def wait(self) -> int:
        """Return the exit code once it has ended."""
        code = self._look(0)
        assert code is not None, "it was waited for"
        return code

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.poll() is None:  # it has not been waited for, so that its number is still its own
            os.kill(self._number, signal.SIGKILL)

    def _look(self, how: int) -> int | None:
        if self._code is None:
            try:
                process, status = os.waitpid(self._number, how)
            except ChildProcessError:
                # whoever started the command has it told of no children: how this one ended is lost
                process, status = self._number, signal.SIGKILL
            if process:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def end_with_parent(parent: int) -> None:
    """Let Linux kill this process when its parent ends; elsewhere the end of its channel tells
    it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def redirect(output: int) -> None:
    """Let this process print to a descriptor, and find nothing on its stdin."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for stream in (1, 2):
        os.dup2(output, stream)


def keep_renewed(thing: Any) -> None:
    """Have `renew` of an object called in the processes that are forked from this one, as long as
    it is there.

    A thread that is not there may hold its locks.
    """
    _RENEWED.add(thing)


_RENEWED: weakref.WeakSet[Any] = weakref.WeakSet()

CLOSED_IN_FORKS: set[int] = set()
"""Descriptors that are closed in the processes that are forked from this one, by a user's function
for instance. They would keep a channel open whose end is how the other process sees that this one
is dead, or hold a lock when this one is gone."""


def _begin_in_child() -> None:
    for descriptor in CLOSED_IN_FORKS:
        with suppress(OSError):
            os.close(descriptor)
    CLOSED_IN_FORKS.clear()  # in a child of a child a number may be that of another file
    for thing in list(_RENEWED):
        thing.renew()


os.register_at_fork(after_in_child=_begin_in_child)


_COMMAND = "import sys; sys.path[:] = filter(None, sys.path); from {} import main; main(*{!r})"
"""Like `python -m`, which would look for modules in the current folder first: it may be a dataset
from an unknown source."""


def start_python(
    module: str,
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    stdin: int,
    output: IO[bytes] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a Python that calls `main` of a module with some numbers, strings and lists of these.
    Raises WorkerError.

    It prints to `output`, by default to where this process prints. It has `descriptors` open, by
    the same numbers.
    """
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(module, arguments)],
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=descriptors,
            # Ctrl-C is the parent's to handle: it ends its processes itself
            start_new_session=True,
        )
    except OSError as error:
        raise not_started(error) from error


def not_started(error: OSError) -> WorkerError:
    """Return the error for a worker process that the system does not give."""
    more = f"; {MORE_FILES}" if error.errno in NO_DESCRIPTORS else ""
    return WorkerError(
        f"no worker process can be started: {sys.executable}: {error.strerror or error}{more}"
    )


def environment() -> dict[str, str]:
    """Return the environment of a child that must find the same modules as this process, a user's
    transforms too."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path),
    }
