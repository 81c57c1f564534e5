"""Folders of files, wherever they are: on this machine, or on a store; and what both can do."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardctl.system.files import READ_CHUNK, open_ordinary
from shardctl.system.stores.base import Entry
from shardctl.system.text import printable

if TYPE_CHECKING:
    import pyarrow as pa


Note = Callable[[int], None]
"""A callback: the file with this number has been read."""


class Folder(Protocol):
    """Files that lie together, and can be had as files of this machine: they are here, or on a
    store behind a local cache. It never changes, can be hashed and pickled; threads may share it.

    Names are relative to it, with / between their parts. All methods raise FileNotFoundError where
    the file is not there, OSError for what this system refuses, and StoreError for what a store
    refuses. On a store, they raise ObjectChangedError if a file has changed since it was first
    looked at. What can be done with any file of this machine is done here, by its path.
    """

    @property
    def text(self) -> str:
        """The location as a dataset records it: a path, or a URL without a / at its end."""
        ...

    @property
    def local(self) -> Path | None:
        """The path of the folder if it is one of this machine: for what only a file system has.
        None for one on a store."""
        ...

    def shown(self, name: str = "") -> str:
        """Return the location of a file, or of the folder, as it is printed."""
        ...

    def stat(self, name: str) -> Entry | None:
        """Return what is known of a file, None if nothing is there. What the system does not tell
        counts as nothing."""
        ...

    def names(self) -> list[str]:
        """Return the names of all that is right in the folder, other folders included."""
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """Return the bytes of a file, or `length` of them from `start` on; fewer where it ends
        before. It is an ordinary one: opening a pipe could wait for ever."""
        import pyarrow as pa

        with open_ordinary(self.path(name)) as file:
            file.seek(start)
            return pa.py_buffer(file.read(-1 if length is None else length))

    def chunks(self, name: str) -> Iterator[pa.Buffer]:
        """Yield the bytes of a file in order, some MiB at a time. A bad disk raises OSError:
        nothing is mapped."""
        import pyarrow as pa

        with open_ordinary(self.path(name)) as file:
            # read further ahead: SHA-256 of cold 2.6 GiB takes 1.7 s, and not 2.2 s
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while chunk := file.read(READ_CHUNK):
                yield pa.py_buffer(chunk)

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for random access. One of this machine is mapped, and its values are read in
        place; one that shrinks reads as zeros."""
        from shardctl.system.mmap import map_file

        return map_file(self.path(name))

    def forget(self, name: str) -> bool:
        """Let go of what is known of a file that is not as it was written. Return whether it may
        come otherwise now: a file of this machine is what it is."""
        return False

    @property
    def work(self) -> Path:
        """A folder of this machine with those of the files that stay: the folder itself, if it is
        one of this machine."""
        ...

    def path(self, name: str) -> Path:
        """Return the path at which a file can be opened now. It is fetched first where it must
        be."""
        ...

    def prefetch(self, names: Sequence[str]) -> AbstractContextManager[Note]:
        """While the block runs, have files here before they are read. The callback says the number
        of a name that has been."""
        return nullcontext(lambda number: None)


def is_regular_file(folder: Folder, name: str) -> bool:
    """Return whether there is an ordinary file: not a link, a folder, a pipe or a device."""
    found = folder.stat(name)
    return found is not None and found.kind == "file"


def hash_file(folder: Folder, name: str) -> str:
    """Return the SHA-256 of a file in hex, reading it piece by piece. Raises OSError,
    StoreError."""
    return sha256_in(folder.chunks(name))


def sha256_in(chunks: Iterable[pa.Buffer]) -> str:
    """Return the SHA-256 of bytes that come piece by piece, in hex."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True)
class LocalFolder(Folder):
    """A folder of this machine. If it has the work on a dataset on a store, `url` is where that is:
    messages name it."""

    root: Path
    url: str = ""

    @property
    def text(self) -> str:
        """The path, or the URL."""
        return self.url or str(self.root)

    @property
    def local(self) -> Path:
        """The path of the folder."""
        return self.root

    def shown(self, name: str = "") -> str:
        """Return the location of a file, or of the folder, as it is printed."""
        if not self.url:
            return printable(self.root / name)
        return printable(f"{self.url}/{name}" if name else self.url)

    def below(self, name: str) -> LocalFolder:
        """Return a folder in this one."""
        return LocalFolder(self.root / name, f"{self.url}/{name}" if self.url else "")

    @property
    def above(self) -> LocalFolder:
        """The folder that this one is in."""
        return LocalFolder(self.root.parent, self.url.rpartition("/")[0])

    @property
    def work(self) -> Path:
        """The path of the folder."""
        return self.root

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not be there."""
        return self.root / name

    def stat(self, name: str) -> Entry | None:
        """Return what is known of a file, and the size of what a link leads to. A link to nothing
        counts as nothing."""
        path = self.path(name)
        try:
            own = path.lstat()
            end = path.stat() if stat.S_ISLNK(own.st_mode) else own
        except OSError:
            return None
        if stat.S_ISDIR(own.st_mode):
            return Entry(name, 0, "", "folder")
        if not stat.S_ISREG(end.st_mode):
            return Entry(name, 0, "", "other")
        return Entry(name, end.st_size, "", "file" if end is own else "link")

    def names(self) -> list[str]:
        """Return the names in the folder."""
        return os.listdir(self.root)
