"""Files of annotations that are one for each image: found in a folder, and each with its image."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from shardctl.errors import InputError
from shardctl.sources.annotations.inputs import Inputs, stem
from shardctl.sources.files import is_folder, local_copy
from shardctl.sources.label_table import some
from shardctl.sources.roots import SourceRoot
from shardctl.sources.walk import FoundFile, walk
from shardctl.system.dataclass import dataclass
from shardctl.system.files import ordinary
from shardctl.system.locations.text import name_of, parent_of
from shardctl.system.text import counted, format_bytes, printable

LARGEST = 64 << 20
"""The largest file of annotations of one image that is read."""


@dataclass(frozen=True)
class Beside:
    """A file of annotations and the input that it is about."""

    row: int
    opened: str

    @property
    def shown(self) -> str:
        """The path or the URL for a message."""
        return printable(self.opened)


def files_in(folder: str, suffixes: Collection[str], what: str) -> list[FoundFile]:
    """Return the files in a folder and below whose names have these endings. Raises InputError if there are none."""
    found = walked(folder, suffixes, what)
    if not found:
        raise InputError(f"{printable(folder)}: holds no {what} ({' or '.join(sorted(suffixes))})")
    return found


def walked(folder: str, suffixes: Collection[str], what: str) -> list[FoundFile]:
    """Return the files in a folder and below whose names have these endings, if any. Raises InputError without the folder."""
    if not is_folder(folder):
        raise InputError(f"{printable(folder)}: no such folder; give the folder of the {what}")
    return [file for file in walk([SourceRoot(folder)], lambda _: None) if file.suffix in suffixes and file.fault is None]


def match_files(
    found: Sequence[FoundFile], inputs: Inputs, what: str, renamed: Callable[[str], str] | None = None
) -> tuple[list[Beside], list[FoundFile]]:
    """Return the files with the inputs that they are about, in the order of the inputs; and those without an input.

    A file is about the input that has the same path without the ending, from the source or from the folder of these files on,
    else about the only one of the same name. `renamed` gives where the image of a file would be, by where that is: it is looked
    for there first. Raises InputError for two files of one input, and where a name may be several inputs.
    """
    names = [stem(file.path) for file in found]
    rows = np.full(len(found), -1, np.int64)
    if renamed is not None:
        rows = _exact(inputs, [renamed(file.opened) for file in found])
    beside = _exact(inputs, [file.opened for file in found])
    rows = np.where(rows >= 0, rows, beside)
    left = np.flatnonzero(rows < 0)
    match = inputs.by_stem.find([names[number] for number in left])
    meant = set(rows[rows >= 0].tolist()) | set(match.rows[match.exact].tolist())
    # A name that only ends alike is not that of an input which another file has by its whole path.
    loose = ~match.exact & np.isin(match.rows, np.array(sorted(meant), np.int64))
    rows[left] = np.where(loose, -1, match.rows)
    by_row: dict[int, FoundFile] = {}
    for row, file in zip(rows.tolist(), found, strict=True):
        if row >= 0 and row in by_row:
            both = f"{printable(by_row[row].opened)} and {printable(file.opened)}"
            raise InputError(f"two {what} are of the input {printable(inputs.paths_at([row])[0])}: {both}; remove one")
        if row >= 0:
            by_row[row] = file
    matched = [Beside(row, by_row[row].opened) for row in sorted(by_row)]
    return matched, [file for row, file in zip(rows.tolist(), found, strict=True) if row < 0]


def _exact(inputs: Inputs, texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the input that is at each of these places, but for its ending, -1 for none."""
    parents = list(map(parent_of, texts))
    folders = {folder: inputs.below(folder) for folder in set(parents)}
    rows = np.full(len(texts), -1, np.int64)
    below = [number for number, folder in enumerate(parents) if folders[folder] is not None]
    names = [stem(f"{folders[parents[number]]}/{name_of(texts[number])}".lstrip("/")) for number in below]
    rows[below] = inputs.by_stem.exact(names)
    return rows


def refuse_no_match(matched: Sequence[Beside], found: Sequence[FoundFile], inputs: Inputs, folder: str, what: str) -> None:
    """Raise InputError if none of the files is about an input."""
    if not matched:
        one, other = printable(found[0].path), printable(inputs.paths_at([0])[0])
        raise InputError(
            f"{printable(folder)}: none of the {len(found):,} {what} has the name of an input ({one}; an input is {other})"
        )


def said_of_others(lost: Sequence[FoundFile], without: int, inputs: Inputs, what: str, means: str) -> list[str]:
    """Say how many files have no input, and how many inputs have no file; `means` says what becomes of these."""
    said = []
    if lost:
        example = some([file.path for file in lost[:3]])
        said.append(f"{counted(len(lost), what)} without an image among the inputs ({example}); skipped")
    if without:
        said.append(f"{without:,} of {counted(len(inputs), 'input')} without {what}: {means}")
    return said


def read_small(file: str) -> bytes:
    """Return the bytes of a file of annotations. Raises OSError, ValueError if it is too large."""
    with open(local_copy(file), "rb", opener=ordinary) as opened:
        if os.fstat(opened.fileno()).st_size > LARGEST:
            raise ValueError(f"it has more than {format_bytes(LARGEST)}")
        return opened.read()


class Digest:
    """The digest of what was read of many small files, in their order."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, name: str, data: bytes) -> None:
        """Add a file by the input that it is about, and its bytes."""
        self._sha256.update(f"{name}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
        self._sha256.update(data)

    def hex(self) -> str:
        """Return the digest."""
        return self._sha256.hexdigest()
