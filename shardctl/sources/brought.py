"""Objects on stores, brought to this machine when a file is opened that stands for one (stand_ins.py).

Formats open files by their paths, and read here and there in them, so that an object is fetched as a whole, once for all
processes of this machine, and stays until there is no room for it. The folder is there while a process uses it, and what a
killed one has left is removed by the next.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

import xxhash

from shardctl.errors import DiskFullError, NotPermittedError, Rejection, SourceGoneError, StorageError
from shardctl.sources.buckets import asking, changed, close_stores, number_of, store_of
from shardctl.stand_ins import Object, folder_of_all, object_of
from shardctl.storage import format_bytes, naming_the_path, scratch_folder
from shardctl.stores.base import Stored
from shardctl.stores.listing import Keys, list_keys, under

if os.name == "posix":
    import fcntl

PART = 8 << 20
"""Bytes of a large object that come with one request."""

PARTS_AT_ONCE = 8
"""Requests for a large object that are made at the same time: 64 MiB are in memory."""

REQUESTS = 32
"""Objects that are fetched at the same time: with 30 ms for each, 1,000 in a second."""

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

BEGIN_BYTES = 64 << 10
"""How much of an object is fetched to see what it is."""

BEGINS_AHEAD = 128
"""Files whose beginnings are asked for ahead."""

T = TypeVar("T")

_OWNER, _SPACE, _LOCKS, _NEW, _BEGINS = ".owner", ".space", ".locks", ".new", ".begins"


def is_brought(path: str | os.PathLike[str]) -> bool:
    """Return whether a path stands for an object."""
    return object_of(path) is not None


def local(path: str, version: int = 0) -> str:
    """Return a path at which a file can be opened now: the same one. Of an object, it is there afterwards.

    With a `version`, another one is refused. Raises Rejection (changed), OSError, SourceGoneError, StorageError.
    """
    what = object_of(path)
    if what is not None:
        _Here.entered().bring(path, what, version)
    return path


def local_path(path: Path) -> Path:
    """Return what `local` does, as a Path."""
    return Path(local(os.fspath(path)))


def read(path: str, size: int, version: int = 0) -> bytes:
    """Return up to `size` bytes of an object, in memory. Raises as `local` does."""
    what = object_of(path)
    assert what is not None, "files are read by their paths"
    with asking(what):
        data, found = store_of(what.bucket).fetch(what.key, size)
    if version and (number_of(found.version) != version or found.size != size):
        raise changed()
    return bytes(data)


def bring_all(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Fetch many objects at the same time, so that they are there when they are opened; what cannot be read shows then."""
    wanted = [os.fspath(path) for path in paths]
    if wanted and any(map(is_brought, wanted)):
        with ThreadPoolExecutor(REQUESTS, thread_name_prefix="shardctl-bring") as pool:
            for _ in pool.map(_try_to_bring, wanted):
                pass


def _try_to_bring(path: str) -> None:
    with contextlib.suppress(OSError, Rejection):
        local(path)


def read_part(path: str, start: int, size: int) -> None:
    """Read a part of an object from its store, whatever it is, and whatever is here of it. Raises OSError, SourceGoneError."""
    what = object_of(path)
    assert what is not None, "files are read from the disk"
    with asking(what):
        store_of(what.bucket).get(what.key, start, min(size, PART))


def is_one_object(path: str | os.PathLike[str]) -> bool:
    """Return whether there is an object at a path, by asking for it alone. Raises StoreError."""
    what = object_of(path)
    return what is not None and bool(what.key) and store_of(what.bucket).stat(what.key) is not None


def size_of(path: str) -> int:
    """Return the size of an object. Raises FileNotFoundError, OSError, SourceGoneError."""
    return _there(path).size


def begin_of(path: str, size: int) -> bytes:
    """Return the first bytes of a file, or of an object, of which only these are fetched. Raises OSError, SourceGoneError."""
    if not is_brought(path):
        with open(path, "rb") as file:
            return file.read(size)
    future = _begins.get(path)
    return read(path, size) if future is None or size > BEGIN_BYTES else future.result()[:size]


