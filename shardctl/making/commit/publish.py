"""A finished dataset takes its place. Where it replaces another one, the system exchanges the two
folders at once if it can. Else files are moved one by one, the manifest last.

A process can be killed between any two lines of this file. `recover`, which the next one that
writes calls first, completes or undoes whatever it finds. The states, with JOB the folder of the
job in the staging folder of the dataset `out`:

    JOB/replaced.json, out whole               begun, nothing is changed yet                       undone
    JOB/replaced.json, .out.shardctl           the new dataset lies beside, to be exchanged        undone
    .out.shardctl without JOB/replaced.json    they were exchanged, the old dataset lies beside    completed
    JOB/replaced.json, out without manifest    files are replaced one by one                       completed
    .out.shardctl.old                          the old dataset, being deleted                      completed

replaced.json lists what is deleted, and has the digests of both manifests. It goes with the old
dataset where the folders are exchanged: a folder beside `out` that is not as its list says is a
person's, and stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import errno
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardctl.errors import DatasetError, StorageError
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest, SplitFacts, folder_of
from shardctl.format.manifest import beside as _beside
from shardctl.format.names import (
    BESIDE_SHARDS,
    GENERATIONS,
    MANIFEST,
    REPLACED,
    STAGING,
    Json,
    is_file_name,
    is_shard_name,
    shard_name,
)
from shardctl.format.tables import ShardEntry, ShardTable, read_checksums
from shardctl.making.commit.staging import REPAIR_PREFIX, discard, jobs_in
from shardctl.making.plan.fingerprint import fingerprint
from shardctl.making.plan.plan import SplitPlan
from shardctl.making.shards.job import NEW_FOLDER, Job
from shardctl.system.file_lease import LEASE
from shardctl.system.files import (
    copy_file,
    is_file,
    is_folder,
    naming_the_path,
    read_bytes,
    refuse_link,
    remove_tree,
    sha256_of,
    sync_folder,
    write_atomically,
)
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JobFolder
from shardctl.system.text import printable
from shardctl.version import __version__

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_NOT_HERE = (
    errno.ENOSYS,
    errno.EINVAL,
    errno.ENOTSUP,
    errno.EXDEV,
    errno.EBUSY,
    errno.EPERM,
    errno.EACCES,
    errno.EROFS,
)
"""What systems answer that cannot exchange two folders, or not these: a mount point, a parent that
may not be written. Or that cannot give a file a second name, which the lease needs."""


@dataclass(frozen=True)
class _Mark:
    """What gives way: the names of its files, the SHA-256 of its manifest, and that of the new one.

    The first one is "" where there was no dataset. `replaced` is empty once all of them are gone:
    from then on it is completed, and not undone.
    """

    replaced: tuple[str, ...]
    old: str
    new: str


def publish(new: Path, target: Path) -> None:
    """Make the complete dataset in the folder `new` the one at `target`, and take away the folder
    of its job.

    `new` lies in the folder of the job, in the staging folder of `target`, whose lease the caller
    holds. Raises StorageError, KeyboardInterrupt.
    """
    with naming_the_path(target), _telling_what_completes_it(target):
        sync_folder(new)
        _refuse_others_beside(target)
        replaces = (target / MANIFEST).exists()
        _write_mark(new.parent, _Mark(_giving_way(new, target), _digest(target), _digest(new)))
        # A process whose current folder is exchanged would be in the old one afterwards. For this
        # process it can be checked.
        current = None
        with contextlib.suppress(FileNotFoundError):  # the current folder was deleted
            current = Path.cwd()
        if replaces and current != target and _exchange_folders(new, target):
            return
        _replace_files(new.parent, target)


def _giving_way(new: Path, target: Path) -> tuple[str, ...]:
    """Return the names of the files at `target` that are to go: those of a dataset, and those that
    the new one has unchanged.

    Raises StorageError if anything else there has the name of a file of the new dataset.
    """
    same = _in_the_way(target, set(os.listdir(new)) - {STAGING})
    for name in same:
        one, other = new / name, target / name
        alike = is_file(other) and one.stat().st_size == other.stat().st_size
        if not alike or sha256_of(one) != sha256_of(other):
            raise _taken(other)
    return tuple(sorted({*same, *_files_there(target)}))


def _files_there(target: Path) -> set[str]:
    """Return the names of the files of the dataset at `target`, none if there is no dataset."""
    return files_of(target) if (target / MANIFEST).exists() else set()


def _in_the_way(target: Path, names: Iterable[str]) -> list[str]:
    """Return which names of files of a new dataset something else has at `target`, that is no part
    of the dataset there."""
    if not target.is_dir():
        return []
    listed = _files_there(target)
    return sorted(
        name
        for name in set(os.listdir(target)).intersection(names)
        if name not in listed or is_folder(target / name)
    )


def _taken(path: Path) -> StorageError:
    """Return the error for what may be a person's only copy."""
    return StorageError(
        f"{printable(path)}: not of a dataset, and the new one needs this name; move it "
        "away, or give another destination"
    )


