"""Reading ranges of files that must not be shorter than they were when they were listed."""

from __future__ import annotations

import os

from shardctl.sources.remote.object_faults import changed


def read_range(descriptor: int, offset: int, size: int) -> bytes:
    """Return `size` bytes of an open file from `offset` on. Raises Rejection if the file is
    shorter, OSError."""
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    whole = bytearray(size)
    whole[: len(data)] = data
    fill(descriptor, offset + len(data), memoryview(whole)[len(data) :])
    return bytes(whole)


def fill(descriptor: int, offset: int, view: memoryview) -> None:
    """Read all of `view` from an open file from `offset` on. Raises Rejection if the file is
    shorter, OSError."""
    done = 0
    while done < len(view):  # one read may return fewer bytes, 2 GiB at most
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if not count:
            raise changed()
        done += count


__all__ = ["changed", "fill", "read_range"]
