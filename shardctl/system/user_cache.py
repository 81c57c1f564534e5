"""What shardctl keeps for a user on this machine between commands: only what it can find again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from shardctl.errors import StorageError
from shardctl.system.files import read_bytes, write_atomically


def user_cache() -> Path | None:
    """Return the folder, which may not exist: $XDG_CACHE_HOME/shardctl or ~/.cache/shardctl. None
    for a user without a home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "shardctl"
    with contextlib.suppress(RuntimeError):
        return Path.home() / ".cache" / "shardctl"
    return None


class Remembered:
    """Facts that were found before, in a file of the user's cache, each under a digest of all that
    it depends on.

    What is not there is found again, so that the file may be deleted or damaged at any time: its
    first line is the SHA-256 of the rest. It counts only in a folder that nobody but this user can write to, and holds the `most` facts that
    came last.
    """

    def __init__(self, name: str, most: int = 256) -> None:
        nowhere = Path(os.devnull)  # no folder, and so nothing is found or kept
        self._path, self._most = (user_cache() or nowhere) / name, most

    def find(self, digest: str) -> Any:
        """Return a fact as plain data, None if it is not known."""
        return self._facts().get(digest)

    def add(self, digest: str, fact: Any) -> None:
        """Note a fact. Where the file cannot be written, nothing happens. Of two processes at once,
        one may be forgotten."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = {name: each for name, each in self._facts().items() if name != digest}
        kept = [*facts.items(), (digest, fact)][-self._most :]
        if self._is_own():
            with contextlib.suppress(StorageError, OSError):
                data = json.dumps(dict(kept)).encode()
                write_atomically(self._path, _sum_of(data) + b"\n" + data)

    def _facts(self) -> dict[str, Any]:
        if self._is_own():
            with contextlib.suppress(OSError):
                recorded, _, data = read_bytes(self._path).partition(b"\n")
                return json.loads(data) if recorded == _sum_of(data) else {}
        return {}

    def _is_own(self) -> bool:
        """Return whether nobody but this user can put something into the folder."""
        with contextlib.suppress(OSError):
            folder = self._path.parent.stat()
            return folder.st_uid == os.geteuid() and not folder.st_mode & 0o022
        return False


def _sum_of(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def state_of(path: str) -> tuple[str, int, int, int]:
    """Return what tells a file of a program from any other one: path, inode, size, time of change.
    Raises OSError."""
    found = Path(path).stat()
    return path, found.st_ino, found.st_size, found.st_mtime_ns


def this_machine() -> tuple[str, ...]:
    """Return what tells this machine, and this Python, from others that may share the user's
    home."""
    name = os.uname()
    return name.nodename, name.machine, sys.version
