"""Finds the files under the sources: in a fixed order, following links but not loops."""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice, repeat
from typing import NamedTuple

import numpy as np
import xxhash

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Numbers
from shardctl.sources.files import (
    SourceRoot,
    T,
    is_folder,
    keys_of,
    number_of,
    stored_object,
    version_of,
)
from shardctl.system.locations import name_of, within
from shardctl.system.stores.listing import Keys, under
from shardctl.system.text import counted, printable

UNREACHABLE = "unreachable"
"""The error of rejects that are in a folder, but could not be examined."""

COMPRESSED = frozenset((".gz", ".bz2", ".xz", ".zst"))
"""Endings of names of compressed files, before which there is another one."""

OF_SYSTEMS = frozenset(
    (
        "__MACOSX",
        "@eaDir",
        "#recycle",
        "$RECYCLE.BIN",
        "System Volume Information",
        ".DS_Store",
        ".git",
        ".ipynb_checkpoints",
    )
)
"""What systems and tools put beside data: copies of attributes, thumbnails, what was deleted."""

NAMES_AT_ONCE = 65536
"""Names of a folder that are looked at together."""

THREADS = 16
"""How many files are examined at a time: that helps on a file server, where to examine one takes
200 microseconds and more."""

FILES_AT_ONCE = 1024
"""Files that one thread examines together."""

FEW_FILES = 256
"""So many are not worth the import of pyarrow.fs: 15 ms."""


Faults = dict[int, Rejection]
"""What is wrong with some files, by their places in a list."""


class FoundFile(NamedTuple):
    """A file under one of the sources. `path` is relative to the source, `opened` is the path or
    the URL by which it is opened.

    `suffix` is the end of the name from its last dot, in lower case; `size` is in bytes.
    """

    root: int
    path: str
    opened: str
    folder: str
    suffix: str
    size: int
    mtime_ns: int
    fault: Rejection | None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return name_of(self.path)


@dataclass(frozen=True)
class FolderFiles:
    """Files of one folder that follow each other: all of them, or some thousand.

    `folder` is the path of the folder below the source with the number `root`. The path of a file
    is `opened` and its name. `sizes` are in bytes, `mtimes_ns` are the times of change: (n,) int64.
    `faults` has the files that cannot be inputs, by place.
    """

    root: int
    folder: str
    opened: str
    names: list[str]
    sizes: Numbers
    mtimes_ns: Numbers
    faults: Faults = field(default_factory=dict)

    @cached_property
    def suffixes(self) -> list[str]:
        """The end of each name, as `suffix_of` returns it."""
        ends = [name[name.rfind(".") :] if "." in name else "" for name in self.names]
        # few of millions: a call for each would take twice the time
        known = {end: suffix_of(f"0{end}") for end in set(ends)}
        if COMPRESSED.isdisjoint(known.values()):
            return [known[end] for end in ends]
        return list(map(suffix_of, self.names))

    @property
    def paths(self) -> list[str]:
        """The paths below the source."""
        below = within(self.folder) if self.folder else ""
        return [below + name for name in self.names]

    def __iter__(self) -> Iterator[FoundFile]:
        numbers = (self.sizes.tolist(), self.mtimes_ns.tolist())
        return map(
            FoundFile,
            repeat(self.root),
            self.paths,
            [self.opened + name for name in self.names],
            repeat(self.folder),
            self.suffixes,
            *numbers,
            map(self.faults.get, range(len(self.names))),
        )

    def file(self, place: int) -> FoundFile:
        """Return one of the files."""
        name = self.names[place]
        return FoundFile(
            self.root,
            f"{self.folder}/{name}" if self.folder else name,
            f"{self.opened}{name}",
            self.folder,
            self.suffixes[place],
            int(self.sizes[place]),
            int(self.mtimes_ns[place]),
            self.faults.get(place),
        )

    def without(self, places: Collection[int]) -> FolderFiles:
        """Return the same without the files at some places."""
        if not places:
            return self
        left = [place for place in range(len(self.names)) if place not in places]
        return replace(
            self,
            names=[self.names[place] for place in left],
            sizes=self.sizes[left],
            mtimes_ns=self.mtimes_ns[left],
            faults={n: self.faults[p] for n, p in enumerate(left) if p in self.faults},
        )


def is_hidden(name: str) -> bool:
    """Return whether a file or a folder of this name is left out."""
    return name[0] == "." or name in OF_SYSTEMS


