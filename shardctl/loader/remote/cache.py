"""A folder of this machine in which blocks of datasets are kept, for all processes that read them.
docs/commands/cache.md.

    DIR/lock                   locked (flock) while space is reserved, and while datasets are removed
    DIR/URLHASH.lock           locked while a dataset of this URL is looked up, and its tables are fetched
    DIR/URLHASH-DIGEST/        one dataset
        dataset.json           its URL, and which manifest.json it is of; written last: without it the folder is unfinished
        in-use                 readers hold a shared lock; its time of change is when it was opened last
        used                   the bytes that were reserved for this folder, 8 bytes
        tables/                manifest.json, shards.arrow
        blocks                 8 bytes for each shard: the XXH3-64 of its footer; then a byte for each shard (its footer), and
                               one for each block: 0 absent, 1 space reserved, 2 there
        shards/NAME            sparse, as long as the shard: each block that is there lies where it lies in the shard

A byte of `blocks` is locked while that block is fetched, so that all processes together fetch it
once; the system drops the locks of a process that dies. The byte is set after the data was written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import StorageError
from shardctl.format.arrays import Bools, Bytes, Indices
from shardctl.format.names import MANIFEST
from shardctl.system import file_locks
from shardctl.system.file_locks import ByteLocks, Use, locked, open_own, unused
from shardctl.system.files import (
    PARTIAL,
    is_folder,
    naming_the_path,
    read_bytes,
    remove_tree,
    write_atomically,
)
from shardctl.system.processes.fork import keep_renewed
from shardctl.system.text import printable

LOCK, IN_USE, USED, ABOUT, BLOCKS = "lock", "in-use", "used", "dataset.json", "blocks"
TABLES_FOLDER, SHARDS_FOLDER = "tables", "shards"
_OWN_FOLDERS = (TABLES_FOLDER, SHARDS_FOLDER)
_OWN_FILE = re.compile(
    rf"({IN_USE}|{USED}|{BLOCKS}|{re.escape(ABOUT)})(\.[0-9a-f]+{re.escape(PARTIAL)})?"
)

ABSENT, RESERVED, THERE = 0, 1, 2

KEPT_FREE = 0.02
"""Share of the disk that stays free: a disk without any free space stops more than this cache."""

REFUSAL_SECONDS = 10.0
"""How long a process does not ask again for space after there was none."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_OWN_PAGES = 16
"""Pages for the folders and small files of a dataset."""

_EXTENTS_OF_PAGE = 80
"""Blocks of a sparse file for each page that the file system needs to know where they are; ext4 has
room for 340."""


class CacheWarning(UserWarning):
    """A cache cannot keep any more, for another reason than its limit. Reading goes on."""


@dataclass(frozen=True)
class About:
    """Which dataset a folder holds: `version` is what the store called its manifest, `digest` the
    SHA-256 of that file."""

    url: str
    version: str
    digest: str


@dataclass(frozen=True)
class Entry:
    """A dataset of a cache, for display: sizes in bytes, `opened` in seconds since 1970. `blocks`
    of `of_blocks` are there."""

    url: str
    folder: str
    bytes: int
    dataset_bytes: int
    blocks: int
    of_blocks: int
    opened: float
    in_use: bool


