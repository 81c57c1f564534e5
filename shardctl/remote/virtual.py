"""A file of which only some stretches are in memory: its end, and the block that is being read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


class HeldFile:
    """A file of `size` bytes, with the methods that pyarrow.PythonFile needs, whose last bytes are `tail`. Arrow locks it.

    Reading anything else raises OSError.
    """

    closed = False

    def __init__(self, size: int, tail: bytes) -> None:
        self._size, self._at = size, 0
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

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place that is read next."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read_buffer(self, count: int) -> pa.Buffer:
        """Return the next bytes, without a copy."""
        count = min(count, self._size - self._at)
        for start, data in (*self._held, self._tail):
            if start <= self._at and self._at + count <= start + data.size:
                self._at += count
                return data.slice(self._at - count - start, count)
        raise OSError(f"bytes {self._at} to {self._at + count} are outside of its block")

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes."""
        data: bytes = self.read_buffer(self._size - self._at if count < 0 else count).to_pybytes()
        return data

    def close(self) -> None:
        """Nothing is open."""