_OF_SYSTEMS = re.compile(
    rf"(?:^|/)(?:\._|(?:{'|'.join(map(re.escape, sorted(OF_SYSTEMS)))})(?:/|\Z))"
)


def is_of_system(path: str) -> bool:
    """Return whether a member of an archive is none of its data: a system put it there, or what it
    is in; `._` is a Mac's."""
    return _OF_SYSTEMS.search(path) is not None


def suffix_of(name: str) -> str:
    """Return the end of a file name from its last dot, in lower case; that of a compressed file
    with what it is: .jsonl.gz."""
    dot = name.rfind(".")  # os.path.splitext takes four times as long
    suffix = name[dot:].lower() if dot > 0 else ""
    if suffix in COMPRESSED and (inner := name.rfind(".", 0, dot)) > 0:
        return name[inner:].lower()
    return suffix


@dataclass(frozen=True)
class Folder:
    """A folder that is to be walked. `ancestors` are the device and inode of each folder above
    it."""

    path: str
    opened: str
    ancestors: tuple[tuple[int, int], ...]


@dataclass
class LeftOut:
    """Counts what is skipped, and remembers the path of the first."""

    count: int = 0
    first: str = ""

    def add(self, path: str, count: int = 1) -> None:
        """Count some more; this is the path of the first of them."""
        self.first = self.first or path
        self.count += count

    def counted(self, one: str, many: str) -> str:
        """Return the number and an example for a notice."""
        return f"{counted(self.count, one, many)}, for instance {printable(self.first)}"


def walk(roots: Sequence[SourceRoot], notice: Callable[[str], None]) -> Iterator[FolderFiles]:
    """Yield every file under the sources, the files of a folder by name and then its folders by
    name.

    Hidden files and folders (see `is_hidden`), pipes, sockets and devices are skipped, and a notice
    at the end gives their number; symbolic links are followed, but a link back to a folder that
    contains it is skipped with a notice. Raises InputError if a source or a folder cannot be read:
    its files would be missing silently.
    """
    hidden, special = LeftOut(), LeftOut()

    def named(numbers: Iterable[int]) -> Iterator[_Named]:
        for number in numbers:
            text = roots[number].text
            if roots[number].is_folder:
                for folder, names in _names_below(text, notice, hidden, special):
                    yield number, folder, names
            else:
                own = name_of(text)
                yield number, Folder("", text[: -len(own)] or ".", ()), [own]

    for is_stored, numbers in groupby(range(len(roots)), lambda number: roots[number].is_stored):
        if is_stored:
            for number in numbers:
                yield from _walk_store(number, roots[number].text, hidden)
        else:
            yield from _examined(named(numbers))
    if hidden.count:
        count = hidden.counted("hidden file or folder", "hidden files and folders")
        notice(f"left out: {count} (a dot before the name, or of a system)")
    if special.count:
        count = special.counted("pipe, socket or device", "pipes, sockets and devices")
        notice(f"left out: {count}, which are no ordinary files")


def files_below(folder: str) -> Iterator[FolderFiles]:
    """Yield what is in a folder, as `walk` does and without a notice; nothing if it is no folder."""
    return walk([SourceRoot(folder)], lambda _: None) if is_folder(folder) else iter(())


