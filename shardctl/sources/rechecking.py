"""Whether files are as they were listed: names, sizes and times of change are compared folder by folder; no list is made."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.sources.roots import SourceRoot
from shardctl.sources.walk import Folder, FoundFile, are_utf8
from shardctl.system.dataclass import dataclass
from shardctl.system.locations.text import name_of

THREADS = 16
"""How many files are examined at a time where that takes long."""

SLOW_SECONDS = 50e-6
"""How long it takes to examine a file where threads help: 1.5 microseconds on a local disk, where they would be in each
other's way, and 200 and more on a file server."""

FEW_NAMES = 256
MANY_NAMES = 4096
"""Names that are examined together: by this thread, while it is enough, and where there are several."""


class ChangedError(Exception):
    """A listed file is gone or has changed; or this cannot be told without a new list."""


@dataclass(frozen=True)
class Listed:
    """Files as they were listed, in the order of a walk: `table` has `path`, `root` and `size`, `mtime_ns` when they changed
    last, (files,) int64."""

    table: pa.Table
    mtime_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def paths(self, first: int, count: int) -> list[str]:
        """Return the paths of `count` files, fewer at the end."""
        return list(self.table["path"].slice(first, count).to_pylist())

    def refuse_changed(self, first: int, statuses: list[os.stat_result]) -> None:
        """Raise ChangedError unless the files from `first` on are ordinary files, with these sizes and times of change."""
        count = len(statuses)
        same = (
            self.table["size"].slice(first, count).to_pylist() == [status.st_size for status in statuses]
            and self.mtime_ns[first : first + count].tolist() == [status.st_mtime_ns for status in statuses]
            and all(stat.S_ISREG(status.st_mode) for status in statuses)
        )
        if not same:
            raise ChangedError

    def are_of(self, root: int, first: int, count: int) -> bool:
        """Return whether these files are of one source."""
        ends = self.table["root"].slice(first, count)
        return not count or (len(ends) == count and ends[0].as_py() == root == ends[-1].as_py())

    def names_in(self, root: int, below: str, first: int) -> list[str]:
        """Return the names of the files from `first` on that lie in a folder itself; their paths begin with `below`."""
        names: list[str] = []
        while part := self.paths(first + len(names), MANY_NAMES):
            here = len(names)
            for path in part:
                if not path.startswith(below) or "/" in path[len(below) :]:
                    break
                names.append(path[len(below) :])
            if len(names) - here < len(part):
                break
        return names if self.are_of(root, first, len(names)) else []


Depends = Callable[[str], bool]
"""Tells whether what a file is may depend on others in its folder, given its name."""


def unlisted_files(roots: Sequence[SourceRoot], listed: Listed, depends: Depends) -> Iterator[FoundFile]:
    """Yield the files of the sources that are not listed. Raises ChangedError once a listed one is found to have changed.

    Hidden files, links and what is no file count as in a walk (sources/walk.py). Where listed files depend on others, and there
    are some, nothing is certain: ChangedError.
    """
    place = 0
    with _Examiner() as examiner:
        for number, root in enumerate(roots):
            if root.is_folder:
                place = yield from _unlisted_below(number, root.text, listed, place, examiner, depends)
            else:
                if listed.paths(place, 1) != [name_of(root.text)] or not listed.are_of(number, place, 1):
                    raise ChangedError
                listed.refuse_changed(place, [os.stat(root.text)])  # noqa: PTH116 - see pyproject.toml
                place += 1
    if place != len(listed):
        raise ChangedError


class _Examiner:
    """Asks for sizes and times of files: with threads where that takes long."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._files, self._seconds = 0, 0.0

    def __enter__(self) -> _Examiner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def examine(self, folder: int, names: list[str]) -> Iterator[list[os.stat_result]]:
        """Yield what the system says of the files in a folder, given its descriptor, in parts. Raises ChangedError."""
        first = 0
        try:
            while first < len(names):
                count = FEW_NAMES if self._pool is None else MANY_NAMES
                yield self._examined(folder, names[first : first + count])
                first += count
        except OSError as error:  # gone meanwhile, or a link to nothing
            raise ChangedError from error

    def _examined(self, folder: int, names: list[str]) -> list[os.stat_result]:
        if self._pool is not None:
            count = -(-len(names) // THREADS)
            parts = [names[first : first + count] for first in range(0, len(names), count)]
            return list(chain.from_iterable(self._pool.map(partial(_statuses, folder), parts)))
        began = time.perf_counter()
        found = _statuses(folder, names)
        self._files, self._seconds = self._files + len(names), self._seconds + time.perf_counter() - began
        if self._files >= FEW_NAMES and self._seconds > SLOW_SECONDS * self._files:
            self._pool = ThreadPoolExecutor(THREADS)
        return found


def _statuses(folder: int, names: list[str]) -> list[os.stat_result]:
    # Names are looked up from the open folder: half the time of a look-up from the root of the file system.
    return [os.stat(name, dir_fd=folder) for name in names]


def _unlisted_below(
    number: int, root: str, listed: Listed, place: int, examiner: _Examiner, depends: Depends
) -> Generator[FoundFile, None, int]:
    stack = [(Folder("", root, ()), False)]
    while stack:
        folder, is_other = stack.pop()
        if is_other and not (listed.paths(place, 1) or [""])[0].startswith(f"{folder.path}/"):
            raise ChangedError  # beside files that depend on others is a folder without inputs
        try:
            descriptor = os.open(folder.opened, os.O_RDONLY)
        except OSError as error:
            raise ChangedError from error
        try:
            here = os.fstat(descriptor)
            if (here.st_dev, here.st_ino) in folder.ancestors:
                continue
            names = sorted(name for name in os.listdir(descriptor) if name[0] != ".")
            if not are_utf8(names):
                raise ChangedError
            below = f"{folder.path}/" if folder.path else ""
            are_all = listed.paths(place, len(names)) == [below + name for name in names]
            known = names if are_all and listed.are_of(number, place, len(names)) else listed.names_in(number, below, place)
            for statuses in examiner.examine(descriptor, known):
                listed.refuse_changed(place, statuses)
                place += len(statuses)
            if known is not names:
                others, depend = sorted(set(names) - set(known)), any(map(depends, known))
                folders = []
                for name, status in zip(others, chain.from_iterable(examiner.examine(descriptor, others)), strict=True):
                    opened = f"{folder.opened.rstrip('/')}/{name}"
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(Folder(below + name, opened, (*folder.ancestors, (here.st_dev, here.st_ino))))
                    elif stat.S_ISREG(status.st_mode):
                        if depend:
                            raise ChangedError
                        yield FoundFile.of(number, below + name, name, opened, folder.path, status)
                stack.extend((each, depend) for each in reversed(folders))
        finally:
            os.close(descriptor)
    return place
