"""The folder of this machine into which objects are brought (remote_files.py), for all processes of its user together.

.owner          locked (flock) by every process that uses the folder: the last one to leave removes it
.space          locked while space is counted, and objects are removed; the bytes that are taken
.locks/N        locked while an object is fetched whose path has this number
.new/           what is being fetched
.begins/        the first bytes of objects
s3/BUCKET/KEY   an object; those who read it hold a shared lock
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import xxhash

from shardctl.errors import DiskFullError, StorageError
from shardctl.sources.remote.buckets import asking, changed, number_of
from shardctl.system.files import naming_the_path
from shardctl.system.remote_paths import Object
from shardctl.system.scratch import scratch_folder
from shardctl.system.stores import client_of
from shardctl.system.stores.base import PIECE
from shardctl.system.text import format_bytes

if os.name == "posix":
    import fcntl

LIMIT = "SHARDCTL_SOURCES_BYTES"
"""Variable: how many bytes of objects are kept on this machine while they are read."""

HELD_FILES, HELD_BYTES, LEAST_HELD = 256, 1 << 30, 4
"""Of the files that this process has asked for last, so many are not removed by others: they may be open, or about to be."""

LOCKS = 1024
"""Lock files. Two objects that share one are fetched one after the other."""

PATIENCE = 90.0
"""Seconds that a process waits for one that fetches an object and gets nothing more of it: that one may have been stopped. A
store that does not answer is given up sooner."""

LOOK_SECONDS = 0.02
"""Seconds between two tries to get a lock."""

_OWNER, _SPACE, _LOCKS, _NEW, _BEGINS = ".owner", ".space", ".locks", ".new", ".begins"
_TOLD_BYTES = 64


class LocalCopies:
    """The folder, as this process uses it. Threads may share it."""

    def __init__(self, folder: str) -> None:
        """Use the folder, which is made where it is not there. Raises StorageError if this user cannot have it."""
        self.folder, self.process = folder, os.getpid()
        with naming_the_path(Path(tempfile.gettempdir())):
            self._owner = _own(folder)
            for name in (_LOCKS, _NEW, _BEGINS):
                os.makedirs(f"{folder}/{name}", exist_ok=True)  # noqa: PTH103 - see pyproject.toml
        self._stack = ExitStack()
        self._held: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def scratch(self) -> Path:
        """A folder for the lists of this process."""
        return self._stack.enter_context(scratch_folder())

    def leave(self) -> None:
        """Let go of it, and remove it if no other process is there."""
        for descriptor, _ in self._held.values():
            os.close(descriptor)
        self._held.clear()
        with contextlib.suppress(OSError):
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _wipe(self.folder)
            os.rmdir(self.folder)  # noqa: PTH106 - see pyproject.toml
        os.close(self._owner)
        self._stack.close()

    def bring(self, path: str, what: Object, version: int) -> None:
        """Have an object at its path, and hold it there."""
        while not self._hold(path, version):
            with self.locked(path) as lock:
                if not _is_there(path, version):
                    self._fetch(path, what, version, lock)

    def _hold(self, path: str, version: int) -> bool:
        """Hold a file, so that no other process removes it. False if it is not there, or of another version."""
        with self._lock:
            if path in self._held and _is_there(path, version):
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
        if not status.st_nlink or not _is_version(status, version):
            os.close(descriptor)
            return False
        os.utime(descriptor, ns=(time.time_ns(), status.st_mtime_ns))
        with self._lock:
            if path in self._held:
                os.close(self._held.pop(path)[0])
            self._held[path] = descriptor, status.st_size
            while len(self._held) > LEAST_HELD and (
                len(self._held) > HELD_FILES or sum(size for _, size in self._held.values()) > HELD_BYTES
            ):
                os.close(self._held.popitem(last=False)[1][0])
        return True

    @contextlib.contextmanager
    def with_begin(self, data: bytes) -> Iterator[str]:
        """Yield a file with the first bytes of an object."""
        place = f"{self.folder}/{_BEGINS}/{secrets.token_hex(8)}"
        with _on_disk(self.folder, len(data)):
            Path(place).write_bytes(data)
        try:
            yield place
        finally:
            os.unlink(place)  # noqa: PTH108 - see pyproject.toml

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[int]:
        """Yield the lock file of an object. It is locked, unless the process that holds it stands still: who fetches an object
        writes a file of its own, so that two may do so."""
        number = xxhash.xxh3_64_intdigest(os.fsencode(path)) % LOCKS
        descriptor = os.open(f"{self.folder}/{_LOCKS}/{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _wait_for(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def _fetch(self, path: str, what: Object, version: int, lock: int) -> None:
        store = client_of(what.bucket)
        with asking(what):
            first, found = store.fetch(what.key, PIECE)
        number = number_of(found.version)
        if version and number != version:
            raise changed()
        self._make_room(found.size)
        new = f"{self.folder}/{_NEW}/{secrets.token_hex(8)}"
        try:
            with _on_disk(self.folder, found.size), open(new, "wb") as file:
                file.write(first)
                tell_progress(lock, new, len(first))
                with asking(what):
                    for piece in store.pieces(found, start=PIECE):
                        file.write(piece)
                        tell_progress(lock, new, file.tell())
                if file.tell() != found.size:
                    raise changed()
                file.flush()
                os.utime(file.fileno(), ns=(time.time_ns(), number))
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - see pyproject.toml
            if not version or not _is_there(path, version):  # after a standstill another process may have brought it
                os.replace(new, path)  # noqa: PTH105 - see pyproject.toml
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)  # noqa: PTH108 - see pyproject.toml

    def _make_room(self, size: int) -> None:
        """Count an object in, and remove those that were used least lately if there are too many bytes."""
        with _on_disk(self.folder, size), _flocked(f"{self.folder}/{_SPACE}") as descriptor:
            taken = int(os.pread(descriptor, 32, 0) or b"0")
            limit = _limit(self.folder, taken)
            if taken + size > limit:
                taken = _evict(self.folder, limit - size)
            free = shutil.disk_usage(self.folder).free
            if size > free:
                raise DiskFullError(
                    f"{tempfile.gettempdir()}: an object of {format_bytes(size)} is to be read there, and {format_bytes(free)}"
                    " are free; set TMPDIR to a folder on a larger disk"
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d" % (taken + size), 0)


def _own(folder: str) -> int:
    """Return the descriptor that says that this process uses the folder, which is made, or emptied if nobody else does.

    Raises StorageError for a folder that was not made here: it has something, but not the file that says so.
    """
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - see pyproject.toml
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise StorageError(f"{folder}: is not a folder of this user alone; remove it, or set TMPDIR to another folder")
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
    """Return the descriptor of the file that marks the folder, which is made where there is nothing at all yet."""
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
    if os.path.lexists(path) != (_OWNER in names):  # the last process has left meanwhile, or another one has come
        raise FileNotFoundError(path)
    raise StorageError(f"{folder}: has something that is not of shardctl; move it away, or set TMPDIR to another folder")


def _wait_for(descriptor: int) -> None:
    """Lock the lock file of an object, or wait until who holds it has told nothing new for PATIENCE."""
    told, until = b"", time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if (now := os.pread(descriptor, _TOLD_BYTES, 0)) != told:
            told, until = now, time.monotonic() + PATIENCE
        time.sleep(LOOK_SECONDS)


def tell_progress(lock: int, new: str, size: int) -> None:
    """Write into a lock file how much has come of the file `new`, for those who wait for it."""
    os.pwrite(lock, f"{os.path.basename(new)} {size}".encode().ljust(_TOLD_BYTES), 0)  # noqa: PTH119 - see pyproject.toml


def _wipe(folder: str, but: str = "") -> None:
    for name in sorted(os.listdir(folder), key=_OWNER.__eq__):  # the owner goes last
        place = f"{folder}/{name}"
        if name != but and stat.S_ISDIR(os.lstat(place).st_mode):
            shutil.rmtree(place, ignore_errors=True)
        elif name != but:
            os.unlink(place)  # noqa: PTH108 - see pyproject.toml


def _is_there(path: str, version: int) -> bool:
    try:
        return _is_version(os.stat(path), version)  # noqa: PTH116 - see pyproject.toml
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_version(status: os.stat_result, version: int) -> bool:
    """Return whether a file is of a version. Its time of change says so: some file systems keep that to 2 s only."""
    return stat.S_ISREG(status.st_mode) and (not version or abs(status.st_mtime_ns - version) < 2_000_000_000)


@contextlib.contextmanager
def _flocked(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _on_disk(folder: str, size: int) -> Iterator[None]:
    """Say where objects are written, if the disk is full: it is not where they come from."""
    try:
        with naming_the_path(Path(folder)):
            yield
    except DiskFullError as error:
        raise DiskFullError(
            f"{tempfile.gettempdir()}: the disk is full ({format_bytes(size)} of an object were to be read there); set TMPDIR"
            " to a folder on a larger disk"
        ) from error


def _limit(folder: str, taken: int) -> int:
    """Return how many bytes may be taken: half of what is free without them, or what the variable says."""
    said = os.environ.get(LIMIT, "")
    return int(said) if said.isdecimal() else (shutil.disk_usage(folder).free + taken) // 2


def _evict(folder: str, wanted: int) -> int:
    """Remove files that no process holds, the least lately used ones first, and return the bytes that are left.

    Some more are removed than there must be: to look at all files takes long.
    """
    found = []
    for scheme in os.listdir(folder):
        if not scheme.startswith(".") and stat.S_ISDIR(os.lstat(f"{folder}/{scheme}").st_mode):
            for place, _, names in os.walk(f"{folder}/{scheme}"):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        status = os.lstat(f"{place}/{name}")
                        found.append((status.st_atime_ns, status.st_size, f"{place}/{name}"))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= wanted * 9 // 10:
            break
        with contextlib.suppress(OSError):  # held, or removed by another process
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)  # noqa: PTH108 - see pyproject.toml
                left -= size
            finally:
                os.close(descriptor)
    return left