def states_of(places: Iterable[str]) -> str:
    """Return what stands for the sizes and times of change of files, and of all files in folders,
    with their names."""
    digest = xxhash.xxh3_128()
    for place in places:
        if is_folder(place):
            for files in files_below(place):
                digest.update("\0".join(files.paths).encode())
                digest.update(files.sizes.tobytes())
                digest.update(files.mtimes_ns.tobytes())
        else:
            with suppress(OSError):  # it is not there
                digest.update("{} {}".format(*version_of(place)).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def have_changed(places: Iterable[str], seconds: float) -> bool:
    """Return whether one of some files, or of all files in folders, may have changed after a time.
    One that takes the place of another has a new `ctime`, whatever its time of change is."""
    for place in places:
        inside = (f"{files.opened}{name}" for files in files_below(place) for name in files.names)
        for path in (place, *inside):
            with suppress(OSError):  # it is not there
                status = os.stat(path)  # noqa: PTH116 - see pyproject.toml
                if max(status.st_ctime, status.st_mtime) >= seconds:
                    return True
    return False


_Named = tuple[int, Folder, list[str]]
"""The number of a source, a folder in it, and names of files in that, in order."""


def _names_below(
    root: str, notice: Callable[[str], None], hidden: LeftOut, special: LeftOut
) -> Iterator[tuple[Folder, list[str]]]:
    """Yield the folders below a source with the names of their files."""
    stack = [Folder("", root, ())]
    while stack:
        folder = stack.pop()
        try:
            descriptor = os.open(folder.opened, os.O_RDONLY)
            try:
                here = os.fstat(descriptor)
                if (here.st_dev, here.st_ino) in folder.ancestors:
                    shown = printable(folder.opened)
                    notice(f"{shown}: a link back to a folder that contains it; skipped")
                    continue
                names, folders = _entries(descriptor, within(folder.opened), hidden, special)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise InputError(
                f"{printable(folder.opened)}: cannot be listed ({error.strerror}); nothing was written"
            ) from error
        yield folder, names
        below, above = within(folder.path) if folder.path else "", within(folder.opened)
        ancestors = (*folder.ancestors, (here.st_dev, here.st_ino))
        stack += [Folder(below + name, above + name, ancestors) for name in reversed(folders)]


def _entries(
    descriptor: int, above: str, hidden: LeftOut, special: LeftOut
) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders in an open folder, in order. The path of the
    folder, `above`, stands before the first of what is left out."""
    names, folders, left_out, others = list[str](), list[str](), list[str](), list[str]()
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = entry.name
            # is_hidden(name), without a call for each of millions
            if name[0] == "." or name in OF_SYSTEMS:
                left_out.append(name)
                continue
            try:
                kinds = names if entry.is_file() else folders if entry.is_dir() else others
            except OSError:  # whoever reads it says what is wrong
                kinds = names
            kinds.append(name)
    for name in sorted(others, key=os.fsencode):
        try:
            os.stat(name, dir_fd=descriptor)
        except OSError:  # a link to nothing
            names.append(name)
        else:
            special.add(above + name)
    if left_out:
        hidden.add(above + min(left_out, key=os.fsencode), len(left_out))
    for each in (names, folders):
        # in the order of their bytes: UTF-8 sorts as its characters do, and comparing strings as
        # they are takes a third of the time
        each.sort(key=None if are_utf8(each) else os.fsencode)
    return names, folders


def _examined(named: Iterator[_Named]) -> Iterator[FolderFiles]:
    """Yield files with their sizes and times of change, which threads ask for ahead."""
    parts = (
        (number, folder, names[start : start + FILES_AT_ONCE])
        for number, folder, names in named
        for start in range(0, len(names), FILES_AT_ONCE)
    )
    # those of many a small folder, or some of one
    groups = together(parts, lambda part: len(part[2]), FILES_AT_ONCE)
    waiting: deque[tuple[list[_Named], Future[_States]]] = deque()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="shardctl-walk") as threads:
        while True:
            for group in islice(groups, THREADS - len(waiting)):
                places = ((within(folder.opened), names) for _, folder, names in group)
                paths = [above + name for above, names in places for name in names]
                waiting.append((group, threads.submit(_states, paths)))
            if not waiting:
                return
            group, states = waiting.popleft()
            sizes, times, wrong = states.result()
            first = 0
            for number, folder, names in group:
                end = first + len(names)
                faults = {place - first: wrong[place] for place in wrong if first <= place < end}
                yield _files(number, folder, names, sizes[first:end], times[first:end], faults)
                first = end


def together(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield items some at a time: as many as have the size `most` together, or a little more."""
    held, size = list[T](), 0
    for item in items:
        held.append(item)
        size += size_of(item)
        if size >= most:
            yield held
            held, size = [], 0
    if held:
        yield held


_States = tuple[Numbers, Numbers, Faults]
"""The sizes of files, their times of change, and what is wrong with some."""


def _states(paths: list[str]) -> _States:
    """Examine files. Arrow asks for many without the lock of Python."""
    if len(paths) >= FEW_FILES:
        from pyarrow.fs import LocalFileSystem  # 15 ms to import

        with suppress(OSError, ValueError):  # one cannot be examined, or its name is not UTF-8
            here = "" if paths[0].startswith("/") else f"{os.getcwd()}/"  # noqa: PTH109 - see pyproject.toml
            found = LocalFileSystem().get_file_info([here + path for path in paths])
            sizes, times = [each.size for each in found], [each.mtime_ns for each in found]
            # only ordinary files have a size; -1 ns stands for no time
            if None not in sizes and None not in times:
                return np.array(sizes, np.int64), np.array(times, np.int64), {}
    states, faults = np.zeros((2, len(paths)), np.int64), Faults()
    for place, path in enumerate(paths):
        try:
            status = os.stat(path)  # noqa: PTH116 - see pyproject.toml
            states[:, place] = status.st_size, status.st_mtime_ns
            why = "" if stat.S_ISREG(status.st_mode) else "it is no file any more"
        except OSError as error:
            why = str(error.strerror)
        if why:
            states[:, place] = 0
            faults[place] = Rejection("plan", UNREACHABLE, f"cannot be reached ({why})")
    return states[0], states[1], faults


_NOT_UTF8 = Rejection("plan", "name-not-utf8", "the file name is not UTF-8, as keys are; rename it")


def _files(
    number: int, folder: Folder, names: list[str], sizes: Numbers, times: Numbers, faults: Faults
) -> FolderFiles:
    """Return files of a folder; those that have no name in UTF-8 get one."""
    path = folder.path
    if not are_utf8([path, *names]):
        is_odd = not are_utf8([path])
        odd = [place for place, name in enumerate(names) if is_odd or not are_utf8([name])]
        faults = dict.fromkeys(odd, _NOT_UTF8) | faults
        path, *names = (each if are_utf8([each]) else printable(each) for each in (path, *names))
    return FolderFiles(number, path, within(folder.opened), names, sizes, times, faults)


def _walk_store(number: int, url: str, hidden: LeftOut) -> Iterator[FolderFiles]:
    """Yield what is below a URL, as if objects were files in folders."""
    if not is_folder(url):
        size, version = version_of(url)
        name = name_of(url)
        yield FolderFiles(
            number, "", url[: -len(name)], [name], np.array([size]), np.array([version])
        )
        return
    keys, top = keys_of(url), stored_object(url).prefix
    start, stack = len(top), [(top, *under(keys, top))]
    while stack:
        prefix, first, end = stack.pop()
        folders: list[tuple[str, str, int, int]] = []
        for _ in _in_folder(keys, prefix, first, end, folders):
            pass
        of_folders, above = {name for name, *_ in folders}, f"{url}/{prefix[start:]}"
        objects = _in_folder(keys, prefix, first, end, [])
        while some := list(islice(objects, NAMES_AT_ONCE)):
            seen = list[tuple[str, int, int]]()
            for key, size, etag in some:
                name = key[len(prefix) :]
                if is_hidden(name):
                    hidden.add(above + name)
                else:
                    seen.append((name, size, number_of(etag)))
            names = [name for name, *_ in seen]
            states = np.array([each[1:] for each in seen], np.int64).reshape(-1, 2).T
            # there can be no such files on a disk, where both may have to be
            shared = [place for place, name in enumerate(names) if name in of_folders]
            faults = dict.fromkeys(shared, _SHARED)
            sizes, versions = states
            yield FolderFiles(number, prefix[start:-1], above, names, sizes, versions, faults)
        for name, *_ in folders:
            if is_hidden(name):
                hidden.add(above + name)
        stack += [
            (below, low, high)
            for name, below, low, high in sorted(folders, reverse=True)
            if not is_hidden(name)
        ]


_SHARED = Rejection(
    "plan",
    UNREACHABLE,
    "cannot be reached (other objects are below a folder of this name); rename the object",
)


def _in_folder(
    keys: Keys, prefix: str, first: int, end: int, folders: list[tuple[str, str, int, int]]
) -> Iterator[tuple[str, int, str]]:
    """Yield the objects that are directly in a folder, and add the others: name, prefix and rows of
    the folder in it."""
    row = first
    while row < end:
        names, sizes, versions = keys.rows(row, end)
        place = 0
        while place < len(names):
            slash = names[place].find("/", len(prefix))
            if slash < 0:
                yield names[place], sizes[place], versions[place]
                place += 1
                continue
            below = names[place][: slash + 1]
            following = f"{below[:-1]}0"  # the character after /
            high = bisect_left(names, following, place)
            last = row + high if high < len(names) else min(end, keys.find(following))
            folders.append((below[len(prefix) : -1], below, row + place, last))
            place = last - row
        row += place


def are_utf8(names: list[str]) -> bool:
    """Return whether every name can be written as UTF-8: bytes that are not come from the system as
    lone surrogates."""
    try:
        for start in range(0, len(names), NAMES_AT_ONCE):
            "/".join(names[start : start + NAMES_AT_ONCE]).encode()
    except UnicodeEncodeError:
        return False
    return True
