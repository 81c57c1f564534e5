"""A shard that is being built: what all parts of that work share, and what is known of it beforehand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from shardctl.build.shards.job import Job
from shardctl.build.shards.planned import ShardPlace
from shardctl.errors import Rejection
from shardctl.images.codecs.image import Opened
from shardctl.sources.formats import Choose
from shardctl.system.processes.worker_state import WorkerProgress

RecordUnit = tuple[int, int | None]
"""A row of the plan, and the number of a record of it; None for all of them."""


@dataclass(frozen=True)
class RetryHints:
    """What is known of a shard beforehand. `lost` are records, and whole units, that no worker
    survives, with the reason.

    `careful` are units whose records are read one by one, since one of them has ended a worker; or,
    where models are called with several units that are records, the first of these, and the model
    is called with each alone before. `unfit` are units that have records which do not fit the types
    that were given. `anew` says that nothing is to be taken from the dataset before: its shard is
    damaged, or cannot be read.
    """

    lost: Mapping[RecordUnit, Rejection] = field(default_factory=dict)
    careful: frozenset[int] = frozenset()
    unfit: frozenset[int] = frozenset()
    anew: bool = False

    def with_lost(self, lost: Mapping[RecordUnit, Rejection]) -> RetryHints:
        """Return the same hints, and that these are lost too."""
        return replace(self, lost={**self.lost, **lost})

    def with_careful(self, unit: int) -> RetryHints:
        """Return the same hints, and that the records of this unit are to be read one by one."""
        return replace(self, careful=self.careful | {unit})

    def with_unfit(self, unit: int) -> RetryHints:
        """Return the same hints, and that this unit has records that do not fit the types that were
        given."""
        return replace(self, unfit=self.unfit | {unit})

    def with_anew(self) -> RetryHints:
        """Return the same hints, and that nothing is to be taken from the dataset before."""
        return replace(self, anew=True)

    @cached_property
    def _records(self) -> dict[int, list[int]]:
        records: dict[int, list[int]] = {}
        for unit, record in self.lost:
            if record is not None:
                records.setdefault(unit, []).append(record)
        return records

    def lost_records(self, unit: int) -> list[int]:
        """Return the numbers of the records of a unit that are lost one by one, sorted."""
        return sorted(self._records.get(unit, []))

    def loses(self, first: int, end: int) -> bool:
        """Return whether one of the units from `first` to before `end` is lost, or a record of
        it."""
        place = bisect_left(self._units, first)
        return place < len(self._units) and self._units[place] < end

    @cached_property
    def _units(self) -> list[int]:
        return sorted(unit for unit, _ in self.lost)

    def without_lost(self, unit: int, choose: Choose | None) -> Choose | None:
        """Return what chooses the same records of a unit, but for those that are lost."""
        lost = self.lost_records(unit)
        if not lost:
            return choose
        return lambda numbers: ~np.isin(numbers, lost) & (choose(numbers) if choose else True)


@dataclass(frozen=True)
class BuildAgain:
    """A shard that must be built again from its first unit: what was written cannot be taken back.

    It is to be built with these `hints`. `why` says what was found that needs them.
    """

    hints: RetryHints
    why: str


@dataclass(frozen=True)
class ShardBuild:
    """A shard that is being built: its job, its place there, the slot that says what is worked on,
    what is known beforehand.

    `look` is given each image before it is decoded.
    """

    job: Job
    place: ShardPlace
    progress: WorkerProgress
    hints: RetryHints
    look: Callable[[Opened], None] = lambda opened: None
