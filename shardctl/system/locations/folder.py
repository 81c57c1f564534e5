"""What can be done with a folder of files, wherever it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from shardctl.system.stores.base import Entry

Note = Callable[[int], None]
"""A callback: the file with this number has been read."""


class Folder(Protocol):
    """Files that lie together, here or on a store. It never changes, can be hashed and pickled;
    threads may share it.

    Names are relative to it, with / between their parts. All methods raise FileNotFoundError where
    the file is not there, OSError for what this system refuses, and StoreError for what a store
    refuses. On a store, they raise ObjectChangedError if a file has changed since it was first
    looked at.
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
        before."""
        ...

    def chunks(self, name: str) -> Iterator[pa.Buffer]:
        """Yield the bytes of a file in order, some MiB at a time. A bad disk raises OSError:
        nothing is mapped."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for random access. One of this machine is mapped, and its values are read in
        place."""
        ...

    def forget(self, name: str) -> bool:
        """Let go of what is known of a file that is not as it was written. Return whether it may
        come otherwise now."""
        ...


class FolderHere(Folder, Protocol):
    """A folder whose files can be had as files of this machine: a local one, or one behind a local
    cache."""

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
        ...


def is_regular_file(folder: Folder, name: str) -> bool:
    """Return whether there is an ordinary file: not a link, a folder, a pipe or a device."""
    found = folder.stat(name)
    return found is not None and found.kind == "file"


def hash_file(folder: Folder, name: str) -> str:
    """Return the SHA-256 of a file in hex, reading it piece by piece. Raises OSError,
    StoreError."""
    digest = hashlib.sha256()
    for chunk in folder.chunks(name):
        digest.update(chunk)
    return digest.hexdigest()
