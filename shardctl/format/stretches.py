"""Arrow IPC files of which only some stretches are here: the footer says where the blocks lie.

https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format: a file ends with a footer (a
flatbuffer), its length as a 32-bit number, and "ARROW1". The footer lists the place of each record
batch.
"""

from __future__ import annotations

import io
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Array, Numbers

MAGIC = b"ARROW1"
END_BYTES = 4 + len(MAGIC)
"""What comes after the footer."""

_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("padding", "<i4"), ("body", "<i8")])
"""The struct Block of File.fbs."""

DICTIONARIES, RECORD_BATCHES = 2, 3
"""The numbers of these fields in the table Footer of File.fbs."""


@dataclass(frozen=True)
class Extents:
    """The place of each block in a file: where it begins and how many bytes it has, (blocks,) int64
    each."""

    starts: Numbers
    lengths: Numbers


def footer_bytes(tail: bytes) -> int:
    """Return how many of the last bytes of a file belong to its footer. Raises ValueError if it is
    no Arrow file."""
    if len(tail) < END_BYTES or tail[-len(MAGIC) :] != MAGIC:
        raise ValueError("it does not end as an Arrow file does")
    (length,) = struct.unpack_from("<i", tail, len(tail) - END_BYTES)
    if length <= 0:
        raise ValueError(f"its footer has {length} bytes")
    return int(length) + END_BYTES


def extents_of(tail: bytes, size: int) -> Extents:
    """Return where the blocks lie in a file of `size` bytes, of which `tail` are the last, with all
    of the footer.

    Every block lies inside the file, before the footer. Raises ValueError if the footer says
    anything else.
    """
    if len(blocks_of(tail, size, DICTIONARIES).starts):
        raise ValueError("it has dictionaries, which no shard has")
    return blocks_of(tail, size, RECORD_BATCHES)


def blocks_of(tail: bytes, size: int, field: int) -> Extents:
    """Return where the dictionaries or the record batches lie in such a file. Raises ValueError."""
    length = footer_bytes(tail)
    if length > len(tail) or length > size:
        raise ValueError("its footer is longer than the file")
    footer = tail[len(tail) - length : len(tail) - END_BYTES]
    found = _vector(footer, field)
    starts, metadata, body = (
        found[name].astype(np.int64) for name in ("offset", "metadata", "body")
    )
    end = size - length
    if (
        (starts < 0)
        | (metadata <= 0)
        | (body < 0)
        | (starts > end)
        | (body > end - starts)
        | (metadata > end - starts - body)
    ).any():
        raise ValueError("a block lies outside of it")
    return Extents(starts, metadata + body)


def _vector(footer: bytes, field: int) -> Array:
    """Return a vector of Blocks of the root table. Raises ValueError where the bytes lead astray."""
    place = field_of(footer, number_at("<I", footer, 0), field)
    if place is None:
        return np.empty(0, _BLOCK)
    vector = place + number_at("<I", footer, place)
    count = number_at("<I", footer, vector)
    if vector + 4 + count * _BLOCK.itemsize > len(footer):
        raise ValueError(_ASTRAY)
    return np.frombuffer(footer, _BLOCK, count, vector + 4)


def field_of(data: bytes, table: int, index: int) -> int | None:
    """Return where a field of a flatbuffer's table is, None if the table does not have it. Raises
    ValueError."""
    names = table - number_at("<i", data, table)
    if 4 + 2 * index >= number_at("<H", data, names):
        return None
    place = number_at("<H", data, names + 4 + 2 * index)
    return table + place if place else None


def number_at(form: str, data: bytes, place: int) -> int:
    """Return a number of a flatbuffer. Raises ValueError if it is not in the data."""
    if not 0 <= place <= len(data) - struct.calcsize(form):
        raise ValueError(_ASTRAY)
    return int(struct.unpack_from(form, data, place)[0])


_ASTRAY = "its footer leads out of itself"


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
    """A file of `size` bytes elsewhere, of which some stretches are in memory: the last one, with the
    footer, is `tail`. Threads may share it."""

    def __init__(self, size: int, tail: bytes, get: Get) -> None:
        self.size, self._get = size, get
        self._tail = (size - len(tail), pa.py_buffer(tail))
        self._held: list[tuple[int, pa.Buffer]] = []
        self._starts = self._lengths = np.empty(0, np.int64)
        with suppress(ValueError):  # Arrow says what is wrong with it
            extents = extents_of(tail, size)
            self._starts, self._lengths = extents.starts, extents.lengths
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, start: int, data: pa.Buffer) -> Iterator[None]:
        """Have the bytes from `start` on in memory."""
        held = (start, data)
        self._held.append(held)
        try:
            yield
        finally:
            self._held.remove(held)  # it, or an equal one, which does as well

    def read(self, at: int, count: int) -> pa.Buffer:
        """Return some bytes, without a copy of them. Raises StoreError."""
        with self._lock:
            for start, data in (*self._held, self._tail):
                if start <= at and at + count <= start + data.size:
                    return data.slice(at - start, count)
            # the whole block, if they are of one
            start, length = at, count
            inside = (self._starts <= at) & (at + count <= self._starts + self._lengths)
            for block in np.flatnonzero(inside).tolist()[:1]:
                start, length = int(self._starts[block]), int(self._lengths[block])
            data = _aligned(self._get(start, length), start)
            self._held = [*self._held, (start, data)][-KEPT:]
            return data.slice(at - start, count)


def _aligned(data: pa.Buffer, start: int) -> pa.Buffer:
    """Return a copy of what begins at `start` of a file, in which values lie as they do where the
    file is mapped."""
    room = pa.allocate_buffer(data.size + start % _ALIGNMENT)
    np.frombuffer(room, np.uint8)[start % _ALIGNMENT :] = np.frombuffer(data, np.uint8)
    return room.slice(start % _ALIGNMENT)


class OpenFile(io.RawIOBase):
    """A RemoteFile with a place in it, for pyarrow.PythonFile, which locks it."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place, and return it."""
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def read_buffer(self, count: int) -> pa.Buffer:
        """Return the next bytes, without a copy of them. Raises StoreError."""
        count = max(0, min(count, self._file.size - self._at))
        self._at += count
        return self._file.read(self._at - count, count)

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes. Raises StoreError."""
        left = self._file.size - self._at
        data: bytes = self.read_buffer(left if count < 0 else count).to_pybytes()
        return data
