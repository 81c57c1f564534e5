"""What a job says of its plan, as Python objects: roots, files, units with their files, shards; and
what is known of their records beforehand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardctl.errors import InputError, Rejection, SourceGoneError
from shardctl.format.names import shard_name
from shardctl.making.plan.plan import NOT_KEPT
from shardctl.sources.files import check_on_store
from shardctl.sources.formats import Choose, Unit
from shardctl.system.locations import is_stored
from shardctl.system.text import printable

UNKNOWN_DEVICE = -1
"""The device of a root that is looked at later: it may be another one then."""


@dataclass(frozen=True)
class Root:
    """A folder that sources are relative to, by its path or its URL, and the number of the file
    system that it was on."""

    path: str
    device: int

    @cached_property
    def is_stored(self) -> bool:
        """Whether it is on an object store."""
        return is_stored(self.path)

    @classmethod
    def of(cls, path: str) -> Root:
        """Return the root as it is now. Raises InputError if it is a folder of this machine that is
        gone."""
        if is_stored(path):
            return cls.anywhere(path)
        try:
            return cls(path, Path(path).stat().st_dev)
        except OSError as error:
            raise InputError(f"{printable(path)}: cannot be read ({error.strerror})") from error

    @classmethod
    def anywhere(cls, path: str) -> Root:
        """Return a root that may be gone, or be on another file system now: each input is verified
        by itself."""
        return cls(path, UNKNOWN_DEVICE)

    def check(self) -> None:
        """Make sure that it is still there. Raises SourceGoneError: a source that went away is not
        a reject for every file."""
        if self.is_stored:
            check_on_store(self.path)
            return
        try:
            same = self.device in (UNKNOWN_DEVICE, Path(self.path).stat().st_dev)
            # its first entry is enough: there may be millions
            with os.scandir(self.path) as entries:
                if same and next(entries, None):
                    return
        except OSError:
            pass
        raise SourceGoneError(
            f"{printable(self.path)}: the source has gone away; bring it back (was it unmounted?)"
        )


class File(NamedTuple):
    """A row of files.arrow. `mtime_ns` is 0 where the job is that of a finished dataset."""

    path: str
    root: int
    size: int
    mtime_ns: int
    label: int | None
    columns: dict[str, Any] | None
    fault: Rejection | None


class PlannedUnit(NamedTuple):
    """A row of the plan, and its file, which is row `file_number` of files.arrow.

    A unit with a `fault` is not read. `digest` is known of a finished dataset's units.
    """

    number: int
    unit: Unit
    file_number: int
    file: File
    fault: Rejection | None
    digest: int | None

    def key(self, record: int | None = None) -> str:
        """Return the key of a record, by default of the first one."""
        number = self.unit.first if record is None else record
        return f"{self.file.path}#{number}" if number else self.file.path


@dataclass(frozen=True)
class PlannedShard:
    """One shard of a job: its split, its number within the split, its rows of the plan, and how
    many records these are.

    `kept`: the shard is kept as it is, and this was its number before. `blocks`: the rows of each
    of its blocks, where these are known (plan.JOB_SHARDS_SCHEMA).
    """

    split: int
    split_name: str
    number: int
    first_unit: int
    units: int
    records: int
    kept: int = NOT_KEPT
    blocks: Sequence[int] | None = None

    @property
    def name(self) -> str:
        """The file name of the shard."""
        return shard_name(self.split_name, self.number)


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

    @cached_property
    def _records(self) -> dict[int, list[int]]:
        ordered = sorted((unit, record) for unit, record in self.lost if record is not None)
        return {
            unit: [record for _, record in several]
            for unit, several in groupby(ordered, itemgetter(0))
        }

    def lost_records(self, unit: int) -> list[int]:
        """Return the numbers of the records of a unit that are lost one by one, sorted."""
        return self._records.get(unit, [])

    def without_lost(self, unit: int, choose: Choose | None) -> Choose | None:
        """Return what chooses the same records of a unit, but for those that are lost."""
        lost = self.lost_records(unit)
        if not lost:
            return choose
        return lambda numbers: ~np.isin(numbers, lost) & (choose(numbers) if choose else True)


class BuildAgain(Exception):
    """A shard must be built again from its first unit: what was written cannot be taken back.

    It is to be built with these `hints`; the message says what was found that needs them.
    """

    def __init__(self, hints: RetryHints, why: str) -> None:
        super().__init__(why)
        self.hints = hints


@dataclass(frozen=True)
class ShardTask:
    """A shard to build of the job in a folder; None: the probe.

    The worker tries the unit `trial` before it builds the shard, and with `on` all units after it.
    So it does not build the shard from its beginning for every record that ends a worker. `suspect`
    is (unit, attempt) of a unit that could not be read in time.
    """

    folder: str
    shard: int | None
    hints: RetryHints = field(default_factory=RetryHints)
    trial: int | None = None
    on: bool = False
    suspect: tuple[int, int] | None = None
