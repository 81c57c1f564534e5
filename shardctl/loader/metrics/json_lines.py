"""Figures as JSON lines: an object each time, with the time in seconds since 1970."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from shardctl.loader.metrics.base import Family
from shardctl.system.files import naming_the_path
from shardctl.system.output_files import OutputFileType


def _begins_with_figures(begin: bytes) -> bool:
    try:
        first = json.loads(begin.partition(b"\n")[0])
    except ValueError:
        return False
    return isinstance(first, dict) and {"time", "of", "step"} <= first.keys()


_FIGURES = OutputFileType("file of metrics", _begins_with_figures)


class JsonLines:
    """Appends to a file, one write for each line: several processes may append to it."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises StorageError, also for one that has anything but figures."""
        self._path = path
        _FIGURES.check(path)
        with naming_the_path(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by `close`

    def write(self, family: Family, values: Mapping[str, float], step: int) -> None:
        """Append a line. Raises StorageError."""
        line = {"time": round(time.time(), 3), "of": family.name, "step": step, **values}
        with naming_the_path(self._path):
            data = json.dumps(line).encode() + b"\n"
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
