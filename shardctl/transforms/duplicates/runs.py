"""Rows on disk that are too many for memory: divided by a number into parts, so that each part can
be worked on alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[Any]

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
        self._held: list[tuple[Rows, npt.NDArray[np.uint8]]] = []
        self._held_bytes = 0
        self.rows = 0
        folder.mkdir()

    def add(self, rows: Rows, parts: npt.NDArray[Any]) -> None:
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
        rows, first = rows[order], 0
        for part, end in enumerate(ends.tolist()):
            if end > first:
                with open(self._path(part), "ab") as file:
                    file.write(rows[first:end].tobytes())
            first = end

    def chunks(self, part: int) -> Iterator[Rows]:
        """Yield the rows of a part, some of them at a time, in the order in which they were added.
        Raises OSError."""
        if not self._path(part).exists():
            return
        most = CHUNK_BYTES // self.dtype.itemsize
        with open(self._path(part), "rb") as file:
            while len(rows := np.fromfile(file, self.dtype, most)):
                yield rows

    def chunked(self, part: int) -> bool:
        """Return whether a part is read in several chunks. Raises OSError."""
        path = self._path(part)
        return (
            path.exists()
            and path.stat().st_size > CHUNK_BYTES // self.dtype.itemsize * self.dtype.itemsize
        )

    def part(self, part: int) -> Rows:
        """Return all rows of a part. Raises OSError."""
        return np.concatenate([np.zeros(0, self.dtype), *self.chunks(part)])

    def remove(self, part: int) -> None:
        """Delete a part that has been worked on: the disk is needed for others. Raises OSError."""
        self._path(part).unlink(missing_ok=True)

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:03d}"
