"""Objects on stores, brought to this machine when a file is opened that stands for one (system/remote_paths.py).

Formats open files by their paths, and read here and there in them, so that an object is fetched as a whole, once for all
processes of this machine, and stays until there is no room for it (object_cache.py).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from shardctl.errors import NotPermittedError, Rejection, SourceGoneError
from shardctl.sources.remote.buckets import asking, changed, number_of
from shardctl.sources.remote.local_copies import LocalCopies
from shardctl.system.files import ordinary
from shardctl.system.remote_paths import Object, folder_of_all, object_of
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.stores.base import PIECE, Entry
from shardctl.system.stores.listing import Keys, list_keys, under

REQUESTS = 32
"""Objects that are fetched at the same time: with 30 ms for each, 1,000 in a second."""

BEGIN_BYTES = 64 << 10
"""How much of an object is fetched to see what it is."""

BEGINS_AHEAD = 128
"""Files whose beginnings are asked for ahead."""

T = TypeVar("T")


def is_brought(path: str | os.PathLike[str]) -> bool:
    """Return whether a path stands for an object."""
    return object_of(path) is not None


def local(path: str, version: int = 0) -> str:
    """Return a path at which a file can be opened now: the same one. Of an object, it is there afterwards.

    With a `version`, another one is refused. Raises Rejection (changed), OSError, SourceGoneError, StorageError.
    """
    what = object_of(path)
    if what is not None:
        _entered().bring(path, what, version)
    return path


def local_path(path: Path) -> Path:
    """Return what `local` does, as a Path."""
    return Path(local(os.fspath(path)))


def read(path: str, size: int, version: int = 0) -> bytes:
    """Return up to `size` bytes of an object, in memory. Raises as `local` does."""
    what = object_of(path)
    assert what is not None, "files are read by their paths"
    with asking(what):
        data, found = client_of(what.bucket).fetch(what.key, size)
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
        client_of(what.bucket).get(what.key, start, min(size, PIECE))


def is_one_object(path: str | os.PathLike[str]) -> bool:
    """Return whether there is an object at a path, by asking for it alone. Raises StoreError."""
    what = object_of(path)
    return what is not None and bool(what.key) and client_of(what.bucket).stat(what.key) is not None


def size_of(path: str) -> int:
    """Return the size of an object. Raises FileNotFoundError, OSError, SourceGoneError."""
    return _there(path).size


def begin_of(path: str, size: int) -> bytes:
    """Return the first bytes of a file, or of an object, of which only these are fetched. Raises OSError, SourceGoneError."""
    if not is_brought(path):
        with open(path, "rb", opener=ordinary) as file:
            return file.read(size)
    future = _begins.get(path)
    return read(path, size) if future is None or size > BEGIN_BYTES else future.result()[:size]


def stretch_of(path: str, start: int, size: int) -> bytes:
    """Return bytes of a file, or of an object, of which only these are fetched. Raises OSError, SourceGoneError."""
    what = object_of(path)
    if what is None:
        with open(path, "rb", opener=ordinary) as file:
            file.seek(start)
            return file.read(size)
    with asking(what):
        return bytes(client_of(what.bucket).get(what.key, start, size))


@contextlib.contextmanager
def copy_of_begin(path: str) -> Iterator[str]:
    """Yield a file with the first bytes of an object, enough to see what it is. Raises OSError, SourceGoneError."""
    with _entered().with_begin(begin_of(path, BEGIN_BYTES)) as place:
        yield place


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
        _entered()
        folder.mkdir(parents=True, exist_ok=True)
    return end > first


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether there are objects below a path that stands for one, by one request. Raises StoreError."""
    what = object_of(path)
    assert what is not None, "folders are looked at"
    if next(client_of(what.bucket).pages(f"{what.key}/" if what.key else ""), None) is None:
        return False
    _entered()
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


def _there(path: str) -> Entry:
    what = object_of(path)
    assert what is not None, "files are asked of the system"
    keys = _listed_with(what)
    found = _stat(what) if keys is None else keys.get(what.key)
    if found is None:
        raise FileNotFoundError(2, "there is no such object", what.url)
    return found


@lru_cache(1 << 16)
def _stat(what: Object) -> Entry | None:
    """Return what a store says of an object that was not listed; one that is not permitted counts as not there."""
    if not what.key:
        return None
    with asking(what), contextlib.suppress(NotPermittedError):
        return client_of(what.bucket).stat(what.key)
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
    place = _entered().scratch / secrets.token_hex(4)
    place.mkdir()
    _lists[what] = list_keys(client_of(what.bucket), f"{what.key}/" if what.key else "", place, found)
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


# --- the folder of this machine, as this process uses it ---


_copies: LocalCopies | None = None
_uses = 0
_entering = threading.Lock()


def _entered() -> LocalCopies:
    """Return the folder, held from now on. Raises StorageError if this user cannot have it."""
    global _copies
    with _entering:
        if _copies is None or _copies.folder != folder_of_all() or _copies.process != os.getpid():
            if _copies is not None and _copies.process == os.getpid():
                _copies.leave()
            _copies = LocalCopies(folder_of_all())
            atexit.register(leave)
        return _copies


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Have what is brought within the block removed at its end, unless another process uses it."""
    global _uses
    _uses += 1
    try:
        yield
    finally:
        _uses -= 1
        if not _uses:
            leave()


def leave() -> None:
    """Let go of what was brought. The last process to leave removes it."""
    global _copies
    forget_lists()
    forget_clients()
    if _copies is not None:
        here, _copies = _copies, None
        here.leave()
