"""A folder that stands for a dataset on a store, as the processes see it that open files in it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

import pyarrow as pa

from shardctl.errors import DatasetError, DiskFullError, NoSuchKeyError, ShortAnswerError
from shardctl.format.lazy_folder.listing import Listing
from shardctl.format.lazy_folder.ranged import TAIL, OpenFile, RemoteFile, read_tail
from shardctl.format.names import BESIDE_SHARDS, CHECKSUMS, SHARDS
from shardctl.system.files import naming_the_path
from shardctl.system.object_cache import Limits, NewFile, ObjectCache
from shardctl.system.remote_paths import AT, read_mark
from shardctl.system.stores import client_of
from shardctl.system.stores.base import Entry, Store
from shardctl.system.text import printable

WHOLE, ENDS, BLOCKS = "whole", "ends", "blocks"
"""How shards are brought: each whole; its end alone, in a file of its size; blocks when they are read, with no file."""


AHEAD = 2
"""Files that are brought ahead for each process that reads, however large they are."""

PIECES = 4
"""Requests for one file that are under way at the same time: fewer than usual, as many files are brought at once."""

MOST_FILES = 4096
"""Files of shards that may be there, however small."""

OPEN = 16
"""Shards that are read where they are, of which some blocks stay in memory: 8 MiB each, where samples are small."""

_CACHE = "cache"
"""The folder beside the one of the dataset in which files are that may be removed: those of the dataset are links to them."""

HELD = 2
"""Files that each process has, however little room there is: the one that it reads, and the one that it opens next."""

_ENTIRE = frozenset((SHARDS, CHECKSUMS))
"""What is read of the tables where only ends of shards are looked at."""


@lru_cache(maxsize=8)
def mirror_at(files: Path) -> Mirror:
    """Return the mirror in a scratch folder. One that was opened before a fork is opened anew."""
    return Mirror(files)


def mirror_of(root: Path) -> Mirror:
    """Return the mirror that the folder of a dataset is."""
    return mirror_at(root.parents[1])


os.register_at_fork(after_in_child=mirror_at.cache_clear)


class Mirror:
    """A folder that stands for a dataset on a store. Threads may share it, and processes the folder."""

    def __init__(self, files: Path) -> None:
        self._files, self.about = files, read_mark(files)
        self.root = files / AT / self.about.name
        self._listing: Listing | None = None
        self._open: dict[str, RemoteFile] = {}
        self._tail = TAIL
        self._lock = threading.Lock()
        (files / _CACHE).mkdir(exist_ok=True)
        limits = Limits(self.about.limit, MOST_FILES, HELD, 0, HELD)
        self.cache = ObjectCache(
            str(files / _CACHE),
            limits,
            lambda size: contextlib.nullcontext(),
            partial(_forget, self.root, frozenset(self.about.kept)),
        )

    @property
    def store(self) -> Store:
        """The client of this process. Raises StoreError, InstallError."""
        return client_of(self.about.url)

    @property
    def listing(self) -> Listing:
        """All that there is. Raises OSError if no list was made."""
        with self._lock:
            if self._listing is None:
                self._listing = Listing(self._files)
            return self._listing

    def names(self) -> list[str]:
        """Return the names in the folder of the dataset. Raises StoreError."""
        if self.about.listed:
            return list(self.listing)
        folders, objects = self.store.children(self.about.base.rstrip("/"))
        return [*folders, *(found.name[len(self.about.base) :] for found in objects)]

    @property
    def mean_size(self) -> int:
        """The bytes of a file, on average; very many where nothing was listed."""
        return self.listing.mean_size if self.about.listed else 1 << 40

    def bring(self, name: str) -> bool:
        """Bring a file, and return whether it is there now, and stays for a while. Of several that want it one brings it.

        Raises StoreError, StorageError.
        """
        path = self.root / name
        if name == self.about.manifest:  # it came at the beginning, if it was there
            return path.exists()
        with _on_disk(self._files.parents[1]):
            if self.cache.is_held(name):
                self._link(name)
                return True
        if path.exists():  # a repair has put it there
            return True
        found = self._find(name)
        return found is not None and self._bring(name, found)

    def _bring(self, name: str, found: Entry) -> bool:
        """Bring a file that the store has, and return whether it still had it."""
        try:
            with _on_disk(self._files.parents[1]):
                self.cache.hold(name, 0, partial(self._fill, name, found))
                self._link(name)
        except NoSuchKeyError:
            return False
        return True

    def _link(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            (self.root / name).hardlink_to(f"{self.cache.folder}/{name}")

    def close(self) -> None:
        """Let go of what was brought."""
        self.cache.close()

    def opened(self, name: str) -> OpenFile | None:
        """Return a shard that is read where it is; None where they are brought, or if there is none. Raises StoreError."""
        if self.about.form != BLOCKS or name in self.about.kept:
            return None
        with self._lock:
            file = self._open.pop(name, None)
        if file is None:
            found = self._find(name)
            if found is None:
                return None
            file = RemoteFile(found.size, lambda start, length: self._get(found, start, length))
        with self._lock:
            self._open[name] = file
            while len(self._open) > OPEN:
                self._open.pop(next(iter(self._open)))
        return OpenFile(file)

    def check_unchanged(self) -> None:
        """Raise DatasetError if the manifest on the store is another one by now."""
        if self.about.version:
            found = self.store.stat(self.about.manifest)
            if found is None or found.version != self.about.version:
                raise DatasetError(f"{printable(self.about.url)}: was replaced while it was read; run the same command again")

    def _find(self, name: str) -> Entry | None:
        """Return what the store has under a name, None for nothing. Its name is that below the URL of the dataset."""
        key = self.about.base + name
        if not self.about.listed:
            return self.store.stat(key)
        found = self.listing.find(name)
        return None if found is None else found._replace(name=key)

    def _get(self, found: Entry, start: int, length: int) -> pa.Buffer:
        """Return some bytes of a file. Raises StoreError."""
        data = self.store.get(found.name, start, length, found.version)
        if data.size != length:
            where = f"{printable(self.about.url)}/{printable(found.name)}"
            raise ShortAnswerError(f"{where}: {data.size} bytes came where {length} were asked for; run the same command again")
        return data

    def _fill(self, name: str, found: Entry, new: NewFile) -> int:
        """Write a file, or what is needed of it."""
        if self.about.form != ENDS or name in _ENTIRE:
            new.expect(found.size)
            for piece in self.store.pieces(found, at_once=PIECES):
                new.write(piece)
            return 0
        new.expect(self._tail)
        tail = b""  # of a table, nothing
        if name not in BESIDE_SHARDS and name not in self.about.kept:
            tail = read_tail(found.size, lambda start, length: self._get(found, start, length), self._tail)
            self._tail = max(self._tail, min(len(tail), 1 << 20))
        new.skip(found.size - len(tail))
        new.write(tail)
        return 0


@contextlib.contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    """Raise StorageError for what the system refuses in the folder for temporary files; where it is full, say what to do."""
    try:
        with naming_the_path(folder):
            yield
    except DiskFullError as error:
        raise DiskFullError(
            f"{error}; shards are brought there: set TMPDIR to a folder on a larger disk, or SHARDCTL_SCRATCH_LIMIT to less"
        ) from error


def _forget(root: Path, kept: frozenset[str], name: str, inode: int) -> None:
    """Remove a file from the folder of the dataset, if it is still the one that was brought, and need not stay."""
    with contextlib.suppress(FileNotFoundError):
        if name not in kept and (root / name).lstat().st_ino == inode:
            (root / name).unlink()
