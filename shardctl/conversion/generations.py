"""Earlier generations of a dataset, which are kept beside the present one without a second copy of shards that both have."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shardctl.conversion.publish import files_of
from shardctl.history import folder_of, kept_generations
from shardctl.manifest import Manifest
from shardctl.storage import copy_file, naming_the_path, sync_folder
from shardctl.tables import GENERATIONS, MANIFEST


def keep(root: Path) -> None:
    """Keep the dataset at `root` as it is now: its files get a second name. The caller holds the lease.

    A process that is killed here leaves a folder that counts for nothing, and that the next one replaces.
    """
    folder = folder_of(root, Manifest.load(root).generation.number)
    with naming_the_path(root / GENERATIONS):
        if (folder / MANIFEST).exists():
            return
        unfinished = folder.with_name(".unfinished")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
        for name in sorted(files_of(root)):
            if (root / name).exists():
                link_or_copy(root / name, unfinished / name)
        sync_folder(unfinished)
        unfinished.rename(folder)
        sync_folder(folder.parent)


def drop_all_but(root: Path, number: int) -> None:
    """Delete kept generations but for the last `number` of them."""
    with naming_the_path(root / GENERATIONS):
        kept = kept_generations(root)
        for each in kept[: len(kept) - number]:
            (folder_of(root, each) / MANIFEST).unlink()  # half of a dataset is none
            shutil.rmtree(folder_of(root, each))
        if not number and (root / GENERATIONS).is_dir():
            shutil.rmtree(root / GENERATIONS)


def link_or_copy(old: Path, new: Path) -> None:
    """Give a file a second name; a copy where the file system has no links."""
    try:
        os.link(old, new)
    except OSError:
        copy_file(old, new)
