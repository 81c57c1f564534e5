"""Where a dataset is that a command reads: in a folder of this machine, or on a store behind a
cache of the command."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from shardctl.errors import DatasetError, NoSuchKeyError
from shardctl.format.manifest import Manifest
from shardctl.format.names import (
    BESIDE_SHARDS,
    CHECKSUMS,
    MANIFEST,
    MANIFEST_LIMIT,
    PLAN,
    SHARDS,
    STAGING,
    TABLES,
    Json,
    is_file_name,
    is_shard_name,
)
from shardctl.format.on_store import DatasetOnStore, Form, write_listing
from shardctl.format.stretches import MAGIC
from shardctl.system.files import is_file, naming_the_path, ordinary, write_atomically
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_url
from shardctl.system.scratch import scratch_folder
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.stores.base import Store
from shardctl.system.text import printable, size_of

SCRATCH_LIMIT = "SHARDCTL_SCRATCH_LIMIT"
"""Variable: how many bytes of a dataset on a store a command may have on the local disk at a
time."""

LIMIT_BYTES = "4GiB"
"""A few dozen shards. A command needs those that it reads at the moment, and some that come
next."""


DatasetFolder: TypeAlias = LocalFolder | DatasetOnStore
"""The folder of a dataset that a command reads, and perhaps changes."""


class DatasetLocation(NamedTuple):
    """The folder of a dataset; or that of one shard, by its name, which is read without the
    dataset."""

    folder: DatasetFolder
    lone: str = ""

    @property
    def shown(self) -> str:
        """The location of the dataset or the shard, as it is printed."""
        return self.folder.shown(self.lone)

    @property
    def whole(self) -> DatasetFolder:
        """The folder of the dataset. Raises DatasetError if it is one shard."""
        if self.lone:
            raise DatasetError(
                f"{self.shown}: a file, not the folder of a dataset; give the folder, "
                f"{self.folder.shown()}"
            )
        return self.folder


@contextlib.contextmanager
def open_location(
    place: str | Path, form: Form = "whole", listed: bool = False
) -> Iterator[DatasetLocation]:
    """Yield where a dataset is, or a shard. What is on a store can be read while the block runs.

    `form` says how shards of a store are fetched (DatasetOnStore). `listed` asks for the list of
    all files, as checks need it. Raises DatasetError if there is no dataset, StoreError,
    InstallError, UsageError.
    """
    if not is_url(place):
        path = Path(place)
        _refuse_other_file(path)
        root, shard = (path.parent, path.name) if is_file(path) else (path, "")
        yield DatasetLocation(LocalFolder(root), shard)
        return
    url = str(place).rstrip("/")
    above, _, name = url.rpartition("/")
    limit = size_of(os.environ.get(SCRATCH_LIMIT) or LIMIT_BYTES, SCRATCH_LIMIT)
    with scratch_folder() as scratch, contextlib.ExitStack() as stack:
        stack.callback(forget_clients)
        lone = name.endswith(".arrow") or name in BESIDE_SHARDS
        with naming_the_path(scratch.parents[1]):
            if lone:
                dataset = open_shard_on_store(client_of(above), scratch, limit, name)
            else:
                dataset = open_on_store(client_of(url), scratch, form, limit, listed)
        stack.callback(dataset.close)
        yield DatasetLocation(dataset, name if lone else "")


def _refuse_other_file(path: Path) -> None:
    """Raise DatasetError for a file that is neither a shard nor another file of a dataset."""
    if path.suffix == ".arrow" or path.name in BESIDE_SHARDS or not is_file(path):
        return
    try:
        with open(path, "rb", opener=ordinary) as file:
            begin = file.read(len(MAGIC))
    except OSError:  # who reads the shard says why it cannot be read
        return
    if begin == MAGIC:
        return
    shown = printable(path)
    raise DatasetError(
        f"{shown}: not a dataset or shard; `shardctl convert {shown} out` makes one of inputs"
    )


def refuse_part_of_dataset(place: DatasetLocation) -> None:
    """Raise DatasetError if what should be a shard is another file of a dataset."""
    folder, name = place
    if name in BESIDE_SHARDS:
        what = "a table of a dataset" if name in TABLES else "a file about a dataset"
        raise DatasetError(
            f"{folder.shown(name)}: {what}, not a shard; give the folder of the dataset, "
            f"{folder.shown()}"
        )


def check_unchanged(folder: DatasetFolder) -> None:
    """Raise DatasetError if the dataset is on a store, and another one is there by now."""
    if not isinstance(folder, LocalFolder):
        folder.check_unchanged()


def to_json(folder: DatasetFolder) -> Json:
    """Return what another process of the same command makes the same folder of."""
    if isinstance(folder, LocalFolder):
        return {"local": str(folder.root)}
    return {"on_store": asdict(folder)}


def from_json(record: Json) -> DatasetFolder:
    """Return the folder that `to_json` was given."""
    if "local" in record:
        return LocalFolder(Path(record["local"]))
    return DatasetOnStore(**{**record["on_store"], "kept": tuple(record["on_store"]["kept"])})


_BASE = re.compile(rb'"base": "([^"/\\]+/)"')


def open_on_store(
    store: Store, folder: Path, form: Form, limit: int, listed: bool
) -> DatasetOnStore:
    """Return the dataset of a store, of which this command has files in `folder`, an empty one.

    `listed` asks for the list of all files. Raises DatasetError, StoreError.
    """
    data, version = read_manifest(store) or (None, "")
    record = _record_of(data)
    own = _own_files(record)
    kept = (*sorted(BESIDE_SHARDS), *own)
    dataset = DatasetOnStore(
        store.url, _base_of(store, data, record), form, str(folder), limit, version, kept, listed
    )
    dataset.work.mkdir()
    if data is None:
        _check_that_it_was_one(store)
    else:
        write_atomically(dataset.work / MANIFEST, data)
    if listed:
        write_listing(folder, store, dataset.base)
    wanted = [PLAN, SHARDS, CHECKSUMS] if data is None else []
    with contextlib.ExitStack() as stack:
        stack.callback(dataset.close)
        for each in [*wanted, *own] if form != "ends" else wanted:
            with contextlib.suppress(FileNotFoundError):
                dataset.path(each)
        stack.pop_all()
    return dataset


def open_shard_on_store(store: Store, folder: Path, limit: int, name: str) -> DatasetOnStore:
    """Return the dataset that one shard is of, as far as it is read alone. There need not be a
    dataset.

    Raises DatasetError if there is no such shard, StoreError.
    """
    base = ""
    if store.stat(name) is None:
        data, _ = read_manifest(store) or (None, "")
        base = _base_of(store, data, _record_of(data))
    dataset = DatasetOnStore(
        store.url, base, "whole", str(folder), limit, "", tuple(sorted(BESIDE_SHARDS)), listed=False
    )
    dataset.work.mkdir()
    try:
        dataset.path(name)
    except FileNotFoundError:
        dataset.close()
        shown = dataset.shown(name)
        raise DatasetError(
            f"{shown}: there is no such object; give the URL of a dataset, or of a shard"
        ) from None
    return dataset


def _record_of(data: bytes | None) -> Json:
    """Return what a manifest says, which may be damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(data or b"")
        return record if isinstance(record, dict) else {}
    return {}


