"""Folders for files that need not outlive a process."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardctl.system.files import READ_CHUNK, naming_the_path
from shardctl.system.machine import boot

if os.name == "posix":
    import fcntl

SCRATCH = "shardctl-scratch-"
"""How the names of scratch folders begin."""

SCRATCH_FILES = "files"
"""The folder in a scratch folder that has the files."""

SCRATCH_OWNER = "owner"
"""A file in a scratch folder. Its owner holds a lock on it, which the system drops when the process
is gone."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for files that need not outlive the block. Those of processes that were killed
    are removed first."""
    with contextlib.ExitStack() as stack:
        with naming_the_path(Path(os.environ.get("TMPDIR", "/tmp"))):
            _remove_abandoned(Path(tempfile.gettempdir()))
            folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
            stack.callback(_remove_scratch, folder)
            stack.callback(os.close, _own(folder))
            (folder / SCRATCH_FILES).mkdir()
        yield folder / SCRATCH_FILES


def _own(folder: Path) -> int:
    """Lock a new scratch folder, and return the descriptor that holds the lock.

    The boot is written last: without it the folder is never removed by others, for instance where
    files cannot be locked.
    """
    descriptor = os.open(folder / SCRATCH_OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, boot().encode())
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    """Remove the scratch folders whose owner is certainly gone: it was a process of this machine,
    and holds its lock no more.

    Another machine's lock on a shared file system may not be seen here, so that its folders stay,
    as do those of other users.
    """
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder may be one that can be written and not listed
        names = os.listdir(parent)
    for name in names:
        if name.startswith(SCRATCH):
            # in use, no scratch folder of ours, or another process has just removed it
            with contextlib.suppress(OSError):
                _remove_if_abandoned(parent / name)


def _remove_if_abandoned(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    descriptor = os.open(folder / SCRATCH_OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # to read a pipe may never end
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.read(descriptor, READ_CHUNK) == boot().encode():
            _remove_scratch(folder)
    finally:
        os.close(descriptor)


def _remove_scratch(folder: Path) -> None:
    """Remove a scratch folder. What tells who owns it goes last, so that another process can
    complete a removal."""
    shutil.rmtree(folder / SCRATCH_FILES, ignore_errors=True)
    if not os.path.lexists(folder / SCRATCH_FILES):
        shutil.rmtree(folder, ignore_errors=True)
