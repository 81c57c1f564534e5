"""Whether files are as they were listed, or which have changed: names, sizes and times of change are compared folder by folder;
no list is made."""

from __future__ import annotations

import os
import stat
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.sources.roots import SourceRoot
from shardctl.sources.walk import Folder, FoundFile, LeftOut, are_utf8, notice_of_loop, notices_of_left_out
from shardctl.system.dataclass import dataclass
from shardctl.system.locations.text import name_of
from shardctl.system.machine import usable_cores

THREADS = 16
"""How many files are examined at a time where that takes long."""

SLOW_SECONDS = 50e-6
"""How long it takes to examine a file where threads help: 1.5 microseconds on a local disk, where they would be in each
other's way, and 200 and more on a file server."""

FEW_NAMES = 256
MANY_NAMES = 4096
"""Names that are examined together: by this thread, while it is enough, and where there are several."""

MANY_FILES = 16384
"""So many listed files are worth the import of Arrow's file system (15 ms)."""

PART_NAMES = 1024
"""Names that one thread compares together."""

MOST_PARTS = 1024
"""Parts of folders that wait for threads."""


class ChangedError(Exception):
    """A listed file is gone or has changed; or this cannot be told without a new list."""


class Changed:
    """Listed files that have another size or time of change: their `rows`, and what these are now.

    24 bytes for each, since all of many millions may have changed.
    """

    def __init__(self) -> None:
        self.rows, self.sizes, self.mtimes_ns = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: int, status: os.stat_result) -> None:
        """Note a file."""
        self.rows.append(row)
        self.sizes.append(status.st_size)
        self.mtimes_ns.append(status.st_mtime_ns)


@dataclass(frozen=True)
class Listed:
    """Files as they were listed, in the order of a walk: `table` has `path`, `root` and `size`, `mtime_ns` when they changed
    last, (files,) int64. `changed` gets those that are there and have changed; None: there may be no such file."""

    table: pa.Table
    mtime_ns: npt.NDArray[np.int64]
    changed: Changed | None = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def paths(self, first: int, count: int) -> list[str]:
        """Return the paths of `count` files, fewer at the end."""
        return list(self.table["path"].slice(first, count).to_pylist())

    def states(self, first: int, count: int) -> tuple[list[int], list[int]]:
        """Return the sizes of `count` files, and when they changed last."""
        return self.table["size"].slice(first, count).to_pylist(), self.mtime_ns[first : first + count].tolist()

    def compare(self, first: int, statuses: list[os.stat_result]) -> None:
        """Note which of the files from `first` on have changed. Raises ChangedError for what is no ordinary file."""
        count = len(statuses)
        sizes, times = self.states(first, count)
        if not {status.st_mode & _TYPE for status in statuses} <= {stat.S_IFREG}:
            raise ChangedError
        if sizes == [status.st_size for status in statuses] and times == [status.st_mtime_ns for status in statuses]:
            return
        if self.changed is None:
            raise ChangedError
        for row, size, time_ns, status in zip(range(first, first + count), sizes, times, statuses, strict=True):
            if (size, time_ns) != (status.st_size, status.st_mtime_ns):
                self.changed.add(row, status)

    def are_of(self, root: int, first: int, count: int) -> bool:
        """Return whether these files are of one source."""
        ends = self.table["root"].slice(first, count)
        return not count or (len(ends) == count and ends[0].as_py() == root == ends[-1].as_py())

    def count_in(self, root: int, below: str, first: int, most: int) -> int:
        """Return how many files from `first` on lie in a folder itself, `most` or fewer; their paths begin with `below`.

        Those of a folder come before those of its folders, and follow each other: only a few paths are looked at.
        """

        def is_outside(place: int) -> bool:
            path = self.table["path"][place].as_py()
            return not path.startswith(below) or "/" in path[len(below) :] or self.table["root"][place].as_py() != root

        places = range(first, min(first + most, len(self)))
        return bisect_left(places, True, key=is_outside)


