"""Earlier generations of a dataset, which are kept beside the present one without a second copy of shards that both have."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from shardctl.conversion.publish import files_of
from shardctl.errors import DatasetError, StorageError
from shardctl.history import folder_of
from shardctl.manifest import Manifest
from shardctl.storage import copy_file, is_file, is_folder, naming_the_path, printable, refuse_link, remove_tree, sync_folder
from shardctl.tables import GENERATIONS, MANIFEST

HIDDEN = "."
"""What names of folders begin with that are being made, or deleted."""

_HIDDEN_NAME = re.compile(rf"{re.escape(HIDDEN)}(unfinished|[0-9]{{5,}}\.[0-9a-f]{{8}})")


def keep(root: Path) -> None:
    """Keep the dataset at `root` as it is now: its files get a second name. The caller holds the lease.

    A process that is killed here leaves a folder that counts for nothing, and that the next one deletes. Raises StorageError
    if something else lies where it goes.
    """
    folder = folder_of(root, Manifest.load(root).generation.number)
    refuse_link(root / GENERATIONS)
    with naming_the_path(root / GENERATIONS):
        if os.path.lexists(folder):
            if not _is_ours(folder):
                raise StorageError(
                    f"{printable(str(folder))}: no generation of a dataset, and one is to be kept there; move it away, or"
                    " remove it if it is a link"
                )
            if _digest(folder) == _digest(root):
                return
            _delete(folder)  # of a dataset that was overwritten
        unfinished = folder.with_name(f"{HIDDEN}unfinished")
        if unfinished.exists():
            remove_tree(unfinished, root)
        unfinished.mkdir(parents=True)
        for name in sorted(files_of(root)):
            if (root / name).exists():
                link_or_copy(root / name, unfinished / name)
        sync_folder(unfinished)
        unfinished.rename(folder)
        sync_folder(folder.parent)


def settle(root: Path, keeps: int | None = None) -> None:
    """Delete kept generations but for those that a dataset remembers, and of these the last ones: as many as its manifest says.

    `keeps` is another number. The caller holds the lease.
    """
    with naming_the_path(root / GENERATIONS):
        for folder in _surplus(root, keeps):
            _delete(folder)
        if is_folder(root / GENERATIONS) and not any((root / GENERATIONS).iterdir()):
            (root / GENERATIONS).rmdir()


def _surplus(root: Path, keeps: int | None) -> list[Path]:
    """Return the folders of generations that are not to be there. None of those that lie behind a link is ours."""
    if not is_folder(root / GENERATIONS):
        return []
    manifest = Manifest.load(root)
    known = {folder_of(root, each.number): each.digest for each in manifest.history[:-1]}
    number = manifest.keep if keeps is None else keeps
    wanted = {folder for folder in list(known)[-number:] if _digest(folder) == known[folder]} if number else set()
    return sorted(path for path in (root / GENERATIONS).iterdir() if path not in wanted and _is_ours(path))


def _is_ours(path: Path) -> bool:
    """Return whether this is certainly a generation, or what was left of one: nothing else is deleted."""
    if not is_folder(path):
        return False
    named = path.name.isdecimal() and path == folder_of(path.parents[1], int(path.name)) and is_file(path / MANIFEST)
    return named or _HIDDEN_NAME.fullmatch(path.name) is not None


def _digest(root: Path) -> str:
    """Return what stands for a dataset, "" if there is none."""
    try:
        return Manifest.load(root).generation.digest
    except DatasetError:
        return ""


def _delete(folder: Path) -> None:
    """Delete a generation. It gets a name that counts for nothing first: half of a dataset is none."""
    if not folder.name.startswith(HIDDEN):
        hidden = folder.with_name(f"{HIDDEN}{folder.name}.{secrets.token_hex(4)}")
        folder.rename(hidden)
        folder = hidden
    remove_tree(folder, folder.parents[1])


def link_or_copy(old: Path, new: Path) -> None:
    """Give a file a second name; a copy where the file system has no links."""
    try:
        os.link(old, new)
    except OSError:
        copy_file(old, new)
