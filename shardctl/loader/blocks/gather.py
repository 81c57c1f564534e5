"""Gathers scattered values into one array, by one call into Arrow that lets other threads run.

A table of (buffer, start, length) is just what an Arrow array of views is: making one and casting
it to a plain array is a gather in C++. It does what a loop over rows does at 1.1 times the speed
for 150 kB rows, and ten times for 4 kB rows (docs/dev/measurements.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Array, Bytes, Numbers, bytes_of, edges_of

_VIEW = np.dtype([("length", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("start", "<i4")])
"""A view of more than _INLINE bytes.
https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout"""

_INLINE = 12
"""Values of at most this many bytes are stored in the view itself."""

_WINDOW = 16
"""Number of bytes that are gathered if fewer are needed, so that they are too many for the view
itself."""

_STRETCH = 1 << 30
"""Larger buffers are handed to Arrow in overlapping stretches that begin so many bytes apart: it
counts in 32 bits."""


LEAST_ALONE = 16 << 10
"""Bytes of a value from which on `gather_into` copies it to its place at once. Smaller ones are
collected first."""

_CHUNK = 2 << 20
"""Bytes that are collected at a time."""

_PADDED = 8
"""Arrow fills up what it writes to a multiple of this many bytes."""

_MOST_IN_MESSAGE = 512
"""Values that are written at a time: 16 bytes for each come before them, which must be less than a
value."""


@dataclass(frozen=True)
class Located:
    """Where n values lie: the i-th is `length[i]` bytes at `start[i]` of `buffers[which[i]]`."""

    buffers: list[pa.Buffer]
    which: Numbers
    start: Numbers
    length: Numbers

    def __len__(self) -> int:
        return len(self.which)

    def at(self, places: Numbers | slice) -> Located:
        """Return some of them."""
        return Located(self.buffers, self.which[places], self.start[places], self.length[places])

    def rows(self) -> Iterator[Bytes]:
        """Yield each value's bytes where they lie, without a copy."""
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in self.buffers]
        for which, start, length in zip(
            self.which.tolist(), self.start.tolist(), self.length.tolist(), strict=True
        ):
            yield arrays[which][start : start + length]

    def views(self, places: list[int]) -> Iterator[tuple[int, memoryview]]:
        """Yield some of the places, each with its value's bytes (n,) uint8 where they lie: a third
        of the time of `rows`."""
        contents = [memoryview(buffer).cast("B") for buffer in self.buffers]
        which, begin, end = (
            self.which.tolist(),
            self.start.tolist(),
            (self.start + self.length).tolist(),
        )
        for place in places:
            yield place, contents[which[place]][begin[place] : end[place]]


def gather(located: Located) -> pa.Array:
    """Copy the values into one array of large_binary."""
    if located.length.max(initial=0) > _STRETCH:
        return _one_by_one(located)
    views, buffers = _views(located)
    short = np.flatnonzero(located.length <= _INLINE)
    if len(short):
        views.view(np.uint8).reshape(-1, _VIEW.itemsize)[short, 4:] = _windows(located.at(short))[
            :, :_INLINE
        ]
    return _cast(views, buffers)


def gather_fixed(located: Located, width: int) -> Bytes:
    """Copy values of one width into an array (n, width) uint8."""
    if width > _STRETCH:
        return np.frombuffer(_one_by_one(located).buffers()[2], np.uint8).reshape(
            len(located), width
        )
    if width > _INLINE:
        return _fixed(located, width)
    return _windows(located)[:, :width]


def _fixed(located: Located, width: int) -> Bytes:
    """Copy `width` bytes from each start on, (n, width): more than _INLINE, and all of them are in
    the buffer."""
    views, buffers = _views(located)
    views["length"] = width
    data = _cast(views, buffers).buffers()[2]
    return np.frombuffer(data, np.uint8, len(located) * width).reshape(len(located), width)


def gather_into(located: Located, width: int, out: Bytes) -> None:
    """Copy values of one width into `out` (n, width): the memory is the caller's."""
    if width < LEAST_ALONE:
        step = _CHUNK // max(1, width)
        for first in range(0, len(located), step):
            part = slice(first, first + step)
            out[part] = gather_fixed(located.at(part), width)
    elif width % _PADDED:
        for row, value in zip(out, located.rows(), strict=True):
            row[:] = value
    else:
        for first in range(0, len(located), _MOST_IN_MESSAGE):
            part = slice(first, first + _MOST_IN_MESSAGE)
            _copy_at_once(located.at(part), width, out[part])


