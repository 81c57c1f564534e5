"""Files that look like annotations or labels of the inputs, and that nothing uses: what `--labels` would take them.

Only the beginnings of a few files are read: this is for a warning before the work begins, and there may be millions.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.annotations.inputs import stem
from shardctl.annotations.yolo import NAMES, OVERSHOOT, YAML
from shardctl.errors import Rejection
from shardctl.sources.brought import begin_of
from shardctl.sources.labels import FILE_COLUMNS, hash_names
from shardctl.sources.walk import FoundFile
from shardctl.spread import spread
from shardctl.stand_ins import source_of
from shardctl.storage import printable

SUFFIXES = frozenset((".json", ".txt", ".xml", ".csv", ".tsv", ".jsonl", *YAML))
"""The endings of files that may be annotations or labels."""

MOST_PLACES = 32
"""Folders right below a source, for each ending, whose files are looked at."""

EACH = 4
"""Files that are looked at in each of them, and images of each folder."""

BEGIN_BYTES = 64 << 10
"""How much of a file is read."""

MOST_FOLDERS = 64
"""With images in more folders than this, these are classes: none is looked at for masks."""

MOST_ROWS = 100
"""Rows of a table that are looked at."""

_IMAGES = tuple(
    suffix for each in (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff") for suffix in (each, each.upper())
)


@dataclass
class Unused:
    """Takes files that are no inputs, and keeps a few of each place and ending."""

    _places: dict[tuple[int, str, str], list[FoundFile]] = field(default_factory=dict)

    def add(self, file: FoundFile) -> None:
        """Keep a file if it is one of the first of its place. There may be one for each of millions of images."""
        if file.suffix not in SUFFIXES or file.fault is not None:
            return
        place = (file.root, file.path.partition("/")[0] if "/" in file.path else "", file.suffix)
        kept = self._places.get(place)
        if kept is None:
            if len(self._places) < MOST_PLACES:
                self._places[place] = [file]
        elif len(kept) < EACH:
            kept.append(file)

    @property
    def places(self) -> list[list[FoundFile]]:
        """The files that were kept, those of one place and ending together."""
        return list(self._places.values())


@dataclass(frozen=True)
class Images:
    """The inputs: `roots` are the sources, `folders` those that have images. `table` has the `path`, the `root` and the `group`
    of each image, its place in `folders`; `hashes` are those of the paths, (n,) uint64."""

    roots: Sequence[Path]
    folders: Sequence[str]
    table: pa.Table
    hashes: npt.NDArray[np.uint64]

    def are_there(self, paths: Sequence[str]) -> list[bool]:
        """Return of each path whether an input has it."""
        return [bool(found) for found in np.isin(hash_names(paths), self.hashes)] if paths else []

    def folder_of(self, name: str, folder: str) -> str | None:
        """Return the folder of an image that is called so, with an ending or without; `folder` if it has one, None for none."""
        folders = list(dict.fromkeys([folder, *self.folders[:MOST_FOLDERS]]))
        names = [name, *(f"{name}{suffix}" for suffix in _IMAGES)]
        there = self.are_there([_joined(each, one) for each in folders for one in names])
        return next((folders[place // len(names)] for place, found in enumerate(there) if found), None)

    def some_of(self, group: int) -> list[Path]:
        """Return where a few images of a folder can be opened."""
        rows = np.flatnonzero(self.table["group"].to_numpy() == group)
        some = self.table.select(["root", "path"]).take(pa.array(rows[spread(len(rows), EACH)])).to_pylist()
        return [self.roots[row["root"]] / row["path"] for row in some]


def warnings_of_unused(unused: Unused, images: Images) -> list[str]:
    """Say which files look like annotations or labels of the images, and the option that takes them."""
    found: dict[str, str] = {}
    for folder, of in _folders_of_masks(images):
        found[f"masks {folder}"] = (
            f"{_shown(folder)} looks like masks of the images in {_shown(of)}, and each of them becomes a sample of its own; to"
            f" keep them with their images: {_option('masks:', folder)}"
        )
    for files in unused.places:
        for kind, sentence in _looked_at(files, images):
            found.setdefault(kind, sentence)
    has_yaml = any(kind.startswith(_YAML) for kind in found)
    return [sentence for kind, sentence in found.items() if not (has_yaml and kind.startswith("yolo "))]


@dataclass(frozen=True)
class _Seen:
    """A file that nothing uses, what it begins with, the others that were kept of its place, and the images."""

    begin: bytes
    file: FoundFile
    files: Sequence[FoundFile]
    images: Images

    @property
    def is_whole(self) -> bool:
        """Whether the beginning is all of the file."""
        return self.file.size <= len(self.begin)

    def names_image(self, name: str) -> str | None:
        """Return the folder of the image that is called so, with an ending or without, None for none."""
        return self.images.folder_of(name, self.file.folder)


_Look = tuple[str, str]
"""A name for what should be said once, and the sentence."""


def _looked_at(files: Sequence[FoundFile], images: Images) -> Iterator[_Look]:
    """Yield what the files of one place look like."""
    for file in files:
        seen = _Seen(_begin(file), file, files, images)
        found = _LOOKS[file.suffix](seen) if seen.begin else None
        if found is not None:
            yield found
            if file.suffix in (".txt", ".xml"):
                return


def _look(of: str, path: str, what: str, form: str) -> _Look:
    return f"{of} {path}", f"{_shown(path)} {what}, and nothing uses it: {_option(form, path)}"


def _as_coco(seen: _Seen) -> _Look | None:
    """Tell a COCO file by the first objects of its lists: files have up to gigabytes."""
    if not seen.begin.lstrip().startswith(b"{"):
        return None
    has_images = _OF_IMAGES.search(seen.begin) is not None
    has_annotations = _OF_ANNOTATIONS.search(seen.begin) is not None
    if not (has_images and has_annotations if seen.is_whole else has_images or has_annotations):
        return None
    return _look("coco", seen.file.opened, "looks like COCO annotations", "coco:")


_OF_IMAGES = re.compile(rb'"images"\s*:\s*\[\s*\{[^}]*"file_name"\s*:')
_OF_ANNOTATIONS = re.compile(rb'"annotations"\s*:\s*\[\s*\{[^}]*"(image_id|category_id)"\s*:')


def _as_lines(seen: _Seen) -> _Look | None:
    """Tell the labels of YOLO, and captions of images."""
    name = seen.file.path.rpartition("/")[2]
    folder = None if name in NAMES else seen.names_image(stem(name))
    rows = [line.split() for line in seen.begin.split(b"\n")[: MOST_ROWS if seen.is_whole else -1] if line.strip()]
    if folder is None or not rows:
        return None
    place = _common(seen.files)
    if all(map(_is_yolo, rows)):
        return _look("yolo", place, "has what looks like YOLO labels", "yolo:")
    numbers = sum(_number(word) is not None for row in rows for word in row)
    if b"\0" in seen.begin or 2 * numbers > sum(map(len, rows)):
        return None
    if folder != seen.file.folder:
        return _look("captions", place, "has what looks like captions of images", "captions:")
    return "captions", f"{_shown(seen.file.opened)} looks like the caption of an image, and nothing uses it: --labels captions:"


def _is_yolo(row: Sequence[bytes]) -> bool:
    """Return whether a line has the number of a class, and shares of a size."""
    shares = list(map(_number, row[1:]))
    return (
        len(row) >= 5
        and row[0].isdigit()
        and all(share is not None and -OVERSHOOT <= share <= 1 + OVERSHOOT for share in shares[:4])
    )


def _number(word: bytes) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _as_voc(seen: _Seen) -> _Look | None:
    if b"<annotation" not in seen.begin or not (b"<object" in seen.begin or b"<filename" in seen.begin):
        return None
    return _look("voc", _common(seen.files), "has what looks like VOC annotations", "voc:")


def _as_yaml(seen: _Seen) -> _Look | None:
    """Tell the data.yaml of YOLO: it has the names of the classes, which the labels have not."""
    if not (_OF_NAMES.search(seen.begin) and _OF_SPLITS.search(seen.begin)):
        return None
    return _look(_YAML, seen.file.opened, "looks like the data.yaml of YOLO labels", "yolo:")


_YAML = "data.yaml"
_OF_NAMES, _OF_SPLITS = re.compile(rb"^names\s*:", re.MULTILINE), re.compile(rb"^(train|val|path)\s*:", re.MULTILINE)


def _as_table(seen: _Seen) -> _Look | None:
    """Tell a table with names of inputs in a column."""
    rows = list(islice(_rows(seen), MOST_ROWS))
    for column in dict.fromkeys([*FILE_COLUMNS, *(rows[0] if rows else ())]):
        names = [row[column] for row in rows if isinstance(row.get(column), str) and row[column]]
        folder = seen.names_image(names[0]) if names else None
        if folder is None:
            continue
        changes = []
        if column not in FILE_COLUMNS:
            changes.append(f"call this column {FILE_COLUMNS[0]}")
        if folder != seen.file.folder or not names[0].endswith(_IMAGES):
            changes.append(f"give the paths of the images from its folder on, as in {printable(_joined(folder, 'NAME.jpg'))}")
        if len(set(names)) < len(names):
            changes.append("give one row for each image")
        first = f"{'; '.join(changes)}; then " if changes else ""
        what = f"{_shown(seen.file.opened)} names images in its column {printable(column)}, and nothing uses it"
        return seen.file.opened, f"{what}: {first}{_option('', seen.file.opened)}"
    return None


def _rows(seen: _Seen) -> Iterator[dict[str, Any]]:
    """Yield the first rows of a table, but for one that may be cut."""
    text = seen.begin.decode("utf-8-sig", "replace")
    text = text if seen.is_whole else text[: text.rfind("\n") + 1]
    try:
        if seen.file.suffix == ".jsonl":
            records: Iterable[Any] = map(json.loads, text.splitlines())
        else:
            records = csv.DictReader(io.StringIO(text), delimiter="\t" if seen.file.suffix == ".tsv" else ",")
        yield from (record for record in records if isinstance(record, dict))
    except (ValueError, RecursionError, csv.Error):
        return


_LOOKS: dict[str, Callable[[_Seen], _Look | None]] = {
    ".json": _as_coco,
    ".txt": _as_lines,
    ".xml": _as_voc,
    **dict.fromkeys((".csv", ".tsv", ".jsonl"), _as_table),
    **dict.fromkeys(YAML, _as_yaml),
}


def _folders_of_masks(images: Images) -> Iterator[tuple[str, str]]:
    """Yield folders with a PNG of one channel for each image of another folder, which has other images; and that folder."""
    if not 2 <= len(images.folders) <= MOST_FOLDERS:
        return
    some = [images.some_of(group) for group in range(len(images.folders))]
    plain = [all(map(_has_one_channel, paths)) for paths in some]
    for folder, paths, are_plain in zip(images.folders, some, plain, strict=True):
        for beside in (other for other, others in zip(images.folders, plain, strict=True) if are_plain and not others):
            names = [_joined(beside, path.stem) for path in paths]
            there = images.are_there([f"{name}{suffix}" for name in names for suffix in _IMAGES])
            if all(any(there[at : at + len(_IMAGES)]) for at in range(0, len(there), len(_IMAGES))):
                mask, image = _where_they_part(folder, beside)
                root = str(paths[0])[: -len(_joined(folder, paths[0].name))]
                if mask:
                    yield root + mask, root + image
                break


def _where_they_part(folder: str, other: str) -> tuple[str, str]:
    """Return two folders down to the first part in which they differ: masks/train and images/train give masks and images."""
    one, two = folder.split("/"), other.split("/")
    place = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return "/".join(one[: place + 1]), "/".join(two[: place + 1])


def _has_one_channel(path: Path) -> bool:
    """Return whether a file is a PNG of grey or of palette numbers, without transparency."""
    try:
        begin = begin_of(str(path), 26)
    except (OSError, Rejection):
        return False
    return begin.startswith(b"\x89PNG\r\n") and begin[25:26] in (b"\0", b"\3")


def _begin(file: FoundFile) -> bytes:
    try:
        return begin_of(file.opened, BEGIN_BYTES)[:BEGIN_BYTES]
    except (OSError, Rejection):
        return b""


def _common(files: Sequence[FoundFile]) -> str:
    """Return the folder that all of these are in, or below."""
    return os.path.commonpath([os.path.dirname(file.opened) for file in files])  # noqa: PTH120


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _shown(path: str) -> str:
    return printable(source_of(path))


def _option(form: str, path: str) -> str:
    """Return the option as it is typed in a shell."""
    return f"--labels {shlex.quote(form + printable(source_of(path)))}" if path else f"--labels {form}"
