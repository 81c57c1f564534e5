"""Where the dataset of a snapshot is: in a folder, or on an object store, whose requests take time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardctl.build.commit import publish
from shardctl.build.commit.staging import how_far
from shardctl.build.convert.targets.base import Target, WriteLease
from shardctl.build.convert.targets.folder import FolderTarget
from shardctl.errors import DatasetError
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, MANIFEST, STAGING, UPDATE
from shardctl.system.lease import file_lease
from shardctl.system.lease.file_lease import Waiting
from shardctl.system.locations.local import LocalFolder
from shardctl.system.stores import is_url

if TYPE_CHECKING:
    from shardctl.build.convert.targets.store import StoreTarget

LOOKED_AT = (FILES, UPDATE)
"""The tables that tell whether the inputs are what they were."""


class DatasetLocation(Protocol):
    """A place of a dataset as one of many processes sees it that need it. The methods raise StorageError, DatasetError."""

    look_seconds: float
    """Seconds between looks whether another process has done something."""

    line_seconds: float
    """Seconds between looks how far it is."""

    @property
    def target(self) -> Target:
        """What a conversion writes to."""
        ...

    def manifest(self) -> Manifest | None:
        """Return the manifest of the dataset that is there now; None if there is none."""
        ...

    def fetch_tables(self) -> None:
        """Have the tables here that tell whether the inputs are what they were."""
        ...

    def needs_recovery(self) -> bool:
        """Whether a process that was killed has left something that this one can tidy up, and should."""
        ...

    def is_leased(self) -> bool:
        """Whether a process holds the lease, or one that was killed has left it."""
        ...

    def writing(self, waiting: Waiting, looking: Callable[[], None]) -> AbstractContextManager[WriteLease]:
        """Be the only writer; `waiting` is told of another one, and `looking` called while this process waits for it."""
        ...

    def is_replaced(self) -> bool:
        """Whether another dataset has come while this process waits, so that it need not go on waiting for the lease."""
        ...

    def how_far(self) -> tuple[int, int] | None:
        """Return how many shards the process that converts has done, and how many there are; None if that is not known yet."""
        ...

    def kept(self, given: int | None, before: Manifest) -> int | None:
        """Return how many generations an update keeps. `given` is what was asked for; None: what the dataset has."""
        ...


class AtHome:
    """A folder."""

    look_seconds = 0.25
    line_seconds = 10.0

    def __init__(self, target: Path) -> None:
        self._target, self.target = target, FolderTarget(LocalFolder(target))

    def manifest(self) -> Manifest | None:
        """Read the manifest."""
        try:
            return Manifest.load(LocalFolder(self._target))
        except DatasetError:
            if (self._target / MANIFEST).exists():
                raise
            return None

    def fetch_tables(self) -> None:
        """Nothing to do: they are here."""

    def needs_recovery(self) -> bool:
        """Look for a dataset that has begun to take its place; one on a read-only disk is left alone."""
        return publish.needs_recovery(self._target) and os.access(self._target.parent, os.W_OK)

    def is_leased(self) -> bool:
        """Look for the lease."""
        return file_lease.is_leased(self._target / STAGING)

    def writing(self, waiting: Waiting, looking: Callable[[], None]) -> AbstractContextManager[WriteLease]:
        """Hold the lease."""
        return file_lease.hold(self._target / STAGING, waiting, looking)

    def is_replaced(self) -> bool:
        """Return no: who waits gets the lease a moment after it is free."""
        return False

    def how_far(self) -> tuple[int, int] | None:
        """Count the markers."""
        return how_far(self._target / STAGING)

    def kept(self, given: int | None, before: Manifest) -> int | None:
        """Return at least one if nothing was asked for: other jobs may be reading it."""
        return max(1, before.keep) if given is None else given


class OnAStore:
    """A place on an object store. Many processes on many machines may wait for it: they ask for little, and not often."""

    look_seconds = 1.0
    line_seconds = 60.0

    def __init__(self, target: StoreTarget) -> None:
        self.target = target

    def manifest(self) -> Manifest | None:
        """Bring the manifest, if it is another one than before."""
        if self.target.is_replaced():
            self.target.look_at_dataset()
        folder = self.target.folder
        return Manifest.load(folder) if folder.path(MANIFEST).exists() else None

    def fetch_tables(self) -> None:
        """Bring them: 60 to 80 bytes for each input."""
        self.target.fetch_files(LOOKED_AT)

    def needs_recovery(self) -> bool:
        """Return no: a manifest is there or not, and the next conversion tidies up the state of a job."""
        return False

    def is_leased(self) -> bool:
        """Look for the lease."""
        return self.target.is_leased()

    def writing(self, waiting: Waiting, looking: Callable[[], None]) -> AbstractContextManager[WriteLease]:
        """Hold the lease, and see what is there then."""
        return self.target.writing(waiting, looking)

    def is_replaced(self) -> bool:
        """Ask for the version of the manifest. To get the lease one after the other would take many processes long."""
        return self.target.is_replaced()

    def how_far(self) -> tuple[int, int] | None:
        """List the markers."""
        return self.target.how_far()

    def kept(self, given: int | None, before: Manifest) -> int | None:
        """Return what was asked for: the dataset that is replaced stays in any case."""
        return given


@contextmanager
def place_of(dst: str | Path, target: Path) -> Iterator[DatasetLocation]:
    """Yield the place of a dataset: the folder `target`, unless `dst` is a URL. Raises StoreError, InstallError, UsageError."""
    if is_url(dst):
        from shardctl.build.convert.targets.store import on_store_without_jobs  # an extra

        with on_store_without_jobs(str(dst)) as on_store:
            yield OnAStore(on_store)
    else:
        yield AtHome(target)
