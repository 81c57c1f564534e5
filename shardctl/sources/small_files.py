"""Small files that describe others, read whole: a pipe or a device in the place of one must not
hold the command up."""

from __future__ import annotations

import errno
import os
import stat

from shardctl.sources.files import local_copy


def read_small(text: str, limit: int) -> bytes:
    """Return the bytes of a file, or an object, of at most `limit` bytes.

    Raises OSError, also for what is no ordinary file, or is larger; Rejection, SourceGoneError,
    StorageError.
    """
    descriptor = os.open(local_copy(text), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes")
    return data
