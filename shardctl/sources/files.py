"""Files of sources by the texts of their locations: paths of this machine, and URLs of objects on
stores.

Formats open files by their paths, and read here and there in them. So an object is fetched whole,
once for all processes of this machine. Its copy stays until its room is needed (LocalCopies,
below).
"""

from __future__ import annotations

import atexit
import errno
import os
import secrets
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import xxhash

from shardctl.errors import (
    DiskFullError,
    NoSuchKeyError,
    NotPermittedError,
    ObjectChangedError,
    Rejection,
    SourceGoneError,
    StoreError,
)
from shardctl.system.files import naming_the_path, open_ordinary, ordinary
from shardctl.system.locations import is_stored, is_url, name_of, normal, parent_of, split_bucket
from shardctl.system.object_cache import Limits, NewFile, ObjectCache
from shardctl.system.permutation import evenly_spaced
from shardctl.system.scratch import OwnedFolder, scratch_folder
from shardctl.system.stores import client_of, forget_clients, parts_of
from shardctl.system.stores.base import PIECE, Entry
from shardctl.system.stores.listing import Keys, list_keys, under
from shardctl.system.text import format_bytes

REQUESTS = 32
"""Objects that are fetched at the same time: with 30 ms for each, 1,000 in a second."""

BEGIN_BYTES = 64 << 10
"""How much of an object is fetched to see what it is."""

BEGINS_AHEAD = 128
"""Files whose beginnings are asked for ahead."""

T = TypeVar("T")


def local_copy(text: str, version: int = 0) -> str:
    """Return a path at which a file can be opened now: its own, or that of a copy of an object,
    which is fetched first.

    Another version than `version` is refused; 0: what is there now is wanted, not an older copy.
    Raises Rejection (it has not that version), OSError, SourceGoneError, StorageError.
    """
    what = object_at(text)
    if what is None:
        return text
    return _entered().fetch(what, version) if version else _copy_of_now(what)


def _copy_of_now(what: Object) -> str:
    """Return the path of a copy of an object as it is now. Raises OSError, SourceGoneError,
    StorageError."""
    known = _known(what)
    with suppress(Rejection):  # it has changed since it was listed
        return _entered().fetch(what, _number(known))
    try:
        with asking(what):
            found = client_of(what.bucket).stat(what.key)
        return _entered().fetch(what, _number(found))
    except Rejection as rejection:
        raise OSError(errno.ESTALE, "it changes while it is read", what.url) from rejection


def _number(found: Entry | None) -> int:
    """Return the number of the version of an object; 0 if there is none, or nothing is known of
    it."""
    return 0 if found is None else number_of(found.version)


def present_copy(url: str) -> str | None:
    """Return the path of a copy of an object that is here already, None if there is none. Nothing
    is asked for."""
    return _entered().find(stored_object(url))


def read(url: str, size: int, version: int = 0) -> bytes:
    """Return up to `size` bytes of an object, in memory. Raises as `local_copy` does."""
    what = stored_object(url)
    with asking(what):
        data, found = client_of(what.bucket).fetch(what.key, size)
    if version and (number_of(found.version) != version or found.size != size):
        raise changed()
    return bytes(data)


def fetch_all(texts: Iterable[str]) -> None:
    """Fetch many objects at the same time, so that they are there when they are opened; what cannot
    be read shows then."""

    def fetch(url: str) -> None:
        with suppress(OSError, Rejection):
            local_copy(url)

    if wanted := list(filter(is_stored, texts)):
        with ThreadPoolExecutor(REQUESTS, thread_name_prefix="shardctl-fetch") as pool:
            list(pool.map(fetch, wanted))


def begin_of(text: str, size: int) -> bytes:
    """Return the first bytes of a file, or of an object, of which only these are fetched. Raises
    OSError, SourceGoneError."""
    if not is_stored(text):
        return stretch_of(text, 0, size)
    future = _begins.get(text)
    return read(text, size) if future is None or size > BEGIN_BYTES else future.result()[:size]


