"""The memory of the arrays of a batch: it is kept for later batches, of other loaders too."""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError
from shardctl.format.arrays import Array, Bytes, DType, Shape
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.system.machine import memory_bytes
from shardctl.system.mmap import was_mended

Batch = dict[str, Any]
"""Field name to values: arrays of shape (batch, ...) for numbers and images of one shape, lists for
everything else."""

LEAST_KEPT = 1 << 20
"""Bytes of the smallest array whose memory is kept. Arrow's allocator has smaller ones ready."""

MOST_KEPT = 1 << 30
"""Bytes of free memory that are kept for later batches, at most; and no more than a sixteenth of
what the machine has."""

_WASTE = 2
"""Memory that is more than this many times too large is left for a larger array."""


class BatchMemory:
    """The memory of one batch. It is used for a later batch when nothing refers to the arrays of
    this one any more."""

    views = True
    """Whether values that need no change may be views of the dataset's files, instead of copies in
    this memory."""

    def __init__(self) -> None:
        self._buffers: dict[str, Any] = {}

    def array(self, field: str, shape: Shape, dtype: DType) -> Array:
        """Return an array for the values of a field, whatever is in it: where the last one lay, if
        there is room for it."""
        count = int(np.prod(shape, dtype=np.int64))
        buffer = self._buffers.get(field)
        if buffer is None or buffer.size < count * dtype.itemsize:
            buffer = self._buffers[field] = self._allocate(count * dtype.itemsize)
        return np.frombuffer(buffer, dtype, count).reshape(shape)

    def _allocate(self, size: int) -> Any:
        """Return new memory of `size` bytes or more: what numpy takes for a buffer, with its `size`
        in bytes."""
        return pa.allocate_buffer(size) if size < LEAST_KEPT else _leased(size)


# Arrow's allocator gives large memory back to the system when it was not used for a tenth of a
# second. The system must back it anew then, with pages of zeros: 100 ms for a batch of 38 MB on a
# virtual machine, where it takes 5 ms to fill it. So of 30 epochs of 4,400 raw images the slowest
# had 0.25 of the usual rate (2026-11-27, scripts/bench/bench_epochs.py).
_free: dict[int, mmap.mmap] = {}
"""Memory that nobody uses, the longest unused first. No lock: each step on it is one that other
threads cannot interrupt, since arrays may end anywhere, also in a thread that would have the lock.
A forked child begins with none."""

os.register_at_fork(after_in_child=_free.clear)


def _leased(size: int) -> Bytes:
    """Return memory of `size` bytes or more. When no array refers to it any more, it is kept for
    the next call.

    Raises MemoryError.
    """
    pages = _taken(size)
    if pages is None:
        pages = _new_pages(size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a wish
                pages.madvise(mmap.MADV_HUGEPAGE)
    # Every view of this array refers to it, and so do tensors and buffers that are made of one.
    whole = np.frombuffer(pages, np.uint8)
    weakref.finalize(whole, _keep, pages).atexit = False
    return whole


def _new_pages(size: int) -> mmap.mmap:
    """Return new memory of `size` bytes or more. What is free is given up where there is none.
    Raises MemoryError."""
    for _ in range(2):
        try:
            return mmap.mmap(-1, rounded(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            why = error.strerror
        _free.clear()
    raise MemoryError(f"no {size} bytes of memory can be had for a batch ({why})")


def _taken(size: int) -> mmap.mmap | None:
    """Take the smallest of the free memory that fits; None if none does."""
    while True:
        sizes = _sizes()
        fitting = [
            (room, number) for number, room in sizes.items() if size <= room <= _WASTE * size
        ]
        if not fitting:
            return None
        pages = _free.pop(min(fitting)[1], None)
        if pages is not None:  # else another thread was faster
            return pages


def _keep(pages: mmap.mmap) -> None:
    """Keep memory that is no longer used. What was unused for longest is given up where it is too
    much."""
    _free[id(pages)] = pages
    while True:
        sizes = _sizes()
        if sum(sizes.values()) <= _most_kept():
            return
        _free.pop(next(iter(sizes)), None)


def _sizes() -> dict[int, int]:
    """Return the bytes of all free memory, by its numbers.

    Not by way of `_free.items()`: its pairs are objects that may start the garbage collector, and
    that may add memory.
    """
    found: dict[int, int] = {}
    for number in list(_free):
        pages = _free.get(number)
        if pages is not None:
            found[number] = len(pages)
    return found


@cache
def _most_kept() -> int:
    return min(MOST_KEPT, memory_bytes() // 16)


def lend_free_memory() -> None:
    """Let the system take the memory that is free, if it needs it: nobody may want it for long.
    Called after an epoch."""
    if not hasattr(mmap, "MADV_FREE"):
        return
    for number in list(_free):
        pages = _free.pop(number, None)
        if pages is not None:  # and no thread takes it now, and writes to it
            with suppress(OSError):
                pages.madvise(mmap.MADV_FREE)
            _keep(pages)


def rounded(size: int) -> int:
    """Return a size that arrays of about the same size have too: up to an eighth more, in whole
    pages."""
    step = max(4096, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def without_views(batch: Batch) -> Batch:
    """Return a batch with copies instead of views of the dataset's files: for callers that keep it,
    or write to it.

    Raises DatasetError if its file is cut short meanwhile: the copy would have zeros in place of
    what is lost.
    """
    own = dict(batch)
    for name, values in batch.items():
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            own[name] = values.copy()
            if was_mended(values.ctypes.data):
                raise DatasetError(
                    f"a shard was cut short while {name} was copied; {VERIFY_ADVICE}"
                )
    return own
