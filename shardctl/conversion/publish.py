"""A finished dataset takes its place, all at once where the system can do that. What was there before stays whole until then.

A conversion can be killed between any two lines of this file. Whatever is left is completed by the next one:
`recover` and `publish` go on from every state that these functions pass through.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
from pathlib import Path

from shardctl.engines.job import NEW_FOLDER
from shardctl.errors import DatasetError
from shardctl.manifest import CHECKSUMS, MANIFEST, SHARDS, STAGING, TABLES, Manifest, ShardTable
from shardctl.storage import naming_the_path, sync_folder, write_atomically

REPLACED = "replaced.json"
"""Names of the files of the dataset that is being replaced, beside the new one."""

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EBUSY, errno.EPERM, errno.EACCES, errno.EROFS)
"""What systems answer that cannot exchange two folders, or not these: a mount point, a parent that may not be written."""


def publish(new: Path, target: Path) -> None:
    """Make the complete dataset in the folder `new` the one at `target`. `new` lies in the staging folder of `target`."""
    with naming_the_path(target):
        sync_folder(new)
        # Whoever stands in the folder would stand in the old one after an exchange: this process at least can be asked.
        if (target / MANIFEST).exists() and not _is_current(target) and _exchange_folders(new, target):
            return
        _replace_files(new, target)


def _is_current(folder: Path) -> bool:
    try:
        return Path.cwd() == folder
    except FileNotFoundError:
        return False  # it was taken away; nobody stands anywhere


def is_broken_off(target: Path) -> bool:
    """Tell whether an exchange of folders was begun at `target` and not ended."""
    return _beside(target).exists()


def recover(target: Path) -> None:
    """Complete or undo an exchange of folders that was broken off."""
    beside = _beside(target)
    if not beside.exists():
        return
    with naming_the_path(target):
        if (beside / STAGING).exists():
            _clear_old(beside, target)
            return
        job = target / STAGING / Manifest.load(beside).fingerprint
        if job.exists() and not (job / NEW_FOLDER).exists():
            beside.rename(job / NEW_FOLDER)
        else:
            shutil.rmtree(beside)


def _beside(target: Path) -> Path:
    return target.parent / f".{target.name}{STAGING}"


def _exchange_folders(new: Path, target: Path) -> bool:
    """Swap the new dataset's folder with the old one's in one step, and tell whether that could be done.

    A reader finds the old dataset or the new one, at any moment. Files of other people move over to the new folder.
    """
    beside = _beside(target)
    try:
        shutil.copystat(target, new)
        shutil.chown(new, target.stat().st_uid, target.stat().st_gid)
        new.rename(beside)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        return False
    try:
        _exchange(beside, target)
    except OSError as error:
        beside.rename(new)
        if error.errno not in _NOT_HERE:
            raise
        return False
    sync_folder(target.parent)
    _clear_old(beside, target)
    return True


def _exchange(one: Path, other: Path) -> None:
    """Swap two paths of one file system atomically: renameat2(2) on Linux, renamex_np(2) on macOS."""
    library = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        failed = library.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE)
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(*paths, _RENAME_EXCHANGE)
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))


def _clear_old(old: Path, target: Path) -> None:
    """Delete the dataset that was replaced, having moved what is not part of it over to the new folder."""
    listed = _files_of(old)
    for name in os.listdir(old):
        if name not in listed and name != STAGING and not (target / name).exists():
            (old / name).rename(target / name)
    shutil.rmtree(old)


def _replace_files(new: Path, target: Path) -> None:
    """Move the files in place one by one, the manifest last; until then there is no dataset at `target`."""
    replaced = new.parent / REPLACED
    if (target / MANIFEST).exists():
        write_atomically(replaced, json.dumps(sorted(_files_of(target))).encode())
        (target / MANIFEST).unlink()
    if replaced.exists():  # as long as it does, nothing new has been moved yet
        for name in json.loads(replaced.read_bytes()):
            (target / name).unlink(missing_ok=True)
        sync_folder(target)
        replaced.unlink()
    for name in sorted(os.listdir(new)):
        if name != MANIFEST:
            (new / name).rename(target / name)
    sync_folder(target)
    (new / MANIFEST).rename(target / MANIFEST)
    sync_folder(target)


def _files_of(root: Path) -> set[str]:
    """Return the names of the files that a dataset consists of."""
    try:
        shards = {name for name in ShardTable(root / SHARDS).names if "/" not in name}
    except DatasetError:
        shards = set()  # too damaged to say: what is left over of it stays, and verify tells
    return {*shards, *TABLES, CHECKSUMS, MANIFEST}