def stretch_of(text: str, start: int, size: int) -> bytes:
    """Return bytes of a file, or of an object, of which only these are fetched. Raises OSError,
    SourceGoneError."""
    what = object_at(text)
    if what is None:
        with open_ordinary(text) as file:
            file.seek(start)
            return file.read(size)
    with asking(what):
        return bytes(client_of(what.bucket).get(what.key, start, size))


_begins: dict[str, Future[bytes]] = {}
"""The first bytes of objects that are looked at soon."""


def begins_ahead(items: Iterable[T], place_of: Callable[[T], str]) -> Iterator[T]:
    """Yield the same items; the first bytes of the objects that those to come are about are fetched
    meanwhile. An item may be about a file of this machine, or about none: ""."""
    coming = iter(items)
    with ThreadPoolExecutor(REQUESTS, thread_name_prefix="shardctl-begin") as pool:
        waiting: deque[tuple[T, str]] = deque()
        try:
            while True:
                for item in islice(coming, max(0, BEGINS_AHEAD - len(waiting))):
                    place = place_of(item)
                    if is_stored(place):
                        _begins[place] = pool.submit(read, place, BEGIN_BYTES)
                    waiting.append((item, place))
                if not waiting:
                    return
                item, place = waiting.popleft()
                yield item
                _begins.pop(place, None)
        finally:
            for _, place in waiting:
                if (future := _begins.pop(place, None)) is not None:
                    future.cancel()


# --- what is there ---


def exists(text: str) -> bool:
    """Return whether there is a file, or an object. Of an object that was listed, nobody is
    asked."""
    if not is_stored(text):
        return os.path.exists(text)  # noqa: PTH110 - see pyproject.toml
    with suppress(OSError, Rejection):
        return _known(stored_object(text)) is not None
    return False


def is_folder(text: str) -> bool:
    """Return whether there is a folder, or objects below a URL: a store is asked once for each.
    Raises StoreError."""
    what = object_at(text)
    if what is None:
        return Path(text).is_dir()
    if what not in _folders:
        if (keys := _listed_with(what)) is None:
            _folders[what] = _has_objects(what)
        else:
            first, end = under(keys, what.prefix)
            _folders[what] = end > first
    return _folders[what]


def is_on_store(url: str) -> bool:
    """Return whether there is an object with this URL, or a folder of objects. Raises
    StoreError."""
    what = stored_object(url)
    try:
        if is_folder(url):
            return True
    except NotPermittedError:  # one object can be read without the permission to list the others
        if not _is_object(what):
            raise
        _folders[what] = False
        return True
    return _is_object(what)


def _has_objects(what: Object) -> bool:
    """Return whether there are objects in a folder, by a request."""
    return (
        not what.leads_upwards and next(client_of(what.bucket).pages(what.prefix), None) is not None
    )


def _is_object(what: Object) -> bool:
    """Return whether there is an object, by asking for it alone."""
    return bool(what.key) and client_of(what.bucket).stat(what.key) is not None


def check_on_store(url: str) -> None:
    """Make sure, by a request, that there are objects below a URL. Raises SourceGoneError."""
    what = stored_object(url)
    with asking(what):
        if _has_objects(what):
            return
    raise SourceGoneError(f"{what.url}: the source has gone away; no object is below it")


def version_of(text: str) -> tuple[int, int]:
    """Return the size of a file and its time of change, or what stands for the version of an
    object. Raises OSError."""
    if is_stored(text):
        what = stored_object(text)
        found = _known(what)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", what.url)
        return found.size, number_of(found.version)
    status = os.stat(text)  # noqa: PTH116 - see pyproject.toml on Path in what is done per unit
    return status.st_size, status.st_mtime_ns


Version = tuple[int, int, int]
"""The size of a file, when it was changed last, in ns, and its number in the file system."""


def local_version(path: str) -> Version:
    """Return what tells a file of this machine from one that took its place: a copy may have the
    same size and time. Raises OSError."""
    status = os.stat(path)  # noqa: PTH116 - see pyproject.toml on Path in what is done per unit
    return status.st_size, status.st_mtime_ns, status.st_ino


def _known(what: Object) -> Entry | None:
    """Return what a list of this process says of an object, or its store; None if it is not
    there."""
    keys = _listed_with(what)
    return _stat(what) if keys is None else keys.get(what.key)


