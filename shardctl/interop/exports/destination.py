"""The folder that an export becomes: a new one, an empty one, or an earlier export that is
replaced."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath

from shardctl.errors import StorageError, UsageError
from shardctl.format.names import CHECKSUMS
from shardctl.interop.exports.name_set import NameSet
from shardctl.interop.exports.source import Source
from shardctl.sources.export_description import DESCRIPTION, Description, loose_names
from shardctl.system.files import naming_the_path
from shardctl.system.text import printable


def check_destination(out: Path, source: Source, overwrite: bool) -> Path:
    """Return the absolute path of the new folder. Raises UsageError or StorageError if it cannot be
    one."""
    shown = printable(str(out))
    try:
        target, here = out.resolve(), source.folder.local
        root = None if here is None else here.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to themselves
        raise StorageError(f"{shown}: cannot be a destination ({error})") from error
    if root is not None and (target.is_relative_to(root) or root.is_relative_to(target)):
        raise UsageError(
            f"{shown}: is inside the dataset {source.shown}, or contains it; give another folder"
        )
    with naming_the_path(out):
        if not target.exists() and not target.is_symlink():
            return target
        if not target.is_dir():
            raise StorageError(
                f"{shown}: is a file; the destination must be a folder that is new, or empty"
            )
        if target.is_mount():
            raise StorageError(
                f"{shown}: is where a file system is mounted, and cannot be replaced; give a "
                "folder inside it"
            )
        if (other := not_of_export(target)) is not None:
            raise StorageError(f"{shown}: {_why_kept(target, other)}")
        if os.listdir(target) and not overwrite:
            raise StorageError(f"{shown}: holds an export already; --overwrite replaces it")
    return target


def not_of_export(folder: Path) -> str | None:
    """Return the path of a file in a folder that no export has written, None if there is none: it
    would be lost with it."""
    known, folders_known = _known(folder)
    entries = entries_below(folder)
    return min(
        (
            name
            for name, is_folder in entries
            if name not in (folders_known if is_folder else known)
        ),
        default=None,
    )


def entries_below(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield what is below a folder, each by its path there (with /), and whether it is a folder; a
    link to one is none.

    Names are not listed before: there may be millions in a folder.
    """
    left = [""]
    while left:
        above = left.pop()
        with os.scandir(folder / above) as entries:
            for entry in entries:
                name = above + entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder:
                    left.append(f"{name}/")
                yield name, is_folder


def _why_kept(folder: Path, other: str) -> str:
    """Say why a folder is not replaced that has something which no export is known to have
    written."""
    strange = (
        f"has a file that does not come from an export ({printable(other)}); give a folder "
        "that is new, or empty"
    )
    try:
        export = Description.load(folder)
    except (OSError, ValueError):
        return strange
    try:
        next(loose_names(folder, export), None)
    except (OSError, ValueError):
        return (
            f"holds an export, but its {CHECKSUMS} is lost or changed, so that shardctl cannot "
            "tell its files from others."
            " Remove the folder yourself, or give another one"
        )
    return strange


def _known(folder: Path) -> tuple[NameSet, set[str]]:
    """Return the files of the export in a folder, and the folders that they are in; none if it is
    no export."""
    within: set[str] = set()

    def names() -> Iterator[str]:
        export = Description.load(folder)
        # without SHA256SUMS loose files are not known
        with contextlib.suppress(OSError, ValueError):
            for name in chain((DESCRIPTION, CHECKSUMS, *export.files), loose_names(folder, export)):
                within.add(name.rpartition("/")[0])
                yield name

    try:
        known = NameSet(names())
    except (OSError, ValueError):
        return NameSet(()), set()
    return known, within | {
        str(parent) for name in within for parent in PurePosixPath(name).parents
    }
