"""What lies beside the files of a format: lists of them, copies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Protocol

from shardctl.sources.remote.remote_files import exists
from shardctl.sources.small_files import read_small
from shardctl.sources.walk import FoundFile

MOST_BYTES = 64 << 20
"""The largest file that is looked at: an index of 100,000 shards."""


class ExclusionRule(Protocol):
    """Tells which files are left out though they are of a format. It is made for one walk, and counts them."""

    def excludes(self, file: FoundFile, name: str) -> bool:
        """Return whether a file, whose path ends in `name`, is left out."""
        ...

    def notices(self) -> Iterator[str]:
        """Yield what to say of the files that were left out."""
        ...


def is_beside(file: FoundFile, name: str) -> bool:
    """Return whether a file with this name is in the folder of a file."""
    return exists(os.path.join(os.path.dirname(file.opened), name))  # noqa: PTH120 - see pyproject.toml


def json_in(file: FoundFile) -> Any:
    """Return what a file of JSON holds, None if it cannot be read or is very large."""
    if file.size > MOST_BYTES:
        return None
    try:
        return json.loads(read_small(file.opened, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def is_name(name: str) -> bool:
    """Return whether a name that a list has is that of a file in the folder of the list."""
    return "/" not in name and "\0" not in name and name not in ("", ".", "..")