@lru_cache(1 << 16)
def _stat(what: Object) -> Entry | None:
    """Return what a store says of an object that was not listed; one that is not permitted counts
    as not there."""
    if not what.key or what.leads_upwards:
        return None
    with asking(what), suppress(NotPermittedError):
        return client_of(what.bucket).stat(what.key)
    return None


def stored_object(url: str) -> Object:
    """Return the object, or the folder of objects, that a URL is of."""
    what = object_at(url)
    assert what is not None, "files of this machine are opened by their paths"
    return what


# --- the lists of this process ---


_lists: dict[Object, Keys] = {}
_folders: dict[Object, bool] = {}
"""Whether there are objects below a URL, as far as it was asked."""


def list_all(folders: Iterable[str], found: Callable[[int], None]) -> None:
    """List what is below those that are folders on stores; `found` is told how many objects there
    are. Raises StoreError."""
    for folder in filter(is_stored, folders):
        if is_folder(folder):
            keys_of(folder, found)


def keys_of(url: str, found: Callable[[int], None] = lambda _: None) -> Keys:
    """Return the list of all objects below a URL. It is made once. Raises StoreError."""
    what = stored_object(url)
    if (listed := _lists.get(what) or _listed_with(what)) is not None:
        return listed
    place = _entered().scratch / secrets.token_hex(4)
    place.mkdir()
    _lists[what] = list_keys(client_of(what.bucket), what.prefix, place, found)
    return _lists[what]


def forget_lists() -> None:
    """Forget all listings: the next look at a folder of a store lists it again."""
    _lists.clear()
    _folders.clear()
    _stat.cache_clear()


def _listed_with(what: Object) -> Keys | None:
    """Return a list of this process that has an object, if it is there."""
    for folder, keys in _lists.items():
        if folder.bucket == what.bucket and what.key.startswith(folder.prefix):
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
        if (
            _copies is None
            or _copies.folder != folder_of_copies()
            or _copies.process != os.getpid()
        ):
            if _copies is not None and _copies.process == os.getpid():
                _copies.leave()
            _copies = LocalCopies(folder_of_copies())
            atexit.register(leave)
        return _copies


@contextmanager
def in_use() -> Iterator[None]:
    """Have what is fetched within the block removed at its end, unless another process uses it."""
    global _uses
    _uses += 1
    try:
        yield
    finally:
        _uses -= 1
        if not _uses:
            leave()


def leave() -> None:
    """Let go of what was fetched. The last process to leave removes it."""
    global _copies
    forget_lists()
    forget_clients()
    if _copies is not None:
        here, _copies = _copies, None
        here.leave()


# --- the folder of this machine with copies of objects, which all processes of a user share ---

LIMIT = "SHARDCTL_SOURCES_BYTES"
"""Variable: how many bytes of objects are kept on this machine while they are read."""

HELD_FILES, HELD_BYTES, LEAST_HELD = 256, 1 << 30, 4
"""Of the files that this process has asked for last, so many are not removed by others: they may be
open, or about to be."""


def folder_of_copies() -> str:
    """Return the folder for copies: that of this user, where temporary files are."""
    return _folder(tempfile.gettempdir(), os.geteuid() if hasattr(os, "geteuid") else 0)


@lru_cache(8)
def _folder(temporary: str, user: int) -> str:
    return os.path.join(os.path.realpath(temporary), f"shardctl-sources-{user}")


