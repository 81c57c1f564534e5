"""A dataset that is changed file by file. On a store, it is changed in a folder of this machine, and the files are put back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from shardctl.errors import BusyError
from shardctl.format.dataset_place import open_place
from shardctl.format.manifest import Manifest
from shardctl.format.names import LEASE_KEY, MANIFEST
from shardctl.format.on_store.dataset import DatasetOnStore
from shardctl.system.dataclass import dataclass
from shardctl.system.files import write_atomically
from shardctl.system.lease import store_lease
from shardctl.system.lease.probing import probe
from shardctl.system.locations.folder import FolderHere
from shardctl.system.locations.local import LocalFolder
from shardctl.system.stores import client_of, forget_clients, is_url


class EditableDataset(Protocol):
    """A dataset that is changed in its `folder`."""

    @property
    def folder(self) -> FolderHere: ...  # noqa: D102 - said above

    def put_back(self, names: Sequence[str]) -> None:
        """Have the dataset get these files, as they are in the folder; the manifest last, if it is another one."""
        ...


@dataclass(frozen=True)
class _InPlace:
    folder: LocalFolder

    def put_back(self, names: Sequence[str]) -> None:
        """Do nothing: the folder is the dataset."""


@dataclass(frozen=True)
class _OnStore:
    folder: DatasetOnStore
    held: store_lease.Lease

    def put_back(self, names: Sequence[str]) -> None:
        folder, store = self.folder, client_of(self.folder.url)
        for name in sorted(set(names) - {MANIFEST}):
            self.held.check()
            store.put(folder.key_of(name), folder.path(name))
        manifest = Manifest.load(folder)
        if manifest.base != folder.base:  # one that was made anew knows of no folder
            write_atomically(folder.path(MANIFEST), replace(manifest, base=folder.base).to_json().encode())
        data = folder.read(MANIFEST).to_pybytes()
        if folder.version and store.get(MANIFEST, version=folder.version).to_pybytes() == data:
            return
        self.held.check()
        put = store.replace(MANIFEST, data, folder.version) if folder.version else store.create(MANIFEST, data)
        if put is None:
            raise BusyError(f"{folder.shown()}: another process has replaced {MANIFEST}; run the same command again")


@contextlib.contextmanager
def editable_dataset(place: str | Path, waiting: Callable[[str], None] | None) -> Iterator[EditableDataset]:
    """Yield a dataset that is to be changed. On a store, this process holds its lease while the block runs.

    If another one does, call `waiting` with its name and wait. Raises DatasetError, StoreError, BusyError, InstallError.
    """
    if not is_url(place):
        yield _InPlace(LocalFolder(Path(place).resolve()))
        return
    try:
        store = client_of(str(place).rstrip("/"))
        probe(store)
        with store_lease.hold(store, LEASE_KEY, waiting) as held, open_place(place, "whole", listed=True) as there:
            assert isinstance(there.folder, DatasetOnStore), "its URL was given"
            yield _OnStore(there.folder, held)
    finally:
        forget_clients()