def _copy_at_once(located: Located, width: int, out: Bytes) -> None:
    """Copy values by one call that lets other threads run: Arrow writes them as a message, one
    after the other.

    A column of views may have any number of buffers, and a message has one right behind the other,
    if their sizes are multiples of _PADDED. What is before them in the message lies where the first
    value does, which is copied last. This is as fast as a cast to new memory. To copy one by one
    takes 1.3 times as long, and 30 times where the training loop keeps the interpreter busy
    (2026-11-27).
    """
    rest = located.at(slice(1, None))
    if len(rest):
        views = np.zeros(1, _VIEW)
        # of a value that nobody reads: with none, there would be no buffers
        views["length"] = _INLINE + 1
        whiches, starts = rest.which.tolist(), rest.start.tolist()
        parts = [
            located.buffers[which].slice(start, width)
            for which, start in zip(whiches, starts, strict=True)
        ]
        column = pa.Array.from_buffers(pa.binary_view(), 1, [None, pa.py_buffer(views), *parts])
        batch = pa.RecordBatch.from_arrays([column], ["values"])
        before = (
            batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) - width * len(rest)
        )
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(out.reshape(-1)[width - before :]))
        pa.ipc.new_stream(sink, batch.schema).write_batch(batch)
    for row, value in zip(out[:1], located.at(slice(0, 1)).rows(), strict=True):
        row[:] = value


def _windows(located: Located) -> Bytes:
    """Copy _WINDOW bytes from each start on, even beyond the value, (n, _WINDOW); zeros past the
    buffer's end."""
    sizes = np.array([buffer.size for buffer in located.buffers], np.int64)
    inside = located.start + _WINDOW <= sizes[located.which]
    if inside.all():
        return _fixed(located, _WINDOW)
    result = np.zeros((len(located), _WINDOW), np.uint8)
    result[inside] = _fixed(located.at(np.flatnonzero(inside)), _WINDOW)
    for place in np.flatnonzero(~inside).tolist():
        start, buffer = int(located.start[place]), located.buffers[located.which[place]]
        rest = np.frombuffer(buffer, np.uint8)[start : start + _WINDOW]
        result[place, : len(rest)] = rest
    return result


def _views(located: Located) -> tuple[Array, list[pa.Buffer]]:
    """Return views of these values, and the buffers that they are of. No value is longer than
    _STRETCH."""
    which, start, buffers = located.which, located.start, located.buffers
    if start.max(initial=0) >= _STRETCH:
        counts = np.array([max(1, -(-buffer.size // _STRETCH)) for buffer in buffers], np.int64)
        which = (np.cumsum(counts) - counts)[which] + start // _STRETCH
        start = start % _STRETCH
        buffers = [part for buffer in buffers for part in _stretches(buffer)]
    views = np.zeros(len(located), _VIEW)
    views["length"], views["buffer"], views["start"] = located.length, which, start
    return views, buffers


def _stretches(buffer: pa.Buffer) -> list[pa.Buffer]:
    """Return a buffer in stretches that begin _STRETCH bytes apart, each with as many bytes more of
    the next one."""
    starts = range(0, max(1, buffer.size), _STRETCH)
    return [buffer.slice(start, min(2 * _STRETCH, buffer.size - start)) for start in starts]


def _one_by_one(located: Located) -> pa.Array:
    """Do as `gather` for values of any length."""
    offsets = edges_of(located.length)
    data = np.concatenate([np.empty(0, np.uint8), *located.rows()])
    return pa.Array.from_buffers(
        pa.large_binary(), len(located), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _cast(views: Array, buffers: list[pa.Buffer]) -> pa.Array:
    """Copy what the views show. Arrow does not check views: each value must lie in its buffer."""
    # By the module that array.cast() calls in the end: to import pyarrow.compute takes 27 ms of the
    # time to the first batch.
    from pyarrow._compute import CastOptions, call_function

    array = pa.Array.from_buffers(
        pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers]
    )
    return call_function("cast", [array], CastOptions.safe(pa.large_binary()))


def adjoining(located: Located, width: int) -> Bytes | None:
    """Return contiguous values of one width without a copy, (n, width), read-only; None if they are
    not contiguous."""
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
    data, edges = bytes_of(values)
    which = np.zeros(len(values), np.int64)
    return Located([pa.py_buffer(data)], which, edges[:-1], np.diff(edges))
