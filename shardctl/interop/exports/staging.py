"""Where an export is made: a folder beside its destination, which a stopped export leaves so that
the same command goes on.

OUT.partial/.shardctl/lease     one export at a time
OUT.partial/DIGEST/job.json     what is exported, for the workers; DIGEST names it
OUT.partial/DIGEST/files/       what becomes OUT, by rename
OUT.partial/DIGEST/done/        a file for each part that is done: its files, their sizes and SHA-256
OUT.partial/DIGEST/pieces/      files of parts that are not of the export
OUT.partial/old/                the export that was at OUT, between two renames

Nothing else may be there: what a person has put there is never deleted. Wherever a folder of these
is deleted, the file that tells what it is goes last, so that it is known again after a kill.
JobFolder.discard does it the other way round: it is for folders that are known by their names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from shardctl.errors import BusyError, StorageError, UsageError
from shardctl.format.names import CHECKSUMS
from shardctl.interop.exports.base import PIECES, ExportPart, PartResult, Source
from shardctl.interop.exports.loose_files import NameSet, listed
from shardctl.sources.export_description import DESCRIPTION, Description, loose_names
from shardctl.system import file_lease
from shardctl.system.file_lease import LEASE, Lease
from shardctl.system.files import (
    PARTIAL,
    FileFacts,
    is_file,
    is_folder,
    naming_the_path,
    refuse_links,
    remove_tree,
    sync_folder,
)
from shardctl.system.job_folder import DONE_FOLDER, JOB, JobFolder
from shardctl.system.text import printable

LEASE_FOLDER, OLD = ".shardctl", "old"
FILES = "files"

JOB_NAMES = frozenset(("dataset", "choice", "to"))
"""What every job.json says, and hardly any other file."""

_OF_JOB = frozenset((JOB, FILES, DONE_FOLDER, PIECES))
_DIGEST = re.compile(r"[0-9a-f]{16}")
_UNFINISHED_JOB = re.compile(rf"{re.escape(JOB)}\.[0-9a-f]+{re.escape(PARTIAL)}")


@dataclass(frozen=True)
class Staging(JobFolder):
    """The folder in which one export is made: of one state of a dataset, in one form, with the same
    settings."""

    @property
    def files(self) -> Path:
        """The folder that becomes the export."""
        return self.path / FILES

    def begin(self, job: Mapping[str, Any]) -> None:
        """Make the folders, and write the job. Raises StorageError."""
        with naming_the_path(self.path):
            self.path.mkdir(exist_ok=True)
        self.save(job)  # first of all: it tells what the folder is
        self.make_folders(FILES)

    def finish(self, part: ExportPart, written: PartResult) -> None:
        """Note that a part is done: its files are on the disk. Raises StorageError."""
        for folder in {path.parent for path, _ in self._own(written)}:
            sync_folder(folder)
        self.mark_done(part.name, asdict(written))

    def done(self, part: ExportPart) -> PartResult | None:
        """Return what was written of a part, None if it is not done or a file of it is not there as
        it was."""
        try:
            written = PartResult.from_json(self.read_marker(part.name))
            loose = ((self.files / name, facts) for name, facts in self.loose_files([written]))
            whole = all(
                path.stat().st_size == facts.bytes
                for path, facts in chain(self._own(written), loose)
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return written if whole else None

    def _own(self, written: PartResult) -> Iterator[tuple[Path, FileFacts]]:
        """Yield the files and the pieces of a part, without loose files."""
        for folder, files in ((self.files, written.files), (self.path / PIECES, written.pieces)):
            yield from ((folder / name, facts) for name, facts in files.items())

    def loose_files(self, written: Iterable[PartResult]) -> Iterator[tuple[str, FileFacts]]:
        """Yield the loose files of some parts, in order."""
        for each in written:
            if each.loose is not None:
                yield from listed(self.path / PIECES / each.loose.list)

    def sweep(self, written: Sequence[PartResult], others: Iterable[str] = ()) -> None:
        """Remove files that are not of these parts, nor `others`: what workers left that were
        killed. Raises StorageError."""
        kept = (name for each in written for name in each.files)
        known = NameSet(chain(kept, (name for name, _ in self.loose_files(written)), others))
        with naming_the_path(self.files):
            for name in [
                name
                for name, is_folder in entries_below(self.files)
                if not is_folder and name not in known
            ]:
                (self.files / name).unlink()
            for name in sorted(
                (name for name, is_folder in entries_below(self.files) if is_folder), reverse=True
            ):
                with contextlib.suppress(OSError):  # it has files
                    (self.files / name).rmdir()

    def publish(self, target: Path, overwrite: bool) -> None:
        """Put the files in the place of `target`, by one rename, or by two where `overwrite`
        replaces an older export.

        What is there and is no export stays there, even if it came this very moment. Raises
        StorageError.
        """
        with naming_the_path(target):
            for name, is_folder in entries_below(self.files):
                if is_folder:
                    sync_folder(self.files / name)
            sync_folder(self.files)
            with contextlib.suppress(OSError):  # a folder with anything in it stays
                target.rmdir()
            if overwrite and target.exists():
                _move_away(target, self.path.parent / OLD)
            # refused by the system if there is a file, or a folder that is not empty
            self.files.rename(target)
        sync_folder(target.parent)


def _move_away(target: Path, old: Path) -> None:
    """Rename the export at `target`. It is looked at where nobody else writes: what has anything
    else is put back."""
    target.rename(old)
    other = not_of_export(old)
    if other is not None:
        old.rename(target)
        raise StorageError(
            f"{printable(target)}: a file appeared that is not of an export "
            f"({printable(other)}); move it away"
        )


@dataclass(frozen=True)
class Writer:
    """The right to export to one destination. `folder` is the one beside it."""

    folder: Path
    lease: Lease

    def discard(self, folder: Path) -> None:
        """Delete a folder of a stopped export, but leave it to the process that has taken over if
        one has."""
        if self._has_it():
            discard(folder)

    def settle(self, target: Path) -> None:
        """Put back the export that had to give way, or remove it where the new one is in its
        place."""
        old = self.folder / OLD
        if not old.exists() or not self._has_it():
            return
        if is_file(target / DESCRIPTION):
            discard(old)
        elif not target.exists():  # what somebody else has put there stays, and so does the export
            with naming_the_path(target):
                old.rename(target)

    def _has_it(self) -> bool:
        with contextlib.suppress(BusyError, StorageError):
            self.lease.check()
            return True
        return False


@contextlib.contextmanager
def only_writer(target: Path) -> Iterator[Writer]:
    """Be the only one that exports to `target`. Raises BusyError, and StorageError if the folder
    beside it is a person's.

    An export that was stopped between its two renames is put back first. The folder is removed at
    the end if it is empty.
    """
    beside = target.with_name(f"{target.name}{PARTIAL}")
    _refuse_if_not_ours(beside)
    try:
        with file_lease.hold(beside / LEASE_FOLDER, None) as held:
            writer = Writer(beside, held)
            writer.settle(target)
            try:
                yield writer
            finally:
                writer.settle(target)
    finally:
        with contextlib.suppress(OSError):  # a stopped export is in it
            beside.rmdir()


def _refuse_if_not_ours(beside: Path) -> None:
    """Raise StorageError if the folder has anything that no export has put there: it would be
    deleted with the rest.

    No export puts a link there.
    """
    if not os.path.lexists(beside):
        return
    with naming_the_path(beside):
        refuse_links(beside)
        for name in sorted(os.listdir(beside)):
            if not _is_ours(beside / name):
                raise StorageError(
                    f"{printable(beside)}: {printable(name)} is not of an export; "
                    "move it away, or give another destination"
                )


def _is_ours(path: Path) -> bool:
    """Return whether something beside a destination is certainly of an export, or just being
    removed by another one."""
    if path.is_symlink():
        return False
    try:
        if path.name == LEASE_FOLDER:
            return set(os.listdir(path)) <= {LEASE}
        if path.name == OLD:
            return path.is_dir() and not_of_export(path) is None
        return _DIGEST.fullmatch(path.name) is not None and _is_of_job(path)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


def _is_of_job(folder: Path) -> bool:
    """Return whether a folder has the record of a job, or no file at all but one that was to become
    it."""
    names = {name for name in os.listdir(folder) if not _UNFINISHED_JOB.fullmatch(name)}
    looks = {name: is_file if name == JOB else is_folder for name in names}
    if not names <= _OF_JOB or not all(look(folder / name) for name, look in looks.items()):
        return False
    if JOB not in names:
        return not any(files for name in names for _, _, files in os.walk(folder / name))
    try:
        record = JobFolder(folder).record()
    except ValueError:
        return False
    return isinstance(record, dict) and record.keys() >= JOB_NAMES


def discard_others(beside: Path, kept: Path) -> None:
    """Remove what exports with other settings, or of another state of the dataset, have left."""
    with naming_the_path(beside):
        for name in os.listdir(beside):
            if name not in (LEASE_FOLDER, OLD, kept.name) and _is_ours(beside / name):
                discard(beside / name)


def discard(folder: Path) -> None:
    """Delete a folder if it is there, and go on with that before a Ctrl-C that comes meanwhile is
    heeded."""
    try:
        _remove(folder)
    except KeyboardInterrupt:
        _remove(folder)
        raise


def _remove(folder: Path) -> None:
    """Delete a folder, and the files that tell what it is only when nothing else is left in it."""
    with contextlib.suppress(OSError, StorageError):  # what cannot be deleted stays
        for entry in list(os.scandir(folder)) if is_folder(folder) else []:
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    remove_tree(Path(entry.path), folder.parent)
            elif entry.name not in (JOB, DESCRIPTION, CHECKSUMS):
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()
        # it tells which files are of an export, and the description the rest
        (folder / CHECKSUMS).unlink(missing_ok=True)
        remove_tree(folder, folder.parent)


def check_destination(out: Path, source: Source, overwrite: bool) -> Path:
    """Return the absolute path of the new folder. Raises UsageError or StorageError if it cannot be
    one."""
    shown = printable(out)
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
            raise StorageError(f"{shown}: is a file; the destination must be a new or empty folder")
        if target.is_mount():
            raise StorageError(
                f"{shown}: is where a file system is mounted; give a folder inside it"
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
        f"has a file that is not of an export ({printable(other)}); give a new or empty folder"
    )
    try:
        export = Description.load(folder)
    except (OSError, ValueError):
        return strange
    try:
        next(loose_names(folder, export), None)
    except (OSError, ValueError):
        return (
            f"holds an export whose {CHECKSUMS} is lost or changed; remove it yourself, or give "
            "another one"
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
