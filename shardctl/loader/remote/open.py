"""Opening a dataset on a store: its tables are fetched to a local folder, once on each machine
where there is a cache."""

from __future__ import annotations

import hashlib
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import (
    DamageError,
    DatasetError,
    NoSuchKeyError,
    ObjectChangedError,
    UsageError,
    WrongAnswerError,
)
from shardctl.format.arrays import Numbers
from shardctl.format.dataset_folder import DatasetFolder
from shardctl.format.dataset_location import generation_of, missing_dataset, read_manifest
from shardctl.format.manifest import Manifest, places_of
from shardctl.format.names import MANIFEST, SHARDS, Places
from shardctl.format.shard import BlockFile, Fields, Opener, StoredBlock
from shardctl.loader.blocks.shards import OpenShard, Shards, identity
from shardctl.loader.blocks.stages import CACHE, NETWORK, Stages
from shardctl.loader.remote.cache import About, Cache, CachedDataset
from shardctl.loader.remote.remote_blocks import RemoteDataset
from shardctl.system.arguments import whole_number
from shardctl.system.fetching import Ahead
from shardctl.system.files import (
    FileFacts,
    naming_the_path,
    read_bytes,
    replacing,
    sha256_of,
    write_atomically,
)
from shardctl.system.folders import LocalFolder
from shardctl.system.mmap import map_file
from shardctl.system.scratch import scratch_folder
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.stores.base import Entry, Store, asked_again
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


def remote_shards(
    url: str,
    split: str | None,
    generation: int | None,
    folder: str | Path | bool | None,
    limit: int | str | None,
) -> RemoteShards:
    """Open a split of the dataset below a URL, as `open_dataset` has it. Raises DatasetError,
    StoreError, StorageError, InstallError, UsageError."""
    cache = cache_of(folder, limit)
    url, kept = generation_of(url.rstrip("/"))
    shards = RemoteShards(open_remote(url, cache, kept), split)
    if generation is not None:
        number = whole_number("generation", generation)
        places = places_of(shards.manifest, number, printable(url))
        if places != shards.manifest.places:
            shards = RemoteShards(open_remote(url, cache, places.tables), split)
    return shards


def open_remote(url: str, cache: Cache | None, generation: str) -> RemoteDataset:
    """Open the dataset below a URL as it is now, or one of its generations, by its folder. Raises
    DatasetError, StoreError, StorageError, InstallError, UsageError."""
    forget_clients()  # a program that opens it again may have other credentials now
    store = client_of(url)
    for _ in range(_TRIES - 1):
        with suppress(ObjectChangedError):
            return _opened(store, cache, generation)
    return _opened(store, cache, generation)


def open_again(about: About, cache: Cache | None, tables: Path) -> RemoteDataset:
    """Open the same dataset in another process, whose tables may be of this machine. Raises
    DatasetError if another one has taken its place."""
    if cache is not None:
        with cache.looking_up(about.url):
            kept = cache.find(about.url, about.version)
            if kept is not None and (found := _from_cache(about, kept)) is not None:
                return found
    manifest = tables / MANIFEST
    # of the process that handed this one over
    if manifest.exists() and _digest(manifest.read_bytes()) == about.digest:
        return RemoteDataset(about, Manifest.load(LocalFolder(tables)).places, tables, None)
    try:
        opened = open_remote(about.url, cache, about.generation)
    except DatasetError as error:
        raise _swept(about) from error
    if opened.about.digest != about.digest:
        raise _swept(about)
    return opened


def _swept(about: About) -> DatasetError:
    return DatasetError(
        f"{printable(about.url)}: replaced by another dataset while it was read, and not kept; open "
        "it again"
    )


