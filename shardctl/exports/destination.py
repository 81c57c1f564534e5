"""The folder that an export becomes: a new one, an empty one, or an earlier export that is replaced."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePosixPath

from shardctl.errors import StorageError, UsageError
from shardctl.exports.source import Source
from shardctl.sources.exported import DESCRIPTION, Description
from shardctl.storage import naming_the_path, printable
from shardctl.tables import CHECKSUMS


def check_destination(out: Path, source: Source, overwrite: bool) -> Path:
    """Return the absolute path of the new folder. Raises UsageError or StorageError if it cannot be one."""
    shown = printable(str(out))
    try:
        target, root = out.resolve(), source.root.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to themselves
        raise StorageError(f"{shown}: cannot be a destination ({error})") from error
    if target == root or target.is_relative_to(root) or root.is_relative_to(target):
        raise UsageError(f"{shown}: is inside the dataset {source.shown}, or around it; give a folder of its own")
    with naming_the_path(out):
        if not target.exists() and not target.is_symlink():
            return target
        if not target.is_dir():
            raise StorageError(f"{shown}: is a file; the destination must be a folder that is new, or empty")
        if target.is_mount():
            raise StorageError(f"{shown}: is where a file system is mounted, and cannot be replaced; give a folder inside it")
        if (other := not_of_export(target)) is not None:
            raise StorageError(
                f"{shown}: holds something that is of no export ({printable(other)}); give a folder that is new, or empty"
            )
        if os.listdir(target) and not overwrite:
            raise StorageError(f"{shown}: holds an export already; --overwrite replaces it (in Python overwrite=True)")
    return target


def not_of_export(folder: Path) -> str | None:
    """Return the path of a file in a folder that no export has written, None if there is none: it would be lost with it."""
    known: set[str] = set()
    with contextlib.suppress(OSError, ValueError):
        known = {DESCRIPTION, CHECKSUMS, *Description.load(folder).files}
    above = {str(parent) for name in known for parent in PurePosixPath(name).parents}
    for parent, folders, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name).relative_to(folder).as_posix()
            if path not in known:
                return path
        for name in sorted(folders):
            path = Path(parent, name).relative_to(folder).as_posix()
            if Path(parent, name).is_symlink() or path not in above:
                return path
    return None
