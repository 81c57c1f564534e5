"""A folder that stands for a dataset on a store, as the processes see it that open files in it."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from shardctl.errors import DatasetError, DiskFullError, NoSuchKeyError, ShortAnswerError
from shardctl.format.lazy_folder.listing import Listing
from shardctl.format.lazy_folder.ranged import TAIL, OpenFile, RemoteFile, read_tail
from shardctl.format.names import BESIDE_SHARDS, CHECKSUMS, SHARDS
from shardctl.system.file_locks import locked
from shardctl.system.files import naming_the_path
from shardctl.system.machine import usable_cores
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

SHARES = 16
"""Room is looked for when a sixteenth of it may be used up: to look takes a moment."""

_BROUGHT, _COMING, _LOCKS = "brought", "coming", "locks"
"""Folders beside the one of the dataset: second names of the files that may be deleted, files that are written, locks."""

_STRIPES = 1024

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
        self._new_files = self._new_bytes = 0
        self._lock = threading.Lock()
        for name in (_BROUGHT, _COMING, _LOCKS):
            (files / name).mkdir(exist_ok=True)

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
        """Bring a file, and return whether it is there now. Of several that want it one brings it. Raises StoreError."""
        path = self.root / name
        if name == self.about.manifest:  # it came at the beginning, if it was there
            return path.exists()
        found = self._find(name)
        if found is None:
            return False
        stripe = self._files / _LOCKS / str(zlib.crc32(name.encode("utf-8", "surrogateescape")) % _STRIPES)
        with locked(stripe):
            return path.exists() or self._bring(path, found)

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

    def _bring(self, path: Path, found: Entry) -> bool:
        coming, kept = self._files / _COMING / path.name, path.name in self.about.kept
        if not kept:
            self._make_room(found.size if self.about.form == WHOLE else self._tail)
        try:
            with _on_disk(self._files.parents[1]), open(coming, "wb") as file:
                if self.about.form == ENDS and path.name not in _ENTIRE:
                    self._write_end(file.fileno(), path.name, found)
                else:
                    for piece in self.store.pieces(found, at_once=PIECES):
                        file.write(piece)
            with locked(self._files / "room"):
                if not kept:
                    second = self._files / _BROUGHT / path.name
                    second.unlink(missing_ok=True)
                    os.link(coming, second)
                coming.rename(path)
        except NoSuchKeyError:  # it was deleted after it was listed
            return False
        finally:
            coming.unlink(missing_ok=True)
        return True

    def _write_end(self, descriptor: int, name: str, found: Entry) -> None:
        """Write a file of the size of the object that has its last bytes alone, or, for a table, nothing."""
        os.ftruncate(descriptor, found.size)
        if name not in BESIDE_SHARDS and name not in self.about.kept:
            tail = read_tail(found.size, lambda start, length: self._get(found, start, length), self._tail)
            self._tail = max(self._tail, min(len(tail), 1 << 20))
            _write(descriptor, pa.py_buffer(tail), found.size - len(tail))

    def _make_room(self, size: int) -> None:
        """Delete the files that were brought first, so that there is room for some more. A file that is open stays readable.

        Those that came last stay: two for each process that may be reading, and those that are brought ahead.
        """
        share = self.about.limit // SHARES
        with self._lock:
            self._new_files, self._new_bytes = self._new_files + 1, self._new_bytes + size
            if self._new_files <= MOST_FILES // SHARES and self._new_bytes <= share:
                return
            self._new_files = self._new_bytes = 0
        with locked(self._files / "room"):
            there = sorted(_brought(self._files / _BROUGHT))
            total = size + share + sum(used for _, _, used, _ in there)
            for number, (_, name, used, inode) in enumerate(there[: -(AHEAD + 2) * usable_cores()]):
                if total <= self.about.limit and len(there) - number <= MOST_FILES - MOST_FILES // SHARES:
                    return
                total -= used
                with contextlib.suppress(FileNotFoundError):
                    if (self.root / name).lstat().st_ino == inode:  # not a file that has taken its place
                        (self.root / name).unlink()
                (self._files / _BROUGHT / name).unlink(missing_ok=True)


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


def _brought(folder: Path) -> Iterator[tuple[int, str, int, int]]:
    """Yield the files that may be deleted: when each came, its name, the bytes that it takes on the disk, its inode."""
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat()
            yield status.st_mtime_ns, entry.name, status.st_blocks * 512, status.st_ino


def _write(descriptor: int, data: pa.Buffer, start: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, start)
        view, start = view[count:], start + count
