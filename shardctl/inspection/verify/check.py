"""What a check of shards gets, a shard and its intact blocks, and what it yields: faults.

A check knows nothing of findings, nor of whether the shard has a dataset: so one check serves both
kinds of `verify`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from shardctl.format.arrays import Bools
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Roles
from shardctl.format.shard import ShardReader
from shardctl.format.tables import ShardEntry
from shardctl.system.folders import hash_file
from shardctl.system.processes.worker_state import WorkerProgress


class Provenance:
    """Where the rows of one shard of a dataset come from. Raises DatasetError if the tables
    contradict themselves."""

    def __init__(self, stored: DatasetTables, shard: int) -> None:
        # 60 ms to import, and `quick` makes no object of this class.
        from shardctl.transforms.table import (
            samples_per_record,
            splits_records,
            user_functions,
        )

        self.stored, self._shard, self.units = stored, shard, stored.units(shard)
        recipe = stored.manifest.recipe
        self.samples_per_record = samples_per_record(recipe)
        # These may make any number of samples of one record.
        self.by_functions = bool(user_functions(recipe)) or splits_records(recipe)
        self.tells_no_keys = stored.joins or stored.manifest.has_own_keys
        """True if the tables do not know the keys: they are values of a field, or a step made one
        sample of several records."""

    def of(self, row: int, key: str | None = None) -> tuple[str | None, str | None]:
        """Return the key and the source of a row. Without the `key` that it has, they are None
        where only that would tell."""
        file = self.stored.file_of_row(self._shard, row, key)
        if file is None:
            return key, None
        return key or self._key_of(row), self.stored.source_of(file)

    def span(self, first: int, rows: int) -> str | None:
        """Return the content of a block, for messages; None where its first or last key is not
        known."""
        one, last = self._key_of(first), self._key_of(first + rows - 1)
        return (
            f"{rows} samples, from {one} to {last}"
            if one is not None and last is not None and rows > 1
            else None
        )

    def _key_of(self, row: int) -> str | None:
        """Return the key of a row, as far as the plan tells it: where no record of the unit was
        left out."""
        if self.tells_no_keys:
            return None
        places = self.units.of_row(row)
        if len(places) != 1:
            return None
        unit = self.units[int(places[0])]
        as_planned = (
            not self.by_functions and unit.samples == unit.records * self.samples_per_record
        )
        if unit.first and not (self.units.in_order and as_planned):
            return None
        record = unit.first + (row - unit.first_row) // self.samples_per_record if unit.first else 0
        return self.stored.file(unit.file).key(record)


@dataclass(frozen=True)
class ShardRecord:
    """What a dataset records of one of its shards.

    `provenance` is what the plan says of its rows; None if it cannot be read or is not needed.
    `plain` (rows,) tells which of the main images are recorded to be plain JPEG, None if that is
    not recorded.
    """

    manifest: Manifest
    entry: ShardEntry
    provenance: Provenance | None
    plain: Bools | None

    def origin_of(self, row: int, key: str | None = None) -> tuple[str | None, str | None]:
        """Return the key and the source of a row, as far as the plan is there to tell; its `key` if
        that is known."""
        return (key, None) if self.provenance is None else self.provenance.of(row, key)

    def content_of(self, block: int, first: int) -> str:
        """Return what a block holds, whose first sample is in the row `first`, for messages."""
        rows = self.entry.block_rows[block]
        span = None if self.provenance is None else self.provenance.span(first, rows)
        return span or f"rows {first} to {first + rows - 1}"


@dataclass(frozen=True)
class Shard:
    """A shard whose file can be opened. `record` is what its dataset says of it, None for a shard
    without its dataset.

    `progress` is where a check tells which sample it works on, if that may end its process. `fatal`
    has the samples that did, as the check counts them, each with what happened. `keys` are the
    intact blocks that were seen so far, with no columns but the key and the variant.
    """

    reader: ShardReader
    record: ShardRecord | None
    progress: WorkerProgress
    fatal: dict[int, str]
    keys: list[Block] = field(default_factory=list)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of its file. Raises OSError if the system cannot read it."""
        return hash_file(self.reader.folder, self.reader.name)

    @cached_property
    def roles(self) -> Roles:
        """The roles of the fields as the dataset has them: it may know more classes than when the
        shard was written."""
        return self.own_roles if self.record is None else self.record.manifest.roles

    @cached_property
    def own_roles(self) -> Roles:
        """The roles of the fields that the shard itself was written with."""
        return self.reader.layout.roles


@dataclass(frozen=True)
class Block:
    """An intact block of a shard. `first` is the row in the shard of its first sample."""

    number: int
    first: int
    data: pa.RecordBatch

    def fault(self, row: int, kind: str, message: str) -> Fault:
        """Return what is wrong with the sample in a row of this block."""
        key = self.data.column("key")[row].as_py()
        return Fault(
            kind, message, self.number, self.first + row, key if isinstance(key, str) else None
        )


@dataclass(frozen=True)
class Fault:
    """What a check finds. `row` is that in the shard; None, as `block`, where the shard as a whole
    is meant.

    `kind` and `message` are those of the finding. `key` is the one that the sample has, None if
    that is not to be trusted.
    """

    kind: str
    message: str
    block: int | None = None
    row: int | None = None
    key: str | None = None
