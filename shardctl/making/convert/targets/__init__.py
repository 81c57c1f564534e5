"""Where a dataset is written: a folder, or a place on an object store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from shardctl.errors import DatasetError
from shardctl.format.arrays import Bools
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST, SHARDS, STAGING
from shardctl.format.tables import ShardTable
from shardctl.making.commit import publish, staging
from shardctl.making.convert.previous import PreviousDataset
from shardctl.making.paths import check_writable
from shardctl.making.plan.plan import NOT_KEPT
from shardctl.making.shards.job import NEW_FOLDER, DatasetJob
from shardctl.system import file_lease
from shardctl.system.file_lease import Waiting
from shardctl.system.files import free_bytes, naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JOB
from shardctl.system.processes.pool import Pool
from shardctl.system.text import printable


@contextmanager
def open_target(destination: str | Path) -> Iterator[Target]:
    """Yield the place of a path or of a URL. Raises StoreError, InstallError."""
    if isinstance(destination, str):
        from shardctl.making.convert.targets.store import place_on_store  # an extra

        with place_on_store(destination) as place:
            place.look_at_jobs()
            yield place
    else:
        yield Target(LocalFolder(destination))


class WriteLease(Protocol):
    """The right to write, for as long as its heartbeat continues."""

    def check(self) -> None:
        """Raise BusyError if another process has taken it over."""
        ...


class Target:
    """A folder of a file system that a dataset is written to: jobs are in a folder within it, and a
    dataset takes its place by rename. A StoreTarget is a place on an object store.

    `folder` is that of the dataset; of one on a store, a folder of this machine that has the work
    on it. It has what is known of the place: the manifest of the dataset that is there, and the
    jobs that were begun. The methods raise StorageError, BusyError.
    """

    def __init__(self, folder: LocalFolder) -> None:
        self.folder = folder

    @property
    def _staging(self) -> Path:
        return self.folder.path(STAGING)

    def manifest(self) -> Manifest | None:
        """Return the manifest as it is now, None if there is no dataset. Raises DatasetError."""
        return Manifest.load(self.folder) if self.folder.path(MANIFEST).exists() else None

    def check_writable(self) -> None:
        """Raise StorageError if nothing can be written there. Writes nothing."""
        check_writable(self.folder.root)

    def needs_recovery(self) -> bool:
        """Return whether a killed process has begun to replace the dataset or to delete a job: the
        next writer completes it."""
        return publish.needs_recovery(self.folder.root) or staging.is_given_up(self._staging)

    def free_bytes(self) -> int | None:
        """Return how many bytes are free; None where that is not limited."""
        return free_bytes(self.folder.root)

    def lease(self, waiting: Waiting | None) -> AbstractContextManager[WriteLease]:
        """Be the only writer. `waiting` is told of another one, for which this process waits; None:
        raise BusyError."""
        self.check_writable()
        return file_lease.hold(self._staging, waiting)

    def lease_beside_parts(self, waiting: Waiting | None) -> AbstractContextManager[WriteLease]:
        """Be the only writer but for the parts of a conversion that are being built: none can begin
        meanwhile."""
        self.check_writable()
        return file_lease.hold_beside_parts(self._staging, waiting)

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

    def await_parts(self, waiting: Waiting | None) -> None:
        """Wait until no part is being built. The caller holds the lease beside parts."""
        file_lease.await_parts(self._staging, waiting)

    def prepared(self, job: DatasetJob) -> DatasetJob:
        """Make the folder of a job that begins, and take away the jobs of before. Return the job
        with what its workers must know of this place."""
        staging.make_room(self._staging, job.folder)
        return job

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

    def fetch_done(self, job: DatasetJob, chosen: Bools) -> None:
        """Have the markers of those of the chosen shards, (shards,), that are finished in the folder of the
        job, and the rejects of all finished ones."""

    def fetch_dataset(self) -> None:
        """Have the tables of the dataset that is there in `folder`."""

    def refuse_lost(self, before: PreviousDataset, shards: list[int]) -> None:
        """Raise DatasetError if one of these shards of the dataset before is gone, or not as large
        as it was."""
        for shard in shards:
            before.refuse_lost(shard)

    def refuse_lost_files(self, manifest: Manifest) -> None:
        """Raise DatasetError if a file of the dataset that is there is gone or of another size, if
        that is known at once."""
        refuse_lost_files(self.folder.root, manifest)

    def keep(self, job: DatasetJob, before: PreviousDataset) -> None:
        """Put the shards that a job keeps of the dataset before among the new ones: a second name,
        or a copy. Raises DatasetError for one that is gone."""
        for shard, number in kept_shards(job):
            new = job.shard_path(shard)
            with naming_the_path(new):
                new.unlink(missing_ok=True)
                before.refuse_lost(number)
                publish.link_or_copy(before.folder.path(before.table[number].path), new)

    def leave_out(self, job: DatasetJob, shards: list[str]) -> None:
        """Take away shards of a job by their names: they do not become parts of the dataset."""
        for name in shards:
            with naming_the_path(job.folder):
                (job.folder / NEW_FOLDER / name).unlink(missing_ok=True)

    def publish(self, new: Path, updates: bool, checks: Pool | None = None) -> None:
        """Make the complete dataset in the folder `new` the one that is there, and keep as many
        generations of before as its manifest says.

        One that `updates` that dataset is checked first, in the processes `checks`, None for new
        ones: its tables, and the footer of every shard. Raises DatasetError.
        """
        if updates:
            # which most conversions never need
            from shardctl.inspection.verify.verification import verify_with

            findings = verify_with(checks, new, "quick", progress=False).findings
            found = next((each for each in findings if each.severity == "error"), None)
            if found is not None:
                (new / MANIFEST).unlink()  # the next try makes the tables once more
                raise DatasetError(
                    f"{printable(new)}: {found.message}; the dataset is as it was before"
                )
            if Manifest.load(LocalFolder(new)).keep:
                publish.keep_generation(self.folder.root)
        publish.publish(new, self.folder.root)
        publish.settle_generations(self.folder.root)

    def discard(self, job: Path) -> None:
        """Take away a job by its folder."""
        staging.discard(job)


def kept_shards(job: DatasetJob) -> list[tuple[int, int]]:
    """Return the shards of a job that are kept of the dataset before, each with its number there."""
    kept = enumerate(job.kept.tolist())
    return [(shard, number) for shard, number in kept if number != NOT_KEPT]


def refuse_lost_files(root: Path, manifest: Manifest) -> None:
    """Raise DatasetError unless each shard, table and other file of a dataset is an ordinary file
    of the recorded size.

    update.arrows may be lost: nothing but an update needs it, and that says so. Raises StorageError
    if the folder cannot be listed.
    """
    there: dict[str, int] = {}
    with naming_the_path(root), os.scandir(root) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # deleted meanwhile
                if entry.is_file():
                    there[entry.name] = entry.stat().st_size
    lost = [name for name, facts in manifest.files.items() if there.get(name) != facts.bytes]
    if SHARDS not in lost:
        table = ShardTable(LocalFolder(root))
        sizes = zip(table.names, table.sizes.tolist(), strict=True)
        lost += [name for name, size in sizes if there.get(name) != size]
    if lost:
        shown, more = printable(root), f" ({len(lost):,} files in all)" * (len(lost) > 1)
        raise DatasetError(
            f"{shown}: {printable(lost[0])} is missing or damaged{more}; run "
            f"`shardctl repair {shown}`"
        )
