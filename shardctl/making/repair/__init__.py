"""Repair of a damaged dataset: only damaged files are rebuilt, from the sources, and verified by
their recorded SHA-256.

No code is run only because a dataset names it: the user must name the user functions when
repairing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from shardctl.errors import (
    CONTINUES,
    DatasetError,
    StorageError,
    UsageError,
    explaining_interrupts,
)
from shardctl.format.dataset_location import open_location
from shardctl.format.generations import unfinished_commit
from shardctl.format.names import MANIFEST
from shardctl.format.on_store import DatasetOnStore
from shardctl.inspection.verify.tables import check_manifest
from shardctl.making.commit import open_target
from shardctl.making.commit.commit import NewGeneration, making_generation, sweep
from shardctl.making.options import Options
from shardctl.making.paths import check_sources, refuse_generation
from shardctl.making.repair.outcomes import Listener, Lost, RepairResult, Unrepaired
from shardctl.making.repair.repairing import Repair
from shardctl.sources.files import in_use
from shardctl.system.arguments import instance
from shardctl.system.files import make_folder
from shardctl.system.locations import here_only, is_url
from shardctl.system.progress import progress_of
from shardctl.system.text import printable

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
        where = str(path) if is_url(path) else Path(path).resolve()
        refuse_generation(where)
        if isinstance(where, Path) and (why := unfinished_commit(where)):
            raise StorageError(f"{printable(where)}: {why}")
        with open_target(where) as target:
            target.may_lack_manifest = True
            with target.lease(heard.waiting) as held:
                with contextlib.suppress(DatasetError):  # damage is mended first
                    sweep(target, held)
                with (
                    open_location(where, "whole", listed=True) as place,
                    making_generation(target, held) as new,
                ):
                    told = given, tuple(transforms)
                    mended = Repair(place.folder, new, *told, drop_lost, workers, heard)
                    result = mended.run()
                    if isinstance(place.folder, DatasetOnStore):
                        _put_back(place.folder, new, mended.repaired)
                    return result


def _put_back(dataset: DatasetOnStore, new: NewGeneration, names: Sequence[str]) -> None:
    """Have the dataset on a store get these files, as they were mended on this machine; the manifest
    last, if it is another one."""
    target, tables = new.target, dataset.places.tables
    copy = [f"{tables}{MANIFEST}"] if tables and (dataset.work / tables / MANIFEST).exists() else []
    for name in (*sorted(set(names) - {MANIFEST}), *copy):
        new.held.check()
        place = target.folder.path(dataset.key_of(name))
        make_folder(place.parent, target.folder.root)
        (dataset.work / name).replace(place)
        target.put_shard(dataset.key_of(name))
    data, there = dataset.read(MANIFEST).to_pybytes(), target.folder.path(MANIFEST)
    if not there.exists() or there.read_bytes() != data:
        target.replace_manifest(data, new.held)
