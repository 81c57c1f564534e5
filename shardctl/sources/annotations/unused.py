"""Files beside images that say something of them, and that nothing uses.

What `--labels` would take is told in a warning before the work begins: four rules tell it, by names
and by the beginnings of a few files. Records of images that have more than columns (conversations,
lists of images) are refused: no option reads them, and an image dataset without what they say would
be a loss that nobody sees.
"""

from __future__ import annotations

import json
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Hashes, hash_column, hash_names
from shardctl.sources.annotations.inputs import NAMES, YAML, stem
from shardctl.sources.files import SourceRoot, begin_of, local_copy, stretch_of
from shardctl.sources.splits import named_as_splits
from shardctl.sources.walk import FoundFile
from shardctl.system.locations import common, follow, join, name_of, parent_of, path_below
from shardctl.system.text import printable

ONE_EACH = (".txt", ".xml")
TABLES, PARQUET = (".csv", ".tsv", ".jsonl"), ".parquet"
SUFFIXES = frozenset((".json", ".json.gz", PARQUET, *TABLES, *ONE_EACH, *YAML))

MOST_PLACES = 32
"""Folders right below a source, for each ending, whose files are looked at."""

KEPT = 8
"""The first files of each of them are looked at."""

BEGIN_BYTES = 64 << 10

MOST_FOLDERS = 64
"""Folders of images in which a name is looked for."""

OF_IMAGES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".webp", ".bmp", ".tif", ".tiff")
"""How names of images end, which are looked for in texts."""

_WORDS = re.compile(r"[\s\"',;|=#<>]+")
_OF_LABELS = re.compile(
    rb"(?i)\b(labels?|class(es)?|categor(y|ies)|captions?|text|target|species|breed|bbox|objects?|xmin)\b"
)
_OF_MASKS = frozenset(
    ("masks", "labels", "annotations", "segmentations", "SegmentationClass", "gtFine")
)


@dataclass
class Unused:
    """Takes files that are no inputs, and keeps the first ones of each place and ending. An empty
    file tells nothing."""

    places: dict[tuple[int, str, str], list[FoundFile]] = field(default_factory=dict)

    def add(self, file: FoundFile) -> None:
        """Keep a file if it is among the first ones of its place."""
        if file.suffix in SUFFIXES and file.fault is None and file.size and file.name not in NAMES:
            place = (file.root, file.folder.partition("/")[0], file.suffix)
            if place in self.places or len(self.places) < MOST_PLACES:
                kept = self.places.setdefault(place, [])
                if len(kept) < KEPT:
                    kept.append(file)


@dataclass(frozen=True)
class Images:
    """The inputs: `table` has the `path` and the `root` of each image, `firsts` the row of the first
    image of each folder."""

    roots: Sequence[SourceRoot]
    firsts: dict[str, int]
    table: pa.Table

    @property
    def folders(self) -> list[str]:
        """The folders that have images."""
        return list(self.firsts)

    @cached_property
    def _sorted(self) -> Hashes:
        return np.sort(hash_column(self.table["path"]))

    @cached_property
    def have_classes(self) -> bool:
        """Whether the folders give the images their classes, as `--labels auto` does where there
        are no other labels."""
        names = sorted({*map(name_of, self.firsts)} - {""})
        return len(names) > 1 and len(named_as_splits(names)) < len(names)

    def have(self, name: str, folders: Sequence[str], endings: Sequence[str] = ("",)) -> bool:
        """Return whether an image is called so in one of some folders."""
        names = [f"{folder}/{name}{ending}".lstrip("/") for folder in folders for ending in endings]
        wanted = hash_names(names)
        places = np.searchsorted(self._sorted, wanted)
        return bool((self._sorted[np.minimum(places, len(self._sorted) - 1)] == wanted).any())


def warnings_of_unused(unused: Unused, images: Images) -> list[str]:
    """Say which files look like annotations or labels of the images, and the option that takes
    them."""
    found = dict(each for files in unused.places.values() for each in _looked_at(files, images))
    if any(option.endswith(YAML) for option in found):  # it names the folders of its labels
        found = {
            option: said
            for option, said in found.items()
            if option.endswith(YAML) or not option.startswith("yolo:")
        }
    return [*found.values(), *_said_of_masks(images)]


