"""New Python processes that run a module of this package, whatever this process has loaded and
started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from shardctl.errors import WorkerError
from shardctl.system.machine import MORE_FILES, NO_DESCRIPTORS

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
