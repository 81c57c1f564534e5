"""Which of many hashes on disk are equal to another one, whose text comes before it; and the table of
what is dropped as a duplicate."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import Array, Bools, Bytes, Hashes, Numbers, dtype_of
from shardctl.format.tables import new_table, open_table
from shardctl.system.folders import LocalFolder

Rows = Array

PARTS_BITS = 8
PARTS = 1 << PARTS_BITS
"""So many files hold the rows: of ten million, 40 thousand each."""

HELD_BYTES = 8 << 20
"""Bytes of rows that wait in memory for being divided."""

CHUNK_BYTES = 32 << 20
"""Bytes of a part that are read at a time."""


class Runs:
    """Rows of a structured `dtype`, in the files of a folder."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        self._folder, self.dtype = folder, dtype
        self._held: list[tuple[Rows, Bytes]] = []
        self._held_bytes = 0
        self.rows = 0
        folder.mkdir()

    def add(self, rows: Rows, parts: Array) -> None:
        """Add rows, each to one of the PARTS. Raises OSError."""
        self._held.append((rows, parts.astype(np.uint8)))
        self._held_bytes += rows.nbytes
        self.rows += len(rows)
        if self._held_bytes >= HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait. Raises OSError."""
        if not self._held:
            return
        rows = np.concatenate([rows for rows, _ in self._held])
        parts = np.concatenate([parts for _, parts in self._held])
        self._held, self._held_bytes = [], 0
        order = np.argsort(parts, kind="stable")
        ends = np.cumsum(np.bincount(parts, minlength=PARTS))
        for part, of_part in enumerate(np.split(rows[order], ends[:-1])):
            if len(of_part):
                with open(self._path(part), "ab") as file:
                    file.write(of_part.tobytes())

    def chunks(self, part: int) -> Iterator[Rows]:
        """Yield the rows of a part, some of them at a time, in the order in which they were added.
        Raises OSError."""
        if not self._path(part).exists():
            return
        most = CHUNK_BYTES // self.dtype.itemsize
        with open(self._path(part), "rb") as file:
            while len(rows := np.fromfile(file, self.dtype, most)):
                yield rows

    def is_large(self, part: int) -> bool:
        """Return whether a part is read in several chunks. Raises OSError."""
        path = self._path(part)
        return path.exists() and path.stat().st_size > CHUNK_BYTES

    def parts(self) -> Iterator[Rows]:
        """Yield the rows of each part, which is used up. Raises OSError."""
        for part in range(PARTS):
            rows = np.concatenate([np.zeros(0, self.dtype), *self.chunks(part)])
            self.remove(part)
            yield rows

    def remove(self, part: int) -> None:
        """Delete a part that has been worked on: the disk is needed for others. Raises OSError."""
        self._path(part).unlink(missing_ok=True)

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:03d}"


PIECE_BITS = 28
"""A place is the rank of a document among all, followed by the number of a piece of it in so many
bits."""

HASHED = np.dtype(
    [("high", np.uint64), ("low", np.uint64), ("place", np.int64), ("size", np.int64)]
)
"""A hash of 128 bits, the place of what was hashed, and its bytes."""

DROPPED = np.dtype([("place", np.int64), ("kept", np.int64), ("similarity", np.float32)])
"""What is dropped, by its place; the place of what is kept; how alike they are, from 0 to 1."""


def add_hashes(runs: Runs, rows: Rows) -> None:
    """Add rows of HASHED, divided by their hashes."""
    runs.add(rows, rows["high"] >> np.uint64(64 - PARTS_BITS))


def repeated(runs: Runs) -> Iterator[tuple[Rows, int]]:
    """Yield what has the same hash as something before it, as rows of DROPPED, and the bytes of it.
    The runs are used up.

    It does not depend on the order in which the hashes were added. In memory is a part of the
    different hashes.
    """
    for part in range(PARTS):
        first = np.zeros(0, HASHED)
        # one line may be there a hundred million times: only its first place is kept in memory
        if runs.is_large(part):
            for chunk in runs.chunks(part):
                joined = np.concatenate([first, chunk])
                first = joined[np.unique(firsts(joined))]
        for chunk in runs.chunks(part):
            joined = np.concatenate([first, chunk])
            place = joined["place"]
            kept = place[firsts(joined)]
            again = np.flatnonzero(place[len(first) :] != kept[len(first) :]) + len(first)
            dropped = np.zeros(len(again), DROPPED)
            dropped["place"], dropped["kept"], dropped["similarity"] = place[again], kept[again], 1
            yield dropped, int(joined["size"][again].sum())
        runs.remove(part)


def differ(keys: Hashes) -> Bools:
    """Return which of some keys are others than those before them, (n,)."""
    return np.append(True, keys[1:] != keys[:-1])[: len(keys)]


def firsts(rows: Rows) -> Numbers:
    """Return for each row that of the same hash with the lowest place: numbers of rows, (n,)."""
    high, low, place = (np.ascontiguousarray(rows[name]) for name in ("high", "low", "place"))
    order = np.argsort(place, kind="stable")
    order = order[np.argsort(high[order], kind="stable")]
    begins, others = differ(high[order]), differ(low[order])
    if (others > begins).any():  # half a hash is the same by chance
        order = np.lexsort((place, low, high))
        begins = differ(high[order]) | differ(low[order])
    firsts = np.empty(len(order), np.int64)
    firsts[order] = order[begins][np.cumsum(begins) - 1]
    return firsts


# --- what is dropped, as a table on disk: docs/format.md, section 2 ---

SCHEMA = pa.schema(
    [
        ("file", pa.int32()),
        ("record", pa.int64()),
        ("piece", pa.int32()),
        ("kept_file", pa.int32()),
        ("kept_record", pa.int64()),
        ("similarity", pa.float32()),
    ]
)
"""A dropped document, line or paragraph (`piece`, from 0) of a record of a file, by its row of
files.arrow; the record in which what is kept for it stands; how alike they are."""

Locate = Callable[[Numbers], tuple[Numbers, Numbers]]
"""Returns the files and the numbers of records, given by their ranks."""


def add_dropped(runs: Runs, rows: Rows, documents: int) -> None:
    """Add rows of DROPPED, divided by their places among so many documents."""
    runs.add(rows, (rows["place"] >> PIECE_BITS) * PARTS // max(1, documents))


def write_table(path: Path, runs: Runs, locate: Locate) -> None:
    """Write the rows of DROPPED of all parts as a table, sorted by their places. The runs are used
    up."""
    assert runs.dtype == DROPPED, "these rows become the table"
    with new_table(path, SCHEMA) as writer:
        for rows in runs.parts():
            if len(rows):
                rows = rows[np.argsort(rows["place"])]
                file, record = locate(rows["place"] >> PIECE_BITS)
                kept_file, kept_record = locate(rows["kept"] >> PIECE_BITS)
                piece = rows["place"] & (1 << PIECE_BITS) - 1
                columns = file, record, piece, kept_file, kept_record, rows["similarity"]
                arrays = [
                    pa.array(column.astype(dtype_of(f.type)))
                    for column, f in zip(columns, SCHEMA, strict=True)
                ]
                writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))


class DuplicatesTable:
    """A table on disk, memory-mapped."""

    def __init__(self, folder: LocalFolder, name: str) -> None:
        """Open it. Raises DatasetError."""
        table = open_table(folder, name, SCHEMA)
        if any(column.null_count for column in table.columns):
            raise DatasetError(f"{folder.shown(name)}: a value is missing in it")
        self._batches = [batch for batch in table.to_batches() if batch.num_rows]
        self._firsts = [
            (batch["file"][0].as_py(), batch["record"][0].as_py()) for batch in self._batches
        ]

    def of(self, file: int, numbers: Numbers) -> list[Array]:
        """Return what is dropped of records of a file, given by their numbers, (n,) and increasing:
        which of these they are, and their pieces, kept_file, kept_record and similarity, as in
        SCHEMA."""
        parts: list[list[npt.NDArray[np.generic]]] = []
        low, high = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
        begin = max(0, bisect_left(self._firsts, (file, low)) - 1)
        for batch in self._batches[begin : bisect_right(self._firsts, (file, high))]:
            first, end = np.searchsorted(batch["file"].to_numpy(), [file, file + 1])
            start, stop = first + np.searchsorted(
                batch["record"].to_numpy()[first:end], [low, high + 1]
            )
            parts.append([batch[name].to_numpy()[start:stop] for name in SCHEMA.names[1:]])
        empty = [np.zeros(0, dtype_of(f.type)) for f in SCHEMA][1:]
        record, *columns = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
        row = np.searchsorted(numbers, record)
        among = numbers[row] == record
        return [row[among], *(column[among] for column in columns)]
