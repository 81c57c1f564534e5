"""Folders for files that need not outlive a process: one of its own, or one that all processes of
a user share, which the last to leave removes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardctl.errors import StorageError
from shardctl.system.file_locks import is_at, lock_at_once, open_own
from shardctl.system.files import READ_CHUNK, naming_the_path
from shardctl.system.machine import boot

SCRATCH = "shardctl-scratch-"
"""How the names of scratch folders begin."""

_FILES, _OWNER = "files", ".owner"
"""The folder in a scratch folder that has the files, and the file that says that a folder is one of
ours. Every process that uses it has a lock on that file, which the system drops with the process.
It has the boot of the machine: without it, where files cannot be locked, others never remove the
folder."""


class OwnedFolder:
    """A folder of this user, as this process uses it."""

    def __init__(self, folder: str) -> None:
        """Use the folder, which is made where it is not there, and emptied if nobody else uses it.
        Raises OSError; StorageError if this user cannot have it, or it was not made here."""
        self.folder = folder
        descriptor = None
        while descriptor is None:
            descriptor = _owned(folder)
        self._owner = descriptor

    def leave(self) -> None:
        """Let go of it, and remove it if no other process is there."""
        with contextlib.suppress(OSError):
            if lock_at_once(self._owner):
                _remove(self.folder)
        os.close(self._owner)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for files that need not outlive the block. Those of processes that were killed
    are removed first."""
    with naming_the_path(Path(os.environ.get("TMPDIR", "/tmp"))):
        _remove_abandoned(tempfile.gettempdir())
        owned = OwnedFolder(tempfile.mkdtemp(prefix=SCRATCH))
    files = Path(owned.folder) / _FILES
    try:
        with naming_the_path(files):
            files.mkdir()
        yield files
    finally:
        owned.leave()
        shutil.rmtree(owned.folder, ignore_errors=True)  # where files cannot be locked


def _owned(folder: str) -> int | None:
    """Return the descriptor that says that this process uses the folder; None if the last process
    has left meanwhile."""
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - see pyproject.toml
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise StorageError(
            f"{folder}: is not a folder of this user alone; remove it, or set TMPDIR to another "
            "folder"
        )
    path, names = Path(folder, _OWNER), os.listdir(folder)
    try:
        descriptor = open_own(path, os.O_RDWR | (0 if names else os.O_CREAT))
    except OSError:
        if os.path.lexists(path) != (_OWNER in names):  # another one has come, or left
            return None
        raise StorageError(
            f"{folder}: has something that is not of shardctl; move it away, or set TMPDIR to "
            "another folder"
        ) from None
    try:
        with contextlib.suppress(OSError):  # files cannot be locked there
            if lock_at_once(descriptor):
                with contextlib.suppress(OSError):  # what cannot be removed stays
                    _wipe(folder, but=_OWNER)
                os.pwrite(descriptor, boot().encode(), 0)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    if is_at(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def _remove_abandoned(parent: str) -> None:
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
                _remove_if_abandoned(f"{parent}/{name}")


def _remove_if_abandoned(folder: str) -> None:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    descriptor = open_own(Path(folder, _OWNER), os.O_RDWR)
    try:
        is_free = lock_at_once(descriptor)
        if is_free and os.read(descriptor, READ_CHUNK) == boot().encode():
            _remove(folder)
    finally:
        os.close(descriptor)


def _remove(folder: str) -> None:
    """Remove a folder of ours. The owner goes last, so that another process can complete it."""
    _wipe(folder)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(folder)  # noqa: PTH106 - see pyproject.toml


def _wipe(folder: str, but: str = "") -> None:
    for name in sorted(os.listdir(folder), key=_OWNER.__eq__):
        path = f"{folder}/{name}"
        if name == but:
            continue
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
            if os.path.lexists(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        else:
            os.unlink(path)  # noqa: PTH108 - see pyproject.toml
