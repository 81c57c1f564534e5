"""Whether the files of a dataset are there: one look into its folder, and none into the files."""

from __future__ import annotations

import os
from pathlib import Path

from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import SHARDS
from shardctl.format.tables import ShardTable
from shardctl.system.files import naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.system.text import printable


def refuse_lost_files(root: Path, manifest: Manifest) -> None:
    """Raise DatasetError unless each shard, table and other file of a dataset is an ordinary file
    of the recorded size.

    update.arrows may be lost: nothing but an update needs it, and that says so. Raises StorageError
    if the folder cannot be listed.
    """
    there = _sizes(root)
    lost = [name for name, facts in manifest.files.items() if there.get(name) != facts.bytes]
    if SHARDS not in lost:
        table = ShardTable(LocalFolder(root))
        lost += [
            name
            for name, size in zip(table.names, table.sizes.tolist(), strict=True)
            if there.get(name) != size
        ]
    if lost:
        shown, which = printable(str(root)), printable(lost[0])
        what = f"{which} is" if len(lost) == 1 else f"{len(lost):,} files are"
        example = "" if len(lost) == 1 else f", for instance {which}"
        raise DatasetError(
            f"{shown}: {what} missing or damaged{example}; run `shardctl repair {shown}`"
        )


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each ordinary file of a folder, and of each that a link leads
    to."""
    sizes = {}
    with naming_the_path(folder), os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_file():
                    sizes[entry.name] = entry.stat().st_size
            except OSError:  # deleted meanwhile
                continue
    return sizes
