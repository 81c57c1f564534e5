"""Finds the files under the sources: in a fixed order, following links but not loops."""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardctl.errors import InputError, Rejection
from shardctl.sources.files import SourceRoot, is_folder, keys_of, number_of, object_at, version_of
from shardctl.system.locations import name_of
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

    @classmethod
    def of(
        cls, root: int, path: str, name: str, opened: str, folder: str, status: os.stat_result
    ) -> FoundFile:
        """Return a file that is there; `name` is the last part of its path."""
        suffix = suffix_of(name)
        # Not cls(…), which takes twice as long: there may be millions.
        return tuple.__new__(
            cls, (root, path, opened, folder, suffix, status.st_size, status.st_mtime_ns, None)
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

    def add(self, path: str) -> None:
        """Count one more."""
        self.first = self.first or path
        self.count += 1

    def counted(self, one: str, many: str) -> str:
        """Return the number and an example for a notice."""
        return f"{counted(self.count, one, many)}, for instance {printable(self.first)}"


def walk(roots: Sequence[SourceRoot], notice: Callable[[str], None]) -> Iterator[FoundFile]:
    """Yield every file under the sources, the files of a folder by name and then its folders by
    name.

    Hidden files and folders (see `is_hidden`), pipes, sockets and devices are skipped, and a notice
    at the end gives their number; symbolic links are followed, but a link back to a folder that
    contains it is skipped with a notice. Raises InputError if a source or a folder cannot be read:
    its files would be missing silently.
    """
    hidden, special = LeftOut(), LeftOut()
    for number, root in enumerate(roots):
        if root.is_stored:
            yield from _walk_store(number, root.text, hidden)
        elif root.is_folder:
            yield from _walk_folder(number, root.text, notice, hidden, special)
        else:
            own = name_of(root.text)
            status = os.stat(root.text)  # noqa: PTH116 - see pyproject.toml
            found = FoundFile.of(number, own, own, root.text, "", status)
            yield found if are_utf8([own]) else _not_utf8(found)
    for sentence in notices_of_left_out(hidden, special):
        notice(sentence)


def notices_of_left_out(hidden: LeftOut, special: LeftOut) -> Iterator[str]:
    """Yield what is said of hidden files, and of pipes, sockets and devices."""
    if hidden.count:
        count = hidden.counted("hidden file or folder", "hidden files and folders")
        yield f"left out: {count} (a dot before the name, or of a system)"
    if special.count:
        count = special.counted("pipe, socket or device", "pipes, sockets and devices")
        yield f"left out: {count}, which are no ordinary files"


def notice_of_loop(folder: Folder) -> str:
    """Return what is said of a link back to a folder that contains it."""
    return f"{printable(folder.opened)}: a link back to a folder that contains it; skipped"


def order_in_walk(file: FoundFile) -> tuple[int, list[tuple[bool, str]]]:
    """Return what sorts files as `walk` yields them."""
    return file.root, place_in_walk(file.path)


def place_in_walk(path: str) -> list[tuple[bool, str]]:
    """Return what sorts the paths of a source: in each folder its files by name, then its folders
    by name."""
    *folders, name = path.split("/")
    return [*((True, folder) for folder in folders), (False, name)]


def _walk_folder(
    number: int, root: str, notice: Callable[[str], None], hidden: LeftOut, special: LeftOut
) -> Iterator[FoundFile]:
    stack = [Folder("", root, ())]
    while stack:
        folder = stack.pop()
        try:
            descriptor = os.open(folder.opened, os.O_RDONLY)
        except OSError as error:
            raise _unlisted(folder, error) from error
        # Names are looked up from the open folder: half the time of a look-up from the root of the
        # file system.
        try:
            here = os.fstat(descriptor)
            if (here.st_dev, here.st_ino) in folder.ancestors:
                notice(notice_of_loop(folder))
                continue
            ancestors = (*folder.ancestors, (here.st_dev, here.st_ino))
            try:
                names = os.listdir(descriptor)
            except OSError as error:
                raise _unlisted(folder, error) from error
            utf8 = are_utf8([folder.path]) and are_utf8(names)
            # in the order of their bytes: UTF-8 sorts as its characters do, and comparing strings
            # as they are takes a third of the time
            names.sort(key=None if utf8 else os.fsencode)
            in_folder, new = folder.path, tuple.__new__
            below = f"{in_folder}/" if in_folder else ""
            within = folder.opened if folder.opened.endswith("/") else f"{folder.opened}/"
            folders = []
            for name in names:
                # is_hidden(name), without a call for each of millions
                if name[0] == "." or name in OF_SYSTEMS:
                    hidden.add(within + name)
                    continue
                try:
                    status = os.stat(name, dir_fd=descriptor)
                except OSError as error:
                    yield _broken(number, below + name, within + name, folder.path, error)
                    continue
                if stat.S_ISREG(status.st_mode):
                    path, size, mtime_ns = below + name, status.st_size, status.st_mtime_ns
                    # As in FoundFile.of, which would take a tenth of the time of a file.
                    opened, suffix = within + name, suffix_of(name)
                    made = (number, path, opened, in_folder, suffix, size, mtime_ns, None)
                    found = new(FoundFile, made)
                    yield found if utf8 or are_utf8([path]) else _not_utf8(found)
                elif stat.S_ISDIR(status.st_mode):
                    folders.append(Folder(below + name, within + name, ancestors))
                else:
                    special.add(within + name)
            stack.extend(reversed(folders))
        finally:
            os.close(descriptor)


def _walk_store(number: int, url: str, hidden: LeftOut) -> Iterator[FoundFile]:
    """Yield what is below a URL, as if objects were files in folders."""
    what = object_at(url)
    assert what is not None, "others are walked on the disk"
    if not is_folder(url):
        size, version = version_of(url)
        name = name_of(url)
        yield FoundFile(number, name, url, "", suffix_of(name), size, version, None)
        return
    keys, top = keys_of(url), f"{what.key}/" if what.key else ""
    start, stack = len(top), [(top, *under(keys, top))]
    while stack:
        prefix, first, end = stack.pop()
        folder = prefix[start:-1]
        folders: list[tuple[str, str, int, int]] = []
        for _ in _in_folder(keys, prefix, first, end, folders):
            pass
        of_folders = {name for name, *_ in folders}
        for key, size, etag in _in_folder(keys, prefix, first, end, []):
            name = key[len(prefix) :]
            path, opened = key[start:], f"{url}/{key[start:]}"
            if is_hidden(name):
                hidden.add(opened)
                continue
            fault = None
            # there can be no such files on a disk, where both may have to be
            if name in of_folders:
                fault = Rejection(
                    "plan",
                    UNREACHABLE,
                    "cannot be reached (other objects are below a folder of this name); rename the object",
                )
            found = (number, path, opened, folder, suffix_of(name), size, number_of(etag), fault)
            yield tuple.__new__(FoundFile, found)  # as in FoundFile.of
        for name, *_ in folders:
            if is_hidden(name):
                hidden.add(f"{url}/{prefix[start:]}{name}")
        stack += [
            (below, low, high)
            for name, below, low, high in sorted(folders, reverse=True)
            if not is_hidden(name)
        ]


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


def _unlisted(folder: Folder, error: OSError) -> InputError:
    return InputError(
        f"{printable(folder.opened)}: cannot be listed ({error.strerror}); nothing was written"
    )


def are_utf8(names: list[str]) -> bool:
    """Return whether every name can be written as UTF-8: bytes that are not come from the system as
    lone surrogates."""
    try:
        for start in range(0, len(names), NAMES_AT_ONCE):
            "/".join(names[start : start + NAMES_AT_ONCE]).encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_utf8(file: FoundFile) -> FoundFile:
    fault = Rejection(
        "plan",
        "name-not-utf8",
        "the file name is not UTF-8, as keys are; rename it",
    )
    return file._replace(path=printable(file.path), folder=printable(file.folder), fault=fault)


def _broken(root: int, path: str, opened: str, folder: str, error: OSError) -> FoundFile:
    """A link to nothing, or to itself, or a file that went away while its folder was listed."""
    fault = Rejection("plan", UNREACHABLE, f"cannot be reached ({error.strerror})")
    return FoundFile(
        root,
        printable(path),
        opened,
        printable(folder),
        suffix_of(path.rpartition("/")[2]),
        0,
        0,
        fault,
    )
