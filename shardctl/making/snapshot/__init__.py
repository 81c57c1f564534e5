"""The dataset of a training script: made by the first process that needs it, and opened by all.
docs/snapshot.md."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

from shardctl.errors import DatasetError, StorageError, UsageError
from shardctl.format.manifest import Manifest
from shardctl.loader.dataset import Dataset, open_dataset
from shardctl.loader.remote.open import cache_of
from shardctl.making.commit.target import Target, WriteLease
from shardctl.making.convert import ConvertResult, Listener
from shardctl.making.convert.conversion import ConvertRequest
from shardctl.making.convert.decision import Verdict, verdict_on
from shardctl.making.convert.listener import ConversionProgress, Estimate
from shardctl.making.convert.previous import DatasetReplacedError
from shardctl.making.convert.rejects import refuse_many_rejects
from shardctl.making.convert.result import (
    estimate_log_lines,
    notices_of,
    result_log_lines,
    resuming_line,
    waiting_log_line,
    watching_log_line,
)
from shardctl.making.convert.run import run
from shardctl.making.options import convert_options
from shardctl.making.plan.fingerprint import parts_without_sources
from shardctl.making.snapshot.partial_dataset import PartialDataset, in_background
from shardctl.system.arguments import instance, truth, whole_number
from shardctl.system.folders import LocalFolder
from shardctl.system.locations import is_url
from shardctl.system.packages import refuse_while_importing
from shardctl.system.progress import Lines, Progress
from shardctl.system.python_names import with_options
from shardctl.system.text import printable
from shardctl.transforms.recipe import Recipe

FIRST_RANK_SECONDS = 10.0
"""How long other ranks leave it to rank 0 to begin: processes of a job start seconds apart."""

LEAVING = "waiting for rank 0 to begin, else this process makes the dataset"

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
    stored = is_url(dst)
    if stored and not wait:
        raise UsageError("wait=False needs a folder: a dataset on a store must be complete")
    moved_from = options.get("moved_from", ())
    request = replace(
        ConvertRequest.of(source, dst, recipe, {**options, "update": bool(moved_from)}), says=True
    ).changed(update=False, moved_from=())
    there = request.destination
    log = ProgressLog(str(there), progress and listener is None)
    make = partial(
        _Snapshot,
        may_update=truth("update", update),
        may_overwrite=truth("overwrite", overwrite),
        trust=truth("trust", trust),
        rank=rank_of(rank, world_size),
        moved_from=moved_from,
        log=log,
        listener=listener or log.listener(),
    )
    if isinstance(there, str):
        from shardctl.making.commit.store_target import place_on_store  # an extra

        cache_of(cache, cache_limit)  # what is wrong with it is said before anything is made
        with place_on_store(there) as store:
            make(request, target=store).settle()
    else:
        made = make(request, target=Target(LocalFolder(there)))
        if not wait and made.target.manifest() is None:
            return PartialDataset(there, in_background(made.settle))
        made.settle()
        if not wait:  # one that may have to be brought up to date is not read before it is
            return PartialDataset(there, in_background(lambda: None))
    return open_dataset(there, cache=cache, cache_limit=cache_limit)


SETTLED = ("kind", "format", "image_field", "key_field", "label_field", "fields")
"""Keys of a recipe that a conversion may take from its sources."""


def _is_same_recipe(request: ConvertRequest, manifest: Manifest) -> bool:
    """Return whether recipe, settings and code are those of a dataset; what the recipe leaves to the
    sources is as it is recorded."""
    left = (name for name in SETTLED if request.recipe.get(name) in (None, "auto"))
    recorded = {name: manifest.recipe[name] for name in left if name in manifest.recipe}
    try:
        recipe = Recipe.from_json({**request.recipe, **recorded})
    except UsageError:  # it does not go with the kind that is recorded
        return False
    before = manifest.fingerprint_parts
    parts = parts_without_sources(recipe, request.recorded_settings(recipe))
    return verdict_on(before, {**before, **parts}) == "up-to-date"


@dataclass(frozen=True)
class _Snapshot:
    """One call of `snapshot`. It may update or overwrite a dataset that is not what a conversion
    would make; `rank` is that of this process."""

    request: ConvertRequest
    target: Target
    may_update: bool
    may_overwrite: bool
    trust: bool
    rank: int
    moved_from: Sequence[str | Path]
    log: ProgressLog
    listener: Listener

    def settle(self) -> None:
        """Return once the dataset is there, and up to date."""
        while True:
            if self.target.is_replaced():
                self.target.look_at_dataset()
            before = self.target.manifest()
            how = {} if before is None else self._what_is_to_be_done(before)
            if before is not None and how is None:
                refuse_many_rejects(self.target.folder, before, self.request.options.max_rejects)
                return
            if self._make(before, how or {}):
                return

    def _what_is_to_be_done(self, manifest: Manifest) -> dict[str, Any] | None:
        """Return the options by which a conversion brings the dataset that is there up to date, or
        makes it anew; None if it is up to date.

        A dataset that is brought up to date is kept as it was, for jobs that are reading it, unless
        `keep_generations` says otherwise. Raises DatasetError if what is to be done was not
        allowed.
        """
        if self.trust:
            verdict: Verdict = "up-to-date" if _is_same_recipe(self.request, manifest) else "anew"
            parts = "recipe, settings or code"
        else:
            request = self.request.changed(explain=True, metrics=())
            explanation = run(request, Listener(), self.target).explanation
            assert explanation is not None, "it was asked for"
            verdict, parts = explanation.verdict, " and ".join(explanation.parts)
        if verdict == "up-to-date":
            return None
        if verdict == "update" and self.may_update:
            keep = self.request.options.keep_generations
            kept = max(1, manifest.keep) if keep is None else keep
            return {"update": True, "keep_generations": kept, "moved_from": self.moved_from}
        if self.may_overwrite:
            return {"overwrite": True}
        remedy = (
            "update=True brings it up to date"
            if verdict == "update"
            else "overwrite=True makes it again, `shardctl convert --explain` shows the difference"
        )
        shown = self.target.folder.shown()
        raise DatasetError(f"{shown}: holds a dataset that differs in its {parts}; {remedy}")

    def _make(self, before: Manifest | None, how: dict[str, Any]) -> bool:
        """Make the dataset, or bring it up to date by these options, and return whether this
        process has done so.

        If not, another one has done something while this one waited: what is to be done now must be
        seen anew, as inputs may have changed after that one has looked at them.
        """
        try:
            self.target.check_writable()
        except StorageError as error:
            what = "is not there" if before is None else "is not up to date with its sources"
            raise StorageError(f"{error}: the dataset {what}, and cannot be made here") from error
        if self.rank:
            self._leave_to_first_rank()
        try:
            with self._lease() as held:
                if self.target.manifest() != before:
                    return False
                made = self._run(held, how)
                # nothing is left out without a word
                self.log.say(result_log_lines(made, self.log.printed))
                return True
        except DatasetReplacedError:
            return False

    def _lease(self) -> AbstractContextManager[WriteLease]:
        """Be the only writer. While this process waits for that, it says how far the other one
        is."""
        due = 0.0

        def looking() -> None:
            nonlocal due
            self.log.looking(self.target.how_far, 40 * self.target.look_seconds)
            # to get the lease one after the other would take many processes long
            if time.monotonic() >= due:
                if self.target.is_replaced():
                    raise DatasetReplacedError
                due = time.monotonic() + self.target.look_seconds

        return self.target.lease(self.log.waiting, looking)

    def _run(self, held: WriteLease, how: dict[str, Any]) -> ConvertResult:
        try:
            return run(self.request.changed(**how), self.listener, self.target, held)
        except DatasetError:
            if "update" not in how or not self.may_overwrite:
                raise
            return self._run(held, {"overwrite": True})

    def _leave_to_first_rank(self) -> None:
        """Wait a little, until another process has begun."""
        until, announced = time.monotonic() + FIRST_RANK_SECONDS, False
        target = self.target
        while time.monotonic() < until and not (target.is_leased() or target.is_replaced()):
            time.sleep(target.look_seconds)
            if not announced and time.monotonic() > until - FIRST_RANK_SECONDS + QUIET_SECONDS:
                self.log.say([LEAVING])
                announced = True


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
    if rank is not None:
        whole_number("rank", rank, 0)
        ranks = rank + 1 if world_size is None else whole_number("world_size", world_size, 1)
        if rank >= ranks:
            raise UsageError(f"rank {rank} must be below world_size ({ranks})")
        return rank
    if world_size is not None:
        raise UsageError("world_size needs a rank; give both, or neither")
    for name, size in LAUNCHERS:
        own, of = os.environ.get(name), os.environ.get(size)
        if own is None or of is None:
            continue
        if not own.isdecimal() or not of.isdecimal() or int(own) >= int(of):
            raise UsageError(f"the environment says {name}={own!r} and {size}={of!r}; give rank=")
        return int(own)
    return 0


LINE_SECONDS = 10.0
"""Seconds between lines."""


class ProgressLog(ConversionProgress):
    """Writes lines about the dataset at a place that is `shown` so, at a terminal too: a job has
    many processes.

    With `show` False it says nothing.
    """

    def __init__(self, shown: str, show: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self.printed = show, tuple[str, ...]()
        self._lines = Lines(
            clock=clock, every=LINE_SECONDS, prefix=f"shardctl {printable(shown)}: "
        )
        super().__init__(self._lines if show else Progress())

    def listener(self) -> Listener:
        """Return the callbacks for a conversion in this process."""
        return replace(
            super().listener(),
            resuming=lambda done, shards: self.say([resuming_line(done, shards)]),
        )

    def waiting(self, owner: str) -> None:
        """Say for whom this process waits."""
        self.say([waiting_log_line(owner)])
        self._lines.postpone()

    def looking(self, how_far: Callable[[], tuple[int, int] | None], every: float) -> None:
        """Say how far another process is, which `how_far` finds out: once in so many seconds."""
        if self._show and self._lines.is_due(every):
            self.say([watching_log_line(how_far())])

    def announce(self, estimate: Estimate) -> None:
        """The work is planned."""
        super().announce(estimate)
        self.printed = notices_of(estimate)
        self.say(estimate_log_lines(estimate))
        self._lines.postpone()

    def say(self, lines: Iterable[str]) -> None:
        """Write lines."""
        if self._show:
            for line in lines:
                self._lines.write(printable(line))