def _own_files(record: Json) -> list[str]:
    """Return the files that the recipe depends on: they are few, and opened in many places."""
    files = record.get("files")
    names = files if isinstance(files, dict) else {}
    return sorted(
        name
        for name in names
        if is_file_name(name) and name not in BESIDE_SHARDS and not is_shard_name(name)
    )


def _base_of(store: Store, data: bytes | None, record: Json) -> str:
    """Return the folder of all files but the manifest, with a / at its end. Of a damaged manifest
    what is left may tell it."""
    if record:
        base = record.get("base", "")
        return (
            base if isinstance(base, str) and base.endswith("/") and is_file_name(base[:-1]) else ""
        )
    if data is None:
        return ""
    left = _BASE.search(data)
    if left is not None and is_file_name(left[1][:-1].decode("utf-8", "replace")):
        return left[1].decode("utf-8", "replace")
    if store.stat(CHECKSUMS) is not None:
        return ""
    folders = [f"{name}/" for name in store.children()[0] if name != STAGING]
    whole = [folder for folder in folders if store.stat(f"{folder}{CHECKSUMS}") is not None]
    return whole[0] if len(whole) == 1 else ""


def _check_that_it_was_one(store: Store) -> None:
    """Raise DatasetError unless the tables of a dataset that lost its manifest are there."""
    folders, objects = store.children()
    shown = printable(store.url)
    if {PLAN, SHARDS, CHECKSUMS} <= {found.name for found in objects}:
        return
    if STAGING in folders:
        raise DatasetError(f"{shown}: an unfinished conversion; run the same command again")
    raise missing_dataset(store.url)


def read_manifest(store: Store) -> tuple[bytes, str] | None:
    """Return the manifest and its version, None if there is none. One that cannot be read is asked
    for once more.

    Raises DatasetError if it is too large, StoreError.
    """
    found = _fetched(store)
    if found is not None:
        with contextlib.suppress(DatasetError):
            Manifest.parse(pa.py_buffer(found[0]), "")
            return found
    return _fetched(store)


def _fetched(store: Store) -> tuple[bytes, str] | None:
    found = store.stat(MANIFEST)
    if found is None:
        return None
    if found.size > MANIFEST_LIMIT:
        raise DatasetError(f"{printable(store.url)}/{MANIFEST}: too large to be a manifest")
    try:
        return store.get(MANIFEST, version=found.version or None).to_pybytes(), found.version
    except NoSuchKeyError:
        return None


def missing_dataset(url: str) -> DatasetError:
    """Return the error that says that there is no dataset at a URL."""
    return DatasetError(
        f"{printable(url)}: no dataset (there is no {MANIFEST}); check the URL, and that its conversion is done"
    )