@contextlib.contextmanager
def copy_of_begin(path: str) -> Iterator[str]:
    """Yield a file with the first bytes of an object, enough to see what it is. Raises OSError, SourceGoneError."""
    place = f"{_Here.entered().folder}/{_BEGINS}/{secrets.token_hex(8)}"
    data = begin_of(path, BEGIN_BYTES)
    with _on_disk(folder_of_all(), len(data)):
        Path(place).write_bytes(data)
    try:
        yield place
    finally:
        os.unlink(place)  # noqa: PTH108 - see pyproject.toml


_begins: dict[str, Future[bytes]] = {}
"""The first bytes of objects that are looked at soon."""


def begins_ahead(items: Iterable[T], path_of: Callable[[T], str | None]) -> Iterator[T]:
    """Yield the same items; the first bytes of the objects that those to come are about are fetched meanwhile."""
    coming = iter(items)
    with ThreadPoolExecutor(REQUESTS, thread_name_prefix="shardctl-begin") as pool:
        waiting: deque[tuple[T, str | None]] = deque()
        try:
            while True:
                for item in islice(coming, max(0, BEGINS_AHEAD - len(waiting))):
                    path = path_of(item)
                    if path is not None:
                        _begins[path] = pool.submit(read, path, BEGIN_BYTES)
                    waiting.append((item, path))
                if not waiting:
                    return
                item, path = waiting.popleft()
                yield item
                if path is not None:
                    _begins.pop(path, None)
        finally:
            for _, path in waiting:
                if path is not None and (future := _begins.pop(path, None)) is not None:
                    future.cancel()


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a file, or an object, at a path. Of an object that was listed, nobody is asked."""
    text = os.fspath(path)
    if not is_brought(text):
        return os.path.exists(text)  # noqa: PTH110 - see pyproject.toml
    try:
        _there(text)
    except (OSError, Rejection):
        return False
    return True


def holds(folder: Path) -> bool:
    """Return whether there is a folder, or objects below a path that stands for one."""
    what = object_of(folder)
    if what is None:
        return folder.is_dir()
    first, end = under(keys_of(folder), f"{what.key}/" if what.key else "")
    if end > first:
        _Here.entered()
        folder.mkdir(parents=True, exist_ok=True)
    return end > first


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether there are objects below a path that stands for one, by one request. Raises StoreError."""
    what = object_of(path)
    assert what is not None, "folders are looked at"
    if next(store_of(what.bucket).pages(f"{what.key}/" if what.key else ""), None) is None:
        return False
    _Here.entered()
    os.makedirs(path, exist_ok=True)  # noqa: PTH103 - see pyproject.toml
    return True


def check_on_store(folder: str) -> None:
    """Make sure that there are objects below a path that stands for a folder. Raises SourceGoneError."""
    what = object_of(folder)
    assert what is not None, "folders are looked at"
    with asking(what):
        if is_folder(folder):
            return
    raise SourceGoneError(f"{what.url}: the source has gone away; no object has a key that begins so")


def version_of(path: str) -> tuple[int, int]:
    """Return the size of a file and its time of change, or what stands for the version of an object. Raises OSError."""
    if is_brought(path):
        found = _there(path)
        return found.size, number_of(found.version)
    status = os.stat(path)  # noqa: PTH116 - see pyproject.toml on Path in what is done per unit
    return status.st_size, status.st_mtime_ns


def _there(path: str) -> Stored:
    what = object_of(path)
    assert what is not None, "files are asked of the system"
    keys = _listed_with(what)
    found = _stat(what) if keys is None else keys.get(what.key)
    if found is None:
        raise FileNotFoundError(2, "there is no such object", what.url)
    return found


@lru_cache(1 << 16)
def _stat(what: Object) -> Stored | None:
    """Return what a store says of an object that was not listed; one that is not permitted counts as not there."""
    if not what.key:
        return None
    with asking(what), contextlib.suppress(NotPermittedError):
        return store_of(what.bucket).stat(what.key)
    return None


# --- the lists of this process ---


_lists: dict[Object, Keys] = {}


def list_all(folders: Iterable[Path], found: Callable[[int], None]) -> None:
    """List what is below those paths that stand for folders; `found` is told how many objects there are. Raises StoreError."""
    for folder in folders:
        if is_brought(folder) and folder.is_dir():
            keys_of(folder, found)


