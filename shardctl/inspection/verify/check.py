"""What a check of shards gets: a shard and its intact blocks. It yields findings.

A check need not know what the shard is called, nor whether it has a dataset: so one check serves
both kinds of `verify`. The key of its finding is the one that the sample has, None if that is not to
be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from shardctl.format.dataset_tables import DatasetTables, ShardUnits
from shardctl.format.roles import Roles
from shardctl.format.shard import ShardReader
from shardctl.inspection.verify.result import Finding, error
from shardctl.system.folders import hash_file
from shardctl.system.processes.worker_state import WorkerProgress

RowFaults = Iterator[tuple[int, str]]
"""The rows of a block with a fault, each with what is wrong."""


class ShardRecord:
    """What a dataset records of one of its shards.

    `units` is what the plan says of its rows; None if it cannot be read or is not needed. `plain`
    (rows,) tells which of the main images are recorded to be plain JPEG, None if that is not
    recorded. Raises DatasetError if the tables contradict themselves.
    """

    units: ShardUnits | None = None
    tells_no_keys = True
    """Whether the tables do not know the keys: they are values of a field, or a step made one
    sample of several records."""

    def __init__(self, stored: DatasetTables, shard: int, use_plan: bool) -> None:
        self.stored, self.manifest, self._shard = stored, stored.manifest, shard
        self.entry, jpegs = stored.shards[shard], stored.shards.jpegs
        self.plain = None if jpegs is None else jpegs.only(self.entry.first, self.entry.rows)
        if use_plan:
            # 60 ms to import, and `quick` needs none of it
            from shardctl.transforms.table import (
                samples_per_record,
                splits_records,
                user_functions,
            )

            recipe = self.manifest.recipe
            self.units = stored.units(shard)
            self.samples_per_record = samples_per_record(recipe)
            # These may make any number of samples of one record.
            self.by_functions = bool(user_functions(recipe)) or splits_records(recipe)
            self.tells_no_keys = stored.joins or self.manifest.has_own_keys

    def origin_of(self, row: int, key: str | None) -> tuple[str | None, str | None]:
        """Return the key and the source of a row, as far as the plan is there to tell; its `key` if
        that is known."""
        file = None
        if self.units is not None:
            file = self.stored.file_of_row(self._shard, row, key)
        if file is None:
            return key, None
        return key or self._key_of(row), self.stored.source_of(file)

    def content_of(self, block: int, first: int) -> str:
        """Return what a block holds, whose first sample is in the row `first`, for messages."""
        rows = self.entry.block_rows[block]
        one, last = self._key_of(first), self._key_of(first + rows - 1)
        if rows > 1 and one is not None and last is not None:
            return f"{rows} samples, from {one} to {last}"
        return f"rows {first} to {first + rows - 1}"

    def _key_of(self, row: int) -> str | None:
        """Return the key of a row, as far as the plan tells it: where no record of the unit was
        left out."""
        if self.units is None or self.tells_no_keys:
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

    def fault(self, row: int, kind: str, message: str) -> Finding:
        """Return what is wrong with the sample in a row of this block."""
        key = self.data.column("key")[row].as_py()
        own = key if isinstance(key, str) else None
        return error(kind, message, None, self.number, self.first + row, own)
