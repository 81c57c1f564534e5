"""Locks of files that the system drops when their owner is gone: of whole files, and of single
bytes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shardctl.errors import StorageError
from shardctl.system.files import gone, naming_the_path
from shardctl.system.text import printable

_FLOCK = "hhqqi4x"
"""struct flock of Linux, of 64 bits: type, whence, start, length, process."""

_NOT_KEPT = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What a file system says that does not know locks."""


def _refusal(path: Path, error: OSError) -> StorageError:
    why = (
        "this file system keeps no locks"
        if error.errno in _NOT_KEPT
        else error.strerror or str(error)
    )
    return StorageError(
        f"{printable(path)}: cannot be locked ({why}); put the cache on a local disk"
    )


PATIENCE = 20.0
"""Seconds that a process waits for another one, which brings the same block: that one may have been
stopped."""

OPENING_PATIENCE = 120.0
"""Seconds that a process waits for another one, which brings the tables of the same dataset: they
may be large."""

_SHORTEST, _LONGEST = 0.001, 0.05
"""Seconds between two tries to get a lock."""


class ByteLocks:
    """Locks of the bytes of an open file (F_OFD_SETLK): two processes, or two descriptors, never
    hold the same one."""

    def __init__(self, path: Path, descriptor: int) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise StorageError(
                f"{printable(path)}: a cache needs the locks of Linux (F_OFD_SETLK); leave "
                "out cache="
            )
        self._path, self._descriptor = path, descriptor

    @contextmanager
    def held(self, byte: int) -> Iterator[bool]:
        """Hold the lock of a byte; yield False where another one has held it for PATIENCE. Raises
        StorageError."""
        mine = _retry(lambda: self._set(fcntl.F_WRLCK, byte), PATIENCE)
        try:
            yield mine
        finally:
            if mine:
                self._set(fcntl.F_UNLCK, byte)

    def _set(self, kind: int, byte: int) -> bool:
        """Set a lock, or take it away, and return whether that was possible: another one may hold
        it."""
        try:
            fcntl.fcntl(
                self._descriptor,
                fcntl.F_OFD_SETLK,
                struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0),
            )
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise _refusal(self._path, error) from error
        return True


@contextmanager
def locked(path: Path, patience: float | None = None) -> Iterator[int]:
    """Hold the lock (flock) of a file, which is made where it is not there, and yield its
    descriptor. Raises StorageError.

    Yield -1 where another process has held it for so many seconds (None: wait as long as it takes).
    """
    try:
        descriptor = _opened(path)
    except FileNotFoundError:
        raise StorageError(
            f"{printable(path.parent)}: removed while it was used; open the dataset again"
        ) from None
    try:
        try:
            if patience is None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            mine = patience is None or _retry(lambda: lock_at_once(descriptor), patience)
        except OSError as error:
            raise _refusal(path, error) from error
        yield descriptor if mine else -1
    finally:
        os.close(descriptor)


def lock_at_once(descriptor: int) -> bool:
    """Lock an open file (flock), and return whether that was possible: another process may hold it.
    Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(descriptor: int, path: str | Path) -> bool:
    """Return whether a file that was opened is the one at its path: it may have been replaced, or
    removed before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))  # noqa: PTH116 - a path of text, too
    except OSError:
        return False


def _retry(lock: Callable[[], bool], patience: float) -> bool:
    """Call `lock` until it returns True, at most for so many seconds, and return whether it did."""
    until, pause = time.monotonic() + patience, _SHORTEST
    while not (mine := lock()) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)
    return mine


class Use:
    """Says that a folder is in use, as long as it is open: a shared lock of a file in it."""

    def __init__(self, path: Path) -> None:
        """Lock the file. Raises FileNotFoundError if the folder is gone, StorageError if it cannot
        be locked."""
        self._descriptor = _opened(path)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        except OSError as error:
            self.close()
            raise _refusal(path, error) from error
        if not is_at(self._descriptor, path):  # it was removed while this waited
            self.close()
            raise gone(path)

    def close(self) -> None:
        """End the use."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def unused(path: Path) -> Iterator[bool]:
    """Yield whether nobody uses a folder (class Use), and keep it so. Whoever begins to use it
    waits for the end of this.

    False too for a folder that is gone, or that may not be locked.
    """
    try:
        descriptor = _opened(path)
    except (FileNotFoundError, StorageError):
        yield False
        return
    try:
        free = False
        with suppress(OSError):
            free = lock_at_once(descriptor)
        yield free
    finally:
        os.close(descriptor)


def open_own(path: Path, flags: int) -> int:
    """Open a file of the cache that is written in place. Raises OSError: also for a link, and for
    what is no ordinary file.

    Behind a link, some other file would be changed; to open a pipe may wait for ever.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    return descriptor


def _opened(path: Path) -> int:
    """Open a file to be locked, which is made where its folder is there. Raises FileNotFoundError,
    StorageError."""
    try:
        return open_own(path, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        raise
    except OSError:
        with naming_the_path(path):
            raise
