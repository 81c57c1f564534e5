"""Whether files are as they were listed, or which have changed: names, sizes and times of change
are compared folder by folder; no list is made."""

from __future__ import annotations

import os
import stat
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.sources.files import SourceRoot
from shardctl.sources.walk import (
    OF_SYSTEMS,
    Folder,
    FoundFile,
    LeftOut,
    are_utf8,
    is_hidden,
    notice_of_loop,
    notices_of_left_out,
    place_in_walk,
)
from shardctl.system.locations import name_of
from shardctl.system.machine import usable_cores

THREADS = 16
"""How many files are examined at a time where that takes long."""

SLOW_SECONDS = 50e-6
"""How long it takes to examine a file where threads help: 1.5 microseconds on a local disk, where
they would be in each other's way, and 200 and more on a file server."""

FEW_NAMES = 256
MANY_NAMES = 4096
"""Names that are examined together: by this thread, while it is enough, and where there are
several."""

MANY_FILES = 16384
"""So many listed files are worth the import of Arrow's file system (15 ms)."""

PART_NAMES = 1024
"""Names that one thread compares together."""

MOST_PARTS = 1024
"""Parts of folders that wait for threads."""


class ChangedError(Exception):
    """A listed file is gone or has changed; or this cannot be told without a new list."""


class Changed:
    """What differs from listed files.

    `rows` are the rows of files that have changed, with their `sizes` and times of change
    (`mtimes_ns`) of now. `gone` are the rows of deleted files. `added` are the new files. All of
    many millions may have changed: a row takes 8 to 24 bytes.
    """

    def __init__(self) -> None:
        self.rows, self.sizes, self.mtimes_ns = array("q"), array("q"), array("q")
        self.gone = array("q")
        self.added: list[FoundFile] = []

    def __bool__(self) -> bool:
        return bool(self.rows or self.gone or self.added)

    @property
    def are_others(self) -> bool:
        """Whether files came or went."""
        return bool(self.gone or self.added)

    def note(self, row: int, status: os.stat_result) -> None:
        """Note a file that has changed."""
        self.rows.append(row)
        self.sizes.append(status.st_size)
        self.mtimes_ns.append(status.st_mtime_ns)


@dataclass(frozen=True)
class Listed:
    """Files as they were listed, in the order of a walk: `table` has `path`, `root` and `size`,
    `mtime_ns` when they changed last, (files,) int64. `changed` gets those that have changed, and
    those that are gone; None: there may be no such file."""

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
        return self.table["size"].slice(first, count).to_pylist(), self.mtime_ns[
            first : first + count
        ].tolist()

    def compare(self, first: int, statuses: list[os.stat_result]) -> None:
        """Note which of the files from `first` on have changed. Raises ChangedError for what is no
        ordinary file."""
        count = len(statuses)
        sizes, times = self.states(first, count)
        if not {status.st_mode & _TYPE for status in statuses} <= {stat.S_IFREG}:
            raise ChangedError
        if sizes == [status.st_size for status in statuses] and times == [
            status.st_mtime_ns for status in statuses
        ]:
            return
        if self.changed is None:
            raise ChangedError
        for row, size, time_ns, status in zip(
            range(first, first + count), sizes, times, statuses, strict=True
        ):
            if (size, time_ns) != (status.st_size, status.st_mtime_ns):
                self.changed.note(row, status)

    def are_of(self, root: int, first: int, count: int) -> bool:
        """Return whether these files are of one source."""
        ends = self.table["root"].slice(first, count)
        return not count or (len(ends) == count and ends[0].as_py() == root == ends[-1].as_py())

    def count_in(self, root: int, below: str, first: int, most: int) -> int:
        """Return how many files from `first` on lie in a folder itself, `most` or fewer; their
        paths begin with `below`.

        Those of a folder come before those of its folders, and follow each other: only a few paths
        are looked at. Raises ChangedError where the next file comes before them in a walk, so that
        its folder is gone.
        """

        def is_outside(place: int) -> bool:
            path = self.table["path"][place].as_py()
            return (
                not path.startswith(below)
                or "/" in path[len(below) :]
                or self.table["root"][place].as_py() != root
            )

        places = range(first, min(first + most, len(self)))
        if places and is_outside(first):
            path = self.table["path"][first].as_py()
            if (self.table["root"][first].as_py(), place_in_walk(path)) < (
                root,
                place_in_walk(below),
            ):
                raise ChangedError
            return 0
        return bisect_left(places, True, key=is_outside)


