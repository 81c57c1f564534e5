"""Files that a person asks for by name: pages, sheets, recipes, figures. What was not written here
before is not replaced."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardctl.errors import StorageError
from shardctl.system.files import PARTIAL
from shardctl.system.text import printable

_LOOKED_AT = 1 << 20
"""Bytes of a file that tell whether it was written here."""


@dataclass(frozen=True)
class OutputFileType:
    """A kind of file, such as "page", and what knows one of it by its first bytes, up to 1 MiB."""

    name: str
    is_one: Callable[[bytes], bool]

    def check(self, path: Path) -> None:
        """Raise StorageError if there is a file at `path` of another form: it would be lost. One
        without a byte may go.

        It is also raised for a folder, and for a path in a folder that does not exist: to make the
        file may take long.
        """
        if not _is_file(path):
            code = errno.EISDIR if path.is_dir() else 0 if path.parent.is_dir() else errno.ENOENT
            if code:
                raise StorageError(
                    f"{printable(str(path))}: cannot be written ({os.strerror(code)})"
                )
            return
        try:
            with open(path, "rb") as file:
                begin = file.read(_LOOKED_AT)
        except OSError as error:
            raise StorageError(
                f"{printable(str(path))}: cannot be read ({error.strerror})"
            ) from error
        if begin and not self.is_one(begin):
            raise StorageError(
                f"{printable(str(path))}: exists already, and is not a {self.name} that shardctl "
                "wrote; move it away, or give"
                " another name"
            )

    def write(self, path: Path, content: bytes) -> None:
        """Write a file, complete or not at all. Raises StorageError, as `check` does too.

        The file gets a new place on the disk: what was there may be a hard link to something else.
        A link stays one.
        """
        self.check(path)
        try:
            if path.exists() and not _is_file(path):
                path.write_bytes(content)  # a pipe, a terminal
            else:
                _replace(path.resolve(), content)
        except OSError as error:
            raise StorageError(
                f"{printable(str(path))}: cannot be written ({error.strerror})"
            ) from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the system does not tell
        return False


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the fault above is the one to tell of
            partial.unlink(missing_ok=True)
        raise
