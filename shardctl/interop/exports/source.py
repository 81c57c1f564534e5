"""The dataset that is exported, and what was chosen of it. Every block that is exported is checked
against its checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from shardctl.errors import DatasetError, UsageError, first_line
from shardctl.format.dataset_location import AnyDataset, check_unchanged
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.generations import WAS_REPLACED
from shardctl.format.layout import Layout
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Roles
from shardctl.format.shard import BlockFile, ShardReader
from shardctl.format.tables import REPAIR_ADVICE, ShardEntry
from shardctl.interop.exports.options import Choice
from shardctl.loader.condition import Condition, kept_rows, parse_condition
from shardctl.system.folders import Folder
from shardctl.system.text import counted, lacks

KEY = "key"
"""The column that names each sample. It is always exported."""


@dataclass(frozen=True)
class Shard:
    """A shard of the dataset that is exported. `columns` are those that the first shard has: all
    have the same."""

    folder: Folder
    entry: ShardEntry
    columns: pa.Schema

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield every block. Raises DatasetError for a damaged one."""
        reader = self._reader()
        for number, rows in enumerate(self.entry.block_rows):
            block, intact = reader.checked_block(number)
            if not intact or block.num_rows != rows:
                raise self.damaged(f"block {number} is not as it was written")
            yield block

    def blocks_of(self, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of every block, without reading the others. There is no checksum of
        them alone."""
        self._reader()
        numbers = [self.columns.get_field_index(name) for name in names]
        file = BlockFile.of(self.folder, self.entry.path, numbers)
        for number in range(len(file)):
            block, _ = file.fetch(number)
            try:
                block.validate(full=True)
            except (pa.ArrowException, ValueError) as error:
                raise self.damaged(
                    f"block {number} cannot be read ({first_line(error)})"
                ) from error
            yield block

    def _reader(self) -> ShardReader:
        """Open the shard. Raises DatasetError if it is not one of those that the tables
        describe."""
        reader = ShardReader(self.folder, self.entry.path)
        if not reader.schema.remove_metadata().equals(self.columns):
            raise self.damaged("its columns are not those of the other shards")
        if len(reader) != len(self.entry.block_rows):
            raise self.damaged(
                f"it has {counted(len(reader), 'block')}, and the table of shards says "
                f"{len(self.entry.block_rows):,}"
            )
        return reader

    def damaged(self, what: str) -> DatasetError:
        """Return the error for a shard of which something is wrong."""
        return DatasetError(f"{self.folder.shown(self.entry.path)}: {what}; {REPAIR_ADVICE}")


class Source:
    """The dataset that is exported, as far as it was chosen. `turned` counts the images that were
    turned upright.

    Raises DatasetError, and UsageError for a split, a column or a condition that the dataset does
    not have.
    """

    def __init__(self, folder: AnyDataset, choice: Choice) -> None:
        self.folder, self.choice = folder, choice
        self._stored = DatasetTables(folder)
        self.manifest: Manifest = self._stored.manifest
        self.turned = 0
        self._chosen = self.manifest.splits_of(choice.split, self.shown)
        self.splits: tuple[str, ...] = tuple(each.name for each in self._chosen)

    @property
    def shown(self) -> str:
        """The location of the dataset, for messages."""
        return self.folder.shown()

    @property
    def samples(self) -> int:
        """The number of samples that are read. With a condition fewer may be written."""
        return sum(split.samples for split in self._chosen)

    @property
    def bytes(self) -> int:
        """The size of the shards that are read."""
        return sum(split.bytes for split in self._chosen)

    @cached_property
    def state(self) -> str:
        """What names this very state of the dataset: the SHA-256 of its manifest, which has those
        of all files."""
        return hashlib.sha256(self.manifest.to_json().encode()).hexdigest()

    @cached_property
    def layout(self) -> Layout:
        """The types and the roles of all columns. Raises DatasetError."""
        return ShardReader(self.folder, self._stored.shards[0].path).layout

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns that are exported: the key, and those that were chosen, in their order.
        Raises UsageError."""
        there = self.layout.columns.names
        chosen = there if self.choice.columns is None else self.choice.columns
        for name in (*chosen, *self.choice.rename):
            if name not in there:
                raise UsageError(f"{self.shown}: {lacks('column', name, there)}")
        return tuple(dict.fromkeys([KEY, *chosen]))

    @cached_property
    def written_names(self) -> dict[str, str]:
        """The name that each exported column is to have. Raises UsageError if two have the same."""
        names = {name: self.choice.rename.get(name, name) for name in self.names}
        for name in self.choice.rename:
            if name not in names:
                raise UsageError(
                    f"--rename {name}: this column is not among those that are exported"
                )
        if len(set(names.values())) != len(names) or "" in names.values():
            raise UsageError(
                f"--rename: columns need different names, not {', '.join(names.values())}"
            )
        return names

    @cached_property
    def exported(self) -> Layout:
        """The types and the roles of the exported columns, under their names in the dataset."""
        columns = pa.schema([self.layout.columns.field(name) for name in self.names])
        roles = {
            name: role for name in self.names if (role := self.layout.roles.get(name)) is not None
        }
        return replace(self.layout, columns=columns, roles=Roles(roles))

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of an exported column, by its name in the dataset."""
        return self.exported.columns.field(name).type

    @cached_property
    def where(self) -> Condition | None:
        """The condition on samples, None for all. Raises UsageError."""
        if self.choice.where is None:
            return None
        return parse_condition(self.choice.where, self.layout.columns, self.layout.roles.names)

    def numbered_shards(self, split: str | None = None) -> Iterator[tuple[int, ShardEntry]]:
        """Yield the number and the entry of every shard that is exported, or of a split, in order."""
        for number, entry in enumerate(self._stored.shards):
            if entry.split in self.splits and split in (None, entry.split):
                yield number, entry

    def shard(self, number: int) -> Shard:
        """Return a shard by its number in the whole dataset."""
        entry = self._stored.shards[number]
        return Shard(self.folder, entry, self.layout.columns)

    def blocks(self, shard: Shard) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the exported columns and the chosen samples of every block, and how many samples
        were read for them.

        Raises DatasetError, UsageError if the condition does not fit the values.
        """
        for block in shard.blocks():
            yield self._matching(block).select(list(self.names)), block.num_rows

    def columns(self, names: tuple[str, ...], split: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all chosen samples, or of those of a split, block by block, without
        reading the others."""
        needed = tuple(dict.fromkeys([*names, *(self.where.columns if self.where else ())]))
        for number, _ in self.numbered_shards(split):
            for block in self.shard(number).blocks_of(needed):
                yield self._matching(block)

    def _matching(self, block: pa.RecordBatch) -> pa.RecordBatch:
        if self.where is None:
            return block
        try:
            kept = kept_rows(pa.table(block), self.where.expression)
        except pa.ArrowException as error:
            raise UsageError(
                f"--where {self.where.text!r} does not fit the values ({first_line(error)})"
            ) from error
        batches = kept.combine_chunks().to_batches()
        return batches[0] if batches else block.slice(0, 0)

    def check_unchanged(self) -> None:
        """Raise DatasetError if there is another dataset by now: its shards may have been read with
        those of the first."""
        check_unchanged(self.folder)
        if Manifest.load(self.folder) != self.manifest:
            raise DatasetError(f"{self.shown}: {WAS_REPLACED}")
