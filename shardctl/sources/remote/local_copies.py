"""The folder of this machine with copies of objects (sources/files.py). All processes of a user share it.

s3/BUCKET/KEY   an object
.begins/        the first bytes of objects
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property, lru_cache
from pathlib import Path

from shardctl.errors import DiskFullError
from shardctl.sources.remote.object_faults import Object, asking, changed, number_of
from shardctl.system.files import naming_the_path
from shardctl.system.object_cache import Limits, NewFile, ObjectCache
from shardctl.system.scratch import scratch_folder
from shardctl.system.shared_folder import SharedFolder
from shardctl.system.stores import client_of
from shardctl.system.stores.base import PIECE
from shardctl.system.text import format_bytes

LIMIT = "SHARDCTL_SOURCES_BYTES"
"""Variable: how many bytes of objects are kept on this machine while they are read."""

HELD_FILES, HELD_BYTES, LEAST_HELD = 256, 1 << 30, 4
"""Of the files that this process has asked for last, so many are not removed by others: they may be open, or about to be."""

_BEGINS = ".begins"


def folder_of_copies() -> str:
    """Return the folder for copies: that of this user, where temporary files are."""
    return _folder(tempfile.gettempdir(), os.geteuid() if hasattr(os, "geteuid") else 0)


@lru_cache(8)
def _folder(temporary: str, user: int) -> str:
    return os.path.join(os.path.realpath(temporary), f"shardctl-sources-{user}")


class LocalCopies:
    """The folder, as this process uses it. Threads may share it."""

    def __init__(self, folder: str) -> None:
        """Use the folder, which is made where it is not there. Raises StorageError if this user cannot have it."""
        self.folder, self.process = folder, os.getpid()
        said = os.environ.get(LIMIT, "")
        limits = Limits(int(said) if said.isdecimal() else None, None, HELD_FILES, HELD_BYTES, LEAST_HELD)
        with naming_the_path(Path(tempfile.gettempdir())):
            self._shared = SharedFolder(folder)
            self._cache = ObjectCache(folder, limits, lambda size: _on_disk(folder, size))
            os.makedirs(f"{folder}/{_BEGINS}", exist_ok=True)  # noqa: PTH103 - see pyproject.toml
        self._stack = ExitStack()

    @cached_property
    def scratch(self) -> Path:
        """A folder for the lists of this process."""
        return self._stack.enter_context(scratch_folder())

    def leave(self) -> None:
        """Let go of it, and remove it if no other process is there."""
        self._cache.close()
        self._shared.leave()
        self._stack.close()

    def fetch(self, what: Object, version: int) -> str:
        """Return the path of the copy of an object, which this process holds there from now on."""

        def fill(new: NewFile) -> int:
            return self._fill(what, version, new)

        return self._cache.hold(_name_of(what), version, fill)

    def find(self, what: Object) -> str | None:
        """Return the path of a copy that is here already, as `fetch` does; None if there is none."""
        name = _name_of(what)
        return f"{self.folder}/{name}" if self._cache.is_held(name) else None

    @contextlib.contextmanager
    def with_begin(self, data: bytes) -> Iterator[str]:
        """Yield a file with the first bytes of an object."""
        place = f"{self.folder}/{_BEGINS}/{secrets.token_hex(8)}"
        with _on_disk(self.folder, len(data)):
            Path(place).write_bytes(data)
        try:
            yield place
        finally:
            os.unlink(place)  # noqa: PTH108 - see pyproject.toml

    def _fill(self, what: Object, version: int, new: NewFile) -> int:
        """Write an object, and return the number of its version. The first piece says how large it is: no request for that."""
        store = client_of(what.bucket)
        with asking(what):
            first, found = store.fetch(what.key, PIECE)
        number = number_of(found.version)
        if version and number != version:
            raise changed()
        new.expect(found.size)
        if found.size > shutil.disk_usage(self.folder).free:
            raise _full(found.size)
        new.write(first)
        with asking(what):
            for piece in store.pieces(found, start=PIECE):
                new.write(piece)
        if new.size != found.size:
            raise changed()
        return number


def _name_of(what: Object) -> str:
    """Return what the copy of an object is called: those of one folder lie beside each other, as their formats need it."""
    return what.url.replace("://", "/", 1)


@contextlib.contextmanager
def _on_disk(folder: str, size: int) -> Iterator[None]:
    """Say where objects are written, if the disk is full: it is not where they come from."""
    try:
        with naming_the_path(Path(folder)):
            yield
    except DiskFullError as error:
        raise _full(size) from error


def _full(size: int) -> DiskFullError:
    return DiskFullError(
        f"{tempfile.gettempdir()}: the disk is full ({format_bytes(size)} of an object must be stored there); set TMPDIR to a"
        " folder on a larger disk"
    )
