"""What was read of one COCO file: a few columns in memory, its annotations in scratch files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.sources.annotations.objects import ITEMS, Others
from shardctl.system.text import printable

Numbers = npt.NDArray[np.int64]

NO_ID = -(2**63)
"""Stands for an id that there is not."""

MEMBERS = ("id", "category", "bbox", "area", "iscrowd", "segmentation", "rle", "keypoints")
"""What a COCO file may know of an object."""

OBJECT_COLUMNS = pa.schema([("image", pa.int64()), *((name, ITEMS[name]) for name in MEMBERS)])
CAPTION_COLUMNS = pa.schema([("image", pa.int64()), ("id", pa.int64()), ("caption", pa.string())])
"""`id` is a hash of the id and the text: where both are the same, it is one caption in two
files."""


@dataclass
class CocoFile:
    """What was read of one file: its images as columns, its categories, and its annotations in
    scratch files."""

    opened: str
    images: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    names: pa.ChunkedArray = field(default_factory=lambda: pa.chunked_array([], pa.large_string()))
    sizes: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    rows: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    categories: list[dict[str, Any]] = field(default_factory=list)
    objects: Rows | None = None
    captions: Rows | None = None
    members: set[str] = field(default_factory=set)
    others: Others = field(default_factory=Others)
    faults: dict[int, str] = field(default_factory=dict)
    crowds: int = 0
    digest: str = ""

    @property
    def shown(self) -> str:
        """The path or the URL for a message."""
        return printable(self.opened)

    @cached_property
    def order(self) -> Numbers:
        """The images by their ids."""
        return np.argsort(self.images, kind="stable")

    def places(self, ids: Numbers) -> Numbers:
        """Return which image each id is, -1 for those that are none."""
        ordered = self.images[self.order]
        place = np.searchsorted(ordered, ids)
        there = place < len(ordered)
        there[there] = ordered[place[there]] == ids[there]
        return np.where(
            there,
            self.order[np.minimum(place, max(len(ordered) - 1, 0))] if len(ordered) else -1,
            -1,
        )


class Rows:
    """The rows of a mapped scratch file, taken from anywhere, and one of its columns as a whole."""

    def __init__(self, table: pa.Table) -> None:
        self._batches = table.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._schema = table.schema

    def __len__(self) -> int:
        return int(self._starts[-1])

    def column(self, name: str) -> Numbers:
        """Return a column of numbers, null as NO_ID."""
        parts = [batch.column(name).fill_null(NO_ID).to_numpy() for batch in self._batches]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def boxes(self) -> npt.NDArray[np.float32]:
        """Return the boxes of all rows, (n, 4)."""
        parts = [
            batch.column("bbox").flatten().to_numpy(zero_copy_only=False).reshape(-1, 4)
            for batch in self._batches
        ]
        return np.concatenate([np.zeros((0, 4), np.float32), *parts])

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the number of the first row of each batch, and the batch."""
        yield from zip(self._starts.tolist(), self._batches, strict=False)

    def take(self, rows: Numbers) -> pa.RecordBatch:
        """Return some rows; one of null for -1. Batch by batch: a take from the whole would first
        copy it together."""
        of = np.searchsorted(self._starts, rows, side="right") - 1
        pieces = [_nulls(self._schema)]
        order = [np.flatnonzero(rows < 0)[:0]]
        for number in np.unique(of[rows >= 0]).tolist():
            here = np.flatnonzero(of == number)
            pieces.append(self._batches[number].take(pa.array(rows[here] - self._starts[number])))
            order.append(here)
        together = pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
        place = np.zeros(len(rows), np.int64)  # the row of nulls is the first
        place[np.concatenate(order)] = np.arange(1, together.num_rows)
        return together.take(pa.array(place))


def _nulls(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(1, f.type) for f in schema], schema=schema)
