"""Opening a dataset on a store: its manifest and its own files are fetched at once."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError
from shardctl.format.names import (
    BESIDE_SHARDS,
    CHECKSUMS,
    MANIFEST,
    PLAN,
    SHARDS,
    STAGING,
    is_file_name,
    is_shard_name,
)
from shardctl.format.on_store.dataset import DatasetOnStore, Form
from shardctl.format.on_store.listing import write_listing
from shardctl.format.on_store.manifest import missing_dataset, read_manifest
from shardctl.system.files import write_atomically
from shardctl.system.stores.base import Store
from shardctl.system.text import printable

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
    base = _base_of_lone(store, name)
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


def _record_of(data: bytes | None) -> dict[str, Any]:
    """Return what a manifest says, which may be damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(data or b"")
        return record if isinstance(record, dict) else {}
    return {}


def _own_files(record: dict[str, Any]) -> list[str]:
    """Return the files that the recipe depends on: they are few, and opened in many places."""
    files = record.get("files")
    names = files if isinstance(files, dict) else {}
    return sorted(
        name
        for name in names
        if is_file_name(name) and name not in BESIDE_SHARDS and not is_shard_name(name)
    )


def _base_of(store: Store, data: bytes | None, record: dict[str, Any]) -> str:
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


def _base_of_lone(store: Store, name: str) -> str:
    """Return the folder of one shard, as `_base_of` does: nothing if it is right there, else that
    which the manifest names."""
    if store.stat(name) is not None:
        return ""
    data, _ = read_manifest(store) or (None, "")
    return _base_of(store, data, _record_of(data))


def _check_that_it_was_one(store: Store) -> None:
    """Raise DatasetError unless the tables of a dataset that lost its manifest are there."""
    folders, objects = store.children()
    shown = printable(store.url)
    if {PLAN, SHARDS, CHECKSUMS} <= {found.name for found in objects}:
        return
    if STAGING in folders:
        raise DatasetError(
            f"{shown}: an unfinished conversion; run the same command again: it completes it, or "
            "says why it cannot"
        )
    raise missing_dataset(store.url)
