"""Files of one image or text each: written, named so that no two of a folder are the same, and
listed in a file.

There may be millions: their names, sizes and checksums are never all in memory. The list of a part
is a piece of the export, a line for each file: SHA-256, bytes, path. SHA256SUMS is made of these
lists.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shardctl.interop.exports.base import ExportPart, FileList
from shardctl.interop.exports.file_names import MARK, folded
from shardctl.interop.exports.name_set import NameSet
from shardctl.system.files import FileFacts, HashingFile, naming_the_path, replacing

AT_ONCE = 64 << 10
"""Bytes of a list that are written together."""


def write_file(path: Path, data: bytes) -> FileFacts:
    """Write a file. It counts only when its part is done, so that it needs no temporary name."""
    with naming_the_path(path):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return FileFacts(len(data), hashlib.sha256(data).hexdigest())


class LooseFiles:
    """Writes files below the folder of an export, and their list. What there is, is known when the
    block of `writing` ends."""

    def __init__(self, folder: Path, piece: str, sink: HashingFile) -> None:
        self._folder, self._piece, self._sink = folder, piece, sink
        self._lines = bytearray()
        self._files = self._bytes = 0

    def write(self, name: str, data: bytes) -> None:
        """Write a file. Raises StorageError."""
        facts = write_file(self._folder / name, data)
        self._lines += f"{facts.sha256} {facts.bytes} {name}\n".encode()
        self._files += 1
        self._bytes += facts.bytes
        if len(self._lines) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the list as far as it goes."""
        self._sink.write(self._lines)
        self._lines = bytearray()

    @property
    def found(self) -> FileList:
        """What there is."""
        return FileList(self._piece, self._files, self._bytes)

    @property
    def piece(self) -> dict[str, FileFacts]:
        """The list, as a piece of the part."""
        return {self._piece: self._sink.facts}


@contextmanager
def writing(folder: Path, part: ExportPart, within: str) -> Iterator[LooseFiles]:
    """Yield what writes the loose files of a part below `folder`, and their list in `within`; at
    the end they are on disk."""
    piece = f"{within}/{MARK}{part.name}.files"  # no other name begins so
    with replacing(folder / piece) as sink:
        loose = LooseFiles(folder, piece, sink)
        yield loose
        loose.flush()
    os.sync()  # all files at once: to wait for the disk after each would take most of the time


def listed(path: Path) -> Iterator[tuple[str, FileFacts]]:
    """Yield the files of a list. Raises OSError, ValueError."""
    with open(path, "rb") as lines:
        for line in lines:
            sha256, size, name = line.decode().removesuffix("\n").split(" ", 2)
            yield name, FileFacts(int(size), sha256)


def repeated(names: Iterable[str]) -> NameSet:
    """Return the names, folded, that are there more than once."""
    return NameSet.repeated(map(folded, names))
