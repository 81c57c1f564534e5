"""Where a dataset is written: a folder, or a place on an object store; and what a commit does
there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from shardctl.errors import DatasetError, StorageError
from shardctl.format.arrays import Bools
from shardctl.format.generations import generation_folders
from shardctl.format.manifest import Manifest
from shardctl.format.names import DATA, GENERATIONS, MANIFEST, SHARDS, STAGING
from shardctl.format.tables import ShardTable
from shardctl.making.commit.jobs import discard, how_far, jobs_in, shards_made
from shardctl.making.paths import check_writable
from shardctl.making.shards.job import DatasetJob
from shardctl.system import file_lease
from shardctl.system.file_lease import Waiting
from shardctl.system.files import (
    PARTIAL,
    free_bytes,
    is_folder,
    make_folder,
    naming_the_path,
    refuse_link,
    replacing,
    sync_folder,
)
from shardctl.system.folders import LocalFolder, hash_file
from shardctl.system.job_folder import JOB
from shardctl.system.text import printable


class WriteLease(Protocol):
    """The right to write, for as long as its heartbeat continues."""

    def check(self) -> None:
        """Raise BusyError if another process has taken it over."""
        ...


class Target:
    """A folder of a file system that a dataset is written to. A StoreTarget is a place on an object
    store.

    `folder` is that of the dataset; of one on a store, a folder of this machine that has the work
    on it. It has what is known of the place: the manifest of the dataset that is there, and the
    jobs that were begun. Paths are those below the dataset, with /; that of a folder ends with it.
    The methods raise StorageError, BusyError.
    """

    look_seconds = 0.25
    """Seconds between looks whether another process has done something."""

    may_lack_manifest = False
    """Whether a dataset may be there that has lost its manifest: a repair brings that back."""

    def __init__(self, folder: LocalFolder) -> None:
        self.folder = folder
        self.look_at_dataset()

    def look_at_dataset(self) -> None:
        """Note which dataset is there now."""
        self._seen = self._now()

    def _now(self) -> tuple[int, ...] | None:
        with contextlib.suppress(OSError):
            found = self.folder.path(MANIFEST).stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
        return None

    def is_replaced(self) -> bool:
        """Return whether another dataset is there than when it was looked at last."""
        return self._now() != self._seen

    def is_leased(self) -> bool:
        """Return whether a process holds the lease, or one that was killed has left it."""
        return file_lease.is_leased(self._staging)

    def how_far(self) -> tuple[int, int] | None:
        """Return how many shards of the job that is being built are done, and how many it has; None
        if there is none."""
        return how_far(self._staging)

    @property
    def _staging(self) -> Path:
        return self.folder.path(STAGING)

    def look_at_manifest(self) -> bool:
        """Have the manifest that is there now in `folder`, and return whether it came now."""
        return False

    def manifest(self) -> Manifest | None:
        """Return the manifest as it is now, None if there is no dataset. Raises DatasetError."""
        try:
            self.folder.path(MANIFEST).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            pass  # it is there; who reads it says what is wrong
        return Manifest.load(self.folder)

    def check_writable(self) -> None:
        """Raise StorageError if nothing can be written there. Writes nothing."""
        check_writable(self.folder.root)

    def free_bytes(self) -> int | None:
        """Return how many bytes are free; None where that is not limited."""
        return free_bytes(self.folder.root)

    # --- who writes ---

    @contextlib.contextmanager
    def lease(
        self, waiting: Waiting | None, looking: Callable[[], None] = lambda: None
    ) -> Iterator[WriteLease]:
        """Be the only writer. `waiting` is told of another one, for which this process waits; None:
        raise BusyError. Meanwhile `looking` is called now and then."""
        with self.lease_beside_parts(waiting, looking) as held:
            self.await_parts(waiting, looking)
            yield held

    def lease_beside_parts(
        self, waiting: Waiting | None, looking: Callable[[], None] = lambda: None
    ) -> AbstractContextManager[WriteLease]:
        """Be the only writer but for the parts of a conversion that are being built: none can begin
        meanwhile."""
        self.check_writable()
        return file_lease.hold(self._staging, waiting, looking)

    def part_lease(self, job: Path, part: str) -> AbstractContextManager[WriteLease]:
        """Be the only one that builds a part of the job in a folder. The caller holds the lease
        beside parts when this begins.

        Raises BusyError at once if another process does, PerhapsBusyError if that one may be gone:
        the caller tries again.
        """
        return file_lease.hold_part(job, part)

    def parts_being_built(self) -> dict[str, str]:
        """Return who builds which part. The caller holds the lease beside parts."""
        return file_lease.parts_being_built(self._staging)

    def await_parts(
        self, waiting: Waiting | None, looking: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until no part is being built. The caller holds the lease beside parts."""
        file_lease.await_parts(self._staging, waiting, looking)

    # --- the jobs ---

    def jobs(self) -> list[Path]:
        """Return the folders of all jobs."""
        with naming_the_path(self._staging):
            return jobs_in(self._staging) if self._staging.exists() else []

    def begun(self, job: DatasetJob) -> None:
        """Keep a job, whose files are complete in its folder, where all who build it find it."""

    def entrust(self, job: DatasetJob, held: WriteLease) -> None:
        """Have all that workers need in the folder of a job, and let them know who has the right to
        write. Raises DatasetError for a job that puts its shards elsewhere."""
        if job.url:
            raise DatasetError(
                f"{printable(job.folder / JOB)}: this job is for a store "
                f"({printable(job.url)}); delete its folder, and run the same command again"
            )
        make_folder(self.folder.path(DATA), self.folder.root)

    def fetch_done(self, job: DatasetJob, chosen: Bools) -> None:
        """Have the markers of those of the chosen shards, (shards,), that are finished in the folder of the
        job, and the rejects of all finished ones."""

    def unmark(self, job: Path, paths: list[str]) -> None:
        """Have shards of a job built again that were marked as finished and are lost: a marker of
        this machine is believed only where its shard is there."""

    def shards_made(self, job: Path) -> list[str]:
        """Return the paths of the shards that a job has finished, as its markers name them."""
        return shards_made(job)

    def discard(self, job: Path) -> None:
        """Take away the folder of a job."""
        with naming_the_path(job):
            discard(job)

    # --- the dataset ---

    def fetch_dataset(self) -> None:
        """Have the tables of the dataset that is there in `folder`."""

    def fetch_files(self, names: Iterable[str]) -> bool:
        """Have some files of the dataset that is there in `folder`, and return whether all are
        there."""
        return True

    def refuse_lost_files(self, manifest: Manifest) -> None:
        """Raise DatasetError unless each shard, table and other file of a dataset is an ordinary
        file of the recorded size, if that is known at once.

        update.arrows may be lost: nothing but an update needs it, and that says so. Raises
        StorageError if a folder cannot be listed.
        """
        places = manifest.places
        there, files = self.sizes(places.tables), manifest.files.items()
        lost = [name for name, facts in files if there.get(places.of(name)) != facts.bytes]
        if SHARDS not in lost:
            found = self.shards_of(places.tables).items()
            shards = {places.of(path): size for path, size in found}
            lost += lost_shards(shards, files_beside(self, shards))
        if lost:
            shown, more = self.folder.shown(), f" ({len(lost):,} files in all)" * (len(lost) > 1)
            raise DatasetError(
                f"{shown}: {printable(lost[0])} is missing or damaged{more}; run "
                f"`shardctl repair {shown}`"
            )

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of the files right in a folder, by their paths."""
        found: dict[str, int] = {}
        place = self.folder.path(folder)
        if not place.exists():
            return found
        with naming_the_path(place), os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # deleted meanwhile
                    if entry.is_file():
                        found[f"{folder}{entry.name}"] = entry.stat().st_size
        return found

    def generations(self) -> list[str]:
        """Return the folders of all generations, whole or not."""
        return generation_folders(self.folder.root)

    def manifest_of(self, generation: str) -> Manifest:
        """Return the copy of a manifest that is beside the tables of a generation, in their folder.
        Raises DatasetError."""
        return Manifest.load(self.folder.below(generation))

    def shards_of(self, folder: str) -> dict[str, int]:
        """Return the sizes of the shards of a generation, by their paths. Raises DatasetError where
        its table cannot be read."""
        table = ShardTable(self.folder.below(folder))
        return dict(zip(table.paths, table.sizes.tolist(), strict=True))

    def put_shard(self, path: str) -> None:
        """Put a shard, which is complete in `folder`, into the dataset."""

    def put(self, folder: str) -> None:
        """Have all files of a generation, complete in `folder`, on the disk; and the names of its
        shards."""
        for each in (DATA, folder, GENERATIONS, ""):
            if self.folder.path(each).exists():  # a dataset of format 2 has no data/
                sync_folder(self.folder.path(each))

    def replace_manifest(self, data: bytes, held: WriteLease) -> None:
        """Make this the manifest: the commit. It is durable when this returns."""
        root = self.folder.root
        with naming_the_path(root):
            for left in root.glob(f"{MANIFEST}.*{PARTIAL}"):  # of a killed process
                left.unlink(missing_ok=True)
        with replacing(root / MANIFEST) as sink:
            sink.write(data)
            sink.sync()
            held.check()
        sync_folder(root)
        with contextlib.suppress(StorageError):  # it may be no folder that this user may open
            sync_folder(root.parent)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, and the folders below the dataset that are empty then. Nothing behind a link
        is deleted."""
        root, folders = self.folder.root, set[Path]()
        for path in paths:
            place = root / path
            with naming_the_path(place):
                if place.parent not in folders:
                    for above in [each for each in place.parents if each.is_relative_to(root)]:
                        refuse_link(above)
                    folders.add(place.parent)
                place.unlink(missing_ok=True)
        for folder in folders - {root}:
            _remove_empty(folder)

    def tidy(self) -> None:
        """Delete the folders of a dataset that are empty."""
        root = self.folder.root
        for folder in (*map(root.joinpath, self.generations()), root / GENERATIONS, root / DATA):
            if is_folder(folder):
                _remove_empty(folder)

    def has_content(self, path: str, digits: str) -> bool:
        """Return whether the SHA-256 of a file begins so."""
        with contextlib.suppress(OSError):
            return hash_file(self.folder, path).startswith(digits)
        return False


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it has a file
        folder.rmdir()


def files_beside(target: Target, shards: Iterable[str]) -> dict[str, int]:
    """Return the sizes of all files in the folders of some shards, by their paths: one listing of
    each folder."""
    there: dict[str, int] = {}
    for folder in dict.fromkeys(path[: path.rfind("/") + 1] for path in shards):
        there |= target.sizes(folder)
    return there


def lost_shards(shards: Mapping[str, int], there: Mapping[str, int]) -> list[str]:
    """Return those of some shards, by their paths, that are not `there` with their sizes."""
    return [path for path, size in shards.items() if there.get(path) != size]
