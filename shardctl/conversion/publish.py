"""A finished dataset takes its place, all at once where the system can do that. What was there before stays whole until then.

A process can be killed between any two lines of this file. `recover`, which the next one that writes calls first, completes
or undoes whatever it finds. The states, with JOB the folder of the job in the staging folder of the dataset `out`:

    JOB/replaced.json, out whole               begun, nothing is changed yet                       undone
    JOB/replaced.json, .out.shardctl           the new dataset lies beside, to be exchanged        undone
    .out.shardctl without JOB/replaced.json    they were exchanged, the old dataset lies beside    completed
    JOB/replaced.json, out without manifest    files are replaced one by one                       completed
    .out.shardctl.old                          the old dataset, being deleted                      completed
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardctl.conversion.staging import REPAIR_PREFIX, discard, jobs_in
from shardctl.engines.job import JOB, NEW_FOLDER
from shardctl.errors import DatasetError, Interrupted, StorageError
from shardctl.history import beside as _beside
from shardctl.lease import LEASE
from shardctl.storage import is_folder, naming_the_path, printable, remove_tree, sync_folder, write_atomically
from shardctl.tables import (
    BESIDE_SHARDS,
    CHECKSUMS,
    MANIFEST,
    REPLACED,
    SHARDS,
    STAGING,
    ShardTable,
    is_file_name,
    read_checksums,
)

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EBUSY, errno.EPERM, errno.EACCES, errno.EROFS)
"""What systems answer that cannot exchange two folders, or not these: a mount point, a parent that may not be written. Or
that cannot give a file a second name, which the lease needs."""


def publish(new: Path, target: Path) -> None:
    """Make the complete dataset in the folder `new` the one at `target`, and take away the folder of its job.

    `new` lies in the folder of the job, in the staging folder of `target`, whose lease the caller holds. Raises
    StorageError, Interrupted.
    """
    with naming_the_path(target), _telling_what_completes_it(target):
        sync_folder(new)
        _refuse_folders(new, target)
        replaces = (target / MANIFEST).exists()
        _mark(new.parent, sorted(files_of(target)) if replaces else [])
        # A process whose current folder is exchanged would be in the old one afterwards. For this process it can be checked.
        if not (replaces and not _is_current(target) and _exchange_folders(new, target)):
            _replace_files(new.parent, target)


def _refuse_folders(new: Path, target: Path) -> None:
    """Raise StorageError if a folder has the name of a file of the new dataset: it may hold anything, and is not deleted."""
    for name in sorted(set(os.listdir(new)) - {STAGING}):
        if is_folder(target / name):
            raise StorageError(
                f"{printable(str(target / name))}: a folder, where a file of the new dataset belongs; move it away, then run"
                " the same command again"
            )


def refuse_to_replace(target: Path, files: Mapping[str, bytes]) -> None:
    """Raise StorageError if there is a file at `target` that is no part of a dataset, and would be replaced by one of `files`,
    which have other content: a tokenizer.json may be a person's only copy.
    """
    with naming_the_path(target):
        there = [name for name in sorted(files) if (target / name).exists()]
        listed = files_of(target) if there else set()
        for name in there:
            if name not in listed and not ((target / name).is_file() and (target / name).read_bytes() == files[name]):
                raise StorageError(
                    f"{printable(str(target / name))}: is no part of a dataset, and the new dataset has a file of this name;"
                    " move it away, or give another destination"
                )


@contextlib.contextmanager
def _telling_what_completes_it(target: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        shown = printable(str(target))
        raise Interrupted(
            f"interrupted while the new dataset took its place; the same command, or `shardctl repair {shown}`, completes that"
        ) from error


def _mark(job: Path, replaced: Sequence[str]) -> None:
    """Record that the dataset of a job begins to take its place, and which files it replaces."""
    write_atomically(job / REPLACED, json.dumps(replaced).encode())
    sync_folder(job)


def _is_current(folder: Path) -> bool:
    try:
        return Path.cwd() == folder
    except FileNotFoundError:
        return False  # the current folder was deleted


def is_broken_off(target: Path) -> bool:
    """Return whether a dataset began to take its place at `target`, and that was not ended: `recover` has work to do.

    Where this user may not look, it is another one's work, and that one's to complete. Raises StorageError.
    """
    try:
        return _is_marked(_beside(target)) or _is_marked(_trash(target)) or _begun(target) is not None
    except PermissionError:
        return False
    except OSError as error:
        raise StorageError(f"{printable(str(target))}: cannot be examined ({error.strerror or error})") from error


def is_taking_its_place(job: Path) -> bool:
    """Return whether the dataset of the job in this folder has begun to take its place: the folder must stay until it has."""
    return (job / REPLACED).exists()


def recover(target: Path) -> str | None:
    """Complete or undo the replacement of a dataset by a process that was killed. The caller holds the lease.

    Returns the name of the job whose dataset has taken its place now; None if there was none.
    """
    beside = _beside(target)
    with naming_the_path(target), _telling_what_completes_it(target):
        _delete_trash(target)
        job = _begun(target)
        if _is_marked(beside) and job is None:
            _clear_old(beside, target)
        elif _is_marked(beside) and job is not None:
            beside.rename(job / NEW_FOLDER)
        completed = None
        if job is not None and _replaced(job) and (target / MANIFEST).exists():
            (job / REPLACED).unlink()
        elif job is not None:
            _replace_files(job, target)
            completed = job.name
        _sweep(target / STAGING)
        return completed


def _begun(target: Path) -> Path | None:
    """Return the folder of the job whose dataset has begun to take its place."""
    if not is_folder(target / STAGING):
        return None
    return next((job for job in jobs_in(target / STAGING) if os.path.lexists(job / REPLACED)), None)


def _is_marked(folder: Path) -> bool:
    """Return whether a folder beside a dataset, with one of the two names above, is one that was made here.

    It has a staging folder as long as anything else is in it: that is deleted last.
    """
    return is_folder(folder) and (is_folder(folder / STAGING) or not os.listdir(folder))


def _replaced(job: Path) -> list[str]:
    """Return the names of the files that are replaced. Raises DatasetError if one leads out of the dataset's folder."""
    try:
        names = json.loads((job / REPLACED).read_bytes())
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(is_file_name(name) for name in names) or job.is_symlink():
        raise DatasetError(f"{printable(str(job / REPLACED))}: not written by shardctl; delete {STAGING} if it is not yours")
    return names


