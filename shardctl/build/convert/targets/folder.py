"""A dataset in a folder."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from shardctl.build.commit import generations, publish, staging
from shardctl.build.convert import missing_shards
from shardctl.build.convert.execute import Chosen
from shardctl.build.convert.targets.base import WriteLease
from shardctl.build.convert.update.outcomes import Outcomes, verify_update
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.paths import check_writable
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.build.shards.job import NEW_FOLDER
from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import STAGING
from shardctl.system import file_lease
from shardctl.system.file_lease import Lease, Waiting
from shardctl.system.files import free_bytes, naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.system.job_folder import JOB
from shardctl.system.processes.pool import Pool
from shardctl.system.text import printable


@dataclass(frozen=True)
class FolderTarget:
    """A folder of a file system: jobs are in a folder within it, and a dataset takes its place by
    rename."""

    folder: LocalFolder

    @property
    def _staging(self) -> Path:
        return self.folder.path(STAGING)

    def check_writable(self) -> None:
        """Raise StorageError if nothing can be written there. Writes nothing."""
        check_writable(self.folder.root)

    def needs_recovery(self) -> bool:
        """Look beside the folder, and into the staging folder."""
        return publish.needs_recovery(self.folder.root) or staging.is_given_up(self._staging)

    def free_bytes(self) -> int | None:
        """Return the free bytes of the file system."""
        return free_bytes(self.folder.root)

    def writing(self, waiting: Waiting | None) -> AbstractContextManager[Lease]:
        """Hold the lease, once no part is being built."""
        self.check_writable()
        return file_lease.hold(self._staging, waiting)

    def planning(self, waiting: Waiting | None) -> AbstractContextManager[Lease]:
        """Hold the lease."""
        self.check_writable()
        return file_lease.hold_beside_parts(self._staging, waiting)

    def building(self, job: Path, part: str) -> AbstractContextManager[Lease]:
        """Hold the lease of a part."""
        return file_lease.hold_part(job, part)

    def parts_being_built(self) -> dict[str, str]:
        """Return who builds which part."""
        return file_lease.parts_being_built(self._staging)

    def await_parts(self, waiting: Waiting | None) -> None:
        """Wait until no part is being built."""
        file_lease.await_parts(self._staging, waiting)

    def prepared(self, job: DatasetJob) -> DatasetJob:
        """Return the job: workers write beside the plan."""
        return job

    def make_room(self, folder: Path) -> None:
        """Clear the staging folder for a job."""
        staging.make_room(self._staging, folder)

    def begun(self, job: DatasetJob) -> None:
        """Nothing to do: the job is here."""

    def entrust(self, job: DatasetJob, held: WriteLease) -> None:
        """It is here, and a shard takes its place by rename. Raises DatasetError for a job that
        puts its shards elsewhere."""
        if job.url:
            raise DatasetError(
                f"{printable(str(job.folder / JOB))}: this job is for a dataset on a store "
                f"({printable(job.url)}), but this"
                " dataset is on this machine. Delete the folder of the job, and run the same "
                "command again"
            )

    def fetch_done(self, job: DatasetJob, chosen: Chosen) -> None:
        """Nothing to do: the markers are here."""

    def fetch_rejects(self, job: DatasetJob) -> None:
        """Nothing to do: the rejects are here."""

    def fetch_dataset(self) -> None:
        """Nothing to do: the dataset is here."""

    def fetch_listed_rejects(self) -> None:
        """Nothing to do: it is here."""

    def refuse_lost(self, before: PreviousDataset, shards: list[int]) -> None:
        """Look at the size of each."""
        for shard in shards:
            before.refuse_lost(shard)

    def refuse_lost_files(self, manifest: Manifest) -> None:
        """Look at the sizes of all."""
        missing_shards.refuse_lost_files(self.folder.root, manifest)

    def keep(self, outcomes: Outcomes) -> None:
        """Give the shards a second name."""
        outcomes.link_kept()

    def leave_out(self, job: DatasetJob, shards: list[str]) -> None:
        """Delete the files."""
        for name in shards:
            with naming_the_path(job.folder):
                (job.folder / NEW_FOLDER / name).unlink(missing_ok=True)

    def base(self, job: DatasetJob) -> str:
        """Return that there is no folder of its own."""
        return ""

    def publish(self, new: Path, updates: bool, checks: Pool | None = None) -> None:
        """Exchange the folders, and keep as many generations of before as the manifest says. Raises
        DatasetError."""
        if updates:
            verify_update(new, checks)
            if Manifest.load(LocalFolder(new)).keep:
                generations.keep(self.folder.root)
        publish.publish(new, self.folder.root)
        generations.settle(self.folder.root)

    def discard(self, job: Path) -> None:
        """Take away the folder of a job."""
        staging.discard(job)
