"""A folder that the processes of one user share: the first to come makes it, and the last to leave
removes it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

from shardctl.errors import StorageError

if os.name == "posix":
    import fcntl

_OWNER = ".owner"
"""The file that says that the folder is one of ours. It is locked (flock) by every process that
uses the folder."""


class SharedFolder:
    """The folder, as this process uses it."""

    def __init__(self, folder: str) -> None:
        """Use the folder, which is made where it is not there. Raises OSError; StorageError if this
        user cannot have it."""
        self.folder = folder
        self._owner = _own(folder)

    def leave(self) -> None:
        """Let go of it, and remove it if no other process is there."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _wipe(self.folder)
            os.rmdir(self.folder)  # noqa: PTH106 - see pyproject.toml
        os.close(self._owner)


def _own(folder: str) -> int:
    """Return the descriptor that says that this process uses the folder, which is made, or emptied
    if nobody else does.

    Raises StorageError for a folder that was not made here: it has something, but not the file that
    says so.
    """
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - see pyproject.toml
        status = os.lstat(folder)
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o077
        ):
            raise StorageError(
                f"{folder}: is not a folder of this user alone; remove it, or set TMPDIR to "
                "another folder"
            )
        try:
            descriptor = _opened_owner(folder)
        except FileNotFoundError:  # the last process has left meanwhile
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _wipe(folder, but=_OWNER)
        except BlockingIOError:
            pass
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"{folder}/{_OWNER}").st_ino == os.fstat(descriptor).st_ino:  # noqa: PTH116 - see pyproject.toml
                return descriptor
        os.close(descriptor)


def _opened_owner(folder: str) -> int:
    """Return the descriptor of the file that marks the folder, which is made where there is nothing
    at all yet."""
    path, flags = f"{folder}/{_OWNER}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    names = os.listdir(folder)
    if not names:
        return os.open(path, flags | os.O_CREAT, 0o600)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        descriptor = -1
    status = os.fstat(descriptor) if descriptor >= 0 else None
    if status is not None and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    # the last process has left meanwhile, or another one has come
    if os.path.lexists(path) != (_OWNER in names):
        raise FileNotFoundError(path)
    raise StorageError(
        f"{folder}: has something that is not of shardctl; move it away, or set TMPDIR to another "
        "folder"
    )


def _wipe(folder: str, but: str = "") -> None:
    for name in sorted(os.listdir(folder), key=_OWNER.__eq__):  # the owner goes last
        place = f"{folder}/{name}"
        if name != but and stat.S_ISDIR(os.lstat(place).st_mode):
            shutil.rmtree(place, ignore_errors=True)
        elif name != but:
            os.unlink(place)  # noqa: PTH108 - see pyproject.toml
