"""A folder of objects on a store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from shardctl.errors import NoSuchKeyError
from shardctl.system.placed_file import PlacedFile
from shardctl.system.stores import client_of
from shardctl.system.stores.base import PIECES_AT_ONCE, Entry, Store
from shardctl.system.text import printable


@dataclass(frozen=True)
class StoreFolder:
    """The objects below a URL. It is a text that any process can use: each has a client of its own
    for it."""

    url: str

    @property
    def store(self) -> Store:
        """The client of this process: for what only a store has. Raises as `client_of`."""
        return client_of(self.url)

    @property
    def text(self) -> str:
        """The URL."""
        return self.url

    @property
    def local(self) -> None:
        """Nothing."""
        return

    def shown(self, name: str = "") -> str:
        """Return the URL of an object, or of the folder, as it is printed."""
        return printable(f"{self.url}/{name}" if name else self.url)

    def stat(self, name: str) -> Entry | None:
        """Return what is known of an object: one request."""
        return self.store.stat(name)

    def names(self) -> list[str]:
        """Return the names right below the URL: one request for each 1,000."""
        folders, objects = self.store.children()
        return [*folders, *(found.name for found in objects)]

    def read(self, name: str, start: int = 0, length: int | None = None) -> pa.Buffer:
        """Return bytes of an object: one request."""
        return self.read_found(Entry(name, 0), start, length)

    def read_found(self, found: Entry, start: int = 0, length: int | None = None) -> pa.Buffer:
        """Return bytes of an object that was found: of the same version, unless that is not
        known."""
        try:
            return self.store.get(found.name, start, length, found.version or None)
        except NoSuchKeyError as error:
            raise self._gone(found.name) from error

    def chunks(self, name: str) -> Iterator[pa.Buffer]:
        """Yield the bytes of an object."""
        return self.chunks_of(self._found(name))

    def chunks_of(self, found: Entry, at_once: int = PIECES_AT_ONCE) -> Iterator[pa.Buffer]:
        """Yield the bytes of an object that was found; `at_once` requests are under way."""
        try:
            yield from self.store.pieces(found, at_once=at_once)
        except NoSuchKeyError as error:
            raise self._gone(found.name) from error

    def open(self, name: str) -> pa.NativeFile:
        """Open an object: each stretch that is read is one request."""
        return pa.PythonFile(_RangedFile(self, self._found(name)), mode="r")

    def forget(self, name: str) -> bool:
        """Do nothing: each read is a request."""
        return True

    def _found(self, name: str) -> Entry:
        found = self.stat(name)
        if found is None:
            raise self._gone(name)
        return found

    def _gone(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{name}")


class _RangedFile(PlacedFile):
    """An object with a place in it."""

    def __init__(self, folder: StoreFolder, found: Entry) -> None:
        super().__init__(found.size)
        self._folder, self._found = folder, found

    def stretch(self, start: int, count: int) -> pa.Buffer:
        """Return some bytes. Raises StoreError."""
        return self._folder.store.exactly(self._found, start, count)