@dataclass
class Seen:
    """What a look at listed files has seen beside them: folders that have some, each with their number, in the order of a walk;
    and what a walk gives notice of."""

    folders: list[tuple[str, int]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    hidden: LeftOut = field(default_factory=LeftOut)
    special: LeftOut = field(default_factory=LeftOut)


_TYPE = stat.S_IFMT(0xFFFF)
"""The bits of a mode that say what is there. S_ISREG for each of a million files takes a tenth of a second."""

Depends = Callable[[str], bool]
"""Tells whether what a file is may depend on others in its folder, given its name."""


def unlisted_files(roots: Sequence[SourceRoot], listed: Listed, depends: Depends, seen: Seen) -> Iterator[FoundFile]:
    """Yield the files of the sources that are not listed. Raises ChangedError once a listed one is found to have changed.

    Hidden files, links and what is no file count as in a walk (sources/walk.py). Where listed files depend on others, and there
    are some, nothing is certain: ChangedError.
    """
    place = 0
    with _Examiner() as examiner, _Parts(listed) as parts:
        for number, root in enumerate(roots):
            if root.is_folder:
                place = yield from _unlisted_below(number, root.text, listed, place, examiner, parts, depends, seen)
            else:
                if listed.paths(place, 1) != [name_of(root.text)] or not listed.are_of(number, place, 1):
                    raise ChangedError
                listed.compare(place, [os.stat(root.text)])  # noqa: PTH116 - see pyproject.toml
                seen.folders.append(("", 1))
                place += 1
        parts.finish()
    if place != len(listed):
        raise ChangedError
    seen.notices += notices_of_left_out(seen.hidden, seen.special)


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

    @property
    def is_quick(self) -> bool:
        """Whether some files were examined, and took little time."""
        return self._pool is None and self._files >= FEW_NAMES

    def examine(self, folder: int, names: Callable[[int, int], list[str]], count: int) -> Iterator[list[os.stat_result]]:
        """Yield what the system says of `count` files in a folder, given its descriptor, in parts. Raises ChangedError.

        `names` gives some of their names: as many as are asked for, from a number on.
        """
        first = 0
        try:
            while first < count:
                some = min(count - first, FEW_NAMES if self._pool is None else MANY_NAMES)
                yield self._examined(folder, names(first, some))
                first += some
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


class _Parts:
    """Compares parts of folders in threads where many files are listed. It is for disks that are quick.

    Arrow asks for the files of a part without the lock of Python: 100,000 files take 0.13 s in two threads, and `os.stat` takes
    0.22 s in one, or more in two (2026-11-27). Arrow tells which files are as they were; the others are asked for once more.
    """

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._are_many = len(listed) >= MANY_FILES and usable_cores() > 1
        self._threads: ThreadPoolExecutor | None = None
        self._begun: deque[tuple[str, int, Future[list[int]]]] = deque()

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def take(self, examiner: _Examiner, count: int) -> bool:
        """Return whether so many files of a folder should be compared here."""
        return self._are_many and count >= FEW_NAMES and examiner.is_quick

    def begin(self, within: str, cut: int, first: int, count: int) -> None:
        """Have `count` files of a folder compared, from the row `first` on. Raises ChangedError.

        `within` is how they are opened, before their names, which come after `cut` characters of their paths.
        """
        if self._threads is None:
            from pyarrow.fs import LocalFileSystem  # 15 ms to import

            self._threads, self._system = ThreadPoolExecutor(usable_cores()), LocalFileSystem()
        absolute = within if within.startswith("/") else f"{os.getcwd()}/{within}"  # noqa: PTH109 - see pyproject.toml
        for start in range(first, first + count, PART_NAMES):
            some = min(PART_NAMES, first + count - start)
            self._begun.append((within, cut, self._threads.submit(self._differing, absolute, cut, start, some)))
            if len(self._begun) > MOST_PARTS:
                self._take_next()

    def finish(self) -> None:
        """Wait for all parts. Raises ChangedError."""
        while self._begun:
            self._take_next()

    def _take_next(self) -> None:
        within, cut, differing = self._begun.popleft()
        for row in differing.result():
            try:
                status = os.stat(within + self._listed.paths(row, 1)[0][cut:])  # noqa: PTH116 - see pyproject.toml
            except OSError as error:
                raise ChangedError from error
            self._listed.compare(row, [status])

    def _differing(self, within: str, cut: int, first: int, count: int) -> list[int]:
        """Return the rows of files that do not seem to be as they were."""
        rows = range(first, first + count)
        try:
            found = self._system.get_file_info([within + path[cut:] for path in self._listed.paths(first, count)])
        except (OSError, ValueError):  # one cannot be looked up, or the name of a folder is not UTF-8
            return list(rows)
        now = [each.size for each in found], [each.mtime_ns for each in found]  # only ordinary files have a size
        before = self._listed.states(first, count)
        return [] if before == now else [row for row, *same in zip(rows, *before, *now, strict=True) if same[:2] != same[2:]]


def _statuses(folder: int, names: list[str]) -> list[os.stat_result]:
    # Names are looked up from the open folder: half the time of a look-up from the root of the file system.
    examine = os.stat
    return [examine(name, dir_fd=folder) for name in names]


def _unlisted_below(
    number: int,
    root: str,
    listed: Listed,
    place: int,
    examiner: _Examiner,
    parts: _Parts,
    depends: Depends,
    seen: Seen,
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
                seen.notices.append(notice_of_loop(folder))
                continue
            names = os.listdir(descriptor)
            visible = [name for name in names if name[0] != "."]
            below = f"{folder.path}/" if folder.path else ""
            within = folder.opened if folder.opened.endswith("/") else f"{folder.opened}/"
            if len(visible) < len(names):
                for name in sorted((name for name in names if name[0] == "."), key=os.fsencode):
                    seen.hidden.add(within + name)
            # The listed names are looked up in their order. If all are there and the folder has no more, they are the same, and
            # need not be sorted: 1,000,000 files took 3.3 s so, and take 2.8 s (2026-11-27).
            count = listed.count_in(number, below, place, len(visible) + 1)
            if count > len(visible):
                raise ChangedError
            listed_names = _Names(listed, place, len(below))
            few = 0 if parts.take(examiner, count) else min(count, FEW_NAMES)
            _compare(listed, place, examiner.examine(descriptor, listed_names.part, few))
            if parts.take(examiner, count - few):
                parts.begin(within, len(below), place + few, count - few)
                for first in range(few, count, MANY_NAMES):  # for the sum of their hashes
                    listed_names.part(first, min(MANY_NAMES, count - first))
            else:
                rest = examiner.examine(descriptor, partial(listed_names.part_behind, few), count - few)
                _compare(listed, place + few, rest)
            place += count
            if count:
                seen.folders.append((folder.path, count))
            if count == len(visible):
                listed_names.refuse_others(visible)
            else:
                known = listed_names.part(0, count)
                others, depend = sorted(set(visible).difference(known)), any(map(depends, known))
                if len(others) != len(visible) - count or not are_utf8(others):
                    raise ChangedError
                folders = []
                statuses_of_others = chain.from_iterable(examiner.examine(descriptor, partial(_part, others), len(others)))
                for name, status in zip(others, statuses_of_others, strict=True):
                    opened = within + name
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(Folder(below + name, opened, (*folder.ancestors, (here.st_dev, here.st_ino))))
                    elif stat.S_ISREG(status.st_mode):
                        if depend:
                            raise ChangedError
                        yield FoundFile.of(number, below + name, name, opened, folder.path, status)
                    else:
                        seen.special.add(opened)
                stack.extend((each, depend) for each in reversed(folders))
        finally:
            os.close(descriptor)
    return place


def _compare(listed: Listed, place: int, found: Iterator[list[os.stat_result]]) -> None:
    """Compare the listed files from a row on with what was found of them."""
    for statuses in found:
        listed.compare(place, statuses)
        place += len(statuses)


class _Names:
    """The names of listed files of one folder: those from `place` on, whose paths begin with `cut` characters of the folder."""

    def __init__(self, listed: Listed, place: int, cut: int) -> None:
        self._listed, self._place, self._cut = listed, place, cut
        self._sum = 0

    def part(self, first: int, count: int) -> list[str]:
        """Return some of the names."""
        names = [path[self._cut :] for path in self._listed.paths(self._place + first, count)]
        self._sum += sum(map(hash, names))
        return names

    def part_behind(self, few: int, first: int, count: int) -> list[str]:
        """Return some of the names behind the first few ones."""
        return self.part(few + first, count)

    def refuse_others(self, names: list[str]) -> None:
        """Raise ChangedError unless these are the names, each of which was asked for once, in any order.

        A system that takes A.jpg for a.jpg has found those that were renamed so. Sums of keyed 64-bit hashes tell it, in a
        third of the time of sorted names.
        """
        if sum(map(hash, names)) != self._sum:
            raise ChangedError


def _part(names: list[str], first: int, count: int) -> list[str]:
    return names[first : first + count]