def numbered_names(splits: Iterable[SplitFacts | SplitPlan]) -> list[str]:
    """Return the file names of all shards of splits, in the order of the dataset, as a conversion
    numbers them."""
    return [shard_name(split.name, number) for split in splits for number in range(split.shards)]


def refuse_in_way_of_job(target: Path, job: Job) -> None:
    """Raise StorageError if a file that a job will make has the name of anything at `target` that
    is no part of a dataset."""
    if needs_recovery(target):
        return
    shards = numbered_names(job.splits)
    with naming_the_path(target):
        for name in _in_the_way(target, {*BESIDE_SHARDS, *job.recipe.tables, *shards}):
            raise _taken(target / name)


def refuse_in_way_of_recipe(target: Path, files: Mapping[str, bytes]) -> None:
    """Raise StorageError if there is a file at `target` that is no part of a dataset, and would be
    replaced by one of `files`, which have other content: a tokenizer.json may be a person's only
    copy. Or if something is in the way beside `target`.
    """
    if needs_recovery(target):
        return
    with naming_the_path(target):
        _refuse_others_beside(target)
        for name in _in_the_way(target, files):
            if not ((target / name).is_file() and (target / name).read_bytes() == files[name]):
                raise _taken(target / name)


def _refuse_others_beside(target: Path) -> None:
    """Raise StorageError if something is beside a dataset with a name that it needs to give way,
    and was not made here."""
    for path in (_beside(target), _trash(target)):
        if os.path.lexists(path) and not _is_empty(path) and (target / MANIFEST).exists():
            raise _not_ours(path)


def _not_ours(path: Path) -> StorageError:
    return StorageError(
        f"{printable(path)}: shardctl needs this name for its own folder; move it away, or "
        "remove it if it is a link"
    )