class LocalCopies:
    """The folder, as this process uses it. Threads may share it.

    s3/BUCKET/KEY   an object
    """

    def __init__(self, folder: str) -> None:
        """Use the folder, which is made where it is not there. Raises StorageError if this user
        cannot have it."""
        self.folder, self.process = folder, os.getpid()
        said = os.environ.get(LIMIT, "")
        most = int(said) if said.isdecimal() else None
        limits = Limits(most, HELD_FILES, HELD_BYTES, LEAST_HELD)
        with naming_the_path(Path(tempfile.gettempdir())):
            self._shared = OwnedFolder(folder)
            self._cache = ObjectCache(folder, limits, lambda size: _on_disk(folder, size))
        self._stack = ExitStack()

    @cached_property
    def scratch(self) -> Path:
        """A folder for the lists of this process."""
        return self._stack.enter_context(scratch_folder())

    def leave(self) -> None:
        """Let go of it, and remove it if no other process is there."""
        self._cache.close()
        self._shared.leave()
        self._stack.close()

    def fetch(self, what: Object, version: int) -> str:
        """Return the path of the copy of an object, which this process holds there from now on."""

        return self._cache.hold(_name_of(what), version, partial(self._fill, what, version))

    def find(self, what: Object) -> str | None:
        """Return the path of a copy that is here already, as `fetch` does; None if there is
        none."""
        name = _name_of(what)
        return f"{self.folder}/{name}" if self._cache.is_held(name) else None

    def _fill(self, what: Object, version: int, new: NewFile) -> int:
        """Write an object, and return the number of its version. The first piece says how large it
        is: no request for that."""
        store = client_of(what.bucket)
        with asking(what):
            first, found = store.fetch(what.key, PIECE)
        number = number_of(found.version)
        if version and number != version:
            raise changed()
        new.expect(found.size)
        if found.size > shutil.disk_usage(self.folder).free:
            raise _full(found.size)
        new.write(first)
        with asking(what):
            for piece in store.pieces(found, start=PIECE):
                new.write(piece)
        if new.size != found.size:
            raise changed()
        return number


def _name_of(what: Object) -> str:
    """Return what the copy of an object is called: those of one folder lie beside each other, as
    their formats need it."""
    return what.url.replace("://", "/", 1)


@contextmanager
def _on_disk(folder: str, size: int) -> Iterator[None]:
    """Say where objects are written, if the disk is full: it is not where they come from."""
    try:
        with naming_the_path(Path(folder)):
            yield
    except DiskFullError as error:
        raise _full(size) from error


def _full(size: int) -> DiskFullError:
    return DiskFullError(
        f"{tempfile.gettempdir()}: the disk is full ({format_bytes(size)} needed); set TMPDIR to another"
    )


OTHERS = 3
"""How many other objects are tried before all of them count as not permitted."""

NUMBER_BITS = 60
"""Bits of the number that stands for a version. It is the time of change of a file in nanoseconds:
one before 2007."""


class Object(NamedTuple):
    """Where an object is, or would be: the URL of its bucket, and its key there, "" for the bucket
    itself."""

    bucket: str
    key: str

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    @property
    def prefix(self) -> str:
        """How the keys of all objects below it begin."""
        return f"{self.key}/" if self.key else ""

    @property
    def leads_upwards(self) -> bool:
        """Whether .. is a part of its key. No object has such a key, and no store is asked for
        it."""
        return ".." in self.key.split("/")


def object_at(text: str) -> Object | None:
    """Return the object, or the folder of objects, that a URL is of; None for a path."""
    found = split_bucket(text)
    return None if found is None else Object(*found)


def number_of(version: str) -> int:
    """Return a number that stands for the version of an object, in the place of a time of change:
    it is never 0."""
    return xxhash.xxh3_64_intdigest(version.encode()) >> (64 - NUMBER_BITS) or 1


@contextmanager
def asking(what: Object) -> Iterator[None]:
    """Turn what a store says of an object into what the system says of files.

    Raises FileNotFoundError, PermissionError for one that alone may not be read, Rejection for one
    that has changed, and SourceGoneError for all that is not about this object: then every other
    one would fail as well.
    """
    try:
        yield
    except NoSuchKeyError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", what.url) from error
    except ObjectChangedError as error:
        raise changed() from error
    except NotPermittedError as error:
        if _others_can_be_read(what):
            raise PermissionError(errno.EACCES, str(error).removeprefix(f"{what.url}: ")) from error
        raise SourceGoneError(f"{error}; nor can others beside it be read") from error
    except StoreError as error:
        raise SourceGoneError(f"{error}; the same command goes on from here") from error


def changed() -> Rejection:
    """Return the reason for a file, or an object, that is not as it was when it was listed."""
    return Rejection(
        "read", "changed", "it changed after the files were listed; run the conversion again"
    )


