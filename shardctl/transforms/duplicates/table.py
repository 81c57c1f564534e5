"""What is dropped as a duplicate, as a table on disk: docs/format.md, section 2."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import dtype_of
from shardctl.system.files import replacing
from shardctl.system.text import printable
from shardctl.transforms.duplicates.exact import DROPPED, PARTS, PIECE_BITS, Rows, Runs

Numbers = npt.NDArray[np.int64]

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
    with replacing(path) as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), SCHEMA) as writer:
        for part in range(PARTS):
            rows = runs.part(part)
            runs.remove(part)
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

    def __init__(self, path: Path) -> None:
        """Open it. Raises DatasetError."""
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if not reader.schema.equals(SCHEMA):
                raise DatasetError(
                    f"{printable(str(path))}: does not have the columns that `shardctl help "
                    "format` gives it"
                )
            self._batches = [
                reader.get_batch(number) for number in range(reader.num_record_batches)
            ]
            for batch in self._batches:
                batch.validate()
                if any(column.null_count for column in batch.columns):
                    raise DatasetError(f"{printable(str(path))}: a value is missing in it")
            self._firsts = [
                (batch["file"][0].as_py(), batch["record"][0].as_py())
                for batch in self._batches
                if batch.num_rows
            ]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DatasetError(f"{printable(str(path))}: cannot be read ({error})") from error

    def of(self, file: int, numbers: Numbers) -> list[npt.NDArray[Any]]:
        """Return what is dropped of records of a file, given by their numbers, (n,) and increasing:
        which of these they are, and their pieces, kept_file, kept_record and similarity, as in
        SCHEMA."""
        parts: list[list[npt.NDArray[np.generic]]] = []
        low, high = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
        place = max(0, bisect_left(self._firsts, (file, low)) - 1)
        while place < len(self._firsts) and self._firsts[place] <= (file, high):
            batch = self._batches[place]
            first, end = np.searchsorted(batch["file"].to_numpy(), [file, file + 1])
            start, stop = first + np.searchsorted(
                batch["record"].to_numpy()[first:end], [low, high + 1]
            )
            parts.append([batch[name].to_numpy()[start:stop] for name in SCHEMA.names[1:]])
            place += 1
        empty = [np.zeros(0, dtype_of(f.type)) for f in SCHEMA][1:]
        record, *columns = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
        row = np.searchsorted(numbers, record)
        among = numbers[row] == record
        return [row[among], *(column[among] for column in columns)]
