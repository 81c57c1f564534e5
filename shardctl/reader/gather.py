"""Gathers scattered values into one array, by one call into Arrow that lets other threads run.

A table of (buffer, start, length) is just what an Arrow array of views is: making one and casting it to a plain array is a
gather in C++. It does what a loop over rows does at 1.1 times the speed for 150 kB rows, and ten times for 4 kB rows
(docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Indices = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_VIEW = np.dtype([("length", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("start", "<i4")])
"""A view of more than _INLINE bytes. https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout"""

_INLINE = 12
"""Values of at most this many bytes are stored in the view itself."""

_WINDOW = 16
"""Number of bytes that are gathered if fewer are needed, so that they are too many for the view itself."""


@dataclass(frozen=True)
class Located:
    """Where n values lie: the i-th is `length[i]` bytes at `start[i]` of `buffers[which[i]]`."""

    buffers: list[pa.Buffer]
    which: Indices
    start: Indices
    length: Indices

    def __len__(self) -> int:
        return len(self.which)

    def at(self, places: Indices | slice) -> Located:
        """Return some of them."""
        return Located(self.buffers, self.which[places], self.start[places], self.length[places])

    def rows(self) -> Iterator[Bytes]:
        """Yield each value's bytes where they lie, without a copy."""
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in self.buffers]
        for which, start, length in zip(self.which.tolist(), self.start.tolist(), self.length.tolist(), strict=True):
            yield arrays[which][start : start + length]

    def views(self, places: list[int]) -> Iterator[tuple[int, memoryview]]:
        """Yield some of the places, each with its value's bytes (n,) uint8 where they lie: a third of the time of `rows`."""
        contents = [memoryview(buffer).cast("B") for buffer in self.buffers]
        which, begin, end = self.which.tolist(), self.start.tolist(), (self.start + self.length).tolist()
        for place in places:
            yield place, contents[which[place]][begin[place] : end[place]]


def gather(located: Located) -> pa.Array:
    """Copy the values into one array of large_binary."""
    views = np.zeros(len(located), _VIEW)
    views["length"], views["buffer"], views["start"] = located.length, located.which, located.start
    short = np.flatnonzero(located.length <= _INLINE)
    if len(short):
        views.view(np.uint8).reshape(-1, _VIEW.itemsize)[short, 4:] = _short(located.at(short))
    return _cast(views, located.buffers)


def gather_fixed(located: Located, width: int) -> Bytes:
    """Copy values of one width into an array (n, width) uint8."""
    if width >= _INDEXED and len(located):
        copied = _indexed(located, width)
        if copied is not None:
            return copied
    if width > _INLINE:
        return _fixed(located, width)
    return _windows(located)[:, :width]


_INDEXED = 256
"""Bytes of a value from which on numpy's indexing copies faster than Arrow's gather: 4 kB rows at 1.2 to 2.5 times the rate."""


class _Memory:
    """Memory from an address on, as an array (n, width) uint64 whose row i begins 8 * i bytes after it: rows overlap."""

    def __init__(self, address: int, rows: int, width: int) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (rows, width // 8),
            "strides": (8, 8),
            "typestr": np.dtype(np.uint64).str,
            "version": 3,
        }


def _indexed(located: Located, width: int) -> Bytes | None:
    """Copy values of one width, (n, width), by one index over all memory between them; None if they are not at multiples of
    8 bytes. What lies between the values is not touched, whatever it is."""
    bases = np.array([buffer.address for buffer in located.buffers], np.int64)
    at = bases[located.which] + located.start
    if (int(np.bitwise_or.reduce(at)) | width) & 7:
        return None
    first, last = int(at.min()), int(at.max())
    rows = np.asarray(_Memory(first, (last - first) // 8 + 1, width))
    copied: Bytes = rows[(at - first) >> 3].view(np.uint8)
    return copied


def _fixed(located: Located, width: int) -> Bytes:
    views = np.zeros(len(located), _VIEW)
    views["length"], views["buffer"], views["start"] = width, located.which, located.start
    data = _cast(views, located.buffers).buffers()[2]
    return np.frombuffer(data, np.uint8, len(located) * width).reshape(len(located), width)


def _windows(located: Located) -> Bytes:
    """Copy _WINDOW bytes from each start on. The buffers must go on for so long."""
    return _fixed(located, _WINDOW)


def _short(located: Located) -> Bytes:
    """Return the first _INLINE bytes from each start on, even beyond the value; zeros past the buffer's end."""
    sizes = np.array([buffer.size for buffer in located.buffers], np.int64)[located.which]
    near_end = np.flatnonzero(located.start + _WINDOW > sizes)
    if not len(near_end):
        return _windows(located)[:, :_INLINE]
    result = np.zeros((len(located), _INLINE), np.uint8)
    inside = np.flatnonzero(located.start + _WINDOW <= sizes)
    if len(inside):
        result[inside] = _windows(located.at(inside))[:, :_INLINE]
    for place in near_end.tolist():
        start, length = int(located.start[place]), int(located.length[place])
        result[place, :length] = np.frombuffer(located.buffers[located.which[place]], np.uint8)[start : start + length]
    return result


def _cast(views: npt.NDArray[Any], buffers: list[pa.Buffer]) -> pa.Array:
    array = pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers])
    return array.cast(pa.large_binary())


def adjoining(located: Located, width: int) -> Bytes | None:
    """Return contiguous values of one width without a copy, (n, width), read-only; None if they are not contiguous."""
    if (
        not len(located)
        or located.which[0] != located.which[-1]
        or located.start[-1] - located.start[0] != width * (len(located) - 1)
    ):
        return None
    if (np.diff(located.start) != width).any() or (located.which != located.which[0]).any():
        return None
    part = located.buffers[located.which[0]].slice(int(located.start[0]), width * len(located))
    array = np.frombuffer(part, np.uint8).reshape(len(located), width)
    array.flags.writeable = False
    return array


def in_array(values: pa.Array) -> Located:
    """Return where the values of an Arrow array of bytes lie; none of them is missing."""
    _, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, np.int32, len(values) + 1 + values.offset)[values.offset :].astype(np.int64)
    buffer = data if data is not None else pa.py_buffer(b"")
    return Located([buffer], np.zeros(len(values), np.int64), edges[:-1], np.diff(edges))
