"""A folder of this machine with copies of objects, for all processes that read them: those used
least lately make room.

NAME        an object, or a part of it; a reader of the file holds a shared lock (flock)
.bytes      locked while a process counts space and removes files: the bytes that are there
.locks/N    locked while a process fetches a file whose path has this number
.new/       what is being fetched
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from shardctl.system.file_locks import is_at, lock_at_once, locked

if TYPE_CHECKING:
    import pyarrow as pa

LOCKS = 1024
"""Lock files. Two objects that share one are fetched one after the other."""

PATIENCE = 90.0
"""Seconds that a process waits for one that fetches an object and gets nothing more of it: that one
may have been stopped. A store that does not answer is given up sooner."""

LOOK_SECONDS = 0.02
"""Seconds between two tries to get a lock."""

_BYTES, _LOCKS, _NEW = ".bytes", ".locks", ".new"
_NOTE_BYTES = 64

Writing = Callable[[int], AbstractContextManager[None]]
"""What surrounds the writing of an object of so many bytes: it tells what the system refuses."""


@dataclass(frozen=True)
class Limits:
    """How many `bytes` may be there, None: half of what is free without them.

    Of the files that a process has asked for last, `held_files` with up to `held_bytes`, but
    `least_held` at least, are not removed by others: they may be open, or about to be.
    """

    bytes: int | None
    held_files: int
    held_bytes: int
    least_held: int


class ObjectCache:
    """The folder, as this process uses it. Threads may share it."""

    def __init__(self, folder: str, limits: Limits, writing: Writing) -> None:
        """Use a folder that is there. Raises OSError."""
        self.folder, self.writing = folder, writing
        self._limits = limits
        for name in (_LOCKS, _NEW):
            os.makedirs(f"{folder}/{name}", exist_ok=True)  # noqa: PTH103 - see pyproject.toml
        self._held: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()
        weakref.finalize(self, _let_go, self._held)

    def close(self) -> None:
        """Hold no file any more."""
        with self._lock:
            _let_go(self._held)

    def hold_at_least(self, files: int) -> None:
        """Hold so many of the files that this process asks for, however large they are: it fetches
        them for others."""
        self._limits = replace(self._limits, held_files=files, least_held=files)

    def hold(self, name: str, stamp: int, fill: Callable[[NewFile], int]) -> str:
        """Return the path of an object, which this process holds there from now on.

        Where it is not there, or not of this `stamp`, a number that stands for its version (0: of
        any), this process fetches it: `fill` writes it, and returns the stamp. Of several processes
        that want it one does so, and the others wait. Raises what `fill` does; IsADirectoryError
        where a folder has the name.
        """
        path = f"{self.folder}/{name}"
        while not self.is_held(name, stamp):
            with self.locked(path) as lock:
                if not _is_there(path, stamp):
                    self._fetch(path, stamp, fill, lock)
        return path

    def is_held(self, name: str, stamp: int = 0) -> bool:
        """Hold a file, so that no other process removes it. False if it is not there, or of another
        version."""
        path = f"{self.folder}/{name}"
        with self._lock:
            if path in self._held and _is_there(path, stamp):
                self._held.move_to_end(path)
                return True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise IsADirectoryError(21, "other objects have its name as that of their folder")
        if not is_at(descriptor, path) or not _is_version(status, stamp):
            os.close(descriptor)
            return False
        os.utime(descriptor, ns=(time.time_ns(), status.st_mtime_ns))
        with self._lock:
            if path in self._held:
                os.close(self._held.pop(path)[0])
            self._held[path] = descriptor, status.st_size
            self._hold_no_more_than_allowed()
        return True

    def _hold_no_more_than_allowed(self) -> None:
        limits, held = self._limits, self._held
        while len(held) > limits.least_held and (
            len(held) > limits.held_files
            or sum(size for _, size in held.values()) > limits.held_bytes
        ):
            os.close(held.popitem(last=False)[1][0])

    @contextmanager
    def locked(self, path: str) -> Iterator[int]:
        """Yield the lock file of an object. It is locked, unless the process that holds it stands
        still: who fetches an object writes a file of its own, so that two may do so."""
        number = xxhash.xxh3_64_intdigest(os.fsencode(path)) % LOCKS
        descriptor = os.open(f"{self.folder}/{_LOCKS}/{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _wait_for(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def _fetch(self, path: str, stamp: int, fill: Callable[[NewFile], int], lock: int) -> None:
        place = f"{self.folder}/{_NEW}/{secrets.token_hex(8)}"
        try:
            with NewFile(self, place, lock) as new:
                new.finish(fill(new))
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - see pyproject.toml
            # after a standstill another process may have fetched it
            if not stamp or not _is_there(path, stamp):
                os.replace(place, path)  # noqa: PTH105 - see pyproject.toml
        finally:
            with suppress(FileNotFoundError):
                os.unlink(place)  # noqa: PTH108 - see pyproject.toml

    def make_room(self, size: int) -> None:
        """Count an object in, and remove those that were used least lately if there are too many.
        Raises OSError."""
        with locked(Path(self.folder, _BYTES)) as descriptor:
            taken, most = int(os.pread(descriptor, _NOTE_BYTES, 0) or 0), self._limits.bytes
            if most is None:
                most = (shutil.disk_usage(self.folder).free + taken) // 2
            if taken + size > most:
                taken = self._evict(most - size)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d" % (taken + size), 0)

    def _evict(self, most: int) -> int:
        """Remove files that no process holds, the least lately used ones first, and return the
        bytes that are left.

        Some more are removed than there must be: to look at all files takes long.
        """
        found = sorted(self._files())
        taken = sum(size for _, size, _ in found)
        for _, size, name in found:
            if taken <= most * 9 // 10:
                break
            with suppress(OSError):  # held, or removed by another process
                path = f"{self.folder}/{name}"
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if lock_at_once(descriptor):
                        os.unlink(path)  # noqa: PTH108 - see pyproject.toml
                        taken -= size
                finally:
                    os.close(descriptor)
        return taken

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield when each file was used last, the bytes that it takes, and its name."""
        for place, folders, names in os.walk(self.folder):
            below = place[len(self.folder) + 1 :]
            if not below:
                folders[:] = [name for name in folders if not name.startswith(".")]
                names = [name for name in names if not name.startswith(".")]
            for name in names:
                with suppress(FileNotFoundError):
                    status = os.lstat(f"{place}/{name}")
                    yield (
                        status.st_atime_ns,
                        _bytes_of(status),
                        f"{below}/{name}" if below else name,
                    )


