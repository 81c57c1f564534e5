"""What a conversion needs of the place that its dataset is written to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from shardctl.build.convert.execute import Chosen
from shardctl.build.convert.update.outcomes import Outcomes
from shardctl.build.convert.update.previous import PreviousDataset
from shardctl.build.shards.dataset_job import DatasetJob
from shardctl.format.manifest import Manifest
from shardctl.system.file_lease import Waiting
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.pool import Pool


class WriteLease(Protocol):
    """The right to write, for as long as its heartbeat continues."""

    def check(self) -> None:
        """Raise BusyError if another process has taken it over."""
        ...


class Target(Protocol):
    """A place for a dataset. The methods raise StorageError, BusyError; `writing` and `planning` if
    nothing can be written."""

    @property
    def folder(self) -> LocalFolder:
        """The folder of the dataset; of one on a store, a folder of this machine that has the work
        on it, with its URL.

        It has what is known of the place: the manifest of the dataset that is there, and the jobs
        that were begun.
        """
        ...

    def check_writable(self) -> None:
        """Raise StorageError if nothing can be written there."""
        ...

    def needs_recovery(self) -> bool:
        """Return whether a killed process has begun to replace the dataset or to delete a job: the
        next writer completes it."""
        ...

    def free_bytes(self) -> int | None:
        """Return how many bytes are free; None where that is not limited."""
        ...

    def writing(self, waiting: Waiting | None) -> AbstractContextManager[WriteLease]:
        """Be the only writer. `waiting` is told of another one, for which this process waits; None:
        raise BusyError."""
        ...

    def planning(self, waiting: Waiting | None) -> AbstractContextManager[WriteLease]:
        """Be the only writer but for the parts of a conversion that are being built: none can begin
        meanwhile."""
        ...

    def building(self, job: Path, part: str) -> AbstractContextManager[WriteLease]:
        """Be the only one that builds a part of the job in a folder. The caller is planning when
        this begins.

        Raises BusyError at once if another process does, PerhapsBusyError if that one may be gone:
        the caller tries again.
        """
        ...

    def parts_being_built(self) -> dict[str, str]:
        """Return who builds which part. The caller is planning."""
        ...

    def await_parts(self, waiting: Waiting | None) -> None:
        """Wait until no part is being built. The caller is planning."""
        ...

    def prepared(self, job: DatasetJob) -> DatasetJob:
        """Return a job that is about to begin, with what its workers must know of this place."""
        ...

    def make_room(self, folder: Path) -> None:
        """Make the folder of a job that begins, and take away the jobs of before."""
        ...

    def begun(self, job: DatasetJob) -> None:
        """Keep a job, whose files are complete in its folder, where all who build it find it."""
        ...

    def entrust(self, job: DatasetJob, held: WriteLease) -> None:
        """Have all that workers need in the folder of a job, and let them know who has the right to
        write."""
        ...

    def fetch_done(self, job: DatasetJob, chosen: Chosen) -> None:
        """Have the markers of those of the chosen shards that are finished in the folder of the
        job."""
        ...

    def fetch_rejects(self, job: DatasetJob) -> None:
        """Have the rejects of all finished shards in the folder of the job."""
        ...

    def fetch_dataset(self) -> None:
        """Have the tables of the dataset that is there in `target`."""
        ...

    def fetch_listed_rejects(self) -> None:
        """Have rejects.jsonl of the dataset that is there in `target`."""
        ...

    def refuse_lost(self, before: PreviousDataset, shards: list[int]) -> None:
        """Raise DatasetError if one of these shards of the dataset before is gone, or not as large
        as it was."""
        ...

    def refuse_lost_files(self, manifest: Manifest) -> None:
        """Raise DatasetError if a file of the dataset that is there is gone or of another size, if
        that is known at once."""
        ...

    def keep(self, outcomes: Outcomes) -> None:
        """Put the shards that are kept of the dataset before among the new ones. Raises
        DatasetError for one that is gone."""
        ...

    def leave_out(self, job: DatasetJob, shards: list[str]) -> None:
        """Take away shards of a job by their names: they do not become parts of the dataset."""
        ...

    def base(self, job: DatasetJob) -> str:
        """Return the folder of the new dataset below the place, with a / at its end; "" where that
        is the place itself."""
        ...

    def publish(self, new: Path, updates: bool, checks: Pool | None = None) -> None:
        """Make the complete dataset in the folder `new` the one that is there. `updates`: it brings
        that one up to date.

        Some targets check it first: in the processes `checks`, None for new ones.
        """
        ...

    def discard(self, job: Path) -> None:
        """Take away a job by its folder."""
        ...
