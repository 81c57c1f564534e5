"""Random access to the samples of a dataset: global indices in, columns of a batch out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.codecs import image
from shardctl.errors import DatasetError, Rejection, UsageError
from shardctl.manifest import MANIFEST, SHARDS, Manifest, ShardEntry, ShardTable
from shardctl.shard import ENCODED_IMAGE, Layout, ShardReader
from shardctl.storage import printable

OPEN_SHARDS = 64
"""Shards that are mapped at a time; the least recently used is closed first."""

Indices = npt.NDArray[np.int64]
Batch = dict[str, Any]
"""Field name to values: arrays of shape (batch, ...) for numbers and images of one shape, lists for everything else."""

VERIFY_ADVICE = "run `shardctl verify` on the dataset"

NO_LABEL = -1
"""The label of a sample that has none."""


@dataclass(frozen=True)
class _Group:
    """Samples of one batch that lie in one block: their rows in it, and their places in the batch."""

    block: pa.RecordBatch
    rows: Indices
    places: Indices
    where: str


@dataclass(frozen=True)
class _OpenShard:
    reader: ShardReader
    starts: Indices


class SampleReader:
    """Reads samples of one split, or of all, by index. Threads may share one reader."""

    def __init__(self, root: Path, split: str | None = None) -> None:
        self.root = root
        self.manifest = Manifest.load(root)
        self._table = ShardTable(root / SHARDS)
        if sum(facts.shards for facts in self.manifest.splits) != len(self._table):
            raise DatasetError(f"{printable(str(root))}: {MANIFEST} and {SHARDS} are not of the same dataset; {VERIFY_ADVICE}")
        self._shards = self._shards_of(split)
        first = self._table.first[self._shards.start : self._shards.stop]
        self._offset = int(first[0]) if len(first) else 0
        self._first = first - self._offset
        self._size = int(np.sum(self._table.rows[self._shards.start : self._shards.stop]))
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._lock = threading.Lock()
        self.layout = self._find_layout()

    def __len__(self) -> int:
        return self._size

    def check_columns(self, columns: Sequence[str] | None) -> list[str]:
        """Return the columns that are meant, all of them for None. Raises UsageError for one that there is not."""
        names = list(self.layout.columns.names)
        missing = [name for name in columns or () if name not in names]
        if missing:
            raise UsageError(f"no column {', '.join(missing)}; the dataset has {', '.join(names)}")
        return list(columns) if columns is not None else names

    def gather(self, indices: Indices, columns: list[str], decode: bool) -> Batch:
        """Return the samples at `indices` (n,), in that order. Raises DatasetError where a shard is damaged."""
        groups = list(self._groups(indices))
        return {name: self._column(name, groups, len(indices), decode) for name in columns}

    def _shards_of(self, split: str | None) -> range:
        if split is None:
            return range(len(self._table))
        start = 0
        for facts in self.manifest.splits:
            if facts.name == split:
                return range(start, start + facts.shards)
            start += facts.shards
        names = ", ".join(facts.name for facts in self.manifest.splits)
        raise UsageError(f"{printable(str(self.root))}: no split {split!r}; it has {names}")

    def _find_layout(self) -> Layout:
        columns = self._shard(self._shards.start).reader.schema.remove_metadata()
        return self.manifest.layout(columns)

    def _shard(self, number: int) -> _OpenShard:
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
        entry = self._table[number]
        reader = ShardReader(self.root / entry.path)
        self._refuse_other(reader, entry)
        opened = _OpenShard(reader, np.cumsum([0, *entry.block_rows], dtype=np.int64))
        with self._lock:
            self._open[number] = opened
            while len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
        return opened

    def _refuse_other(self, reader: ShardReader, entry: ShardEntry) -> None:
        """Raise DatasetError for a shard that is not the one that belongs here: replaced or damaged since it was written."""
        shown = printable(str(reader.path))
        if reader.bytes != entry.bytes or len(reader) != len(entry.block_rows):
            raise DatasetError(f"{shown}: {reader.bytes} bytes where the dataset has {entry.bytes}; {VERIFY_ADVICE}")
        if tuple((f.name, str(f.type)) for f in reader.schema) != self.manifest.schema:
            raise DatasetError(f"{shown}: its columns are not those of the dataset; {VERIFY_ADVICE}")

    def _block(self, opened: _OpenShard, number: int) -> pa.RecordBatch:
        block = opened.reader.block(number)
        if block.num_rows != opened.starts[number + 1] - opened.starts[number]:
            shown = printable(str(opened.reader.path))
            raise DatasetError(f"{shown}: block {number} does not have the rows that were written; {VERIFY_ADVICE}")
        return block

    def _groups(self, indices: Indices) -> Iterator[_Group]:
        """Sort the samples of a batch by the block that they lie in, so that each block is read once."""
        shard_of = np.searchsorted(self._first, indices, side="right") - 1
        for number in np.unique(shard_of):
            places = np.flatnonzero(shard_of == number)
            opened = self._shard(self._shards.start + int(number))
            local = indices[places] - self._first[number]
            block_of = np.searchsorted(opened.starts, local, side="right") - 1
            for block in np.unique(block_of):
                inside = block_of == block
                rows = local[inside] - opened.starts[block]
                where = f"{printable(str(opened.reader.path))}, block {block}"
                yield _Group(self._block(opened, int(block)), rows, places[inside], where)

    def _column(self, name: str, groups: list[_Group], size: int, decode: bool) -> Any:
        type_ = self.layout.columns.field(name).type
        if isinstance(type_, pa.FixedShapeTensorType):
            return _tensors(name, groups, size, type_)
        values = _in_order([group.block.column(name).take(pa.array(group.rows)) for group in groups], groups, size, type_)
        if name == "image" and type_.equals(ENCODED_IMAGE):
            encoded = values.field("bytes").to_pylist()
            return self._images(encoded, groups) if decode else encoded
        if name == "label" and pa.types.is_integer(type_):
            return values.fill_null(NO_LABEL).to_numpy()
        if (pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)) and not values.null_count:
            return values.to_numpy(zero_copy_only=False)
        return values.to_pylist()

    def _images(self, encoded: list[bytes], groups: list[_Group]) -> Any:
        try:
            keep = self.manifest.recipe.get("truncated") == "keep"
            pixels = [image.decode(data, max_pixels=2**62, keep_truncated=keep) for data in encoded]
        except Rejection as rejection:
            blocks = " or ".join(group.where for group in groups[:3])
            raise DatasetError(
                f"an image in {blocks} does not decode: {rejection.message}; run `shardctl verify`"
            ) from rejection
        return np.stack(pixels) if self.layout.shape else pixels


def _in_order(parts: list[pa.Array], groups: list[_Group], size: int, type_: pa.DataType) -> pa.Array:
    """Join what was taken from each block, and put it in the order of the batch."""
    if not parts:
        return pa.array([], type_)
    back = np.empty(size, np.int64)
    back[np.concatenate([group.places for group in groups])] = np.arange(size)
    return pa.concat_arrays(parts).take(pa.array(back))


def _tensors(name: str, groups: list[_Group], size: int, type_: Any) -> npt.NDArray[Any]:
    """Copy fixed-shape arrays out of their blocks: (size, *shape)."""
    result = np.empty((size, *type_.shape), type_.value_type.to_pandas_dtype())
    for group in groups:
        result[group.places] = group.block.column(name).to_numpy_ndarray()[group.rows]
    return result
