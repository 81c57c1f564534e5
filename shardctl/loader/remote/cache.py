"""A folder of this machine in which blocks of datasets are kept, for all processes that read them.
docs/commands/cache.md.

    DIR/lock                   locked (flock) while space is reserved, and while datasets are removed
    DIR/URLHASH.lock           locked while a dataset of this URL is looked up, and its tables are fetched
    DIR/URLHASH-DIGEST/        one generation of a dataset
        dataset.json           its URL, and which manifest.json it is of; written last: without it the folder is unfinished
        in-use                 readers hold a shared lock; its time of change is when it was opened last
        used                   the bytes that were reserved for this folder, 8 bytes
        tables/                manifest.json, shards.arrow
        blocks                 8 bytes for each shard: the XXH3-64 of its footer; then a byte for each shard (its footer), and
                               one for each block: 0 absent, 1 space reserved, 2 there
        shards/NAME            sparse, as long as the shard: each block that is there lies where it lies in the shard. Where
                               another generation has the shard, it is the same file (a hard link)

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
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import DatasetError, StorageError
from shardctl.format.arrays import Array, Bools, Hashes, Numbers, edges_of
from shardctl.format.names import MANIFEST, content_digits
from shardctl.format.tables import ShardTable
from shardctl.system import file_locks
from shardctl.system.file_locks import ByteLocks, Use, locked, open_own, unused
from shardctl.system.files import (
    PARTIAL,
    gone,
    is_folder,
    naming_the_path,
    read_bytes,
    remove_tree,
    write_atomically,
)
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.fork import keep_renewed
from shardctl.system.text import printable

LOCK, IN_USE, USED, ABOUT, BLOCKS = "lock", "in-use", "used", "dataset.json", "blocks"
TABLES_FOLDER, SHARDS_FOLDER = "tables", "shards"
_OWN_FOLDERS = (TABLES_FOLDER, SHARDS_FOLDER)
_OWN_FILE = re.compile(
    rf"({IN_USE}|{USED}|{BLOCKS}|{re.escape(ABOUT)})(\.[0-9a-f]+{re.escape(PARTIAL)})?"
)

_NAME = re.compile("[0-9a-f]{16}-[0-9a-f]{16}")
"""Names of the folders of datasets: nothing else that lies there is counted, or removed."""

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
    SHA-256 of that file. `generation` is the folder that has a copy of it, which is never replaced;
    "" in format 2."""

    url: str
    version: str
    digest: str
    generation: str = ""


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
            yield mine >= 0

    def find(self, url: str, version: str) -> CachedDataset | None:
        """Return the dataset of this URL whose manifest has this version, if it is here."""
        for folder in sorted(self.folder.glob(f"{_hash_of(url)}-*")):
            about = about_of(folder)
            if about is not None and (about.url, about.version) == (url, version):
                with suppress(FileNotFoundError):  # it was removed just now
                    return CachedDataset(self, folder)
        return None

    def make(
        self, about: About, size: int, fetch: Callable[[Path], object]
    ) -> CachedDataset | None:
        """Return a new dataset, whose tables of `size` bytes `fetch` writes to a folder; None if
        there is no room. Call it in `looking_up`.

        Where one with the same digest is here already, it gets the new version. It has what is here
        of its shards in other generations.
        """
        folder = self.folder / f"{_hash_of(about.url)}-{about.digest[:16]}"
        if about_of(folder) is not None:
            with suppress(FileNotFoundError):
                found = CachedDataset(self, folder)
                write_atomically(folder / ABOUT, json.dumps(asdict(about)).encode())
                return found
        there = _entries_of(folder)
        if os.path.lexists(folder) and (there is None or all(there)):
            raise StorageError(
                f"{printable(folder)}: the cache needs this name; move away what has it, or "
                "remove the link"
            )
        _delete(folder)  # an unfinished one: nobody else may make it now
        # the list of blocks is shorter than the tables
        needed = self.page * _OWN_PAGES + 2 * size
        with locked(self.folder / LOCK), naming_the_path(self.folder):
            if not self._make_room(needed, folder):
                return None
            folder.mkdir(exist_ok=True)
            _count(folder, needed)
            use = Use(folder / IN_USE)
        with naming_the_path(folder), closing(use):
            try:
                for name in _OWN_FOLDERS:
                    (folder / name).mkdir(exist_ok=True)
                fetch(folder / TABLES_FOLDER)
                table = _table_of(folder)
                held = np.zeros(_bytes_of_blocks(table), np.uint8)
                others = self.folder.glob(f"{_hash_of(about.url)}-*")
                for other in sorted(filter(_has_dataset, others), key=opened_at, reverse=True):
                    with suppress(OSError, DatasetError):
                        self._take_over(other, folder, table, held)
                write_atomically(folder / BLOCKS, held.tobytes())
                write_atomically(folder / ABOUT, json.dumps(asdict(about)).encode())
                return CachedDataset(self, folder)
            except BaseException as error:
                _delete(folder)
                if not isinstance(error, OSError) or error.errno not in _FULL:
                    raise
                self.note_full()
                return None

    def _take_over(self, old: Path, new: Path, now: ShardTable, held: Array) -> None:
        """Have in one folder, of the shards `now`, those that are here in another: one name means
        the same bytes. What is here then is noted in `held`, the new list of blocks.

        Both count all blocks of such a shard from then on, whichever fetches them and whichever
        stays: so there is room for them. Raises OSError, DatasetError if the tables or the list of
        the other folder are damaged.
        """
        was, data = _table_of(old), np.memmap(old / BLOCKS, np.uint8, "r+")
        numbers = {path: shard for shard, path in enumerate(was.paths) if content_digits(path)}
        if len(data) != _bytes_of_blocks(was):
            raise DatasetError(f"{printable(old / BLOCKS)}: not of this dataset")
        (digests_there, there), mine = _parts(data, len(was)), held.copy()
        digests, state = _parts(mine, len(now))
        first_there, first = (len(each) + edges_of(each.block_counts) for each in (was, now))
        taken, added, size = list[tuple[Path, Array]](), 0, 0
        for shard, path in enumerate(now.paths):
            number = numbers.get(path, -1)
            if number < 0 or there[number] != THERE or state[shard] != ABSENT:
                continue
            file, count = new / SHARDS_FOLDER / Path(path).name, int(now.block_counts[shard])
            with suppress(OSError):  # not every file system has links
                file.hardlink_to(old / SHARDS_FOLDER / file.name)
                status, blocks = file.stat(), there[first_there[number] :][:count]
                whole = self.pages(0, status.st_size) + self.beside(count)
                size, added = size + whole, added + max(0, whole - status.st_blocks * 512)
                digests[shard], state[shard] = digests_there[number], THERE
                state[first[shard] :][:count] = np.maximum(blocks, RESERVED)
                taken.append((file, blocks))
        with locked(self.folder / LOCK):
            if taken and self._make_room(size + added, new):  # which may remove the other folder
                _count(new, size)
                if (old / USED).exists():
                    _count(old, added)
                for _, blocks in taken:
                    blocks[blocks == ABSENT] = RESERVED
                held[:] = mine
                return
        for file, _ in taken:
            file.unlink(missing_ok=True)

    def beside(self, blocks: int) -> int:
        """Return how many bytes the disk needs beside the blocks of a shard, at the most."""
        return self.page * (3 + blocks // _EXTENTS_OF_PAGE)

    def pages(self, start: int, length: int) -> int:
        """Return how many bytes a stretch of a file takes on the disk, at the most."""
        return (-(-(start + length) // self.page) - start // self.page) * self.page

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
        for folder in [*sorted(self.folders(), key=opened_at), None]:
            disk, used = os.statvfs(self.folder), sum(map(used_of, self.folders()))
            is_full = (disk.f_bavail - KEPT_FREE * disk.f_blocks) * disk.f_frsize < size
            is_over = self.limit is not None and self.page + used + size > self.limit
            if not (is_full or is_over):
                return True
            if folder not in (None, keep):
                _remove_unused(folder)
        self._refused = time.monotonic()
        if is_full:
            self.note_full()
        return False

    def give_back(self, folder: Path, size: int) -> None:
        """Count bytes no more that were reserved, and not used."""
        with locked(self.folder / LOCK):
            _count(folder, -size)

    def note_full(self) -> None:
        """Ask for no more space for a while, and say once that the disk is full."""
        self._refused = time.monotonic()
        if not self._warned:
            self._warned = True
            shown = printable(self.folder)
            warnings.warn(
                f"{shown}: the disk of the cache is full; what is read now is not kept",
                CacheWarning,
                stacklevel=2,
            )

    def folders(self) -> list[Path]:
        """Return the folders of all datasets, also of those that are unfinished."""
        with os.scandir(self.folder) as found:
            return [
                Path(each.path)
                for each in found
                if each.is_dir(follow_symlinks=False) and _NAME.fullmatch(each.name)
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
                (removed if _remove_unused(folder) else kept).extend(filter(None, [entry]))
        return removed, kept


class CachedDataset:
    """One dataset of a cache, in use as long as this object is there. Threads may share it.

    `attach` must be called before blocks are kept. The place of a footer is the number of its shard;
    the places of blocks come after those of all footers.
    """

    def __init__(self, cache: Cache, folder: Path) -> None:
        """Use a folder that is complete. Raises FileNotFoundError if it was removed."""
        self.cache, self.folder = cache, folder
        self.tables, self._shards_folder = folder / TABLES_FOLDER, folder / SHARDS_FOLDER
        self._use = Use(folder / IN_USE)
        # another process is removing it, and a moment ago what says so was gone
        if not _has_dataset(folder):
            self._use.close()
            raise gone(folder)
        os.utime(folder / IN_USE)
        self._close_locks: Callable[[], object] = int

    def __del__(self) -> None:
        """End the use. A forked child has the same lock: it is dropped when the last of them is
        gone."""
        with suppress(AttributeError):
            self._use.close()

    def is_of(self, digest: str) -> bool:
        """Return whether the manifest that was fetched has this SHA-256: the name of the folder has
        a part of it."""
        return self.folder.name.endswith(f"-{digest[:16]}")

    def discard(self) -> None:
        """End the use, and remove the dataset unless others use it: it is not as it was fetched."""
        self._use.close()
        with locked(self.cache.folder / LOCK):
            _remove_unused(self.folder)

    def attach(self, table: ShardTable) -> None:
        """Find which blocks are here. Raises StorageError, and DatasetError where the list of them
        is not of so many."""
        with naming_the_path(self.folder / BLOCKS):
            if (self.folder / BLOCKS).stat().st_size != _bytes_of_blocks(table):
                raise DatasetError(f"{printable(self.folder / BLOCKS)}: not of this dataset")
            self.renew()
            held = mmap.mmap(self._descriptor, _bytes_of_blocks(table))
        self._table = table
        self._digests, self._state = _parts(held, len(table))
        keep_renewed(self)

    def renew(self) -> None:
        """Open the locks, for this process alone: a forked child has those of its parent, which do
        not keep the two apart. Where the dataset was removed, whoever wants to keep a block in it is
        told."""
        self._close_locks()
        with suppress(FileNotFoundError):
            self._descriptor = open_own(self.folder / BLOCKS, os.O_RDWR)
            self._close_locks = weakref.finalize(self, os.close, self._descriptor)
            self._locks = ByteLocks(self.folder / BLOCKS, self._descriptor)

    def path(self, shard: int) -> Path:
        """Return where the blocks of a shard are."""
        return self._shards_folder / Path(self._table.paths[shard]).name

    def has(self, place: int) -> bool:
        """Whether a footer or a block is here."""
        return bool(self._state[place] == THERE)

    def missing(self, places: Numbers) -> Bools:
        """Return which of these are not here."""
        missing: Bools = self._state[places] != THERE
        return missing

    def keep(
        self, place: int, shard: int, start: int | None, get: Callable[[], pa.Buffer]
    ) -> pa.Buffer | None:
        """Bring some bytes of a shard, once: those from `start` on, None for its footer. Return None
        if they are here then, else the bytes."""
        if self._state[place] == ABSENT and self.cache.refuses:
            return get()
        with self._locks.held(place) as mine:
            if self._state[place] == THERE:
                return None
            data = get()
            if mine and self._put(place, shard, start, data):
                return None
        return data

    def is_tail(self, shard: int, tail: bytes) -> bool:
        """Return whether these are the last bytes of a shard as they were fetched."""
        return bool(self._digests[shard] == xxhash.xxh3_64_intdigest(tail))

    def forget(self, place: int) -> None:
        """Have a footer or a block fetched anew: it is not what was written."""
        with self._locks.held(place) as mine:
            if mine and self._state[place] == THERE:
                self._state[place] = RESERVED

    def _put(self, place: int, shard: int, start: int | None, data: pa.Buffer) -> bool:
        """Write a stretch of a file, and return whether there was room: some file systems reserve no
        space."""
        path, size, beside = self.path(shard), int(self._table.sizes[shard]), 0
        if start is None:  # the first of this file
            start = size - data.size
            beside = self.cache.beside(int(self._table.block_counts[shard]))
        needed = self.cache.pages(start, data.size) + beside
        is_new = self._state[place] == ABSENT
        if is_new and not self.cache.reserve(self.folder, needed):
            return False
        try:
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
            try:
                if os.fstat(descriptor).st_size != size:
                    os.ftruncate(descriptor, size)
                if is_new:
                    os.posix_fallocate(descriptor, start, data.size)
                    self._state[place] = RESERVED
                done, view = 0, memoryview(data)
                while done < len(view):
                    done += os.pwrite(descriptor, view[done : done + (1 << 30)], start + done)
            finally:
                os.close(descriptor)
        except OSError as error:
            if self._state[place] == ABSENT:
                self.cache.give_back(self.folder, needed)
            if error.errno not in _FULL:
                with naming_the_path(path):
                    raise
            self.cache.note_full()
            return False
        if place < len(self._digests):
            self._digests[place] = xxhash.xxh3_64_intdigest(data)
        self._state[place] = THERE
        return True


def _table_of(folder: Path) -> ShardTable:
    """Return the shards of a dataset of the cache. Raises DatasetError."""
    return ShardTable(LocalFolder(folder / TABLES_FOLDER))


def _bytes_of_blocks(table: ShardTable) -> int:
    return 9 * len(table) + len(table.block_rows)


def _parts(data: Any, shards: int) -> tuple[Hashes, Array]:
    """Return the two parts of a list of blocks: the digests of footers, (shards,) uint64; the states
    of footers, then of blocks, (shards + blocks,) uint8."""
    digests: Hashes = np.frombuffer(data, np.uint64, shards)
    return digests, np.frombuffer(data, np.uint8, offset=digests.nbytes)


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
    dataset_bytes, there, total = 0, 0, 0
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest = json.loads(read_bytes(folder / TABLES_FOLDER / MANIFEST))
        dataset_bytes, shards = int(manifest["bytes"]), int(manifest["shards"])
        state = _parts(np.fromfile(folder / BLOCKS, np.uint8), shards)[1][shards:]
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


def _remove_unused(folder: Path) -> bool:
    """Remove the folder of a dataset if nobody uses it, and return whether that is so. What no cache
    has made stays."""
    with unused(folder / IN_USE) as free:
        if free and _is_removable(folder):
            _delete(folder)
    return free


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
    entries = _entries_of(folder)
    return _has_dataset(folder) or (entries is not None and not entries[1])


def _has_dataset(folder: Path) -> bool:
    """Return whether a folder has a whole dataset: it says which, and has its name. Systems put
    files of their own there."""
    about = about_of(folder)
    named = about is not None and folder.name == f"{_hash_of(about.url)}-{about.digest[:16]}"
    return named and _entries_of(folder) is not None


def _entries_of(folder: Path) -> tuple[int, int] | None:
    """Return how much in a folder has a name that a cache gives, and how much has another.

    None if the folder, or anything of such a name in it, may be no cache's: it is a link, or no
    folder or ordinary file as it should be.
    """
    if not is_folder(folder):
        return None
    own = others = 0
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.name in _OWN_FOLDERS:
                    fits = entry.is_dir(follow_symlinks=False)
                elif _OWN_FILE.fullmatch(entry.name):
                    fits = entry.is_file(follow_symlinks=False)
                else:
                    others += 1
                    continue
                if not fits:
                    return None
                own += 1
    except OSError:
        return None
    return own, others


def _hash_of(url: str) -> str:
    return hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
