"""A file of which only some stretches are in memory: its end, and the block that is being read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from shardctl.system.folders import PlacedFile


class HeldFile(PlacedFile):
    """A file of `size` bytes, whose last bytes are `tail`.

    Reading anything else raises OSError.
    """

    def __init__(self, size: int, tail: bytes) -> None:
        super().__init__(size)
        self._tail = (size - len(tail), pa.py_buffer(tail))
        self._held: list[tuple[int, pa.Buffer]] = []

    @contextmanager
    def holding(self, start: int, data: pa.Buffer) -> Iterator[None]:
        """Have the bytes from `start` on, too."""
        held = (start, data)
        self._held.append(held)
        try:
            yield
        finally:
            self._held.remove(held)  # it, or an equal one, which does as well

    def stretch(self, start: int, count: int) -> pa.Buffer:
        """Return some bytes. Raises OSError."""
        for first, data in (*self._held, self._tail):
            if first <= start and start + count <= first + data.size:
                return data.slice(start - first, count)
        raise OSError(f"bytes {start} to {start + count} are outside of its block")