class Cache:
    """A folder with datasets. Together they are never larger than `limit` bytes, nor do they fill
    the disk."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        """Make the folder if it is not there. Raises StorageError."""
        self.folder, self.limit = folder.absolute(), limit
        with naming_the_path(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            facts = os.statvfs(self.folder)
        self.page = max(mmap.PAGESIZE, facts.f_frsize)
        self._refused = -REFUSAL_SECONDS
        self._warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the same folder when it is unpickled."""
        return Cache, (self.folder, self.limit)

    @contextmanager
    def looking_up(self, url: str) -> Iterator[bool]:
        """Keep other processes from looking up this URL meanwhile: one of them fetches the tables.
        Raises StorageError.

        Yield False where another one has done so for OPENING_PATIENCE: it may have been stopped.
        """
        with locked(self.folder / f"{_hash_of(url)}.lock", file_locks.OPENING_PATIENCE) as mine:
            yield mine is not None

    def find(self, url: str, version: str) -> CachedDataset | None:
        """Return the dataset of this URL whose manifest has this version, if it is here."""
        for folder in sorted(self.folder.glob(f"{_hash_of(url)}-*")):
            about = about_of(folder)
            if about is not None and (about.url, about.version) == (url, version):
                with suppress(FileNotFoundError):  # it was removed just now
                    return CachedDataset(self, folder)
        return None

    def make(
        self, about: About, size: int, fetch: Callable[[Path], tuple[int, int]]
    ) -> CachedDataset | None:
        """Return a new dataset, whose tables `fetch` writes to a folder; None if there is no room.
        Call it in `looking_up`.

        The tables have `size` bytes; `fetch` returns how many shards and blocks there are. Where
        one with the same digest is here already, it gets the new version.
        """
        folder = self.folder / f"{_hash_of(about.url)}-{about.digest[:16]}"
        if about_of(folder) is not None:
            with suppress(FileNotFoundError):
                found = CachedDataset(self, folder)
                write_atomically(folder / ABOUT, json.dumps(asdict(about)).encode())
                return found
        if os.path.lexists(folder) and not (_is_cached(folder) or _has_nothing_of_ours(folder)):
            raise StorageError(
                f"{printable(str(folder))}: the cache needs this name, but a link or other files "
                "have it; move them away, or"
                " remove the link"
            )
        _remove(folder)  # an unfinished one: nobody else may make it now
        needed = self.page * _OWN_PAGES + size
        use = self._begin(folder, needed)
        if use is None:
            return None
        with naming_the_path(folder):
            try:
                (folder / SHARDS_FOLDER).mkdir(exist_ok=True)
                (folder / TABLES_FOLDER).mkdir(exist_ok=True)
                size = _bytes_of_blocks(*fetch(folder / TABLES_FOLDER))
                if not self.reserve(folder, self.pages(0, size)):
                    _delete(folder)
                    return None
                write_atomically(folder / BLOCKS, bytes(size))
                write_atomically(folder / ABOUT, json.dumps(asdict(about)).encode())
                return CachedDataset(self, folder)
            except OSError as error:
                _delete(folder)
                if error.errno not in _FULL:
                    raise
                self.note_full()
                return None
            except BaseException:
                _delete(folder)
                raise
            finally:
                use.close()

    def pages(self, start: int, length: int) -> int:
        """Return how many bytes a stretch of a file takes on the disk, at the most."""
        return (-(-(start + length) // self.page) - start // self.page) * self.page

    def _begin(self, folder: Path, size: int) -> Use | None:
        """Make the folder of a dataset, in use, with room for so many bytes; None if there is no
        room."""
        with locked(self.folder / LOCK), naming_the_path(self.folder):
            if not self._make_room(size, folder):
                return None
            folder.mkdir(exist_ok=True)
            _count(folder, size)
            return Use(folder / IN_USE)

    @property
    def refuses(self) -> bool:
        """Whether there was no room a short while ago."""
        return time.monotonic() < self._refused + REFUSAL_SECONDS

    def reserve(self, folder: Path, size: int) -> bool:
        """Return whether there is room for so many bytes more in the folder of a dataset, which are
        counted then.

        Where there is none, datasets that nobody uses are removed, those first that were opened
        longest ago.
        """
        if self.refuses:
            return False
        with locked(self.folder / LOCK), naming_the_path(self.folder):
            if not self._make_room(size, folder):
                return False
            _count(folder, size)
        return True

    def _make_room(self, size: int, keep: Path) -> bool:
        """Return whether there is room, after datasets were removed that nobody uses. To be called
        with the lock."""
        for folder in sorted(self.folders(), key=opened_at):
            if self._disk_has_room(size) and self._is_within_limit(size):
                return True
            if folder != keep and _is_removable(folder):
                with unused(folder / IN_USE) as free:
                    if free:
                        _remove(folder)
        if not self._disk_has_room(size):
            self.note_full()
            return False
        if not self._is_within_limit(size):
            self._refused = time.monotonic()
            return False
        return True

    def give_back(self, folder: Path, size: int) -> None:
        """Count bytes no more that were reserved, and not used."""
        with locked(self.folder / LOCK):
            _count(folder, -size)

    def note_full(self) -> None:
        """Ask for no more space for a while, and say once that the disk is full."""
        self._refused = time.monotonic()
        if not self._warned:
            self._warned = True
            shown = printable(str(self.folder))
            warnings.warn(
                f"{shown}: the disk of the cache is full; what is read from now on is not kept",
                CacheWarning,
                stacklevel=2,
            )

    def _disk_has_room(self, size: int) -> bool:
        facts = os.statvfs(self.folder)
        return facts.f_bavail * facts.f_frsize - size >= KEPT_FREE * facts.f_blocks * facts.f_frsize

    def _is_within_limit(self, size: int) -> bool:
        return (
            self.limit is None or self.page + sum(map(used_of, self.folders())) + size <= self.limit
        )

    def folders(self) -> list[Path]:
        """Return the folders of all datasets, also of those that are unfinished."""
        with os.scandir(self.folder) as found:
            return [
                Path(each.path)
                for each in found
                if each.is_dir(follow_symlinks=False) and _is_name(each.name)
            ]

    def entries(self) -> list[Entry]:
        """Return what is here, the one that was opened last first."""
        found = map(_entry, filter(_has_dataset, self.folders()))
        return sorted(filter(None, found), key=lambda entry: -entry.opened)

    def clear(self, url: str | None = None) -> tuple[list[Entry], list[Entry]]:
        """Remove the datasets of a URL, or all. Return those that were removed, and those that stay
        because they are used.

        What no cache has put into the folder of one stays there.
        """
        removed: list[Entry] = []
        kept: list[Entry] = []
        if not self.folders():  # perhaps no cache at all: then no lock is left in it
            return removed, kept
        with locked(self.folder / LOCK):
            for folder in filter(_is_removable, self.folders()):
                entry = _entry(folder)
                if url is not None and (entry is None or entry.url != url):
                    continue
                with unused(folder / IN_USE) as free:
                    if free:
                        _remove(folder)
                if entry is not None:
                    (removed if free else kept).append(entry)
        return removed, kept


class CachedDataset:
    """One dataset of a cache, in use as long as this object is there. Threads may share it.

    `attach` must be called before blocks are kept.
    """

    def __init__(self, cache: Cache, folder: Path) -> None:
        """Use a folder that is complete. Raises FileNotFoundError if it was removed."""
        self.cache, self.folder = cache, folder
        self.tables, self._shards_folder = folder / TABLES_FOLDER, folder / SHARDS_FOLDER
        self._use = Use(folder / IN_USE)
        # another process is removing it, and a moment ago what says so was gone
        if not _has_dataset(folder):
            self._use.close()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        os.utime(folder / IN_USE)
        self._state: Bytes = np.empty(0, np.uint8)
        self._tails = 0

    def __del__(self) -> None:
        """End the use. A forked child has the same lock: it is dropped when the last of them is
        gone."""
        with suppress(AttributeError):
            self._use.close()

    def is_of(self, digest: str) -> bool:
        """Return whether the manifest that was fetched has this SHA-256: the name of the folder has
        a part of it."""
        return self.folder.name.endswith(f"-{digest[:16]}")

    def has_blocks(self, shards: int, blocks: int) -> bool:
        """Return whether the file that says which blocks are here has the size for so many."""
        return (self.folder / BLOCKS).stat().st_size == _bytes_of_blocks(shards, blocks)

    def discard(self) -> None:
        """End the use, and remove the dataset unless others use it: it is not as it was fetched."""
        self._use.close()
        with locked(self.cache.folder / LOCK), unused(self.folder / IN_USE) as free:
            if free:
                _remove(self.folder)

    def attach(self, shards: int, blocks: int) -> None:
        """Find which blocks are here. Raises StorageError."""
        self._tails = shards
        with naming_the_path(self.folder / BLOCKS):
            self._open_locks()
            held = mmap.mmap(self._descriptor.number, _bytes_of_blocks(shards, blocks))
        self._digests = np.frombuffer(held, np.uint64, shards)
        self._state = np.frombuffer(held, np.uint8, offset=self._digests.nbytes)
        keep_renewed(self)

    def renew(self) -> None:
        """Open the locks of a forked child, unless the dataset was removed: whoever wants to keep a
        block in it is told."""
        with suppress(OSError):
            self._open_locks()

    def _open_locks(self) -> None:
        """Open the locks, for this process alone: a forked child has those of its parent, which do
        not keep the two apart."""
        self._descriptor = _Descriptor(open_own(self.folder / BLOCKS, os.O_RDWR))
        self._locks = ByteLocks(self.folder / BLOCKS, self._descriptor.number)

    def path(self, name: str) -> Path:
        """Return where the blocks of a shard are."""
        return self._shards_folder / name

    def has_tail(self, shard: int) -> bool:
        """Whether the footer of a shard is here."""
        return bool(self._state[shard] == THERE)

    def has(self, block: int) -> bool:
        """Whether a block is here."""
        return bool(self._state[self._tails + block] == THERE)

    def missing(self, blocks: Indices) -> Bools:
        """Return which of these blocks are not here."""
        missing: Bools = self._state[self._tails + blocks] != THERE
        return missing

    def keep_tail(
        self, shard: int, name: str, size: int, blocks: int, get: Callable[[], bytes]
    ) -> bytes | None:
        """Bring the last bytes of a shard of `size` bytes, once. Return None if they are here then,
        else the bytes."""
        path, extra = self.path(name), self.cache.page * (3 + blocks // _EXTENTS_OF_PAGE)
        with self._locks.held(shard) as mine:
            if self._state[shard] == THERE:
                return None
            tail = get()
            if not mine:
                return tail
            start = size - len(tail)
            if self._has_room(shard, path, size, start, len(tail), extra):
                self._digests[shard] = xxhash.xxh3_64_intdigest(tail)
                return None if self._put(shard, path, size, start, tail) else tail
            return tail

    def keep(
        self,
        block: int,
        name: str,
        size: int,
        start: int,
        length: int,
        get: Callable[[], pa.Buffer],
    ) -> pa.Buffer | None:
        """Bring a block, `length` bytes from `start` on of a shard of `size` bytes, once; the
        result is as of `keep_tail`."""
        place, path = self._tails + block, self.path(name)
        if self._state[place] == ABSENT and self.cache.refuses:
            return get()
        with self._locks.held(place) as mine:
            if self._state[place] == THERE:
                return None
            if mine and self._has_room(place, path, size, start, length, 0):
                data = get()
                return None if self._put(place, path, size, start, data) else data
        return get()

    def is_tail(self, shard: int, tail: bytes) -> bool:
        """Return whether these are the last bytes of a shard as they were fetched."""
        return bool(self._digests[shard] == xxhash.xxh3_64_intdigest(tail))

    def forget_tail(self, shard: int) -> None:
        """Have a footer fetched anew: it cannot be read."""
        self.forget(shard - self._tails)

    def forget(self, block: int) -> None:
        """Have a block fetched anew: it is not what was written."""
        place = self._tails + block
        with self._locks.held(place) as mine:
            if mine and self._state[place] == THERE:
                self._state[place] = RESERVED

    def _has_room(
        self, place: int, path: Path, size: int, start: int, length: int, extra: int
    ) -> bool:
        """Return whether there is space for a stretch of a file, which is reserved then."""
        if self._state[place] == ABSENT:
            if not self._take_room(path, size, start, length, extra):
                return False
            self._state[place] = RESERVED
        return True

    def _put(self, place: int, path: Path, size: int, start: int, data: Any) -> bool:
        """Write a stretch of a file, and say that it is here; False if there was no room after
        all."""
        if not self._write(path, size, start, data):
            return False
        self._state[place] = THERE
        return True

    def _take_room(self, path: Path, size: int, start: int, length: int, extra: int) -> bool:
        """Reserve space for a stretch of a file, which is made where it is not there."""
        needed = self.cache.pages(start, length) + extra
        if not self.cache.reserve(self.folder, needed):
            return False
        try:
            with _opened(path, size) as descriptor:
                os.posix_fallocate(descriptor, start, length)
        except OSError as error:
            self.cache.give_back(self.folder, needed)
            if error.errno not in _FULL:
                raise StorageError(
                    f"{printable(str(path))}: cannot write here ({error.strerror or error})"
                ) from error
            self.cache.note_full()
            return False
        return True

    def _write(self, path: Path, size: int, start: int, data: Any) -> bool:
        """Write bytes, and return whether there was room: some file systems reserve no space."""
        view = memoryview(data).cast("B")
        try:
            with _opened(path, size) as descriptor:
                done = 0
                while done < len(view):
                    done += os.pwrite(descriptor, view[done : done + (1 << 30)], start + done)
        except OSError as error:
            if error.errno not in _FULL:
                raise StorageError(
                    f"{printable(str(path))}: cannot write here ({error.strerror or error})"
                ) from error
            self.cache.note_full()
            return False
        return True


class _Descriptor:
    """A descriptor that is closed with this object."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@contextmanager
def _opened(path: Path, size: int) -> Iterator[int]:
    """Open a sparse file of this size."""
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_size != size:
            os.ftruncate(descriptor, size)
        yield descriptor
    finally:
        os.close(descriptor)


def _bytes_of_blocks(shards: int, blocks: int) -> int:
    return 9 * shards + blocks


def about_of(folder: Path) -> About | None:
    """Return which dataset a folder holds; None if it is unfinished."""
    try:
        return About(**json.loads(read_bytes(folder / ABOUT)))
    except (OSError, ValueError, TypeError):
        return None


def used_of(folder: Path) -> int:
    """Return the bytes that are reserved for a folder."""
    try:
        return int.from_bytes(read_bytes(folder / USED), "little")
    except OSError:
        return 0


def opened_at(folder: Path) -> float:
    """Return when a dataset was opened last, in seconds since 1970."""
    try:
        return (folder / IN_USE).stat().st_mtime
    except OSError:
        return 0.0


def _count(folder: Path, size: int) -> None:
    with naming_the_path(folder):
        descriptor = open_own(folder / USED, os.O_RDWR | os.O_CREAT)
        try:  # in place: whenever this process ends, one of the two numbers is there
            before = int.from_bytes(os.pread(descriptor, 8, 0), "little")
            os.pwrite(descriptor, max(0, before + size).to_bytes(8, "little"), 0)
        finally:
            os.close(descriptor)


def _entry(folder: Path) -> Entry | None:
    """Return what is known of a folder; None if it is unfinished, or gone."""
    about = about_of(folder)
    if about is None:
        return None
    dataset_bytes, shards, there, total = 0, 0, 0, 0
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest = json.loads(read_bytes(folder / TABLES_FOLDER / MANIFEST))
        dataset_bytes, shards = int(manifest["bytes"]), int(manifest["shards"])
    with suppress(OSError):
        state = np.fromfile(folder / BLOCKS, np.uint8)[_bytes_of_blocks(shards, 0) :]
        there, total = int((state == THERE).sum()), len(state)
    with unused(folder / IN_USE) as free:
        in_use = not free
    return Entry(
        about.url,
        str(folder),
        used_of(folder),
        dataset_bytes,
        there,
        total,
        opened_at(folder),
        in_use,
    )


def _remove(folder: Path) -> None:
    """Remove the folder of a dataset, if a cache has made it."""
    if _is_removable(folder):
        _delete(folder)


def _delete(folder: Path) -> None:
    """Delete what a cache has put into the folder of a dataset, and the folder if nothing else is
    in it.

    What says that it is whole goes first: what is left is seen as unfinished.
    """
    with suppress(OSError, StorageError):
        (folder / ABOUT).unlink(missing_ok=True)
        for name in _OWN_FOLDERS:
            with suppress(FileNotFoundError):
                remove_tree(folder / name, folder.parent)
        own = [name for name in os.listdir(folder) if _OWN_FILE.fullmatch(name)]
        # the last one, so that what is left is counted
        for name in sorted(own, key=lambda name: name == USED):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _is_removable(folder: Path) -> bool:
    """Return whether a cache has made a folder, certainly: then what is its own there may be
    deleted."""
    return _has_dataset(folder) or _is_cached(folder)


def _has_dataset(folder: Path) -> bool:
    """Return whether a folder has a whole dataset: it says which, and has its name. Systems put
    files of their own there."""
    about = about_of(folder)
    if about is None or folder.name != f"{_hash_of(about.url)}-{about.digest[:16]}":
        return False
    entries = _entries_of(folder)
    return entries is not None and all(
        _is_of_cache(entry) for entry in entries if _is_name_of_ours(entry.name)
    )


def _is_cached(folder: Path) -> bool:
    """Return whether a folder, and no link to one, has only what a cache puts there: two folders
    and some ordinary files."""
    entries = _entries_of(folder)
    return entries is not None and all(map(_is_of_cache, entries))


def _has_nothing_of_ours(folder: Path) -> bool:
    """Return whether a folder, and no link to one, has no name that a cache gives: a dataset has
    room beside it."""
    entries = _entries_of(folder)
    return entries is not None and not any(_is_name_of_ours(entry.name) for entry in entries)


def _entries_of(folder: Path) -> list[os.DirEntry[str]] | None:
    """Return what is in a folder; None if it is a link, or cannot be listed."""
    if not is_folder(folder):
        return None
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return None


def _is_name_of_ours(name: str) -> bool:
    return name in _OWN_FOLDERS or _OWN_FILE.fullmatch(name) is not None


def _is_of_cache(entry: os.DirEntry[str]) -> bool:
    """Return whether this may be what a cache has put there: no link."""
    if entry.name in _OWN_FOLDERS:
        return entry.is_dir(follow_symlinks=False)
    return _is_name_of_ours(entry.name) and entry.is_file(follow_symlinks=False)


def _hash_of(url: str) -> str:
    return hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _is_name(name: str) -> bool:
    """Return whether a folder may be that of a dataset: nothing else that lies there is counted, or
    removed."""
    first, dash, second = name.partition("-")
    return bool(dash) and all(
        len(part) == 16 and set(part) <= set("0123456789abcdef") for part in (first, second)
    )
