"""Shards that are made of rows of other shards. Nothing is decoded: rows are copied, and whole
blocks where they can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.layout import Layout
from shardctl.format.names import path_of_shard
from shardctl.format.shard import (
    Compression,
    ShardFacts,
    ShardReader,
    ShardWriter,
    new_shard,
    normalized,
)
from shardctl.format.tables import ShardEntry
from shardctl.system.folders import Folder

LEFT_ALONE = 0.5
"""A block that is copied whole leaves one before it that may be as small as this share of a full
one."""


OPEN_SHARDS = 8
"""Shards that RunReader keeps open. Of each it has one block in memory."""


@dataclass(frozen=True)
class Run:
    """Rows of a shard in a folder, from `first` on."""

    folder: Folder
    entry: ShardEntry
    first: int
    rows: int


@dataclass
class Copied:
    """A shard that was made of rows of others: its path below the folder of the dataset, its facts,
    its samples by class, and how many objects are marked in it."""

    path: str
    facts: ShardFacts
    labels: Counter[int] = field(default_factory=Counter)
    objects: int = 0


def copy_shard(
    root: Path,
    job: str,
    layout: Layout,
    split: str,
    number: int,
    compression: Compression,
    runs: Sequence[Run],
) -> Copied:
    """Write a shard of these rows, in this order, into the dataset at `root`. `job` is the id of what
    does so. Raises DatasetError if a block of them is damaged."""
    with new_shard(root, job, layout, split, number, compression) as shard:
        blocks, reader = _Blocks(shard, compression, layout), RunReader()
        for run in runs:
            for rows, whole in reader.pieces(run):
                blocks.add(rows, whole)
        blocks.flush()
    path = path_of_shard(split, number, shard.facts.sha256)
    return Copied(path, shard.facts, blocks.labels, blocks.objects)


class _Blocks:
    """Puts rows together to blocks."""

    def __init__(self, writer: ShardWriter, compression: Compression, layout: Layout) -> None:
        self._writer, self._full, self._layout = writer, compression.block_bytes, layout
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self.labels: Counter[int] = Counter()
        self.objects = 0

    def add(self, rest: pa.RecordBatch, whole: bool) -> None:
        """Add rows of a block, perhaps all of it."""
        if whole and not 0 < self._bytes < LEFT_ALONE * self._full:
            self.flush()
            self._write(normalized(rest))
            return
        while rest.num_rows:
            room = max(0, self._full - self._bytes)
            rows = max(1, min(rest.num_rows, rest.num_rows * room // max(1, rest.nbytes)))
            self._held.append(rest.slice(0, rows))
            self._bytes += self._held[-1].nbytes
            rest = rest.slice(rows)
            if self._bytes >= self._full:
                self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            self._write(normalized(*self._held))
            self._held, self._bytes = [], 0

    def _write(self, batch: pa.RecordBatch) -> None:
        self._writer.add_block(batch)
        label = self._layout.roles.main_label
        if label is not None and pa.types.is_integer(batch.schema.field(label).type):
            values = batch.column(label).drop_null().to_numpy()
            found, counts = np.unique(values, return_counts=True)
            self.labels.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        self.objects += objects_of(batch, self._layout)


def objects_of(batch: pa.RecordBatch, layout: Layout) -> int:
    """Count the objects that are marked in samples."""
    objects = 0
    for name in layout.roles.objects:
        column = batch.column(name)
        lists = column.flatten()[0] if pa.types.is_struct(column.type) else column
        objects += len(lists.flatten()) if pa.types.is_list(lists.type) else 0
    return objects


class RunReader:
    """Reads runs one after the other. It keeps the shards that it has read last, and the last block
    of each.

    After updates, new samples lie in other shards than the old ones between which they belong: such
    runs take turns. With one shard at a time, 2,000 of them opened and checked the same blocks
    2,000 times, and compacting 296 MiB took 1.9 s in place of 1.0 s (2026-11-27,
    docs/dev/measurements.md).
    """

    def __init__(self) -> None:
        # the one that was read last is the last one
        self._open: dict[tuple[Folder, str], _OpenShard] = {}

    def pieces(self, run: Run) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield the rows of a run, block by block, and whether they are all of their block. Raises
        DatasetError if a block of them is damaged."""
        shard = self._shard(run)
        first, end = run.first, run.first + run.rows
        ends = shard.ends
        block = int(np.searchsorted(ends, first, side="right"))
        while first < end:
            start = int(ends[block - 1]) if block else 0
            stop = min(end, int(ends[block]))
            rows = shard.block(block).slice(first - start, stop - first)
            yield rows, first == start and stop == int(ends[block])
            first, block = stop, block + 1

    def shard(self, run: Run) -> ShardReader:
        """Return the shard of a run. Raises DatasetError."""
        return self._shard(run).reader

    def _shard(self, run: Run) -> _OpenShard:
        name = (run.folder, run.entry.path)
        found = self._open.pop(name, None) or _OpenShard(ShardReader(*name), run.entry.block_rows)
        while len(self._open) >= OPEN_SHARDS:
            del self._open[next(iter(self._open))]
        self._open[name] = found
        return found


class _OpenShard:
    """A shard, and the block of it that was read last."""

    def __init__(self, reader: ShardReader, blocks: Sequence[int]) -> None:
        self.reader, self._rows = reader, blocks
        self.ends = np.cumsum(blocks)
        self._number, self._block = -1, pa.RecordBatch.from_pylist([], pa.schema([]))

    def block(self, number: int) -> pa.RecordBatch:
        """Return a block that is what was written. Raises DatasetError."""
        if number != self._number:
            block, intact = self.reader.checked_block(number)
            if not intact or block.num_rows != int(self._rows[number]):
                raise DatasetError(
                    f"{self.reader.shown}: block {number} is damaged; run `shardctl repair` first, "
                    "then this again"
                )
            self._block, self._number = block, number
        return self._block
