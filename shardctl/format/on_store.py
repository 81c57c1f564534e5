"""A dataset on a store, as the processes see it that read it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import pyarrow as pa

from shardctl.errors import DatasetError, DiskFullError, NoSuchKeyError
from shardctl.format.generations import WAS_REPLACED
from shardctl.format.manifest import Manifest
from shardctl.format.names import (
    BESIDE_SHARDS,
    CHECKSUMS,
    DATA,
    MANIFEST,
    SHARDS,
    Places,
    are_paths_inside,
)
from shardctl.format.stretches import TAIL, OpenFile, RemoteFile, read_tail
from shardctl.system.fetching import AT_ONCE, Fetcher
from shardctl.system.files import gone, naming_the_path, sha256_of
from shardctl.system.folders import Folder, LocalFolder, Note
from shardctl.system.machine import usable_cores
from shardctl.system.object_cache import Limits, NewFile, ObjectCache
from shardctl.system.stores import client_of
from shardctl.system.stores.base import Entry, Store
from shardctl.system.stores.listing import Keys
from shardctl.system.text import printable

Form = Literal["whole", "ends", "blocks"]
"""How shards are fetched: each whole; its end alone, in a file of its size; blocks when they are
read, with no file."""

PIECES = 4
"""Requests for one file that are under way at the same time: fewer than usual, as many files are
fetched at once."""

OPEN = 16
"""Shards that are read where they are, of which some blocks stay in memory: 8 MiB each, where
samples are small."""

HELD = 2
"""Files that each process has, however little room there is: the one that it reads, and the one
that it opens next."""

PREFETCH = 2
"""Files that are fetched ahead for each process that reads, however large they are."""

PREFETCH_BYTES = 128 << 20
"""Bytes of files that are fetched ahead for all of them: of small ones many, since each takes as
long as an answer."""

_CACHE, _WORK = "cache", "work"
"""Folders in the one of the handle: files that may be removed at any time, and those that stay."""

_ENTIRE = frozenset((SHARDS, CHECKSUMS))
"""What is read of the tables where only ends of shards are looked at."""


@dataclass(frozen=True)
class DatasetOnStore(Folder):
    """The dataset at a URL, while a command reads it. Files of the dataset come into `folder`, a
    scratch folder of the command.

    Its files lie at their `places` below the URL; the manifest is right below it. `form` says how shards are fetched. Up to `limit` bytes may be on the disk,
    without the files of the `kept` names. `version` is the one of the manifest, "" if there is no
    manifest. `listed` says whether all files were listed. A file in `work` counts instead of the
    file on the store: a repair changes the dataset there, and puts the files on the store in the
    end. Another process that is given this record finds the same files.
    """

    url: str
    places: Places
    form: Form
    folder: str
    limit: int
    version: str
    kept: tuple[str, ...]
    listed: bool

    @property
    def text(self) -> str:
        """The URL."""
        return self.url

    @property
    def local(self) -> None:
        """Nothing: its files come and go."""
        return

    @property
    def work(self) -> Path:
        """The folder of this machine with the files that stay: what is kept, and what a repair has
        made."""
        return Path(self.folder) / _WORK

    def shown(self, name: str = "") -> str:
        """Return the URL of a file, or of the dataset, as it is printed."""
        return printable(f"{self.url}/{self.key_of(name)}" if name else self.url)

    def key_of(self, name: str) -> str:
        """Return the key of a file of the dataset, below its URL."""
        return name if name == MANIFEST else self.places.of(name)

    def stat(self, name: str) -> Entry | None:
        """Return what is known of a file: by the list if there is one, else by a request."""
        found = LocalFolder(self.work).stat(name)
        # the manifest came at the beginning, if it was there
        if found is not None or name == MANIFEST:
            return found
        there = _state_of(self).find(name)
        return None if there is None else there._replace(name=name)

    def names(self) -> list[str]:
        """Return the names in the dataset's folder, those of changed files too."""
        here = (path.relative_to(self.work) for path in self.work.rglob("*") if path.is_file())
        return sorted({*(path.as_posix() for path in here), *_state_of(self).names()})

    def open(self, name: str) -> pa.NativeFile:
        """Open a file: where blocks are read when they are needed, each is one request; else it is
        fetched, and mapped."""
        beside = name == MANIFEST or name in self.kept or (self.work / name).exists()
        if self.form == "blocks" and not beside:
            return pa.PythonFile(OpenFile(_state_of(self).opened(name)), mode="r")
        return super().open(name)

    def path(self, name: str) -> Path:
        """Return the path of a file that has been fetched; of a shard, it stays until some more of
        them were."""
        own = self.work / name
        if name == MANIFEST or own.exists():
            return own
        path = _state_of(self).fetch(name)
        if name in self.kept:
            if self._digest_of(name) not in ("", sha256_of(path)):  # perhaps a proxy's answer
                self.forget(name)
                path = _state_of(self).fetch(name)
            with suppress(FileExistsError):
                own.hardlink_to(path)
            return own
        return path

    def _digest_of(self, name: str) -> str:
        """Return the SHA-256 of a file beside the shards, "" if the manifest cannot be read."""
        with suppress(DatasetError):
            manifest = Manifest.load(LocalFolder(self.work))
            return manifest.files[name].sha256 if name in manifest.files else ""
        return ""

    def forget(self, name: str) -> bool:
        """Fetch a file anew when it is read next, once, unless it was changed here."""
        if (self.work / name).exists():
            return False
        return _state_of(self).forget(name)

    def prefetch(self, names: Sequence[str]) -> AbstractContextManager[Note]:
        """While the block runs, fetch files before they are read, for all processes that read some
        of them in a row."""
        if self.form == "blocks" or not names:
            return super().prefetch(names)
        return _state_of(self).prefetch(names, self.path)

    def check_unchanged(self) -> None:
        """Raise DatasetError if the manifest on the store is another one by now."""
        if self.version:
            found = _state_of(self).store.stat(MANIFEST)
            if found is None or found.version != self.version:
                raise DatasetError(f"{self.shown()}: {WAS_REPLACED}")

    def close(self) -> None:
        """Let go of what was fetched."""
        if (state := _states.pop(self, None)) is not None:
            state.cache.close()


