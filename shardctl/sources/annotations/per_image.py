"""Files of annotations that are one for each image: found in a folder, and each with its image."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TypeVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.annotations.base import Faults, fault
from shardctl.sources.annotations.inputs import FOLDERS, NAMES, PathTable, reading, stem
from shardctl.sources.annotations.objects import Marked, ObjectsWriter, Size
from shardctl.sources.files import exists, fetch_all, is_folder, read_small
from shardctl.sources.walk import FoundFile, files_below, together
from shardctl.system.locations import is_stored, join, name_of, parent_of, within
from shardctl.system.text import composed, counted, printable, some

LARGEST = 64 << 20
"""The largest file of annotations of one image that is read."""

LEAST, MOST_BYTES = 16 << 10, 1 << 20
"""What each file counts for beside its bytes, and about how many bytes are parsed together: so they
are 64 files at most. One that takes more care slows down the others."""


Matched = dict[int, str]
"""The files of annotations by the inputs that they are about, which are in order."""

Found = tuple[Matched, list[FoundFile]]
"""The files with the inputs that they are about, and those without an input."""


def walked(folder: str, suffixes: Collection[str], what: str) -> list[FoundFile]:
    """Return the files in a folder and below whose names have these endings, if any. Raises
    InputError without the folder."""
    if not is_folder(folder):
        raise InputError(
            f"{printable(folder)}: not a folder; give that of the {what} (a COCO file: coco:FILE)"
        )
    return [
        file
        for files in files_below(folder)
        for file in files
        if file.suffix in suffixes and file.fault is None
    ]


def names_of_classes(
    found: Iterable[FoundFile],
    folders: Sequence[str],
    digest: Digest,
    known: dict[str, tuple[str, ...]],
) -> tuple[str, ...] | None:
    """Return the names of the classes, None if no file has them: those among some files, else those
    right above their folders.

    `known` has names that are known already, by the file that has them. Raises InputError for what
    cannot be read, for a line that gives no class a name of its own, and where two files differ.
    """
    above = [join(parent_of(folder), name) for folder in folders for name in NAMES]
    files = [file.opened for file in found if file.name in NAMES]
    lists = dict(known)
    for file in dict.fromkeys(files or filter(exists, above)):
        with reading(file):
            data = read_small(file, LARGEST)
            lines = data.decode("utf-8-sig").rstrip().split("\n")
        digest.add(name_of(file), data)
        names = [composed(line.strip()) for line in lines] if any(lines) else []
        for number, name in enumerate(names, 1):
            if not name or name in names[: number - 1]:
                wrong = f"repeats {printable(name)}" if name else "is blank"
                raise InputError(
                    f"{printable(file)}, line {number}: it {wrong}, not the name of one class"
                )
        lists[file] = tuple(names)
    for one, other in pairwise(lists):
        if lists[one] != lists[other]:
            raise InputError(
                f"{printable(one)} and {printable(other)} have different classes; make them the "
                "same"
            )
    return next(iter(lists.values()), None) or None


def match_files(
    found: Sequence[FoundFile],
    inputs: PathTable,
    shown: str,
    called: Callable[[FoundFile], str] = attrgetter("path"),
    beside: Callable[[FoundFile], str] = attrgetter("opened"),
) -> Found:
    """Return the files with their inputs, and the files without an input.

    Of a file, `called` returns the name of its image. `beside` returns the path that this image has
    if it is in the same folder; its ending does not count. Raises InputError as `Finder.find` does.
    """
    places = [
        place if is_stored(place) else os.path.abspath(place)  # noqa: PTH100 - links are followed where names are compared
        for place in map(beside, found)
    ]
    first = [("", _stems(map(_image_of, places))), ("", _stems(places))]
    written = pa.array((file.opened for file in found), pa.large_string())
    files = [(within(folder), len(list(own))) for folder, own in groupby(places, parent_of)]
    rows = inputs.by_stem.find(_stems(map(called, found)), shown, files, first, written)
    matched = {
        int(rows[place]): found[place].opened
        for place in np.argsort(rows, kind="stable")
        if rows[place] >= 0
    }
    return matched, [file for row, file in zip(rows.tolist(), found, strict=True) if row < 0]


def match_all(
    found: Sequence[FoundFile],
    inputs: PathTable,
    folder: str,
    what: str,
    endings: str,
    match: Callable[..., Found] = match_files,
) -> Found:
    """Return the files of a folder with the inputs that they are about, and those without an input.

    Raises InputError if there are no files, and if none of them is about an input.
    """
    shown = printable(folder)
    if not found:
        raise InputError(f"{shown}: holds no {what} ({endings})")
    matched, lost = match(found, inputs, shown)
    if not matched:
        one, other = printable(found[0].path), printable(inputs.paths_at([0])[0])
        raise InputError(
            f"{shown}: none of the {len(found):,} {what} is called as an input of its split "
            f"({one}; an input is {other})"
        )
    return matched, lost


def _image_of(annotations: str) -> str:
    """Return where an image is that has annotations at this place: the last of FOLDERS in it is
    that of the images."""
    parts = annotations.split("/")
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] in FOLDERS:
            parts[place] = FOLDERS[parts[place]]
            break
    return "/".join(parts)


def _stems(names: Iterable[str]) -> pa.Array:
    return pa.array(map(stem, names), pa.large_string())


def said_of_others(
    lost: Sequence[FoundFile], matched: Collection[int], inputs: PathTable, what: str, means: str
) -> list[str]:
    """Say how many files have no input, and how many inputs, all but those `matched`, have no file;
    `means` says what becomes of these."""
    said, without = [], len(inputs) - len(matched)
    if lost:
        example = some([file.path for file in lost[:3]])
        said.append(
            f"{counted(len(lost), what)} without an image among the inputs ({example}); skipped"
        )
    if without:
        said.append(f"{without:,} of {counted(len(inputs), 'input')} without {what}: {means}")
    return said


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


Made = TypeVar("Made")


def read_each(
    files: Matched, digest: Digest, faults: Faults, parse: Callable[[int, bytes], Made]
) -> Iterator[tuple[int, Made | None]]:
    """Yield the input of each file, in their order, with what `parse` makes of its bytes: None for
    one that is wrong, which becomes a fault of its input. `parse` raises ValueError."""
    fetch_all(files.values())
    for row, file in sorted(files.items()):
        made = None
        try:
            data = read_small(file, LARGEST)
            digest.add(str(row), data)
            made = parse(row, data)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            faults[row] = fault(f"{printable(file)}: {reason}")
        yield row, made


def read_objects(
    writer: ObjectsWriter,
    rows: Iterable[int],
    files: Matched,
    digest: Digest,
    parse: Callable[[int, bytes], tuple[Marked, Size | None]],
    parse_all: Callable[[list[bytes]], tuple[Marked, None, list[int]] | None] = lambda _: None,
) -> Faults:
    """Write the objects of some inputs, none for one without a file; return what is wrong with
    files. `parse` returns the objects of an image and its size, if the file says it; `parse_all`
    what the writer takes for some files together, which is quicker, None if it cannot."""
    faults = Faults()
    read = read_each(files, digest, faults, lambda _, data: data)
    each = ((row, next(read)[1] if row in files else None) for row in rows)
    for part in together(each, lambda one: LEAST + len(one[1] or b""), MOST_BYTES):
        if all_made := parse_all([data or b"" for _, data in part]):
            writer.add(*all_made)
            continue
        for row, data in part:
            made = None
            try:
                made = None if data is None else parse(row, data)
            except ValueError as error:
                faults[row] = fault(f"{printable(files[row])}: {error}")
            writer.add(*(made or ({"category": [], "bbox": []}, None)))
    return dict(sorted(faults.items()))
