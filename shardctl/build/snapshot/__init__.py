"""The dataset of a training script: made by the first process that needs it, and opened by all.
docs/snapshot.md."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from shardctl.build.commit import publish
from shardctl.build.commit.staging import how_far
from shardctl.build.convert import ConvertResult, Listener
from shardctl.build.convert.decision import Verdict
from shardctl.build.convert.rejects import refuse_many_rejects
from shardctl.build.convert.request import ConvertRequest
from shardctl.build.convert.run import run
from shardctl.build.convert.targets import Target, WriteLease
from shardctl.build.convert.unchanged import find_unchanged, recipe_if_same
from shardctl.build.options import convert_options
from shardctl.build.snapshot.log import ProgressLog
from shardctl.build.snapshot.partial_dataset import BuildThread, PartialDataset
from shardctl.errors import DatasetError, StorageError, UsageError
from shardctl.format.manifest import Manifest
from shardctl.format.names import FILES, MANIFEST, STAGING, UPDATE
from shardctl.loader.dataset import Dataset, open_dataset
from shardctl.loader.remote.open import cache_of
from shardctl.system import file_lease
from shardctl.system.arguments import instance, truth, whole_number
from shardctl.system.file_lease import Waiting
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_url
from shardctl.system.packages import refuse_while_importing
from shardctl.system.python_names import with_options

if TYPE_CHECKING:
    from shardctl.build.convert.targets.store import StoreTarget

FIRST_RANK_SECONDS = 10.0
"""How long other ranks leave it to rank 0 to begin: processes of a job start seconds apart."""

QUIET_SECONDS = 1.0
"""After how long they say that they wait."""

NOT_HERE = ("append", "copy_rejects", "dry_run", "explain", "if_running")
"""Options of `convert` that are for a person at a terminal, or say what is always so here."""


@overload
def snapshot(
    dst: str | Path,
    source: str | Path | Sequence[str | Path],
    recipe: dict[str, Any] | str | Path | None = None,
    *,
    wait: Literal[True] = True,
    cache: str | Path | bool | None = None,
    cache_limit: int | str | None = None,
    **options: Any,
) -> Dataset: ...


@overload
def snapshot(
    dst: str | Path,
    source: str | Path | Sequence[str | Path],
    recipe: dict[str, Any] | str | Path | None = None,
    *,
    wait: Literal[False],
    **options: Any,
) -> PartialDataset: ...


@with_options({name: each for name, each in convert_options().items() if name not in NOT_HERE})
def snapshot(
    dst: str | Path,
    source: str | Path | Sequence[str | Path],
    recipe: dict[str, Any] | str | Path | None = None,
    *,
    wait: bool = True,
    update: bool = True,
    overwrite: bool = False,
    trust: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    progress: bool = True,
    listener: Listener | None = None,
    cache: str | Path | bool | None = None,
    cache_limit: int | str | None = None,
    **options: Any,
) -> Dataset | PartialDataset:
    """Open the dataset at `dst`, which is made of `source` first if it is not there, and brought up
    to date if it is old.

    All processes of a training job, and all jobs, may call this at once. One of them converts, and
    the others wait. If it is killed, another one goes on.

    `recipe` and `options` are the same as in `convert`. `update` follows inputs that came, went or
    changed; False: they are an error. Another recipe, other settings or other code are an error too,
    unless `overwrite` is true. With `trust` the inputs of a dataset are not looked at. With
    `wait=False` the first epoch reads each shard when it is finished; not on a store. `cache` and
    `cache_limit` are the same as in `open`. docs/snapshot.md explains all of them. Raises the errors
    of `convert`, and DatasetError for another dataset.
    """
    refuse_while_importing("snapshot")
    instance("listener", listener, Listener)
    unfit = next((name for name in NOT_HERE if name in options), None)
    if unfit is not None:
        raise UsageError(f"{unfit} is an option of convert, and not of snapshot")
    moved_from = options.get("moved_from", ())
    if is_url(dst) and not wait:
        raise UsageError(
            "wait=False reads the shards of a folder while they are made; a dataset on a store "
            "must be complete"
        )
    moved_from = options.get("moved_from", ())
    request = ConvertRequest.of(
        source, dst, recipe, {**options, "update": bool(moved_from)}
    ).changed(update=False, moved_from=())
    if is_url(dst) and request.options.keep_generations is not None:
        raise UsageError(
            "keep_generations= is for datasets in folders; on a store the dataset that was "
            "replaced last stays in any case"
        )
    if is_url(dst):
        cache_of(cache, cache_limit)  # what is wrong with it is said before anything is made
    teller = ProgressLog(
        str(dst) if is_url(dst) else request.folder.text, progress and listener is None
    )
    flags = truth("update", update), truth("overwrite", overwrite), truth("trust", trust)

    def made_at(place: DatasetLocation) -> _Snapshot:
        there = replace(request, folder=place.target.folder)
        return _Snapshot(
            there,
            moved_from,
            *flags,
            rank_of(rank, world_size),
            teller,
            listener or teller.listener(),
            place,
        )

    if wait:
        with place_of(dst, request.folder.root) as place:
            made_at(place).settle()
        return open_dataset(
            dst if is_url(dst) else request.folder.root, cache=cache, cache_limit=cache_limit
        )
    made = made_at(AtHome(request.folder.root))
    if not made.is_there:
        return PartialDataset(request.folder.root, BuildThread(made.settle))
    made.settle()  # one that may have to be brought up to date is not read before it is
    return PartialDataset(request.folder.root, BuildThread(lambda: None))


class _ReplacedError(Exception):
    """Another process has made the dataset, or brought it up to date, while this one waited for the
    right to do so."""


@dataclass(frozen=True)
class _Snapshot:
    """One call of `snapshot`."""

    request: ConvertRequest
    moved_from: Sequence[str | Path]
    update: bool
    overwrite: bool
    trust: bool
    rank: int
    teller: ProgressLog
    listener: Listener
    place: DatasetLocation

    @property
    def is_there(self) -> bool:
        """Whether there is a dataset."""
        return self.place.manifest() is not None

    def settle(self) -> None:
        """Return once the dataset is there, and up to date."""
        while True:
            before = self.place.manifest()
            verdict: Verdict = "anew" if before is None else self._verdict(before)
            if before is not None and verdict == "up-to-date":
                refuse_many_rejects(self.request.folder, before, self.request.options.max_rejects)
                return
            if self._make(before, verdict):
                return

    def _verdict(self, manifest: Manifest) -> Verdict:
        """Return what is to be done with the dataset that is there: `up-to-date` (nothing),
        `update`, or make it `anew`.

        Raises DatasetError if what is to be done was not allowed.
        """
        if self.trust:
            if recipe_if_same(self.request, manifest) is not None:
                return "up-to-date"
            verdict: Verdict = "anew"
            parts = "recipe, settings or code"
        elif self.place.needs_recovery():
            return "update"
        elif self._is_surely_unchanged(manifest):
            return "up-to-date"
        else:
            request = self.request.changed(explain=True, metrics=())
            explanation = run(request, Listener(), self.place.target).explanation
            assert explanation is not None, "it was asked for"
            verdict, parts = explanation.verdict, " and ".join(explanation.parts)
        shown = self.request.folder.shown()
        if verdict == "anew" and not self.overwrite:
            raise DatasetError(
                f"{shown}: holds a dataset that differs in its {parts}; overwrite=True makes it "
                "again, `shardctl convert"
                " --explain` shows the difference, or give another destination"
            )
        if verdict == "update" and not self.update and not self.overwrite:
            raise DatasetError(
                f"{shown}: holds a dataset that differs in its {parts}; update=True brings it up "
                "to date"
            )
        return "anew" if verdict == "update" and not self.update else verdict

    def _is_surely_unchanged(self, manifest: Manifest) -> bool:
        self.place.fetch_tables()
        return find_unchanged(self.request, manifest) is not None

    def _make(self, before: Manifest | None, verdict: Verdict) -> bool:
        """Make the dataset, or bring it up to date, and return whether this process has done so.

        If not, another one has done something while this one waited: what is to be done now must be
        seen anew, as inputs may have changed after that one has looked at them.
        """
        try:
            self.place.target.check_writable()
        except StorageError as error:
            what = "is not there" if before is None else "is not up to date with its sources"
            raise StorageError(f"{error}: the dataset {what}, and cannot be made here") from error
        if self.rank:
            self._leave_to_first_rank(before)
        try:
            with self.place.writing(self.teller.waiting, _Looking(self.teller, self.place)) as held:
                if self.place.manifest() != before:
                    return False
                if before is None or verdict == "anew":
                    self.teller.ended(
                        self._run(self.request.changed(overwrite=before is not None), held)
                    )
                else:
                    self.teller.ended(self._update(before, held))
                return True
        except _ReplacedError:
            return False

    def _run(self, request: ConvertRequest, held: WriteLease) -> ConvertResult:
        return run(request, self.listener, self.place.target, held)

    def _update(self, manifest: Manifest, held: WriteLease) -> ConvertResult:
        """Bring the dataset up to date. It is kept as it was, for jobs that are reading it, unless
        `keep` says otherwise."""
        keep = self.place.kept(self.request.options.keep_generations, manifest)
        try:
            return self._run(
                self.request.changed(
                    update=True, keep_generations=keep, moved_from=self.moved_from
                ),
                held,
            )
        except DatasetError:
            if not self.overwrite:
                raise
            return self._run(self.request.changed(overwrite=True), held)

    def _leave_to_first_rank(self, before: Manifest | None) -> None:
        """Wait a little, until another process has begun."""
        until, announced = time.monotonic() + FIRST_RANK_SECONDS, False
        while (
            time.monotonic() < until
            and not self.place.is_leased()
            and self.place.manifest() == before
        ):
            time.sleep(self.place.look_seconds)
            if not announced and time.monotonic() > until - FIRST_RANK_SECONDS + QUIET_SECONDS:
                self.teller.leaving()
                announced = True


class _Looking:
    """What a process does while it waits for the lease: now and then it says how far the other one
    is.

    Raises _ReplacedError if it need not wait any more.
    """

    def __init__(self, teller: ProgressLog, place: DatasetLocation) -> None:
        self._teller, self._place = teller, place
        self._next = 0.0

    def __call__(self) -> None:
        self._teller.looking(self._place.how_far, self._place.line_seconds)
        if time.monotonic() >= self._next:
            if self._place.is_replaced():
                raise _ReplacedError
            self._next = time.monotonic() + self._place.look_seconds


# --- where the dataset of a snapshot is: in a folder, or on an object store, whose requests take
# time ---

LOOKED_AT = (FILES, UPDATE)
"""The tables that tell whether the inputs are what they were."""


class DatasetLocation(Protocol):
    """A place of a dataset as one of many processes sees it that need it. The methods raise
    StorageError, DatasetError."""

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
        """Whether a process that was killed has left something that this one can tidy up, and
        should."""
        ...

    def is_leased(self) -> bool:
        """Whether a process holds the lease, or one that was killed has left it."""
        ...

    def writing(
        self, waiting: Waiting, looking: Callable[[], None]
    ) -> AbstractContextManager[WriteLease]:
        """Be the only writer; `waiting` is told of another one, and `looking` called while this
        process waits for it."""
        ...

    def is_replaced(self) -> bool:
        """Whether another dataset has come while this process waits, so that it need not go on
        waiting for the lease."""
        ...

    def how_far(self) -> tuple[int, int] | None:
        """Return how many shards the process that converts has done, and how many there are; None
        if that is not known yet."""
        ...

    def kept(self, given: int | None, before: Manifest) -> int | None:
        """Return how many generations an update keeps. `given` is what was asked for; None: what
        the dataset has."""
        ...


class AtHome:
    """A folder."""

    look_seconds = 0.25
    line_seconds = 10.0

    def __init__(self, target: Path) -> None:
        self._target, self.target = target, Target(LocalFolder(target))

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
        """Look for a dataset that has begun to take its place; one on a read-only disk is left
        alone."""
        return publish.needs_recovery(self._target) and os.access(self._target.parent, os.W_OK)

    def is_leased(self) -> bool:
        """Look for the lease."""
        return file_lease.is_leased(self._target / STAGING)

    def writing(
        self, waiting: Waiting, looking: Callable[[], None]
    ) -> AbstractContextManager[WriteLease]:
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
    """A place on an object store. Many processes on many machines may wait for it: they ask for
    little, and not often."""

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
        """Return no: a manifest is there or not, and the next conversion tidies up the state of a
        job."""
        return False

    def is_leased(self) -> bool:
        """Look for the lease."""
        return self.target.is_leased()

    def writing(
        self, waiting: Waiting, looking: Callable[[], None]
    ) -> AbstractContextManager[WriteLease]:
        """Hold the lease, and see what is there then."""
        return self.target.lease(waiting, looking)

    def is_replaced(self) -> bool:
        """Ask for the version of the manifest. To get the lease one after the other would take many
        processes long."""
        return self.target.is_replaced()

    def how_far(self) -> tuple[int, int] | None:
        """List the markers."""
        return self.target.how_far()

    def kept(self, given: int | None, before: Manifest) -> int | None:
        """Return what was asked for: the dataset that is replaced stays in any case."""
        return given


@contextmanager
def place_of(dst: str | Path, target: Path) -> Iterator[DatasetLocation]:
    """Yield the place of a dataset: the folder `target`, unless `dst` is a URL. Raises StoreError,
    InstallError, UsageError."""
    if is_url(dst):
        from shardctl.build.convert.targets.store import on_store_without_jobs  # an extra

        with on_store_without_jobs(str(dst)) as on_store:
            yield OnAStore(on_store)
    else:
        yield AtHome(target)


# --- which of the processes of a training job this one is ---

LAUNCHERS = (
    # torchrun, accelerate, deepspeed: https://docs.pytorch.org/docs/stable/elastic/run.html
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun; last, since torchrun may run inside of it
)
"""The environment variables in which launchers say the rank and the world size."""


def rank_of(rank: int | None, world_size: int | None) -> int:
    """Return the rank: as given, else as the environment says it, else 0. Raises UsageError for one
    that cannot be."""
    if rank is None and world_size is not None:
        raise UsageError("world_size needs a rank; give both, or neither")
    if rank is None:
        return _of_environment()
    whole_number("rank", rank, 0)
    ranks = rank + 1 if world_size is None else whole_number("world_size", world_size, 1)
    if rank >= ranks:
        raise UsageError(f"rank {rank} must be below world_size ({ranks})")
    return rank


def _of_environment() -> int:
    for name, size in LAUNCHERS:
        rank, ranks = os.environ.get(name), os.environ.get(size)
        if rank is not None and ranks is not None:
            if not rank.isdecimal() or not ranks.isdecimal() or int(rank) >= int(ranks):
                raise UsageError(
                    f"the environment says {name}={rank!r} and {size}={ranks!r}, which is not a "
                    "valid rank; give rank="
                )
            return int(rank)
    return 0