def _state_of(dataset: DatasetOnStore) -> _State:
    """Return what this process has of a dataset: from the first use on, until it is closed."""
    # of several threads at once, all get the one that is there first
    return _states.get(dataset) or _states.setdefault(dataset, _State(dataset))


_states: dict[DatasetOnStore, _State] = {}

# a forked child begins anew: what the parent has of a dataset is for the threads of the parent
os.register_at_fork(after_in_child=_states.clear)


class _State:
    """What this process has of a dataset on a store. Threads share it."""

    def __init__(self, dataset: DatasetOnStore) -> None:
        self._dataset = dataset
        self._open: dict[str, RemoteFile] = {}
        self._forgotten = set[str]()
        self._tail = TAIL
        self._lock = threading.Lock()
        folder = Path(dataset.folder) / _CACHE
        folder.mkdir(exist_ok=True)
        limits = Limits(dataset.limit, HELD, 0, HELD)
        self.cache = ObjectCache(str(folder), limits, lambda size: nullcontext())

    @property
    def store(self) -> Store:
        """The client of this process."""
        return client_of(self._dataset.url)

    @cached_property
    def listing(self) -> Keys:
        """All that there is. Raises OSError if no list was made."""
        return Keys((Path(self._dataset.folder) / LISTED).iterdir())

    def names(self) -> list[str]:
        """Return the names of what is right below the URL, among the shards, and beside the
        tables, as they were listed."""
        tables, names = self._dataset.places.tables, set[str]()
        for key in self.listing:
            if not are_paths_inside([key]):
                continue
            if tables and key.startswith(tables):
                names.add(key[len(tables) :].partition("/")[0])
            else:
                folder, _, name = key.partition("/")
                is_beside = folder == DATA and name
                names.add(f"{DATA}/{name.partition('/')[0]}" if is_beside else folder)
        return sorted(names)

    def find(self, name: str) -> Entry | None:
        """Return what the store has under a name, None for nothing. Its name is that below the
        URL."""
        key = self._dataset.key_of(name)
        return self.listing.get(key) if self._dataset.listed else self.store.stat(key)

    @contextmanager
    def there(self, name: str) -> Iterator[Entry]:
        """Yield what the store has under a name, as `find` does. Raises FileNotFoundError where
        nothing is there, or no longer."""
        found, url = self.find(name), f"{self._dataset.url}/{self._dataset.key_of(name)}"
        if found is None:
            raise gone(url)
        try:
            yield found
        except NoSuchKeyError as error:
            raise gone(url) from error

    def fetch(self, name: str) -> Path:
        """Return the path of a file in the cache. Of several that want it one fetches it.

        Raises FileNotFoundError, StoreError, StorageError.
        """
        copy, disk = _copy_of(name), Path(self._dataset.folder).parents[1]
        with _on_disk(disk):
            if self.cache.is_held(copy):
                return Path(self.cache.folder, copy)
        with self.there(name) as found, _on_disk(disk):
            return Path(self.cache.hold(copy, 0, partial(self._fill, name, found)))

    def forget(self, name: str) -> bool:
        """Let go of a file, the first time."""
        with self._lock:
            if name in self._forgotten:
                return False
            self._forgotten.add(name)
            self._open.pop(name, None)
        Path(self.cache.folder, _copy_of(name)).unlink(missing_ok=True)
        return True

    def opened(self, name: str) -> RemoteFile:
        """Return a shard that is read where it is. Raises FileNotFoundError, StoreError."""
        with self._lock:
            file = self._open.pop(name, None)
        if file is None:
            with self.there(name) as found:
                get = partial(self.store.exactly, found)
                file = RemoteFile(found.size, read_tail(found.size, get), get)
        with self._lock:
            self._open[name] = file
            while len(self._open) > OPEN:
                self._open.pop(next(iter(self._open)))
        return file

    @contextmanager
    def prefetch(self, names: Sequence[str], fetch: Callable[[str], Path]) -> Iterator[Note]:
        """Fetch files with `fetch` before they are read."""
        room = AT_ONCE
        if self._dataset.form == "whole":
            room = 0  # how large they are is not known
            if self._dataset.listed:
                most = min(PREFETCH_BYTES, self._dataset.limit // 4)
                room = min(AT_ONCE, most // self.listing.mean_size)
        several = max(PREFETCH, room // usable_cores())
        at_once = min(AT_ONCE, several * usable_cores())
        self.cache.hold_at_least(at_once + HELD)
        # who reads a file that cannot be fetched meets the same, and tells it
        fetcher = Fetcher(lambda number: fetch(names[number]), lambda number: 1, len(names))
        coming = fetcher.ahead(keeps=False)

        def note(number: int) -> None:
            coming.expect(range(number + 1, min(number + 1 + several, len(names))))

        try:
            note(-1)
            yield note
        finally:
            fetcher.close(LEAVE_SECONDS)

    def _fill(self, name: str, found: Entry, new: NewFile) -> int:
        """Write a file, or what is needed of it."""
        if self._dataset.form != "ends" or name in _ENTIRE:
            new.expect(found.size)
            for piece in self.store.pieces(found, at_once=PIECES):
                new.write(piece)
            return 0
        new.expect(self._tail)
        tail = b""  # of a table, nothing
        if name not in BESIDE_SHARDS and name not in self._dataset.kept:
            tail = read_tail(found.size, partial(self.store.exactly, found), self._tail)
            self._tail = max(self._tail, min(len(tail), 1 << 20))
        new.skip(found.size - len(tail))
        new.write(tail)
        return 0


def _copy_of(name: str) -> str:
    """Return the name of a file in the cache: beside the cache's own files, whose names an object
    may have too."""
    return f"files/{name}"


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    """Raise StorageError for what the system refuses in the folder for temporary files; where it is
    full, say what to do."""
    try:
        with naming_the_path(folder):
            yield
    except DiskFullError as error:
        raise DiskFullError(
            f"{error}; shards are downloaded to it: set TMPDIR to a larger disk, or "
            "SHARDCTL_SCRATCH_LIMIT to less"
        ) from error


LEAVE_SECONDS = 2.0
"""How long the end waits for requests that are on their way: after Ctrl-C one may be for a minute."""


LISTED = "listed"
"""The folder of the list of all objects."""
