"""A shard on a store that is read where it is: its end at once, then each block with one
request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pyarrow as pa

from shardctl.format.footer import extents_of, footer_bytes
from shardctl.system.folders import PlacedFile

TAIL = 16 << 10
"""Bytes from the end of a shard that are asked for first: the footer of most is in them."""

MOST_FOOTER = 64 << 20
"""Bytes of the longest footer that is fetched: 24 for each block, and the schema. A damaged one may
claim much more."""

KEPT = 2
"""Blocks that stay in memory. Arrow reads the metadata of a block, then the rest of it; then the
next one comes."""

_ALIGNMENT = 64
"""Bytes that Arrow's memory is aligned to, and that its writer aligns buffers to at most."""

Get = Callable[[int, int], pa.Buffer]
"""A way to get some bytes: (start, length)."""


def read_tail(size: int, get: Get, likely: int = TAIL) -> bytes:
    """Return the last bytes of a file of `size` bytes, with all of the footer of an Arrow file: one
    request, or two.

    Of any other file they are just its last bytes.
    """
    length = min(size, likely)
    tail: bytes = get(size - length, length).to_pybytes()
    with suppress(ValueError):
        needed = min(size, footer_bytes(tail))
        if length < needed <= MOST_FOOTER:
            before: bytes = get(size - needed, needed - length).to_pybytes()
            return before + tail
    return tail


class RemoteFile:
    """A file of `size` bytes elsewhere, of which some stretches are in memory. Threads may share
    it."""

    def __init__(self, size: int, get: Get) -> None:
        self.size, self._get = size, get
        tail = read_tail(size, get)
        self._tail = (size - len(tail), pa.py_buffer(tail))
        self._held: list[tuple[int, pa.Buffer]] = []
        self._starts = self._lengths = np.empty(0, np.int64)
        with suppress(ValueError):  # Arrow says what is wrong with it
            extents = extents_of(tail, size)
            self._starts, self._lengths = extents.starts, extents.lengths
        self._lock = threading.Lock()

    def read(self, at: int, count: int) -> pa.Buffer:
        """Return some bytes, without a copy of them. Raises StoreError."""
        with self._lock:
            start, data = self._stretch_with(at, count)
        return data.slice(at - start, count)

    def _stretch_with(self, at: int, count: int) -> tuple[int, pa.Buffer]:
        """Return a stretch that these bytes are in, and where it begins: the whole block, if they
        are of one."""
        for start, data in (*self._held, self._tail):
            if start <= at and at + count <= start + data.size:
                return start, data
        start, length = at, count
        for block in np.flatnonzero(
            (self._starts <= at) & (at + count <= self._starts + self._lengths)
        ).tolist()[:1]:
            start, length = int(self._starts[block]), int(self._lengths[block])
        data = _aligned(self._get(start, length), start)
        self._held = [*self._held, (start, data)][-KEPT:]
        return start, data


def _aligned(data: pa.Buffer, start: int) -> pa.Buffer:
    """Return a copy of what begins at `start` of a file, in which values lie as they do where the
    file is mapped."""
    room = pa.allocate_buffer(data.size + start % _ALIGNMENT)
    np.frombuffer(room, np.uint8)[start % _ALIGNMENT :] = np.frombuffer(data, np.uint8)
    return room.slice(start % _ALIGNMENT)


class OpenFile(PlacedFile):
    """A RemoteFile with a place in it."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file.size)
        self._file = file

    def stretch(self, start: int, count: int) -> pa.Buffer:
        """Return some bytes. Raises StoreError."""
        return self._file.read(start, count)
