"""What formats ask about the other files in a folder."""

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
    """Decides which files of a format are left out, and counts them. An object is for one walk."""

    def excludes(self, file: FoundFile, name: str) -> bool:
        """Return whether to leave out this file. `name` is the last part of its path."""
        ...

    def notices(self) -> Iterator[str]:
        """Yield the notices about the files that were left out."""
        ...


def is_beside(file: FoundFile, name: str) -> bool:
    """Return whether a file with this name is in the folder of a file."""
    return exists(os.path.join(os.path.dirname(file.opened), name))  # noqa: PTH120 - see pyproject.toml


def json_in(file: FoundFile) -> Any:
    """Return the value in a JSON file, None if the file cannot be read or is larger than MOST_BYTES."""
    if file.size > MOST_BYTES:
        return None
    try:
        return json.loads(read_small(file.opened, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def is_name(name: str) -> bool:
    """Return whether an entry of an index is a plain file name: the file is in the folder of the index."""
    return "/" not in name and "\0" not in name and name not in ("", ".", "..")
