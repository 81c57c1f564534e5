"""What an export is, and the dataset that it reads: block by block, each checked against the checksum it was written with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from shardctl.errors import DatasetError, UsageError, first_line
from shardctl.layout import Layout
from shardctl.manifest import Manifest
from shardctl.shard import BlockFile, ShardReader, map_file
from shardctl.storage import printable
from shardctl.stored import StoredDataset
from shardctl.tables import REPAIR_ADVICE, ShardEntry


@dataclass(frozen=True)
class Shard:
    """A shard of the dataset that is exported. `columns` are those that the first shard has: all have the same."""

    path: Path
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
        """Yield some columns of every block, without reading the others. There is no checksum of them alone."""
        self._reader()
        numbers = [self.columns.get_field_index(name) for name in names]
        file = BlockFile(self.path, map_file, numbers)
        for number in range(len(file)):
            block, _ = file.fetch(number)
            try:
                block.validate(full=True)
            except (pa.ArrowException, ValueError) as error:
                raise self.damaged(f"block {number} cannot be read ({first_line(error)})") from error
            yield block

    def _reader(self) -> ShardReader:
        """Open the shard. Raises DatasetError if it is not one of those that the tables describe."""
        reader = ShardReader(self.path)
        if not reader.schema.remove_metadata().equals(self.columns):
            raise self.damaged("its columns are not those of the other shards")
        if len(reader) != len(self.entry.block_rows):
            raise self.damaged(f"it has {len(reader)} blocks, and the table of shards says {len(self.entry.block_rows)}")
        return reader

    def damaged(self, what: str) -> DatasetError:
        """Return the error for a shard of which something is wrong."""
        return DatasetError(f"{printable(str(self.path))}: {what}; {REPAIR_ADVICE}")


class Source:
    """The dataset that is exported, or one of its splits. Raises DatasetError, and UsageError for an unknown split."""

    def __init__(self, root: Path, split: str | None) -> None:
        self.root = root
        self._stored = StoredDataset(root)
        self.manifest: Manifest = self._stored.manifest
        names = [facts.name for facts in self.manifest.splits]
        if split is not None and split not in names:
            raise UsageError(f"{self.shown}: no split {split!r}; there are {', '.join(names)}")
        self.splits: tuple[str, ...] = tuple(names) if split is None else (split,)

    @property
    def shown(self) -> str:
        """The path of the dataset, for messages."""
        return printable(str(self.root))

    @property
    def samples(self) -> int:
        """The number of samples that are exported."""
        return sum(facts.samples for facts in self.manifest.splits if facts.name in self.splits)

    @cached_property
    def layout(self) -> Layout:
        """The types and the roles of the columns. Raises DatasetError."""
        return ShardReader(self.root / self._stored.shards[0].path).layout

    def shards(self, split: str) -> Iterator[Shard]:
        """Yield the shards of a split, in order."""
        for entry in self._stored.shards:
            if entry.split == split:
                yield Shard(self.root / entry.path, entry, self.layout.columns)

    def check_unchanged(self) -> None:
        """Raise DatasetError if there is another dataset by now: its shards may have been read with those of the first."""
        if Manifest.load(self.root) != self.manifest:
            raise DatasetError(f"{self.shown}: was changed while it was exported; run the same command again")


Progress = Callable[[int], None]
"""Is told how many more samples are done."""


@dataclass(frozen=True)
class Written:
    """What an export wrote: the SHA-256 (hex) of its files by name, counts by split, and facts that readers need."""

    files: dict[str, str]
    counts: dict[str, dict[str, int]]
    facts: dict[str, Any]
    notes: tuple[str, ...] = field(default=())


class Export(ABC):
    """A form in which a dataset can be written: a frozen dataclass, whose fields are its settings."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if the dataset does not have what this form needs. Nothing is written yet."""

    @abstractmethod
    def write(self, source: Source, folder: Path, progress: Progress) -> Written:
        """Write the files into an empty folder. Each is synced; all of them are published together, by renaming the folder."""
