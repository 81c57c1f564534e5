"""Files of one image or text each: written, named so that no two of a folder are the same, and
listed in a file.

There may be millions: their names, sizes and checksums are never all in memory. The list of a part
is a piece of the export, a line for each file: SHA-256, bytes, path. SHA256SUMS is made of these
lists.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

import numpy as np
import xxhash

from shardctl.interop.exports.base import FileList, Work
from shardctl.system.files import FileFacts, HashingFile, naming_the_path, replacing

_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*~]')
"""What Windows does not allow in names; and ~, which stands before a number that tells names
apart."""

_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
MARK = "~"

LONGEST = 180
"""Bytes of a name at most, so that suffixes and numbers still fit into the 255 that file systems
allow."""

IMAGE_SUFFIXES = frozenset("jpg,jpeg,png,gif,bmp,tif,tiff,webp,jp2,qoi,avif,ppm,tga,ico".split(","))
TEXT_SUFFIXES = frozenset(("txt", "text"))


def safe_name(text: str) -> str:
    """Return a text as the name of a file or folder: not empty, not hidden, not reserved, of
    LONGEST bytes at most."""
    name = _UNSAFE.sub("_", text).rstrip(". ")
    if name.startswith(".") or _RESERVED.fullmatch(name) or not name:
        name = f"_{name}"
    return name.encode()[:LONGEST].decode("utf-8", "ignore")


def plain_stem(key: str, folder: str | None, suffixes: frozenset[str]) -> str:
    """Return the key without the folder of its class or split, and without a suffix that is one of
    `suffixes`."""
    if folder is not None and key.startswith(f"{folder}/"):
        key = key[len(folder) + 1 :]
    stem, dot, suffix = key.rpartition(".")
    return stem if dot and suffix.lower() in suffixes and stem else key


def folded(name: str) -> str:
    """Return what is the same for names that some file systems do not tell apart: case, and forms
    of the same characters."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def class_folders(names: Sequence[str]) -> list[str]:
    """Return a folder for each class: its name, with a number where another class would have the
    same folder."""
    safe = [safe_name(name) for name in names]
    times = Counter(map(folded, safe))
    return [
        name if times[folded(name)] == 1 else f"{name}{MARK}{number}"
        for number, name in enumerate(safe)
    ]


class NameSet:
    """A set of names that are given at once. That it has another name too is as likely as two
    hashes of 64 bits being equal."""

    def __init__(self, names: Iterable[str], least: int = 1) -> None:
        values, counts = np.unique(array("Q", map(_hash, names)), return_counts=True)
        self._hashes = array("Q", values[counts >= least].tobytes())

    @classmethod
    def repeated(cls, names: Iterable[str]) -> NameSet:
        """Return the names, folded, that are given more than once."""
        return cls(map(folded, names), least=2)

    def __contains__(self, name: str) -> bool:
        number = _hash(name)
        place = bisect_left(self._hashes, number)
        return place < len(self._hashes) and self._hashes[place] == number

    def __bool__(self) -> bool:
        return bool(self._hashes)


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))


class LooseFiles:
    """Writes files below the folder of an export, and their list. What there is, is known when the
    block of `writing` ends."""

    def __init__(self, work: Work, piece: str, sink: HashingFile) -> None:
        self._work, self._piece, self._sink = work, piece, sink
        self.lines = BufferedWriter(sink)
        self._files = self._bytes = 0

    def write(self, name: str, data: bytes) -> None:
        """Write a file. It counts only when its part is done, so that it needs no temporary name.
        Raises StorageError."""
        try:
            with open(f"{self._work.folder}/{name}", "wb") as file:
                file.write(data)
        except OSError:  # its folder is not there yet, or there is a fault to name
            path = self._work.path(name)
            with naming_the_path(path):
                path.write_bytes(data)
        self.lines.write(f"{hashlib.sha256(data).hexdigest()} {len(data)} {name}\n".encode())
        self._files += 1
        self._bytes += len(data)

    @property
    def found(self) -> FileList:
        """What there is."""
        return FileList(self._piece, self._files, self._bytes)

    @property
    def piece(self) -> dict[str, FileFacts]:
        """The list, as a piece of the part."""
        return {self._piece: self._sink.facts}


@contextmanager
def writing(work: Work, within: str) -> Iterator[LooseFiles]:
    """Yield what writes the loose files of a part, and their list in `within`; at the end they are
    on disk."""
    piece = f"{within}/{MARK}{work.name}.files"  # no other name begins so
    with replacing(work.piece(piece)) as sink:
        loose = LooseFiles(work, piece, sink)
        yield loose
        loose.lines.detach()  # what is left is written
    os.sync()  # all files at once: to wait for the disk after each would take most of the time


def listed(path: Path) -> Iterator[tuple[str, FileFacts]]:
    """Yield the files of a list. Raises OSError, ValueError."""
    with open(path, "rb") as lines:
        for line in lines:
            sha256, size, name = line.decode().removesuffix("\n").split(" ", 2)
            yield name, FileFacts(int(size), sha256)
