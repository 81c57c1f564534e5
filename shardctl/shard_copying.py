"""Shards that are made of rows of other shards. Nothing is decoded: rows are copied, and whole blocks where they can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.layout import Layout
from shardctl.shard import Compression, ShardFacts, ShardReader, ShardWriter, normalized, shard_schema
from shardctl.storage import StreamedFile, printable, replacing

LEFT_ALONE = 0.5
"""A block that is copied whole leaves one before it that may be as small as this share of a full one."""


@dataclass(frozen=True)
class Run:
    """Rows of a shard, from `first` on. `blocks` has the rows of each of its blocks."""

    path: Path
    blocks: Sequence[int]
    first: int
    rows: int


@dataclass
class Copied:
    """A shard that was made of rows of others: its facts, its samples by class, and how many objects are marked in it."""

    facts: ShardFacts
    labels: Counter[int] = field(default_factory=Counter)
    objects: int = 0


@dataclass(frozen=True)
class _Piece:
    """Rows of one block; `whole` says that they are all of its rows."""

    batch: pa.RecordBatch
    whole: bool


def copy_shard(path: Path, layout: Layout, split: str, number: int, compression: Compression, runs: Sequence[Run]) -> Copied:
    """Write a shard of these rows, in this order. Raises DatasetError if a block of them is damaged."""
    with replacing(path, StreamedFile) as sink:
        writer = _Blocks(ShardWriter(sink, shard_schema(layout, split, number), compression), compression, layout)
        for piece in _pieces(runs):
            writer.add(piece)
        blocks = writer.finish()
    facts = ShardFacts(sum(blocks), sink.tell(), writer.raw_bytes, sink.sha256, blocks)
    return Copied(facts, writer.labels, writer.objects)


class _Blocks:
    """Puts rows together to blocks."""

    def __init__(self, writer: ShardWriter, compression: Compression, layout: Layout) -> None:
        self._writer, self._full, self._layout = writer, compression.block_bytes, layout
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self.labels: Counter[int] = Counter()
        self.objects = 0

    @property
    def raw_bytes(self) -> int:
        return self._writer.raw_bytes

    def add(self, piece: _Piece) -> None:
        """Add rows."""
        if piece.whole and not 0 < self._bytes < LEFT_ALONE * self._full:
            self._flush()
            self._write(piece.batch)
            return
        rest = piece.batch
        while rest.num_rows:
            room = max(0, self._full - self._bytes)
            rows = max(1, min(rest.num_rows, rest.num_rows * room // max(1, rest.nbytes)))
            self._held.append(rest.slice(0, rows))
            self._bytes += self._held[-1].nbytes
            rest = rest.slice(rows)
            if self._bytes >= self._full:
                self._flush()

    def finish(self) -> tuple[int, ...]:
        """Write what is held, and the end; return the rows of all blocks."""
        self._flush()
        return self._writer.finish()

    def _flush(self) -> None:
        if self._held:
            self._write(normalized(pa.concat_batches(self._held)))
            self._held, self._bytes = [], 0

    def _write(self, batch: pa.RecordBatch) -> None:
        self._writer.add_block(batch)
        label = self._layout.roles.main_label
        if label is not None and pa.types.is_integer(batch.schema.field(label).type):
            values = batch.column(label).drop_null().to_numpy()
            found, counts = np.unique(values, return_counts=True)
            self.labels.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        for name in self._layout.roles.objects:
            column = batch.column(name)
            lists = column.field(0) if pa.types.is_struct(column.type) else column
            self.objects += len(lists.flatten()) if pa.types.is_list(lists.type) else 0


def _pieces(runs: Sequence[Run]) -> Iterator[_Piece]:
    """Yield the rows of runs, block by block."""
    reader, ends = None, np.empty(0, np.int64)
    for run in runs:
        if reader is None or reader.path != run.path:
            reader = ShardReader(run.path)
            ends = np.cumsum(run.blocks)
        first, end = run.first, run.first + run.rows
        block = int(np.searchsorted(ends, first, side="right"))
        while first < end:
            start = int(ends[block - 1]) if block else 0
            stop = min(end, int(ends[block]))
            batch = _block(reader, block, int(run.blocks[block]))
            yield _Piece(batch.slice(first - start, stop - first), first == start and stop == int(ends[block]))
            first, block = stop, block + 1


def _block(reader: ShardReader, number: int, rows: int) -> pa.RecordBatch:
    """Return a block that is what was written. Raises DatasetError."""
    batch, intact = reader.checked_block(number)
    if not intact or batch.num_rows != rows:
        where = f"{printable(str(reader.path))}: block {number}"
        raise DatasetError(f"{where} is damaged; run `shardctl repair` first, then this again")
    return batch
