"""Files that are compressed as a whole, as readers of streams take them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardctl.errors import UsageError
from shardctl.system.files import HashingFile

SUFFIXES = {"none": "", "gzip": ".gz"}
"""The compressions, and what they put behind the name of a file."""

GZIP_LEVEL = 6


def check_compression(name: str, compression: str) -> None:
    """Raise UsageError for a compression that readers of the form `name` do not know."""
    if compression not in SUFFIXES:
        raise UsageError(
            f"compression {compression!r} is not one of {name}'s; use {' or '.join(SUFFIXES)}"
        )


@contextmanager
def compressing(sink: HashingFile, path: Path) -> Iterator[Any]:
    """Yield what to write to, by the name of the file. No name and no time get into what gzip
    writes."""
    if path.suffix != SUFFIXES["gzip"]:
        yield sink
        return
    with gzip.GzipFile(
        filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=sink, mtime=0
    ) as stream:
        yield stream
