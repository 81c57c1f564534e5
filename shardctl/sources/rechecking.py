"""Whether files are as they were listed, or which have changed: names, sizes and times of change
are compared folder by folder; no list is made."""

from __future__ import annotations

import os
import stat
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from shardctl.format.arrays import Numbers
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
from shardctl.system.locations import name_of, within

THREADS = 16
"""How many files are examined at a time: that helps on a file server, where to examine one takes
200 microseconds and more."""

FILES_AT_ONCE = 1024
"""Files that one thread compares together."""

NAMES_AT_ONCE = 4096
"""Listed names of a folder that are Python objects at a time: there may be millions."""


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


@dataclass(frozen=True)
class Listed:
    """Files as they were listed, in the order of a walk: `table` has `path`, `root` and `size`,
    `mtime_ns` when they changed last, (files,) int64. `changed` gets those that have changed, and
    those that are gone; None: there may be no such file."""

    table: pa.Table
    mtime_ns: Numbers
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

    def compare(self, row: int, opened: str) -> None:
        """Note it if a file has changed. Raises ChangedError for what is no ordinary file."""
        try:
            status = os.stat(opened)  # noqa: PTH116 - see pyproject.toml
        except OSError as error:  # gone meanwhile
            raise ChangedError from error
        if not stat.S_ISREG(status.st_mode):
            raise ChangedError
        sizes, times = self.states(row, 1)
        if (sizes[0], times[0]) != (status.st_size, status.st_mtime_ns):
            if self.changed is None:
                raise ChangedError
            self.changed.rows.append(row)
            self.changed.sizes.append(status.st_size)
            self.changed.mtimes_ns.append(status.st_mtime_ns)

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
    place, parts = 0, list[tuple[str, int, int]]()
    for number, root in enumerate(roots):
        first = place
        if root.is_folder:
            place = yield from _unlisted_below(number, root.text, listed, place, depends, seen)
        else:
            if listed.paths(place, 1) != [name_of(root.text)]:
                raise ChangedError
            listed.compare(place, root.text)
            seen.folders.append(("", 1))
            place += 1
        if set(listed.table["root"].slice(first, place - first).unique().to_pylist()) - {number}:
            raise ChangedError
        if root.is_folder:
            parts.append((within(root.text), first, place))
    if place != len(listed):
        raise ChangedError
    for part in parts:
        _compare(listed, *part)
    seen.notices += notices_of_left_out(seen.hidden, seen.special)


def _compare(listed: Listed, above: str, first: int, end: int) -> None:
    """Compare the files from the row `first` on that are not gone, whose paths come after `above`.
    Raises ChangedError.

    Arrow asks for many files without the lock of Python, in threads, and tells which are as they
    were; the others are asked for once more. To see before that the names are others takes a third
    of the time.
    """
    from pyarrow.fs import LocalFileSystem  # 15 ms to import

    system, gone = LocalFileSystem(), set(listed.changed.gone if listed.changed else ())
    absolute = above if above.startswith("/") else f"{os.getcwd()}/{above}"  # noqa: PTH109 - see pyproject.toml

    def differing(start: int) -> list[int]:
        count = min(FILES_AT_ONCE, end - start)
        rows = range(start, start + count)
        try:
            found = system.get_file_info([absolute + path for path in listed.paths(start, count)])
        except (OSError, ValueError):
            # one cannot be looked up, or the name of a folder is not UTF-8
            return list(rows)
        # only ordinary files have a size
        now = [each.size for each in found], [each.mtime_ns for each in found]
        before = listed.states(start, count)
        if before == now:
            return []
        states = zip(rows, zip(*before, strict=True), zip(*now, strict=True), strict=True)
        return [row for row, was, has in states if was != has]

    with ThreadPoolExecutor(THREADS) as threads:
        for rows in threads.map(differing, range(first, end, FILES_AT_ONCE)):
            for row in rows:
                if row not in gone:
                    listed.compare(row, above + listed.paths(row, 1)[0])


def _unlisted_below(
    number: int, root: str, listed: Listed, place: int, depends: Depends, seen: Seen
) -> Generator[FoundFile, None, int]:
    """Yield the files of a source that are not listed, and return the row after its listed ones,
    which begin at `place`."""
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
            above = folder.opened if folder.opened.endswith("/") else f"{folder.opened}/"
            if len(visible) < len(names):
                for name in sorted(filter(is_hidden, names), key=os.fsencode):
                    seen.hidden.add(above + name)
            count = listed.count_in(
                number, below, place, len(visible) + 1 if listed.changed is None else len(listed)
            )
            others = set[str]()
            # Sums of keyed 64-bit hashes tell whether names are the same, in any order, in a third
            # of the time of sorted names.
            if count != len(visible) or sum(map(hash, visible)) != sum(
                map(hash, _names(listed, place, count, below))
            ):
                others = set(visible)
                for row, name in enumerate(_names(listed, place, count, below), place):
                    if name in others:
                        others.remove(name)
                    elif listed.changed is None:
                        raise ChangedError
                    else:
                        listed.changed.gone.append(row)
            if count or listed.changed is not None:
                seen.folders.append((folder.path, count))
            if others:
                depend = any(map(depends, _names(listed, place, count, below)))
                if not are_utf8(list(others)):
                    raise ChangedError
                ancestors = (*folder.ancestors, (here.st_dev, here.st_ino))
                folders = []
                for name in sorted(others):
                    opened = above + name
                    try:
                        status = os.stat(name, dir_fd=descriptor)
                    except OSError as error:  # gone meanwhile, or a link to nothing
                        raise ChangedError from error
                    if stat.S_ISDIR(status.st_mode):
                        folders.append((Folder(below + name, opened, ancestors), depend))
                    elif not stat.S_ISREG(status.st_mode):
                        seen.special.add(opened)
                    elif depend:
                        raise ChangedError
                    else:
                        yield FoundFile.of(number, below + name, name, opened, folder.path, status)
                stack.extend(reversed(folders))
            place += count
        finally:
            os.close(descriptor)
    return place


def _names(listed: Listed, place: int, count: int, below: str) -> Iterator[str]:
    """Return the names of `count` listed files of one folder, from the row `place` on: what their
    paths have after that of the folder."""
    return chain.from_iterable(
        [
            path[len(below) :]
            for path in listed.paths(first, min(NAMES_AT_ONCE, place + count - first))
        ]
        for first in range(place, place + count, NAMES_AT_ONCE)
    )
