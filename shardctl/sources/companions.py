"""Copies of objects that formats can read: with the files that they read beside them."""

from __future__ import annotations

import contextlib

from shardctl.sources.files import exists, local_copy
from shardctl.sources.formats import companions_of
from shardctl.system.locations import follow, is_stored, parent_of, split_bucket


def copy_to_read(text: str, ending: str, version: int = 0) -> str:
    """Return a path at which the format of files with this ending can read a file, or an object,
    now.

    With a `version`, another one is refused. Raises Rejection (changed), OSError, SourceGoneError,
    StorageError.
    """
    if not is_stored(text):
        return text
    for name in companions_of(ending, local_copy(text, version)):
        other = follow(parent_of(text), name)
        if _in_one_bucket(text, other) and exists(other):
            with contextlib.suppress(FileNotFoundError):
                local_copy(other)
    return local_copy(text, version)  # of the files that this process holds, it is one of the last


def _in_one_bucket(text: str, other: str) -> bool:
    """Return whether `..` has not led out of the bucket."""
    (bucket, _), there = split_bucket(text) or ("", ""), split_bucket(other)
    return there is not None and there[0] == bucket
