"""Opening a dataset on a store: its tables are fetched to a local folder, once on each machine
where there is a cache."""

from __future__ import annotations

import hashlib
import os
import weakref
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from shardctl.errors import (
    DatasetError,
    NoSuchKeyError,
    ObjectChangedError,
    UsageError,
    WrongAnswerError,
)
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST, SHARDS
from shardctl.format.on_store.manifest import missing_dataset, read_manifest
from shardctl.format.tables import ShardTable
from shardctl.loader.remote.cache import About, Cache, CachedDataset
from shardctl.loader.remote.remote_blocks import RemoteDataset
from shardctl.system.files import (
    FileFacts,
    naming_the_path,
    read_bytes,
    replacing,
    sha256_of,
    write_atomically,
)
from shardctl.system.folders import LocalFolder, StoreFolder
from shardctl.system.scratch import scratch_folder
from shardctl.system.stores import forget_clients
from shardctl.system.stores.base import Entry, asked_again
from shardctl.system.text import printable, size_of

CACHE_VARIABLE, LIMIT_VARIABLE = "SHARDCTL_CACHE", "SHARDCTL_CACHE_LIMIT"
"""Environment variables: the folder of the cache and its limit, where a program names none."""


_COPY_ADVICE = "check that the dataset was copied whole"

_TRIES = 3
"""How often a dataset is opened that is replaced between the reading of two of its files."""


def cache_of(folder: str | Path | bool | None, limit: int | str | None) -> Cache | None:
    """Return the cache that is meant: that of the environment variables for None, none for False.

    Raises UsageError, StorageError.
    """
    of = "cache_limit"
    if folder is None:
        folder = os.environ.get(CACHE_VARIABLE) or False
        if limit is not None and not folder:
            raise UsageError(
                "--cache-limit needs --cache, the folder of the cache, or the variable "
                f"{CACHE_VARIABLE}"
            )
        if limit is None and os.environ.get(LIMIT_VARIABLE):
            limit, of = os.environ[LIMIT_VARIABLE], LIMIT_VARIABLE
    if isinstance(folder, bool):
        if folder:
            raise UsageError("cache= takes a folder, or False for no cache")
        return None
    return Cache(Path(folder), None if limit is None else size_of(limit, of))


@dataclass(frozen=True)
class DatasetHandle:
    """What opens the same dataset again, in another process too. On this machine, its tables lie in
    `tables`."""

    about: About
    cache: Cache | None
    tables: str


def open_remote(url: str, cache: Cache | None) -> RemoteDataset:
    """Open the dataset below a URL as it is now. Raises DatasetError, StoreError, StorageError,
    InstallError, UsageError."""
    forget_clients()  # a program that opens it again may have other credentials now
    folder = StoreFolder(url.rstrip("/"))
    for left in reversed(range(_TRIES)):
        try:
            return _opened(folder, cache)
        except ObjectChangedError:
            if not left:
                raise
    raise AssertionError("unreachable")


def open_again(handle: DatasetHandle) -> RemoteDataset:
    """Open the same dataset in another process. Raises DatasetError if another one has taken its
    place."""
    about = handle.about
    if handle.cache is not None:
        with handle.cache.looking_up(about.url):
            kept = handle.cache.find(about.url, about.version)
            if kept is not None and (found := _from_cache(about, kept)) is not None:
                return found
    manifest = Path(handle.tables) / MANIFEST
    # of the process that handed this one over
    if manifest.exists() and _digest(manifest.read_bytes()) == about.digest:
        return RemoteDataset(
            about, Manifest.load(LocalFolder(Path(handle.tables))).base, Path(handle.tables), None
        )
    opened = open_remote(about.url, handle.cache)
    if opened.about.digest != about.digest:
        raise DatasetError(
            f"{printable(about.url)}: replaced by another dataset while it was read; open it again"
        )
    return opened


def handle_of(dataset: RemoteDataset) -> DatasetHandle:
    """Return what opens a dataset again."""
    cache = dataset.cached.cache if dataset.cached is not None else None
    return DatasetHandle(dataset.about, cache, str(dataset.tables))


def fetch_file(dataset: RemoteDataset, name: str, facts: FileFacts) -> None:
    """Bring another file of the dataset to its tables, unless it is there as it was. Raises
    DatasetError, StoreError."""
    path = dataset.tables / name
    if not path.exists() or sha256_of(path) != facts.sha256:
        _fetch(StoreFolder(dataset.url), dataset.base, dataset.tables, name, facts)