@contextlib.contextmanager
def _telling_what_completes_it(target: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        shown = printable(target)
        raise KeyboardInterrupt(
            "interrupted while the new dataset took its place; the same command, or `shardctl "
            f"repair {shown}`, completes that"
        ) from error


def _write_mark(job: Path, mark: _Mark) -> None:
    """Record that the dataset of a job begins to take its place, and what gives way."""
    write_atomically(job / REPLACED, json.dumps(vars(mark)).encode())
    sync_folder(job)


def _read_mark(job: Path) -> _Mark:
    """Read what gives way. Raises OSError, DatasetError if that is damaged, or names a file out of
    the dataset's folder."""
    path = job / REPLACED
    try:
        record = json.loads(read_bytes(path))
        names, digests = record["replaced"], (record["old"], record["new"])
        sound = (
            isinstance(names, list)
            and all(map(is_file_name, names))
            and all(isinstance(each, str) for each in digests)
        )
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound or job.is_symlink() or path.is_symlink():
        raise DatasetError(f"{printable(path)}: not written by shardctl; move {STAGING} away")
    return _Mark(tuple(names), *digests)


def _digest(root: Path) -> str:
    """Return the SHA-256 of a dataset's manifest, "" if there is none."""
    return sha256_of(root / MANIFEST) if is_file(root / MANIFEST) else ""


def needs_recovery(target: Path) -> bool:
    """Return whether a dataset began to take its place at `target`, and that was not ended:
    `recover` has work to do.

    Where this user may not look, it is another one's work, and that one's to complete. Raises
    StorageError.
    """
    try:
        if _begun(target) is not None:
            return True
        trash = _trash(target)
        return _marked(_beside(target)) is not None or (
            is_folder(trash) and (_is_empty(trash) or _marked(trash) is not None)
        )
    except PermissionError:
        return False
    except OSError as error:
        raise StorageError(
            f"{printable(target)}: cannot be examined ({error.strerror or error})"
        ) from error


def is_committing(job: Path) -> bool:
    """Return whether the dataset of the job in this folder has begun to take its place: the folder
    must stay until it has."""
    return (job / REPLACED).exists()


def recover(target: Path) -> str | None:
    """Complete or undo the replacement of a dataset by a process that was killed. The caller holds
    the lease.

    Returns the name of the job whose dataset has taken its place now; None if there was none.
    """
    beside = _beside(target)
    with naming_the_path(target), _telling_what_completes_it(target):
        _delete_trash(target)
        job = _begun(target)
        if job is None and _marked(beside) is not None:
            _clear_old(beside, target)
        elif job is not None and not os.path.lexists(job / NEW_FOLDER) and os.path.lexists(beside):
            if not _is_new(beside, job):
                raise _not_ours(beside)
            beside.rename(job / NEW_FOLDER)
        _refuse_others_beside(target)
        completed = None
        if job is not None and _read_mark(job).replaced and (target / MANIFEST).exists():
            (job / REPLACED).unlink()
        elif job is not None:
            _refuse_unless_new(job, target)
            _replace_files(job, target)
            completed = job.name
        _sweep(target / STAGING)
        return completed


def _is_new(beside: Path, job: Path) -> bool:
    """Return whether a folder is the new dataset of a job, which was to be exchanged: it shares the
    lease, and no more."""
    mark = _read_mark(job)
    staging = beside / STAGING
    is_whole = is_folder(beside) and is_file(beside / MANIFEST) and _digest(beside) == mark.new
    return is_whole and is_folder(staging) and set(os.listdir(staging)) <= {LEASE}


def _refuse_unless_new(job: Path, target: Path) -> None:
    """Raise StorageError if the files of a job's folder are not those that are to take their place
    at `target`.

    A manifest is there already where all files have; otherwise the new one has to be among them.
    """
    new, mark = job / NEW_FOLDER, _read_mark(job)
    left = set(os.listdir(new)) - {STAGING} if is_folder(new) else set()
    moved = (target / MANIFEST).exists()
    if left if moved else MANIFEST not in left or mark.new != _digest(new):
        raise StorageError(
            f"{printable(job)}: files of a new dataset are missing here or changed; move "
            "this folder away, then run the same command again"
        )


def _begun(target: Path) -> Path | None:
    """Return the folder of the job whose dataset has begun to take its place."""
    if not is_folder(target / STAGING):
        return None
    return next((job for job in jobs_in(target / STAGING) if os.path.lexists(job / REPLACED)), None)


def _marked(folder: Path) -> _Mark | None:
    """Return the mark of an old dataset that lies beside the one in its place; None if this folder
    is anything else."""
    job = _begun(folder) if is_folder(folder) else None
    if job is None:
        return None
    try:
        mark = _read_mark(job)
    except (DatasetError, OSError):
        return None
    # The manifest is deleted with the others.
    is_that = not mark.old or not os.path.lexists(folder / MANIFEST) or _digest(folder) == mark.old
    return mark if MANIFEST in mark.replaced and is_that else None


def _is_empty(folder: Path) -> bool:
    """Return whether this is a folder, and no link, with nothing in it but folders."""
    if not is_folder(folder):
        return False
    return all(
        not files and not any(Path(path, each).is_symlink() for each in below)
        for path, below, files in os.walk(folder)
    )


def _sweep(staging: Path) -> None:
    """Delete folders of jobs that cannot be resumed: killed before they began, while they were
    deleted, or in repair."""
    for job in jobs_in(staging) if staging.exists() else []:
        if job.name.startswith(REPAIR_PREFIX) or not JobFolder(job).is_begun():
            discard(job)


def _trash(target: Path) -> Path:
    return target.parent / f".{target.name}{STAGING}.old"


def _delete_trash(target: Path) -> None:
    """Delete the dataset that was replaced, what marks it last. Raises StorageError if anything
    else is there."""
    trash = _trash(target)
    if not os.path.lexists(trash):
        return
    if _is_empty(trash):
        remove_tree(trash, target.parent)
        return
    mark, job = _marked(trash), _begun(trash)
    if mark is None or job is None:
        raise _not_ours(trash)
    _refuse_others_in(trash, mark)
    last = (trash / STAGING, job, job / REPLACED)
    for path in sorted(trash.rglob("*"), reverse=True):  # what is in a folder comes before it
        if path in last:
            continue
        if is_folder(path):
            path.rmdir()
        else:
            path.unlink()
    remove_tree(trash, target.parent)


def _refuse_others_in(trash: Path, mark: _Mark) -> None:
    """Raise StorageError if the folder of a dataset that was replaced has anything that is no part
    of it."""
    staging = trash / STAGING
    ours = {staging, staging / LEASE, *(trash / name for name in mark.replaced)}
    ours |= {job for job in jobs_in(staging) if not JobFolder(job).is_begun() or is_committing(job)}
    for path in (*sorted(trash.iterdir()), *sorted(staging.iterdir())):
        if path not in ours or (is_folder(path) and path.name in mark.replaced):
            raise StorageError(
                f"{printable(path)}: this is not of the replaced dataset, which is deleted "
                "here; move it away, then run the same command again"
            )


def _exchange_folders(new: Path, target: Path) -> bool:
    """Swap the new dataset's folder with the old one's in one step, and return whether that could
    be done.

    A reader finds the old dataset or the new one, at any moment. Files that are not of shardctl
    move to the new folder.
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

    It is the same file, with its lock and heartbeat, so that it holds for the path before and after
    the exchange: a process that waits for it never finds a free lease in between.
    """
    if os.path.lexists(new / STAGING):  # of an earlier attempt
        remove_tree(new / STAGING, target)
    (new / STAGING).mkdir()
    os.link(target / STAGING / LEASE, new / STAGING / LEASE)


def _exchange(one: Path, other: Path) -> None:
    """Swap two paths of one file system atomically: renameat2(2) on Linux, renamex_np(2) on
    macOS."""
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
    """Delete the dataset that was replaced, having moved what is not part of it over to the new
    folder."""
    mark = _marked(old)
    if mark is None:
        raise _not_ours(old)
    for name in set(os.listdir(old)) - {STAGING}:
        stays = name not in mark.replaced or is_folder(old / name)
        if stays and not os.path.lexists(target / name):
            (old / name).rename(target / name)
    jobs = jobs_in(old / STAGING)
    for path in sorted((old / STAGING).iterdir()):
        # Unfinished conversions, but not the job that this dataset came from; and what is not ours.
        stays = (
            JobFolder(path).is_begun() and not is_committing(path)
            if path in jobs
            else path.name != LEASE
        )
        if stays and not os.path.lexists(target / STAGING / path.name):
            path.rename(target / STAGING / path.name)
    # By its own name: a dataset of which some is deleted is none.
    old.rename(_trash(target))
    _delete_trash(target)


def _replace_files(job: Path, target: Path) -> None:
    """Move the files in place one by one, the manifest last; until then there is no dataset at
    `target`.

    Raises StorageError if a file has come to `target` meanwhile that has one of their names.
    """
    new, mark = job / NEW_FOLDER, _read_mark(job)
    if mark.replaced:
        (target / MANIFEST).unlink(missing_ok=True)
        sync_folder(target)
        for name in mark.replaced:
            (target / name).unlink(missing_ok=True)
        sync_folder(target)
        _write_mark(job, replace(mark, replaced=()))  # all files from here on are new
    names = set(os.listdir(new)) - {STAGING} if new.exists() else set()
    for name in sorted(names):
        if os.path.lexists(target / name):
            raise _taken(target / name)
    for name in sorted(names - {MANIFEST}):
        (new / name).rename(target / name)
    sync_folder(target)
    if MANIFEST in names:
        (new / MANIFEST).rename(target / MANIFEST)
    sync_folder(target)
    discard(job)


def files_of(root: Path) -> set[str]:
    """Return the names of the files that a dataset consists of."""
    shards, listed = None, None
    with contextlib.suppress(DatasetError):
        shards = {name for name in ShardTable(LocalFolder(root)).names if "/" not in name}
    with contextlib.suppress(DatasetError, OSError):
        # files of the recipe too
        listed = set(filter(is_file_name, read_checksums(LocalFolder(root))))
    # The names that a conversion gives. Too damaged to say: what is left over of it stays, and
    # verify tells.
    if shards is None and listed is None:
        with contextlib.suppress(DatasetError, OSError):
            shards = set(numbered_names(Manifest.load(LocalFolder(root)).splits))
    return {*(shards or ()), *(listed or ()), *BESIDE_SHARDS}


# --- what a manifest says of a dataset ---


def manifest_of(
    layout: Layout,
    recipe: Json,
    parts: dict[str, str],
    splits: tuple[SplitFacts, ...],
    **others: Any,
) -> Manifest:
    """Return the manifest of a dataset that is made now, with these parts of its fingerprint;
    `others` are its other fields. Without these, its samples have no source, and each of them was an
    input."""
    samples = sum(each.samples for each in splits)
    facts = {
        "kind": layout.kind,
        "samples": samples,
        "shards": sum(each.shards for each in splits),
        "bytes": sum(each.bytes for each in splits),
        "inputs": samples,
        "rejected": 0,
        "splits": splits,
        "schema": tuple((f.name, str(f.type)) for f in layout.columns),
        "fields": layout.fields(),
        "recipe": recipe,
        "settings": {},
        "fingerprint": fingerprint(parts),
        "fingerprint_parts": parts,
        "files": {},
        "sources": (),
        "created": now(),
        "shardctl_version": __version__,
    }
    return Manifest(**{**facts, **others})


def splits_of(
    entries: Sequence[ShardEntry], names: Iterable[str] | None = None
) -> tuple[SplitFacts, ...]:
    """Return what a manifest says of the splits with these names (None: all there are)."""
    if names is None:
        names = dict.fromkeys(entry.split for entry in entries)
    found = []
    for name in names:
        own = [entry for entry in entries if entry.split == name]
        rows, size = sum(entry.rows for entry in own), sum(entry.bytes for entry in own)
        found.append(SplitFacts(name, rows, len(own), size))
    return tuple(found)


def now() -> str:
    """Return the time as a manifest has it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


# --- earlier generations of a dataset, which are kept beside the present one without a second copy of shards
# that both have ---


HIDDEN = "."
"""What names of folders begin with that are being made, or deleted."""

_HIDDEN_NAME = re.compile(rf"{re.escape(HIDDEN)}(unfinished|[0-9]{{5,}}\.[0-9a-f]{{8}})")


def keep_generation(root: Path) -> None:
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
            digest = _generation_digest(folder)
            if digest == _generation_digest(root):
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


def settle_generations(root: Path, keeps: int | None = None) -> None:
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
    wanted = {folder for folder in last if _generation_digest(folder) in ("", known[folder])}
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


def _generation_digest(root: Path) -> str:
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