@dataclass
class Seen:
    """What a look at listed files has seen beside them: folders that have some, each with their
    number, in the order of a walk; and what a walk gives notice of."""

    folders: list[tuple[str, int]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    hidden: LeftOut = field(default_factory=LeftOut)
    special: LeftOut = field(default_factory=LeftOut)


_TYPE = stat.S_IFMT(0xFFFF)
"""The bits of a mode that say what is there. S_ISREG for each of a million files takes a tenth of a
second."""

Depends = Callable[[str], bool]
"""Tells whether what a file is may depend on others in its folder, given its name."""


def unlisted_files(
    roots: Sequence[SourceRoot], listed: Listed, depends: Depends, seen: Seen
) -> Iterator[FoundFile]:
    """Yield the files of the sources that are not listed. Raises ChangedError once a listed one is
    found to have changed.

    Hidden files, links and what is no file count as in a walk (sources/walk.py). Where listed files
    depend on others, and there are some, nothing is certain: ChangedError.
    """
    place = 0
    parts = _Parts(listed)
    with _Examiner() as examiner:
        for number, root in enumerate(roots):
            if root.is_folder:
                place = yield from _unlisted_below(
                    number, root.text, listed, place, examiner, parts, depends, seen
                )
            else:
                if listed.paths(place, 1) != [name_of(root.text)] or not listed.are_of(
                    number, place, 1
                ):
                    raise ChangedError
                listed.compare(place, [os.stat(root.text)])  # noqa: PTH116 - see pyproject.toml
                seen.folders.append(("", 1))
                place += 1
    if place != len(listed):
        raise ChangedError
    parts.compare()
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

    def examine(
        self, folder: int, names: Callable[[int, int], list[str]], first: int, end: int
    ) -> Iterator[list[os.stat_result]]:
        """Yield what the system says of files in a folder, given its descriptor, in parts. Raises
        ChangedError.

        `names` gives some of their names: as many as are asked for, from a number on. Those from
        `first` to `end` are wanted.
        """
        try:
            while first < end:
                some = min(end - first, FEW_NAMES if self._pool is None else MANY_NAMES)
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
        self._files, self._seconds = (
            self._files + len(names),
            self._seconds + time.perf_counter() - began,
        )
        if self._files >= FEW_NAMES and self._seconds > SLOW_SECONDS * self._files:
            self._pool = ThreadPoolExecutor(THREADS)
        return found


class _Parts:
    """Compares parts of folders in threads where many files are listed. It is for disks that are
    quick.

    Arrow asks for the files of a part without the lock of Python: 100,000 files take 0.13 s in two
    threads, and `os.stat` takes 0.22 s in one, or more in two (2026-11-27). Arrow tells which files
    are as they were; the others are asked for once more. The threads begin when the names in all
    folders are known: to see that they are others takes a third of the time.
    """

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._are_many = len(listed) >= MANY_FILES and usable_cores() > 1
        self._held: list[tuple[str, int, int, int]] = []

    def take(self, examiner: _Examiner, count: int) -> bool:
        """Return whether so many files of a folder should be compared here."""
        return self._are_many and count >= FEW_NAMES and examiner.is_quick

    def add(self, within: str, cut: int, first: int, count: int) -> None:
        """Hold `count` files of a folder, from the row `first` on.

        `within` is how they are opened, before their names, which come after `cut` characters of
        their paths.
        """
        self._held.append((within, cut, first, count))

    def compare(self) -> None:
        """Compare the files that are held. Raises ChangedError."""
        if not self._held:
            return
        from pyarrow.fs import LocalFileSystem  # 15 ms to import

        system, begun = LocalFileSystem(), deque[tuple[str, int, Future[list[int]]]]()
        with ThreadPoolExecutor(usable_cores()) as threads:
            try:
                for within, cut, first, count in self._parts():
                    differing = threads.submit(self._differing, system, within, cut, first, count)
                    begun.append((within, cut, differing))
                    if len(begun) > MOST_PARTS:
                        self._look_again(*begun.popleft())
                while begun:
                    self._look_again(*begun.popleft())
            finally:
                threads.shutdown(cancel_futures=True)

    def _parts(self) -> Iterator[tuple[str, int, int, int]]:
        for within, cut, first, count in self._held:
            for start in range(first, first + count, PART_NAMES):
                yield within, cut, start, min(PART_NAMES, first + count - start)

    def _look_again(self, within: str, cut: int, differing: Future[list[int]]) -> None:
        for row in differing.result():
            try:
                status = os.stat(within + self._listed.paths(row, 1)[0][cut:])  # noqa: PTH116 - see pyproject.toml
            except OSError as error:
                raise ChangedError from error
            self._listed.compare(row, [status])

    def _differing(self, system: Any, within: str, cut: int, first: int, count: int) -> list[int]:
        """Return the rows of files that do not seem to be as they were."""
        absolute = within if within.startswith("/") else f"{os.getcwd()}/{within}"  # noqa: PTH109 - see pyproject.toml
        rows = range(first, first + count)
        try:
            found = system.get_file_info(
                [absolute + path[cut:] for path in self._listed.paths(first, count)]
            )
        except (OSError, ValueError):
            # one cannot be looked up, or the name of a folder is not UTF-8
            return list(rows)
        # only ordinary files have a size
        now = [each.size for each in found], [each.mtime_ns for each in found]
        before = self._listed.states(first, count)
        return (
            []
            if before == now
            else [
                row for row, *same in zip(rows, *before, *now, strict=True) if same[:2] != same[2:]
            ]
        )


def _statuses(folder: int, names: list[str]) -> list[os.stat_result]:
    # Names are looked up from the open folder: half the time of a look-up from the root of the file
    # system.
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
            visible = [name for name in names if name[0] != "." and name not in OF_SYSTEMS]
            below = f"{folder.path}/" if folder.path else ""
            within = folder.opened if folder.opened.endswith("/") else f"{folder.opened}/"
            if len(visible) < len(names):
                for name in sorted(filter(is_hidden, names), key=os.fsencode):
                    seen.hidden.add(within + name)
            count = listed.count_in(
                number, below, place, len(visible) + 1 if listed.changed is None else len(listed)
            )
            listed_names, gone, others = _Names(listed, place, len(below)), list[int](), list[str]()
            if not listed_names.are(visible, count):
                gone, others = listed_names.compared(visible, count)
                if gone and listed.changed is None:
                    raise ChangedError
            if listed.changed is not None:
                listed.changed.gone.extend(place + each for each in gone)
            for first, end in _between(gone, count):
                some = (
                    iter(())
                    if parts.take(examiner, end - first)
                    else examiner.examine(descriptor, listed_names.part, first, end)
                )
                for statuses in some:
                    listed.compare(place + first, statuses)
                    first += len(statuses)
                    if parts.take(examiner, end - first):
                        break
                if first < end:
                    parts.add(within, len(below), place + first, end - first)
            place += count
            if count or listed.changed is not None:
                seen.folders.append((folder.path, count))
            if others:
                depend = any(map(depends, chain.from_iterable(listed_names.parts(count))))
                if not are_utf8(others):
                    raise ChangedError
                folders = []
                statuses_of_others = chain.from_iterable(
                    examiner.examine(descriptor, partial(_part, others), 0, len(others))
                )
                for name, status in zip(others, statuses_of_others, strict=True):
                    opened = within + name
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(
                            Folder(
                                below + name,
                                opened,
                                (*folder.ancestors, (here.st_dev, here.st_ino)),
                            )
                        )
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


def _between(gone: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of `count` files of which none is gone."""
    for first, end in pairwise((-1, *gone, count)):
        if first + 1 < end:
            yield first + 1, end


class _Names:
    """The names of listed files of one folder: those from `place` on, whose paths begin with `cut`
    characters of the folder."""

    def __init__(self, listed: Listed, place: int, cut: int) -> None:
        self._listed, self._place, self._cut = listed, place, cut

    def part(self, first: int, count: int) -> list[str]:
        """Return some of the names."""
        return [path[self._cut :] for path in self._listed.paths(self._place + first, count)]

    def parts(self, count: int) -> Iterator[list[str]]:
        """Yield the first `count` names, some at a time: there may be millions."""
        for first in range(0, count, MANY_NAMES):
            yield self.part(first, min(MANY_NAMES, count - first))

    def are(self, names: list[str], count: int) -> bool:
        """Return whether the first `count` are these names, in any order.

        Sums of keyed 64-bit hashes tell it, in a third of the time of sorted names. With sorted
        names, a look at 1,000,000 files took 3.3 s, and not 2.8 s (2026-11-27).
        """
        if count != len(names):
            return False
        return sum(map(hash, names)) == sum(sum(map(hash, some)) for some in self.parts(count))

    def compared(self, names: list[str], count: int) -> tuple[list[int], list[str]]:
        """Return which of the first `count` are not among these names, by their numbers, and the
        other names, sorted."""
        gone, others = list[int](), set(names)
        for number, name in enumerate(chain.from_iterable(self.parts(count))):
            if name in others:
                others.remove(name)
            else:
                gone.append(number)
        return gone, sorted(others)


def _part(names: list[str], first: int, count: int) -> list[str]:
    return names[first : first + count]
