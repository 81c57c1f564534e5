"""A dataset on a store that is changed: in a folder of this machine, from which the changed files are put back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from shardctl.errors import BusyError
from shardctl.format.lazy_folder.mirror import WHOLE, Mirror, mirror_of
from shardctl.format.lazy_folder.opening import local_folder
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST
from shardctl.system.files import write_atomically
from shardctl.system.lease import store_lease as store_lease
from shardctl.system.lease.probing import probe
from shardctl.system.stores import client_of, is_url
from shardctl.system.text import printable

LEASE = ".shardctl/lease.json"
"""The lease of a dataset on a store, below its URL."""


class Changed(Protocol):
    """A dataset that is changed: `root` is its local folder."""

    @property
    def root(self) -> Path: ...  # noqa: D102 - said above

    def put_back(self, names: Sequence[str]) -> None:
        """Have the dataset get these files, as they are in the folder; the manifest last, if it is another one."""
        ...


@dataclass(frozen=True)
class _InPlace:
    root: Path

    def put_back(self, names: Sequence[str]) -> None:
        """Do nothing: the folder is the dataset."""


@dataclass(frozen=True)
class _OnStore:
    root: Path
    mirror: Mirror
    held: store_lease.Lease

    def put_back(self, names: Sequence[str]) -> None:
        store, about = self.mirror.store, self.mirror.about
        for name in sorted(set(names) - {MANIFEST}):
            self.held.check()
            store.put(about.base + name, self.root / name)
        manifest = Manifest.load(self.root)
        if manifest.base != about.base:  # one that was made anew knows of no folder
            write_atomically(self.root / MANIFEST, replace(manifest, base=about.base).to_json().encode())
        data = (self.root / MANIFEST).read_bytes()
        if about.version and store.get(MANIFEST, version=about.version).to_pybytes() == data:
            return
        self.held.check()
        put = store.replace(MANIFEST, data, about.version) if about.version else store.create(MANIFEST, data)
        if put is None:
            raise BusyError(f"{printable(store.url)}: another process has replaced {MANIFEST}; run the same command again")


@contextlib.contextmanager
def changed_folder(place: str | Path, waiting: Callable[[str], None] | None) -> Iterator[Changed]:
    """Yield a dataset that is to be changed. On a store, this process holds its lease while the block runs.

    If another one does, call `waiting` with its name and wait. Raises DatasetError, StoreError, BusyError, InstallError.
    """
    if not is_url(place):
        yield _InPlace(Path(place))
        return
    store = client_of(str(place).rstrip("/"))
    probe(store)
    with store_lease.hold(store, LEASE, waiting) as held, local_folder(place, WHOLE, listed=True) as root:
        yield _OnStore(root, mirror_of(root), held)