def _looked_at(files: Sequence[FoundFile], images: Images) -> Iterator[tuple[str, str]]:
    """Yield the options for the files of one place, each with a sentence."""
    suffix, folders = files[0].suffix, ["", *images.folders[:MOST_FOLDERS]]
    named = [
        file
        for file in files
        if suffix in ONE_EACH and images.have(stem(file.name), [file.folder, *folders], OF_IMAGES)
    ]
    begin = _ends_of(named[0]) if named else b""
    for form, ending, pattern, what in _EACH:
        if ending == suffix and begin and pattern.match(begin):
            yield _said(common([parent_of(file.opened) for file in named]), form, what)
            return
    for file in files if suffix != PARQUET else ():
        ends = _ends_of(file)
        form, what = "", ""
        if suffix in YAML:
            if _OF_YOLO.search(ends):
                form, what = "yolo:", "looks like the data.yaml of YOLO labels"
        elif suffix == ".json" and _OF_COCO.search(ends) and _MEMBERS_OF_COCO.search(ends):
            form, what = "coco:", "looks like COCO annotations"
        elif not images.have_classes or _OF_LABELS.search(ends):
            words = _WORDS.split(ends.decode("utf-8", "replace"))
            name = next((word for word in words if word.endswith(OF_IMAGES)), "")
            if name and images.have(name.removeprefix("./"), [file.folder, *folders]):
                what = "names images"
        if what == "names images" and suffix not in TABLES:  # there may be one for each image
            yield file.opened, f"{printable(file.opened)} {what}{_TO_WRITE}"
            return
        if what:
            yield _said(file.opened, form, what)


_EACH = (
    ("voc:", ".xml", re.compile(rb"(?s).*<annotation\b"), "has what looks like VOC annotations"),
    ("yolo:", ".txt", re.compile(rb"\d+( -?[\d.]+){4}"), "has what looks like YOLO labels"),
    ("captions:", ".txt", re.compile(rb"\D{12}"), "has what looks like captions of images"),
)
"""The formats with a file for each image: its ending, how it begins, and what is said of it."""

_TO_WRITE = ", and nothing uses it: write it as COCO, or CSV with file_name and label"
_OF_YOLO = re.compile(rb"(?ms)(?=.*^names\s*:).*^(train|val|path)\s*:")
_OF_COCO = re.compile(rb'(?s)\A\s*\{.*("annotations"\s*:\s*\[\s*\{|"image_id")')
_MEMBERS_OF_COCO = re.compile(rb'"(category_id|caption)"|"categories"\s*:\s*\[')


def _said_of_masks(images: Images) -> Iterator[str]:
    """Yield what is said of folders that are called as those of masks, with the name of an image of
    another folder in each."""
    others = [each for each in images.folders if _OF_MASKS.isdisjoint(each.split("/"))]
    for folder, row in images.firsts.items() if others else ():
        parts = folder.split("/")
        place = next((place for place, part in enumerate(parts) if part in _OF_MASKS), None)
        if place is None:
            continue
        name = name_of(images.table["path"][row].as_py())
        if name.lower().endswith(".png") and images.have(
            stem(name), others[:MOST_FOLDERS], OF_IMAGES
        ):
            root = images.roots[images.table["root"][row].as_py()].text
            what = "looks like masks of other images, each of which becomes a sample"
            yield _said(join(root, "/".join(parts[: place + 1])), "masks:", what)[1]


def _said(path: str, form: str, what: str) -> tuple[str, str]:
    option, shown = f"{form}{path}", printable(path)
    return option, f"{shown} {what}, and nothing uses it: --labels {shlex.quote(printable(option))}"


def _ends_of(file: FoundFile) -> bytes:
    """Return the first bytes of a file, and the last ones of a larger one."""
    with suppress(OSError, Rejection):
        begin = begin_of(file.opened, BEGIN_BYTES)
        if file.size <= BEGIN_BYTES:
            return begin
        return begin + stretch_of(file.opened, file.size - BEGIN_BYTES, BEGIN_BYTES)
    return b""


# --- records in JSON or Parquet ---

RECORD_BYTES, MOST_RECORDS = 1 << 20, 100
"""How much of a file is looked at for records."""

LONGEST = 4096
"""Characters of a path, at most."""

_TAGS = re.compile(r"</?img>")
"""What some chats have around the name of an image within a text."""