def keys_of(folder: str | os.PathLike[str], found: Callable[[int], None] = lambda _: None) -> Keys:
    """Return the list of all objects below a path that stands for a folder. It is made once. Raises StoreError."""
    what = object_of(folder)
    assert what is not None, "folders are walked"
    if (listed := _lists.get(what) or _listed_with(what)) is not None:
        return listed
    place = _Here.entered().scratch / secrets.token_hex(4)
    place.mkdir()
    _lists[what] = list_keys(store_of(what.bucket), f"{what.key}/" if what.key else "", place, found)
    return _lists[what]


def forget_lists() -> None:
    """Have what is asked for next listed anew."""
    _lists.clear()
    _stat.cache_clear()


def _listed_with(what: Object) -> Keys | None:
    """Return a list of this process that has an object, if it is there."""
    for folder, keys in _lists.items():
        if folder.bucket == what.bucket and (not folder.key or what.key.startswith(f"{folder.key}/")):
            return keys
    return None


# --- the folder of this machine ---


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Have what is brought within the block removed at its end, unless another process uses it."""
    _Here.uses += 1
    try:
        yield
    finally:
        _Here.uses -= 1
        if not _Here.uses:
            leave()


def leave() -> None:
    """Let go of what was brought. The last process to leave removes it."""
    forget_lists()
    close_stores()
    if _Here.current is not None:
        here, _Here.current = _Here.current, None
        here.leave()


class _Here:
    """The folder, as this process uses it."""

    current: _Here | None = None
    uses = 0
    _entering = threading.Lock()

    @classmethod
    def entered(cls) -> _Here:
        """Return it, and hold it from now on. Raises StorageError if this user cannot have it."""
        with cls._entering:
            if cls.current is None or cls.current.folder != folder_of_all() or cls.current.process != os.getpid():
                if cls.current is not None and cls.current.process == os.getpid():
                    cls.current.leave()
                cls.current = cls(folder_of_all())
                atexit.register(leave)
            return cls.current

    def __init__(self, folder: str) -> None:
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
            with self._locked(path) as lock:
                if not _is_there(path, version):
                    self._fetch(path, what, version, lock)

    def _hold(self, path: str, version: int) -> bool:
        """Hold a file, so that no other process removes it. False if it is not there, or of another version."""
        with self._lock:
            if path in self._held and _is_there(path, version):
                self._held.move_to_end(path)
                return True
        try:
            descriptor = os.open(path, os.O_RDONLY)
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
    def _locked(self, path: str) -> Iterator[int]:
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
        store = store_of(what.bucket)
        with asking(what):
            first, found = store.fetch(what.key, PART)
        number = number_of(found.version)
        if version and number != version:
            raise changed()
        self._make_room(found.size)
        new = f"{self.folder}/{_NEW}/{secrets.token_hex(8)}"
        try:
            with _on_disk(self.folder, found.size), open(new, "wb") as file:
                file.write(first)
                _tell_progress(lock, new, len(first))
                for start in range(PART, found.size, PART * PARTS_AT_ONCE):
                    ends = range(start, min(found.size, start + PART * PARTS_AT_ONCE), PART)
                    stretches = [(begin, min(PART, found.size - begin)) for begin in ends]
                    with asking(what):
                        parts = store.get_ranges(what.key, stretches, found.version)
                    for part in parts:
                        file.write(part)
                    _tell_progress(lock, new, file.tell())
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
    """Return the descriptor that says that this process uses the folder, which is made, or emptied if nobody else does."""
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - see pyproject.toml
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise StorageError(f"{folder}: is not a folder of this user alone; remove it, or set TMPDIR to another folder")
        try:
            descriptor = os.open(f"{folder}/{_OWNER}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
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


_TOLD_BYTES = 64


def _tell_progress(lock: int, new: str, size: int) -> None:
    """Write into a lock file how much has come of the file `new`, for those who wait for it."""
    os.pwrite(lock, f"{os.path.basename(new)} {size}".encode().ljust(_TOLD_BYTES), 0)  # noqa: PTH119 - see pyproject.toml


def _wipe(folder: str, but: str = "") -> None:
    for name in sorted(os.listdir(folder), key=_OWNER.__eq__):  # the owner goes last
        place = f"{folder}/{name}"
        if name != but and os.path.isdir(place):  # noqa: PTH112 - see pyproject.toml
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
        if not scheme.startswith("."):
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
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)  # noqa: PTH108 - see pyproject.toml
                left -= size
            finally:
                os.close(descriptor)
    return left