def _opened(folder: StoreFolder, cache: Cache | None) -> RemoteDataset:
    if cache is None:
        return _in_scratch(folder, _about(folder), None)
    with cache.looking_up(folder.url) as mine:
        found = folder.stat(MANIFEST)
        if found is None:
            raise missing_dataset(folder.url)
        kept = cache.find(folder.url, found.version)
        if (
            kept is not None
            and (opened := _from_cache(About(folder.url, found.version, ""), kept)) is not None
        ):
            return opened
        about, data = _about(folder)
        if not mine:
            return _in_scratch(folder, (about, data), None)
        manifest = Manifest.parse(pa.py_buffer(data), folder.shown(MANIFEST))
        facts = manifest.files[SHARDS]

        def fetch(tables: Path) -> tuple[int, int]:
            return _fetch_tables(folder, manifest, data, tables)

        kept = cache.make(about, cache.pages(0, len(data)) + cache.pages(0, facts.bytes), fetch)
        if kept is not None and (opened := _from_cache(about, kept)) is not None:
            return opened
    return _in_scratch(folder, (about, data), None)


def _from_cache(about: About, kept: CachedDataset) -> RemoteDataset | None:
    """Return a dataset of the cache, in `looking_up`. None if its tables are not as they were
    fetched: then it is removed."""
    with naming_the_path(kept.tables), suppress(FileNotFoundError, DatasetError):
        data = read_bytes(kept.tables / MANIFEST)
        manifest = Manifest.parse(pa.py_buffer(data), StoreFolder(about.url).shown(MANIFEST))
        digest = _digest(data)
        if kept.is_of(digest) and sha256_of(kept.tables / SHARDS) == manifest.files[SHARDS].sha256:
            table = ShardTable(LocalFolder(kept.tables))
            if kept.has_blocks(len(table), len(table.block_rows)):
                return RemoteDataset(
                    About(about.url, about.version, digest), manifest.base, kept.tables, kept
                )
    kept.discard()
    return None


def _in_scratch(
    folder: StoreFolder, found: tuple[About, bytes], kept: CachedDataset | None
) -> RemoteDataset:
    """Bring the tables to a folder that is removed when the dataset is no longer used."""
    about, data = found
    manifest = Manifest.parse(pa.py_buffer(data), folder.shown(MANIFEST))
    with ExitStack() as stack:
        tables = stack.enter_context(scratch_folder())
        _fetch_tables(folder, manifest, data, tables)
        opened = RemoteDataset(about, manifest.base, tables, kept)
        weakref.finalize(opened, _leave, os.getpid(), stack.pop_all())
    return opened


def _leave(process: int, stack: ExitStack) -> None:
    """Remove a scratch folder: not in a forked child, as the parent reads it still."""
    if os.getpid() == process:
        stack.close()


def _about(folder: StoreFolder) -> tuple[About, bytes]:
    """Return which dataset is there, and its manifest."""
    found = read_manifest(folder.store)
    if found is None:
        raise missing_dataset(folder.url)
    data, version = found
    return About(folder.url, version, _digest(data)), data


def _fetch_tables(
    folder: StoreFolder, manifest: Manifest, data: bytes, tables: Path
) -> tuple[int, int]:
    """Bring what a reader needs to the folder `tables`, and return how many shards and blocks there
    are."""
    _fetch(folder, manifest.base, tables, SHARDS, manifest.files[SHARDS])
    table = ShardTable(LocalFolder(tables))
    write_atomically(tables / MANIFEST, data)
    return len(table), len(table.block_rows)


def _fetch(folder: StoreFolder, base: str, tables: Path, name: str, facts: FileFacts) -> None:
    """Bring a file of the dataset: the one that the manifest says, by its digest. Raises
    DatasetError if it is another one."""
    shown = folder.shown(base + name)

    def bring() -> None:
        with replacing(tables / name) as sink:
            for piece in folder.store.pieces(Entry(base + name, facts.bytes)):
                sink.write(piece)
            if sink.facts != facts:
                raise WrongAnswerError(shown)

    try:
        asked_again(bring)
    except NoSuchKeyError:
        raise DatasetError(f"{shown}: no such file; {_COPY_ADVICE}") from None
    except WrongAnswerError:
        raise DatasetError(
            f"{shown}: not the file that {MANIFEST} names; {_COPY_ADVICE}, and that no proxy "
            "changes it"
        ) from None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
