"""The manifest of a dataset on a store, as it is found there."""

from __future__ import annotations

import contextlib

import pyarrow as pa

from shardctl.errors import DatasetError, NoSuchKeyError
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST, MANIFEST_LIMIT
from shardctl.system.stores.base import Store
from shardctl.system.text import printable


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
        f"{printable(url)}: no dataset (there is no {MANIFEST}); check the URL, and that its "
        "conversion is done"
    )
