"""Repair of a damaged dataset: only damaged files are rebuilt, from the sources, and verified by
their recorded SHA-256.

No code is run only because a dataset names it: the user must name the user functions when
repairing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from shardctl.errors import (
    CONTINUES,
    BusyError,
    DatasetError,
    StorageError,
    UsageError,
    explaining_interrupts,
)
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.dataset_location import open_location
from shardctl.format.generations import unfinished_commit
from shardctl.format.names import LEASE_KEY, MANIFEST, STAGING
from shardctl.format.on_store import DatasetOnStore
from shardctl.inspection.verify.tables import check_manifest
from shardctl.making.commit.commit import NewGeneration, making_generation, sweep
from shardctl.making.commit.staging import REPAIR_PREFIX
from shardctl.making.commit.target import Target
from shardctl.making.options import Options
from shardctl.making.paths import check_sources, refuse_generation
from shardctl.making.repair.outcomes import Listener, Lost, RepairResult, Unrepaired
from shardctl.making.repair.repairing import Repair
from shardctl.sources.files import in_use
from shardctl.system import file_lease, store_lease
from shardctl.system.arguments import instance
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import here_only, is_url
from shardctl.system.progress import progress_of
from shardctl.system.store_lease import probe
from shardctl.system.stores import client_of, forget_clients

__all__ = ["Listener", "Lost", "RepairResult", "Unrepaired", "repair"]


@explaining_interrupts(CONTINUES)
def repair(
    path: str | Path,
    sources: Sequence[str | Path] = (),
    transforms: Sequence[str] = (),
    drop_lost: bool = False,
    workers: int | str = "auto",
    listener: Listener | None = None,
    progress: bool = True,
) -> RepairResult:
    """Repair a dataset. `sources` are the new paths of its sources, if they have moved, in the
    order of the conversion.

    `transforms` names the user functions with which it was made; they are run. `drop_lost` removes
    the samples that are lost in the dataset and in the sources. `path` may be the URL of a dataset
    on a store: all of it is read, and repaired files are put back. `drop_lost` does not work on a
    store. `progress` False shows no progress on stderr; a `listener` has callbacks instead. Raises
    DatasetError if there is no dataset, or too little of it is left for a repair; UsageError,
    InputError, StorageError, BusyError.
    """
    instance("listener", listener, Listener)
    with in_use(), progress_of(progress, listener) as shown:
        heard = listener or Listener.showing(shown)
        Options(workers=workers).check()
        given = tuple(root.recorded for root in check_sources(sources)) if sources else ()
        if drop_lost:
            here_only(path, "--drop-lost")
        with open_location(path, "blocks") as place:
            if place.lone:
                raise UsageError(f"{place.shown}: one shard; repair works on a whole dataset")
            check_manifest(place.folder)  # that there is a dataset at all
        refuse_generation(str(path) if is_url(path) else Path(path).resolve())
        how = (given, tuple(transforms), drop_lost, workers, heard)
        if is_url(path):
            with _held_on_store(str(path), heard.waiting) as (folder, held):
                job = folder.work / STAGING / f"{REPAIR_PREFIX}{'0' * 8}"
                job.mkdir(parents=True)
                here = Target(LocalFolder(folder.work))
                new = NewGeneration(here, held, job, "0" * 8)
                mended = Repair(folder, new, *how)
                result = mended.run()
                if mended.repaired:
                    _put_back(folder, held, mended.repaired)
                return result
        target = Target(LocalFolder(Path(path).resolve()))
        if why := unfinished_commit(target.folder.root):
            raise StorageError(f"{target.folder.shown()}: {why}")
        with target.lease(heard.waiting) as held:
            with contextlib.suppress(DatasetError):  # damage is mended first
                sweep(target, held)
            with making_generation(target, held) as new:
                return Repair(dataset_in(target.folder.root), new, *how).run()


# --- a dataset on a store, whose files are repaired on this machine, and put back ---


def _put_back(folder: DatasetOnStore, held: store_lease.Lease, names: Sequence[str]) -> None:
    """Have the dataset get these files, as they are in the folder; the manifest last, if it is
    another one."""
    store, tables = client_of(folder.url), folder.places.tables
    for name in sorted(set(names) - {MANIFEST}):
        held.check()
        store.put(folder.key_of(name), folder.path(name))
    copy = f"{tables}{MANIFEST}"
    if tables and (folder.work / copy).exists():
        store.put(copy, folder.work / copy)
    data = folder.read(MANIFEST).to_pybytes()
    if folder.version and store.get(MANIFEST, version=folder.version).to_pybytes() == data:
        return
    held.check()
    put = (
        store.replace(MANIFEST, data, folder.version)
        if folder.version
        else store.create(MANIFEST, data)
    )
    if put is None:
        raise BusyError(
            f"{folder.shown()}: another process has replaced {MANIFEST}; run this again"
        )


@contextlib.contextmanager
def _held_on_store(
    url: str, waiting: file_lease.Waiting
) -> Iterator[tuple[DatasetOnStore, store_lease.Lease]]:
    """Yield a dataset on a store that is to be changed, and its lease.

    If another process has it, call `waiting` with its name and wait. Raises DatasetError,
    StoreError, BusyError, InstallError.
    """
    try:
        store = client_of(url.rstrip("/"))
        probe(store)
        with (
            store_lease.hold(store, LEASE_KEY, waiting) as held,
            open_location(url, "whole", listed=True) as there,
        ):
            assert isinstance(there.folder, DatasetOnStore), "its URL was given"
            yield there.folder, held
    finally:
        forget_clients()