@dataclass
class NewFile:
    """A file that this process fetches, while others may wait for it."""

    _cache: ObjectCache
    _place: str
    _lock: int
    _expected = size = 0

    def __post_init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # `finish` has told it, or something else is to be told
            self._stack.close()

    def expect(self, size: int) -> None:
        """Make room for so many bytes, before any is written."""
        self._expected = size
        with self._cache.writing(size):
            self._cache.make_room(size)
            self._file = self._stack.enter_context(open(self._place, "wb"))  # noqa: SIM115 - by the stack

    def write(self, data: bytes | pa.Buffer) -> None:
        """Write what comes next."""
        with self._cache.writing(self._expected):
            self._file.write(data)
        self.size = self._file.tell()
        tell_progress(self._lock, self._place, self.size)

    def skip(self, count: int) -> None:
        """Leave out some bytes: they take no space on the disk, and are read as zeros."""
        self.size = self._file.seek(count, os.SEEK_CUR)

    def finish(self, stamp: int) -> None:
        """Complete the file, and give it a stamp. Where that is 0, it gets none."""
        with self._cache.writing(self._expected):
            self._file.truncate(self.size)
            self._file.flush()
            if stamp:
                os.utime(self._file.fileno(), ns=(time.time_ns(), stamp))


def tell_progress(lock: int, new: str, size: int) -> None:
    """Write into a lock file how much has come of the file `new`, for those who wait for it."""
    os.pwrite(lock, f"{os.path.basename(new)} {size}".encode().ljust(_NOTE_BYTES), 0)  # noqa: PTH119 - see pyproject.toml


def _wait_for(descriptor: int) -> None:
    """Lock the lock file of an object, or wait until who holds it has told nothing new for
    PATIENCE."""
    note, until = b"", time.monotonic() + PATIENCE
    while time.monotonic() < until and not lock_at_once(descriptor):
        if (now := os.pread(descriptor, _NOTE_BYTES, 0)) != note:
            note, until = now, time.monotonic() + PATIENCE
        time.sleep(LOOK_SECONDS)


def _let_go(held: OrderedDict[str, tuple[int, int]]) -> None:
    for descriptor, _ in held.values():
        os.close(descriptor)
    held.clear()


def _bytes_of(status: os.stat_result) -> int:
    """Return the bytes that a file takes: of one with a hole, those of its blocks."""
    return min(status.st_size, status.st_blocks * 512)


def _is_there(path: str, version: int) -> bool:
    try:
        return _is_version(os.stat(path), version)  # noqa: PTH116 - see pyproject.toml
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_version(status: os.stat_result, version: int) -> bool:
    """Return whether a file is of a version. Its time of change says so: some file systems keep
    that to 2 s only."""
    return stat.S_ISREG(status.st_mode) and (
        not version or abs(status.st_mtime_ns - version) < 2_000_000_000
    )