def _others_can_be_read(what: Object) -> bool:
    """Return whether another object in the folder of one can be read. Raises SourceGoneError."""
    folder, slash, _ = what.key.rpartition("/")
    store = client_of(what.bucket)
    try:
        page = next(store.pages(folder + slash), [])
        others = [entry.name for entry in page if entry.name != what.key and entry.size]
        for place in evenly_spaced(len(others), OTHERS):
            with suppress(NoSuchKeyError, NotPermittedError):
                store.fetch(others[place], 1)
                return True
    except StoreError as error:
        raise SourceGoneError(str(error)) from error
    return False


def read_small(text: str, limit: int) -> bytes:
    """Return the bytes of a file, or an object, of at most `limit` bytes.

    Raises OSError, also for what is no ordinary file, or is larger; Rejection, SourceGoneError,
    StorageError.
    """
    data, _ = read_file(local_copy(text), limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {format_bytes(limit)}")
    return data


def read_file(path: str, size: int) -> tuple[bytes, os.stat_result]:
    """Return `size` bytes of a file, or the part of them that exists, and the file's state after
    the last byte was read.

    It is never more than the file has, whatever the plan says. Raises OSError.
    """
    # a file object of Python takes as long as to read a small file, and so does a large buffer
    file = ordinary(path, os.O_RDONLY)
    try:
        left, parts = min(size, os.fstat(file).st_size), list[bytes]()
        # one call may return fewer: 2 GiB at most, or less of a file on a network
        while left > 0 and (data := os.read(file, left)):
            parts.append(data)
            left -= len(data)
        return b"".join(parts), os.fstat(file)
    finally:
        os.close(file)


@dataclass(frozen=True)
class SourceRoot:
    """A source: a folder of inputs, or one input, by the text of its location as messages have
    it."""

    text: str

    @classmethod
    def of(cls, source: str | Path) -> SourceRoot:
        """Return a source that a person has named. Raises UsageError for what is no URL of a
        store."""
        if is_url(source):
            parts_of(str(source))
        return cls(normal(str(source)))

    @cached_property
    def is_stored(self) -> bool:
        """Whether it is on an object store."""
        return is_stored(self.text)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder. Raises StoreError, as a store is asked once."""
        return is_folder(self.text)

    @property
    def name(self) -> str:
        """The last part of where it is."""
        return name_of(self.recorded)

    @property
    def recorded(self) -> str:
        """Its absolute path, or its URL, as a dataset records it: links above its last part are
        followed, that one is not."""
        if self.is_stored:
            return self.text
        path = Path(self.text)
        return str(
            path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()
        )

    @property
    def folder(self) -> str:
        """The folder of its inputs: it, or the one that it lies in."""
        return self.text if self.is_folder else parent_of(self.text)

    @property
    def base(self) -> str:
        """The folder that paths of inputs are relative to, by its absolute path, links followed, or
        its URL."""
        return resolved(self.folder)


def resolved(text: str) -> str:
    """Return a location with links followed; on a store there are none. Raises ValueError for a
    name with a null byte."""
    return text if is_stored(text) else os.path.realpath(text)


def folder_of(source: str) -> str:
    """Return the folder that the paths of a source's files are relative to, as a dataset records
    it; it may be gone."""
    text = normal(source)
    is_file = not is_folder(text) and exists(text) if is_stored(text) else Path(text).is_file()
    return parent_of(text) if is_file else text


def read_range(descriptor: int, offset: int, size: int) -> bytes:
    """Return `size` bytes of an open file from `offset` on. Raises Rejection if the file is
    shorter, OSError."""
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    rest = bytearray(size - len(data))
    fill(descriptor, offset + len(data), memoryview(rest))
    return data + rest


def fill(descriptor: int, offset: int, view: memoryview) -> None:
    """Read all of `view` from an open file from `offset` on. Raises Rejection if the file is
    shorter, OSError."""
    done = 0
    while done < len(view):  # one read may return fewer bytes, 2 GiB at most
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if not count:
            raise changed()
        done += count