def _sweep(staging: Path) -> None:
    """Delete folders of jobs that cannot be resumed: killed before they began, while they were deleted, or in repair."""
    for job in jobs_in(staging) if staging.exists() else []:
        if job.name.startswith(REPAIR_PREFIX) or not (job / JOB).exists():
            discard(job)


def _trash(target: Path) -> Path:
    return target.parent / f".{target.name}{STAGING}.old"


def _delete_trash(target: Path) -> None:
    """Delete the dataset that was replaced, what marks it last. Raises StorageError if something else has its name."""
    trash = _trash(target)
    if not os.path.lexists(trash):
        return
    if not _is_marked(trash):
        raise StorageError(
            f"{printable(str(trash))}: has the name of what shardctl deletes, and was not made by it; move it away, or remove"
            " it if it is a link"
        )
    for name in set(os.listdir(trash)) - {STAGING}:
        if is_folder(trash / name):
            remove_tree(trash / name, target.parent)
        else:
            (trash / name).unlink()
    remove_tree(trash, target.parent)


def _exchange_folders(new: Path, target: Path) -> bool:
    """Swap the new dataset's folder with the old one's in one step, and return whether that could be done.

    A reader finds the old dataset or the new one, at any moment. Files that are not of shardctl move to the new folder.
    """
    beside = _beside(target)
    try:
        _share_lease(new, target)
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


def _share_lease(new: Path, target: Path) -> None:
    """Make a second name for the lease of `target` in `new`.

    It is the same file, with its lock and heartbeat, so that it holds for the path before and after the exchange: a process
    that waits for it never finds a free lease in between.
    """
    if os.path.lexists(new / STAGING):  # of an earlier attempt
        remove_tree(new / STAGING, target)
    (new / STAGING).mkdir()
    os.link(target / STAGING / LEASE, new / STAGING / LEASE)


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
    listed = files_of(old)
    for name in os.listdir(old):
        if (name not in listed or is_folder(old / name)) and name != STAGING and not os.path.lexists(target / name):
            (old / name).rename(target / name)
    jobs = jobs_in(old / STAGING) if is_folder(old / STAGING) else []
    for path in sorted((old / STAGING).iterdir()) if is_folder(old / STAGING) else []:
        # Unfinished conversions, but not the job that this dataset came from; and what is not ours.
        stays = (path / JOB).exists() and not is_taking_its_place(path) if path in jobs else path.name != LEASE
        if stays and not os.path.lexists(target / STAGING / path.name):
            path.rename(target / STAGING / path.name)
    # By its own name, since it cannot be asked any more what is part of it once some of it is deleted.
    old.rename(_trash(target))
    _delete_trash(target)


def _replace_files(job: Path, target: Path) -> None:
    """Move the files in place one by one, the manifest last; until then there is no dataset at `target`."""
    new = job / NEW_FOLDER
    if replaced := _replaced(job):
        (target / MANIFEST).unlink(missing_ok=True)
        sync_folder(target)
        for name in replaced:
            (target / name).unlink(missing_ok=True)
        sync_folder(target)
        _mark(job, [])  # all files from here on are new
    names = set(os.listdir(new)) - {STAGING}
    for name in sorted(names - {MANIFEST}):
        (new / name).rename(target / name)
    sync_folder(target)
    if MANIFEST in names:
        (new / MANIFEST).rename(target / MANIFEST)
    sync_folder(target)
    discard(job)


def files_of(root: Path) -> set[str]:
    """Return the names of the files that a dataset consists of."""
    try:
        shards = {name for name in ShardTable(root / SHARDS).names if "/" not in name}
    except DatasetError:
        shards = set()  # too damaged to say: what is left over of it stays, and verify tells
    try:
        listed = set(filter(is_file_name, read_checksums(root / CHECKSUMS)))  # files of the recipe too
    except (DatasetError, OSError):
        listed = set()
    return {*shards, *listed, *BESIDE_SHARDS}
