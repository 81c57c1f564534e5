"""Where a dataset is that a command reads: in a folder of this machine, or on a store behind a
cache of the command."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from shardctl.errors import DatasetError, NoSuchKeyError
from shardctl.format.dataset_folder import DatasetFolder, dataset_in, generation_in
from shardctl.format.generations import in_order, instead_of_manifest
from shardctl.format.manifest import Manifest, places_of
from shardctl.format.names import (
    BESIDE_SHARDS,
    CHECKSUMS,
    GENERATIONS,
    MANIFEST,
    MANIFEST_LIMIT,
    STAGING,
    TABLES,
    Json,
    Places,
    is_file_name,
    is_shard_of_format_2,
    job_of_generation,
)
from shardctl.format.on_store import LISTED, DatasetOnStore, Form
from shardctl.format.stretches import MAGIC
from shardctl.system.files import is_file, naming_the_path, ordinary, write_atomically
from shardctl.system.locations import is_url
from shardctl.system.scratch import scratch_folder
from shardctl.system.stores import client_of, forget_clients
from shardctl.system.stores.base import Store
from shardctl.system.stores.listing import list_keys
from shardctl.system.text import printable, size_of

SCRATCH_LIMIT = "SHARDCTL_SCRATCH_LIMIT"
"""Variable: how many bytes of a dataset on a store a command may have on the local disk at a
time."""

LIMIT_BYTES = "4GiB"
"""A few dozen shards. A command needs those that it reads at the moment, and some that come
next."""


AnyDataset: TypeAlias = DatasetFolder | DatasetOnStore
"""The folder of a dataset that a command reads, and perhaps changes."""


class DatasetLocation(NamedTuple):
    """The folder of a dataset; or that of one shard, by its name, which is read without the
    dataset."""

    folder: AnyDataset
    lone: str = ""

    @property
    def shown(self) -> str:
        """The location of the dataset or the shard, as it is printed."""
        return self.folder.shown(self.lone)

    @property
    def whole(self) -> AnyDataset:
        """The folder of the dataset. Raises DatasetError if it is one shard."""
        if self.lone:
            raise DatasetError(
                f"{self.shown}: a file, not the folder of a dataset; give the folder, "
                f"{self.folder.shown()}"
            )
        return self.folder


@contextlib.contextmanager
def open_location(
    place: str | Path, form: Form = "whole", listed: bool = False, generation: int | None = None
) -> Iterator[DatasetLocation]:
    """Yield where a dataset is, or a shard. What is on a store can be read while the block runs.

    `form` says how shards of a store are fetched (DatasetOnStore). `listed` asks for the list of
    all files, as checks need it. `generation` is the number of one, None for that which the place
    names. Raises DatasetError if there is no dataset, StoreError,
    InstallError, UsageError.
    """
    if not is_url(place):
        path = Path(place)
        _refuse_other_file(path)
        if is_file(path):
            yield DatasetLocation(DatasetFolder(path.parent), path.name)
        elif generation is None:
            yield DatasetLocation(dataset_in(path))
        else:
            yield DatasetLocation(generation_in(path, generation))
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
                at, folder = generation_of(url)
                if generation is not None:
                    folder = _generation_on_store(client_of(at), generation)
                dataset = open_on_store(client_of(at), scratch, form, limit, listed, folder)
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


def check_unchanged(folder: AnyDataset) -> None:
    """Raise DatasetError if the dataset is on a store, and another one is there by now."""
    if isinstance(folder, DatasetOnStore):
        folder.check_unchanged()


def to_json(folder: AnyDataset) -> Json:
    """Return what another process of the same command makes the same folder of."""
    if isinstance(folder, DatasetFolder):
        return {"local": str(folder.root), "places": folder.places}
    return {"on_store": asdict(folder)}


def from_json(record: Json) -> AnyDataset:
    """Return the folder that `to_json` was given."""
    if "local" in record:
        return DatasetFolder(Path(record["local"]), "", Places(*record["places"]))
    given = record["on_store"]
    return DatasetOnStore(
        **{**given, "kept": tuple(given["kept"]), "places": Places(*given["places"])}
    )


def generation_of(url: str) -> tuple[str, str]:
    """Return the URL of the dataset that a URL is of, and the folder of the generation that it
    names; "" for the present one."""
    dataset, _, name = url.rpartition(f"/{GENERATIONS}/")
    folder = f"{GENERATIONS}/{name}/"
    return (dataset, folder) if dataset and job_of_generation(folder) else (url, "")


def _generation_on_store(store: Store, number: int) -> str:
    """Return the folder of a generation, "" for the present one. Raises DatasetError if it is not
    there."""
    found = read_manifest(store)
    if found is None:
        raise missing_dataset(store.url)
    manifest = Manifest.parse(pa.py_buffer(found[0]), f"{printable(store.url)}/{MANIFEST}")
    places = places_of(manifest, number, printable(store.url))
    return "" if places == manifest.places else places.tables


def open_on_store(
    store: Store, folder: Path, form: Form, limit: int, listed: bool, generation: str = ""
) -> DatasetOnStore:
    """Return the dataset of a store, of which this command has files in `folder`, an empty one.

    `listed` asks for the list of all files. `generation` is the folder of an earlier one. Raises
    DatasetError, StoreError.
    """
    data, version = read_manifest(store, generation) or (None, "")
    record = _record_of(data)
    own = _own_files(record)
    kept = (*sorted(BESIDE_SHARDS), *own)
    places = Places(generation) if generation else _places_of(store, record)
    at = "" if generation else version  # an earlier one never changes
    dataset = DatasetOnStore(store.url, places, form, str(folder), limit, at, kept, listed)
    dataset.work.mkdir()
    if data is not None:
        write_atomically(dataset.work / MANIFEST, data)
    elif generation or store.stat(f"{places.tables}{MANIFEST}") is None:
        if STAGING in store.children()[0]:
            shown = printable(store.url)
            raise DatasetError(f"{shown}: an unfinished conversion; run the same command again")
        if places.tables and not generation:
            lost = f"{printable(store.url)}: lacks {MANIFEST}"
            raise DatasetError(f"{lost}; {instead_of_manifest(places.tables)}")
        raise missing_dataset(store.url)
    if listed:
        (folder / LISTED).mkdir()
        list_keys(store, "", folder / LISTED)
    with contextlib.ExitStack() as stack:
        stack.callback(dataset.close)
        for each in own if form != "ends" else ():
            with contextlib.suppress(FileNotFoundError):
                dataset.path(each)
        stack.pop_all()
    return dataset


def open_shard_on_store(store: Store, folder: Path, limit: int, name: str) -> DatasetOnStore:
    """Return the dataset that one shard is of, as far as it is read alone. There need not be a
    dataset.

    Raises DatasetError if there is no such shard, StoreError.
    """
    places = Places()
    if store.stat(name) is None:
        data, _ = read_manifest(store) or (None, "")
        places = _places_of(store, _record_of(data))
    kept = tuple(sorted(BESIDE_SHARDS))
    dataset = DatasetOnStore(store.url, places, "whole", str(folder), limit, "", kept, listed=False)
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
        if is_file_name(name) and name not in BESIDE_SHARDS and not is_shard_of_format_2(name)
    )


def _places_of(store: Store, record: Json) -> Places:
    """Return where the files of a dataset lie. Where its manifest is damaged or lost, those of the
    last generation, or of format 2."""
    with contextlib.suppress(KeyError, TypeError, IndexError):
        path = record["history"][-1]["path"]
        if job_of_generation(path):
            return Places(path)
    base = record.get("base", "")  # of format 2
    if not record:
        if generations := in_order(store.children(GENERATIONS)[0]):
            return Places(generations[-1])
        folders = (f"{name}/" for name in store.children()[0])
        base = next((each for each in folders if store.stat(f"{each}{CHECKSUMS}")), "")
    is_folder = isinstance(base, str) and base.endswith("/") and is_file_name(base[:-1])
    return Places(base, base) if is_folder else Places()


def read_manifest(store: Store, generation: str = "") -> tuple[bytes, str] | None:
    """Return the manifest, or that of an earlier generation by its folder, and its version; None if
    there is none. One that cannot be read is asked for once more.

    Raises DatasetError if it is too large, StoreError.
    """
    found = _fetched(store, f"{generation}{MANIFEST}")
    if found is not None:
        with contextlib.suppress(DatasetError):
            Manifest.parse(pa.py_buffer(found[0]), "")
            return found
    return _fetched(store, f"{generation}{MANIFEST}")


def _fetched(store: Store, key: str) -> tuple[bytes, str] | None:
    found = store.stat(key)
    if found is None:
        return None
    if found.size > MANIFEST_LIMIT:
        raise DatasetError(f"{printable(store.url)}/{key}: too large to be a manifest")
    try:
        return store.get(key, version=found.version or None).to_pybytes(), found.version
    except NoSuchKeyError:
        return None


def missing_dataset(url: str) -> DatasetError:
    """Return the error that says that there is no dataset at a URL."""
    return DatasetError(
        f"{printable(url)}: no dataset (there is no {MANIFEST}); check the URL, and that its conversion is done"
    )
