"""Finding the files under the sources: in a fixed order, through links but not round and round."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardctl.errors import InputError, Rejection
from shardctl.storage import printable


class FoundFile(NamedTuple):
    """A file under one of the sources. `path` is relative to the source, `opened` can be given to open()."""

    root: int
    path: str
    opened: str
    folder: str
    size: int
    mtime_ns: int
    fault: Rejection | None

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot, in lower case."""
        return os.path.splitext(self.path)[1].lower()  # noqa: PTH122 - see pyproject.toml on Path in the listing


@dataclass(frozen=True)
class _Folder:
    path: str
    opened: str
    ancestors: tuple[tuple[int, int], ...]


def walk(roots: list[Path], notice: Callable[[str], None]) -> Iterator[FoundFile]:
    """Give every file under the sources, the files of a folder by name and then its folders by name.

    Hidden files and folders (their name begins with a dot) are passed over; symbolic links are followed; one that leads
    back to a folder that it lies in is passed over with a notice. Raises InputError where a source or a folder cannot be
    read: what is in it would be missing without a trace.
    """
    for number, root in enumerate(roots):
        if root.is_dir():
            yield from _walk_folder(number, root, notice)
        else:
            yield _found(number, root.name, str(root), "", root.stat())


def _walk_folder(number: int, root: Path, notice: Callable[[str], None]) -> Iterator[FoundFile]:
    stack = [_Folder("", str(root), ())]
    while stack:
        folder = stack.pop()
        try:
            here = Path(folder.opened).stat()
            if (here.st_dev, here.st_ino) in folder.ancestors:
                notice(f"{printable(folder.opened)}: a link back to a folder that it lies in; passed over")
                continue
            entries = sorted(os.scandir(folder.opened), key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            raise InputError(f"{printable(folder.opened)}: cannot be listed ({error.strerror}); nothing was written") from error
        ancestors = (*folder.ancestors, (here.st_dev, here.st_ino))
        folders = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = f"{folder.path}/{entry.name}" if folder.path else entry.name
            try:
                status = entry.stat()
            except OSError as error:
                yield _broken(number, path, entry.path, folder.path, error)
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append(_Folder(path, entry.path, ancestors))
            elif stat.S_ISREG(status.st_mode):
                yield _found(number, path, entry.path, folder.path, status)
        stack.extend(reversed(folders))


def _found(root: int, path: str, opened: str, folder: str, status: os.stat_result) -> FoundFile:
    try:
        path.encode()
    except UnicodeEncodeError:
        fault = Rejection("plan", "name-not-utf8", "the file name is not UTF-8, and keys must be; rename the file")
        return FoundFile(root, printable(path), opened, printable(folder), status.st_size, status.st_mtime_ns, fault)
    return FoundFile(root, path, opened, folder, status.st_size, status.st_mtime_ns, None)


def _broken(root: int, path: str, opened: str, folder: str, error: OSError) -> FoundFile:
    """A link to nothing, or to itself, or a file that went away while its folder was listed."""
    fault = Rejection("plan", "unreachable", f"cannot be reached ({error.strerror})")
    return FoundFile(root, printable(path), opened, printable(folder), 0, 0, fault)
