"""What all makers of samples have in common: records that were read go in, and come out as samples,
or are rejected."""

from __future__ import annotations

from abc import ABC, abstractmethod

from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.reject_writer import RejectedRecord
from shardctl.build.shards.retry_hints import BuildAgain
from shardctl.build.shards.shard_totals import UnitOutcome
from shardctl.format.counts import Counts
from shardctl.format.roles import Sample
from shardctl.sources.formats import Parsed


class Maker(ABC):
    """Makes the samples of records as the recipe says, and has them written. Some of the records
    may wait for others."""

    @property
    def waiting(self) -> int | None:
        """The first record of the current unit that waits, None if none does."""
        return None

    @property
    def step_counts(self) -> list[Counts]:
        """What became of the records in each step of text and tables."""
        return []

    @abstractmethod
    def add_file(
        self, fields: Sample, planned: PlannedUnit, outcome: UnitOutcome
    ) -> BuildAgain | None:
        """Make the samples of a file that is one record, given as its fields. Raises Rejection."""

    def begin(self, planned: PlannedUnit) -> None:  # noqa: B027 - most makers have nothing to do
        """Begin with a unit of many records. Raises MemoryError, SourceGoneError."""

    @abstractmethod
    def add_records(
        self, planned: PlannedUnit, parsed: Parsed, outcome: UnitOutcome
    ) -> list[RejectedRecord] | BuildAgain:
        """Make the samples of some records of a unit, and return those that are rejected."""

    def flush(self) -> None:  # noqa: B027 - in most makers no record waits
        """Make the samples of the records that wait within their unit, or within their slot. Raises
        InputError."""

    def finish(self) -> None:
        """Make the samples of all that still waits, at the end of the shard. Raises InputError."""
        self.flush()
