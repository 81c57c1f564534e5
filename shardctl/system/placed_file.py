"""What Arrow needs to read a file that is not one of this system."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa


class PlacedFile(ABC):
    """A file of `size` bytes with a place in it, and the methods that pyarrow.PythonFile needs.
    Arrow locks it."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    @abstractmethod
    def stretch(self, start: int, count: int) -> pa.Buffer:
        """Return `count` bytes from `start` on, without a copy of them."""

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
        """Return the next bytes. Raises what `stretch` raises."""
        count = max(0, min(count, self._size - self._at))
        self._at += count
        return self.stretch(self._at - count, count)

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes. Raises what `stretch` raises."""
        data: bytes = self.read_buffer(self._size - self._at if count < 0 else count).to_pybytes()
        return data

    def close(self) -> None:  # noqa: B027 - Arrow calls it
        """Nothing is open."""
