"""Where an export is made: a folder beside its destination, which a stopped export leaves so that the same command goes on.

OUT.partial/.shardctl/lease     one export at a time
OUT.partial/DIGEST/job.json     what is exported, for the workers; DIGEST names it
OUT.partial/DIGEST/files/       what becomes OUT, by rename
OUT.partial/DIGEST/done/        a file for each part that is done: its files, their sizes and SHA-256
OUT.partial/old/                the export that was at OUT, between two renames
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl import lease
from shardctl.exports.base import Part, Written
from shardctl.sources.exported import FileFacts
from shardctl.storage import PARTIAL, is_file, naming_the_path, sync_folder, write_atomically

LEASE_FOLDER, OLD = ".shardctl", "old"
JOB, FILES, DONE = "job.json", "files", "done"


@dataclass(frozen=True)
class Staging:
    """The folder in which one export is made: of one state of a dataset, in one form, with the same settings."""

    folder: Path

    @property
    def files(self) -> Path:
        """The folder that becomes the export."""
        return self.folder / FILES

    @property
    def job(self) -> Path:
        """The file that tells workers what to do."""
        return self.folder / JOB

    def begin(self, job: Mapping[str, Any]) -> None:
        """Make the folders, and write the job. Raises StorageError."""
        with naming_the_path(self.folder):
            self.files.mkdir(parents=True, exist_ok=True)
            (self.folder / DONE).mkdir(exist_ok=True)
        write_atomically(self.job, json.dumps(job).encode())

    def mark_done(self, part: Part, written: Written) -> None:
        """Note that a part is done: its files are on the disk. Raises StorageError."""
        for folder in {(self.files / name).parent for name in written.all_files}:
            sync_folder(folder)
        write_atomically(self._marker(part), json.dumps(written.to_json()).encode())

    def done(self, part: Part) -> Written | None:
        """Return what was written of a part, None if it is not done or a file of it is not there as it was."""
        try:
            written = Written.from_json(json.loads(self._marker(part).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        whole = all(self._size(name) == facts.bytes for name, facts in written.all_files.items())
        return written if whole else None

    def _marker(self, part: Part) -> Path:
        return self.folder / DONE / f"{part.name}.json"

    def _size(self, name: str) -> int:
        path = self.files / name
        return path.stat().st_size if is_file(path) else -1

    def sweep(self, known: Mapping[str, FileFacts]) -> None:
        """Remove files that are not among those known: what workers left that were killed. Raises StorageError."""
        with naming_the_path(self.files):
            for parent, folders, names in os.walk(self.files, topdown=False):
                for name in names:
                    path = Path(parent, name)
                    if path.relative_to(self.files).as_posix() not in known:
                        path.unlink()
                for name in folders:
                    with contextlib.suppress(OSError):  # it has files
                        Path(parent, name).rmdir()

    def publish(self, target: Path) -> None:
        """Put the files in the place of `target`, by one rename, or by two where there is an older export."""
        with naming_the_path(target):
            for parent, _, _ in os.walk(self.files, topdown=False):
                sync_folder(Path(parent))
            if target.exists():
                target.rename(self.folder.parent / OLD)
            self.files.rename(target)
        sync_folder(target.parent)


@contextlib.contextmanager
def only_writer(target: Path) -> Iterator[Path]:
    """Be the only one that exports to `target`, and yield the folder beside it. Raises BusyError, StorageError.

    An export that was stopped between its two renames is put back first. The folder is removed at the end if it is empty.
    """
    beside = target.with_name(f"{target.name}{PARTIAL}")
    try:
        with lease.hold(beside / LEASE_FOLDER, None):
            _settle(target, beside / OLD)
            try:
                yield beside
            finally:
                _settle(target, beside / OLD)
    finally:
        with contextlib.suppress(OSError):  # a stopped export is in it
            beside.rmdir()


def _settle(target: Path, old: Path) -> None:
    """Put back the export that had to give way, or remove it where the new one is in its place."""
    if not old.exists():
        return
    if target.exists():
        discard(old)
        return
    with naming_the_path(target):
        old.rename(target)


def discard_others(beside: Path, kept: Path) -> None:
    """Remove what exports with other settings, or of another state of the dataset, have left."""
    with naming_the_path(beside):
        for name in os.listdir(beside):
            if name not in (LEASE_FOLDER, OLD, kept.name):
                discard(beside / name)


def discard(folder: Path) -> None:
    """Delete a folder if it is there, and go on with that before a Ctrl-C that comes meanwhile is heeded."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
