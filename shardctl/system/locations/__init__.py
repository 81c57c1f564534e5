"""Folders of files, wherever they are: on this machine (local.py), on a store (stored.py), and what
both can do (folder.py)."""

from __future__ import annotations

from pathlib import Path

from shardctl.errors import UsageError
from shardctl.system.stores import is_url
from shardctl.system.text import printable


def here_only(place: str | Path, command: str) -> Path:
    """Return the path of a folder, for a command that works on file systems alone. Raises
    UsageError for a URL."""
    if is_url(place):
        raise UsageError(
            f"{printable(str(place))}: {command} is not supported on a store; copy the dataset to "
            f"a local folder, {command}"
            " it there, and copy it back"
        )
    return Path(place)