_BETWEEN = re.compile(r"[\s,]*")

Named = tuple[tuple[str, ...], str]
"""A text in a record, or the part of one in a tag, and the names that lead to it: more than one if
it is in a list or an object of the record, or in a tag."""


def refuse_nested_records(files: Iterable[FoundFile], images: Images) -> None:
    """Raise InputError for a file of records that name inputs, where an image or an object is in a
    list of its record."""
    for file in files:
        records = list(_records(file))
        named = [
            each for record in records for each in _texts(record) if _is_input(each, file, images)
        ]
        # an id may be the name of its image without the ending
        named = list(filter(_has_ending, named)) or named
        nested = [each for each in named if len(each[0]) > 1]
        lists = (v for each in records for v in each.values() if isinstance(v, list))
        if nested or (named and any(isinstance(item, dict) for each in lists for item in each)):
            path, image = (nested or named)[0]
            home = parent_of(file.opened)
            inside = nested or path_below(follow(home, image), home)
            source = file.opened if inside else images.roots[file.root].text
            command = f"`shardctl convert {shlex.quote(printable(source))} DST"
            way = (
                f"images in lists or texts are not read, and {command}` converts the records "
                "without them"
                if nested
                else f"{command} --image-field {shlex.quote(printable(path[0]))}` makes a sample "
                "of each record, if its paths lead from its folder on"
            )
            place = printable(".".join(path).replace(".[]", "[]"))
            raise InputError(
                f"{printable(file.opened)}: its records name images of the source ({place}: "
                f"{printable(image)}), and nothing uses them; {way}; --labels none takes the "
                "images alone"
            )


def _records(file: FoundFile) -> Iterator[dict[str, Any]]:
    """Yield the first records of a table, an array of JSON, or of several objects, as far as they
    can be read."""
    found: list[Any] = []
    with suppress(pa.ArrowException, OSError, Rejection, zlib.error):
        if file.suffix == PARQUET:
            from pyarrow import parquet  # 40 ms to import, and few folders of images have tables

            with parquet.ParquetFile(local_copy(file.opened), pre_buffer=False) as table:
                texts = [f.name for f in table.schema_arrow if "binary" not in str(f.type)]
                rows = table.iter_batches(MOST_RECORDS, columns=texts)
                found = next(rows, pa.table({})).to_pylist()
        elif file.suffix in (".json", ".jsonl", ".json.gz"):
            data = begin_of(file.opened, RECORD_BYTES)
            if file.suffix.endswith(".gz"):
                data = zlib.decompressobj(31).decompress(data, RECORD_BYTES)
            text = data.decode("utf-8-sig", "replace").lstrip()
            found = list(islice(_values(text.removeprefix("[")), MOST_RECORDS))
            if text[:1] != "[" and len(found) == 1:  # one object is not a list of records
                return
    yield from (each for each in found if isinstance(each, dict))


def _values(text: str) -> Iterator[Any]:
    decoder, place = json.JSONDecoder(), 0
    with suppress(ValueError, RecursionError):
        while place < len(text):
            value, place = decoder.raw_decode(text, _BETWEEN.match(text, place).end())  # type: ignore[union-attr]  # it matches
            yield value


def _texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[Named]:
    if isinstance(value, str):
        first, *others = _TAGS.split(value)
        yield path, first
        yield from (((*path, "img"), each) for each in others)
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield from _texts(inner, (*path, name))
    for inner in value if isinstance(value, list) else ():
        yield from _texts(inner, (*path, "[]"))


def _is_input(named: Named, file: FoundFile, images: Images) -> bool:
    """Return whether a text is the path of an input, or ends with the name of one, whatever ending
    it has. An answer may be 2 beside 2.jpg: a text without an ending in a list or an object must
    have a folder."""
    path, text = named
    name = text.encode(errors="replace").decode().replace("\\", "/")
    is_whole = _has_ending(named)
    name = stem(name) if is_whole else name
    names = {name, name_of(name)} if is_whole or len(path) == 1 else {name} if "/" in name else ()
    folders = [file.folder, *images.folders[:MOST_FOLDERS]]
    return len(text) <= LONGEST and any(images.have(each, folders, OF_IMAGES) for each in names)


def _has_ending(named: Named) -> bool:
    return named[1].lower().endswith(OF_IMAGES)