def _opened(store: Store, cache: Cache | None, generation: str) -> RemoteDataset:
    with nullcontext(False) if cache is None else cache.looking_up(store.url) as mine:
        if cache is not None:
            found = store.stat(f"{generation}{MANIFEST}")
            if found is None:
                raise missing_dataset(store.url)
            about = About(store.url, found.version, "")
            if (opened := _from_cache(about, cache.find(store.url, found.version))) is not None:
                return opened
        there = read_manifest(store, generation)
        if there is None:
            raise missing_dataset(store.url)
        data, version = there
        manifest = Manifest.parse(pa.py_buffer(data), f"{printable(store.url)}/{MANIFEST}")
        about = About(store.url, version, _digest(data), manifest.generation.path)

        def fetch(tables: Path) -> None:
            _fetch(store, manifest.places, tables, SHARDS, manifest.files[SHARDS])
            write_atomically(tables / MANIFEST, data)

        if cache is not None and mine:
            size = sum(cache.pages(0, each) for each in (len(data), manifest.files[SHARDS].bytes))
            if (opened := _from_cache(about, cache.make(about, size, fetch))) is not None:
                return opened
    with ExitStack() as stack:
        tables = stack.enter_context(scratch_folder())
        fetch(tables)
        opened = RemoteDataset(about, manifest.places, tables, None)
        weakref.finalize(opened, _leave, os.getpid(), stack.pop_all())
    return opened


def _from_cache(about: About, kept: CachedDataset | None) -> RemoteDataset | None:
    """Return a dataset of the cache, in `looking_up`. None if its tables are not as they were
    fetched: then it is removed."""
    if kept is None:
        return None
    with naming_the_path(kept.tables), suppress(FileNotFoundError, DatasetError):
        data = read_bytes(kept.tables / MANIFEST)
        manifest = Manifest.parse(pa.py_buffer(data), f"{printable(about.url)}/{MANIFEST}")
        digest = _digest(data)
        if kept.is_of(digest) and sha256_of(kept.tables / SHARDS) == manifest.files[SHARDS].sha256:
            about = About(about.url, about.version, digest, manifest.generation.path)
            return RemoteDataset(about, manifest.places, kept.tables, kept)
    kept.discard()
    return None


def _leave(process: int, stack: ExitStack) -> None:
    """Remove a scratch folder: not in a forked child, as the parent reads it still."""
    if os.getpid() == process:
        stack.close()


def _fetch(store: Store, places: Places, tables: Path, name: str, facts: FileFacts) -> None:
    """Bring a file of the dataset: the one that the manifest says, by its digest. Raises
    DatasetError if it is another one."""
    key = places.of(name)
    shown = printable(f"{store.url}/{key}")

    def bring() -> None:
        with replacing(tables / name) as sink:
            for piece in store.pieces(Entry(key, facts.bytes)):
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


NO_FILE = (0, 0, 0)
"""The identity of a shard that has no file here: its schema and the places of its blocks are known,
and none of its bytes."""


