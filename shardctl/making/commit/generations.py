"""Earlier generations of a dataset, which are kept beside the present one without a second copy of
shards that both have."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from shardctl.errors import DatasetError, StorageError
from shardctl.format.manifest import Manifest, folder_of
from shardctl.format.names import BESIDE_SHARDS, GENERATIONS, MANIFEST, is_shard_name
from shardctl.making.commit.publish import files_of
from shardctl.system.files import (
    copy_file,
    is_file,
    is_folder,
    naming_the_path,
    refuse_link,
    remove_tree,
    sync_folder,
)
from shardctl.system.folders import LocalFolder
from shardctl.system.text import printable

HIDDEN = "."
"""What names of folders begin with that are being made, or deleted."""

_HIDDEN_NAME = re.compile(rf"{re.escape(HIDDEN)}(unfinished|[0-9]{{5,}}\.[0-9a-f]{{8}})")


def keep(root: Path) -> None:
    """Keep the dataset at `root` as it is now: its files get a second name. The caller holds the
    lease.

    A process that is killed here leaves a folder that counts for nothing, and that the next one
    deletes. Raises StorageError if something else lies where it goes.
    """
    folder = folder_of(root, Manifest.load(LocalFolder(root)).generation.number)
    refuse_link(root / GENERATIONS)
    with naming_the_path(root / GENERATIONS):
        if os.path.lexists(folder):
            if not _is_ours(folder):
                raise StorageError(
                    f"{printable(folder)}: not a generation of this dataset; move it away, "
                    "or remove it if it is a link"
                )
            digest = _digest(folder)
            if digest == _digest(root):
                return
            if not digest:
                raise StorageError(
                    f"{printable(folder)}: the {MANIFEST} of this kept generation is "
                    "damaged; move it away, or repair it"
                )
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
    """Delete kept generations but for those that a dataset remembers, and of these the last ones:
    as many as its manifest says.

    `keeps` is another number. The caller holds the lease.
    """
    with naming_the_path(root / GENERATIONS):
        for folder in _surplus(root, keeps):
            _delete(folder)
        if is_folder(root / GENERATIONS) and not any((root / GENERATIONS).iterdir()):
            (root / GENERATIONS).rmdir()


def _surplus(root: Path, keeps: int | None) -> list[Path]:
    """Return the folders of generations that are not to be there. None of those that lie behind a
    link is ours."""
    if not is_folder(root / GENERATIONS):
        return []
    manifest = Manifest.load(LocalFolder(root))
    known = {folder_of(root, each.number): each.digest for each in manifest.history[:-1]}
    number = manifest.keep if keeps is None else keeps
    # One whose manifest is damaged may be the one that is to be kept.
    last = list(known)[-number:] if number else []
    wanted = {folder for folder in last if _digest(folder) in ("", known[folder])}
    return sorted(
        path for path in (root / GENERATIONS).iterdir() if path not in wanted and _is_ours(path)
    )


def _is_ours(path: Path) -> bool:
    """Return whether this is certainly a generation, or what was left of one: nothing else is
    deleted."""
    if not is_folder(path):
        return False
    named = (
        path.name.isdecimal()
        and path == folder_of(path.parents[1], int(path.name))
        and is_file(path / MANIFEST)
    )
    return named or _HIDDEN_NAME.fullmatch(path.name) is not None


def _digest(root: Path) -> str:
    """Return what stands for a dataset, "" if there is none, or its manifest is damaged."""
    try:
        return Manifest.load(LocalFolder(root)).generation.digest
    except DatasetError:
        return ""


def _delete(folder: Path) -> None:
    """Delete a generation. It gets a name that counts for nothing first: half of a dataset is none.

    Where it has anything that is no part of it, that stays in its place, and the files of the
    generation go.
    """
    if not folder.name.startswith(HIDDEN):
        ours = _files_in(folder)
        if set(os.listdir(folder)) - ours:
            # the manifest last: it tells that the rest is ours
            for name in sorted(ours, key=lambda name: name == MANIFEST):
                (folder / name).unlink()
            return
        hidden = folder.with_name(f"{HIDDEN}{folder.name}.{secrets.token_hex(4)}")
        folder.rename(hidden)
        folder = hidden
    remove_tree(folder, folder.parents[1])


def _files_in(folder: Path) -> set[str]:
    """Return the names of the files of a generation that are there: all with the names of shards
    where nothing lists them."""
    names = {name for name in os.listdir(folder) if not is_folder(folder / name)}
    listed = files_of(folder)
    more = filter(is_shard_name, names) if listed <= BESIDE_SHARDS else ()
    return names & {*listed, *more}


def link_or_copy(old: Path, new: Path) -> None:
    """Give a file a second name; a copy where the file system has no links."""
    try:
        os.link(old, new)
    except OSError:
        copy_file(old, new)