class RemoteShards(Shards):
    """The shards of one split of a dataset on a store, or of all. Threads may share it.

    Blocks are numbered here from the split's first one; the dataset below counts all blocks of all
    splits.
    """

    def __init__(self, dataset: RemoteDataset, split: str | None = None) -> None:
        self.dataset = dataset
        super().__init__(DatasetFolder(dataset.tables), split, dataset.table)
        self._first = int(dataset.first_block[self._first_shard])

    def in_split(self, split: str) -> Shards:
        """Return the shards of a split of the same dataset. Raises UsageError."""
        return RemoteShards(self.dataset, split)

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the same dataset when it is unpickled, with a client of its own."""
        cached = self.dataset.cached
        cache = cached.cache if cached is not None else None
        return _reopened, (self.dataset.about, cache, self.dataset.tables, self.split)

    is_local = False

    @property
    def location(self) -> str:
        """The URL of the dataset."""
        return self.dataset.url

    def name_of(self, shard: int) -> str:
        """Return the URL of a shard of this split for messages."""
        return self.dataset.name_of(self._first_shard + shard)

    def _path(self, shard: int) -> str:
        opened = self.dataset.shard(self._first_shard + shard)
        return str(opened.path or opened.shown)

    def wanted(self, blocks: list[int]) -> AbstractContextManager[None]:
        """Request these blocks at the same time."""
        return self.dataset.wanted([self._first + block for block in blocks])

    def read(self, block: int, fields: Fields, stages: Stages) -> StoredBlock:
        """Return a block, or some columns of it, once it is here. Raises DatasetError,
        StoreError."""
        return self.dataset.read(self._first + block, fields, stages.stage(NETWORK))

    def glance(self, block: int, fields: tuple[int, ...]) -> pa.RecordBatch:
        """Return some columns of a block. Raises DatasetError, StoreError."""
        return self.dataset.read(self._first + block, fields, nullcontext())[0]

    def settle(self, blocks: list[int], stages: Stages) -> tuple[list[int], dict[int, DamageError]]:
        """Bring blocks to the cache, all at the same time. Those that find no room there must be
        read into memory."""
        passing: list[int] = []
        faults: dict[int, DamageError] = {}
        dataset, first = self.dataset, self._first
        # asked for each while they are chosen: what found no room may be taken a moment later
        with dataset.wanted(first + block for block in blocks if not dataset.keeps_no_more):
            for block in blocks:
                try:
                    with stages.stage(CACHE):
                        if not dataset.settle(first + block, stages.stage(NETWORK)):
                            passing.append(block)
                except DamageError as error:
                    faults[block] = error
                except BaseException:  # nobody reads the others now
                    for held in passing:
                        dataset.fetcher.drop(first + held)
                    raise
        return passing, faults

    @property
    def has_places(self) -> bool:
        """Whether there is a cache in which blocks lie as in the shards."""
        return self.dataset.cached is not None

    def opener(self, preload: bool) -> Opener:
        """Return how files of the cache are opened: mapped, as blocks may come later that are not
        in them yet."""
        return map_file

    def ahead(self, keeps: bool) -> Ahead | None:
        """Return what fetches blocks before they are needed; for other processes only where there
        is a cache."""
        return self.dataset.fetcher.ahead(keeps) if keeps or self.has_places else None

    def missing(self, blocks: Numbers, keeps: bool) -> Numbers:
        """Return those of these blocks that must come over the network, as `ahead` counts them:
        through all splits.

        None for other processes where the cache is full: they would not find them.
        """
        return (
            self.dataset.missing(self._first + blocks)
            if keeps or not self.dataset.keeps_no_more
            else blocks[:0]
        )

    @contextmanager
    def in_turn(self, samples: Numbers | None) -> Iterator[None]:
        """Bring the blocks of these samples ahead, in this order, while they are read."""
        blocks = (
            np.arange(len(self.starts) - 1) if samples is None else self.blocks_in_turn(samples)
        )
        with closing(self.dataset.fetcher.ahead(keeps=True)) as coming:
            coming.expect(self.missing(blocks, keeps=True).tolist())
            yield

    def counts(self) -> dict[str, int]:
        """Return how many requests, bytes and blocks came over the network, and how many blocks
        from the cache."""
        return dict(self.dataset.counts)

    def fetch_files(self, names: Sequence[str]) -> Path:
        """Bring files of the dataset. Raises DatasetError, StoreError."""
        tables = self.dataset.tables
        for name in names:
            facts = self.manifest.files[name]
            if not (tables / name).exists() or sha256_of(tables / name) != facts.sha256:
                _fetch(client_of(self.dataset.url), self.dataset.places, tables, name, facts)
        return tables

    def _open_now(self, shard: int, opener: Opener, fields: Fields) -> OpenShard:
        opened = self.dataset.shard(self._first_shard + shard)
        if opened.path is None:
            file, status = opened.reader(fields, mapped=False), NO_FILE
        else:
            file, there = BlockFile.at(opened.path, opener, fields), identity(opened.path)
            if there is None:
                raise _removed(opened.path)
            status = there
        self._check_content(shard, file, fields)
        return OpenShard(file, opened.path or Path(), status)

    def check_unchanged(self, shard: int, opened: OpenShard, since: float) -> None:
        """Raise DatasetError for a file of the cache that is gone, or cut short. Its time changes
        with each block."""
        if opened.identity == NO_FILE or opened.checked >= since:
            return
        opened.checked = time.monotonic()
        found = identity(opened.path)
        if found is None or found[:2] != opened.identity[:2]:
            raise _removed(opened.path)


def _removed(path: Path) -> DatasetError:
    return DatasetError(
        f"{printable(path)}: removed from the cache while it was read; open the dataset again"
    )


def _reopened(about: About, cache: Cache | None, tables: Path, split: str | None) -> RemoteShards:
    return RemoteShards(open_again(about, cache, tables), split)
