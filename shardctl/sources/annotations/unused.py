"""Files that look like annotations or labels of the inputs, and that nothing uses: what `--labels` would take them.

Only the beginnings of a few files are read: this is for a warning before the work begins, and there may be millions.
"""

from __future__ import annotations

import csv
import heapq
import io
import json
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import islice
from typing import Any

from shardctl.errors import Rejection
from shardctl.sources.annotations.inputs import stem
from shardctl.sources.annotations.listed import SUFFIXES as OF_IMAGES
from shardctl.sources.annotations.listed import Images, joined
from shardctl.sources.annotations.unused_masks import Found, look_for_masks
from shardctl.sources.annotations.yolo import NAMES, OVERSHOOT, YAML
from shardctl.sources.files import begin_of, stretch_of
from shardctl.sources.label_table import FILE_COLUMNS, LIKE_LABELS
from shardctl.sources.walk import FoundFile
from shardctl.system.dataclass import dataclass
from shardctl.system.locations.text import common, parent_of
from shardctl.system.text import printable

TABLES = (".csv", ".tsv", ".jsonl")
ONE_EACH = frozenset((".txt", ".xml"))
"""Of these, a format has a file for each image: some of them tell what all are."""

SUFFIXES = frozenset((".json", ".json.gz", *ONE_EACH, *TABLES, *YAML))
"""The endings of files that may be annotations or labels."""

MOST_PLACES = 32
"""Folders right below a source, for each ending, whose files are looked at."""

KEPT = 16
"""Files that are kept in each of them."""

EACH = 4
"""Files that are read in each of them."""

MOST_NAMES = 10_000
"""Files whose names are looked at: where there are more, each image has one, and only larger ones tell more."""

BEGIN_BYTES = 64 << 10
"""How much of a file is read, and of a large JSON file once more from its end."""

MOST_ROWS = 100
"""Rows of a table that are looked at."""

MOST_COLUMNS = 32
"""Columns of a table that are looked at."""

_TELLING = re.compile(r"coco|instance|annot|label|caption|keypoint|metadata|via_", re.IGNORECASE)
"""What names of annotations have."""


@dataclass
class Unused:
    """Takes files that are no inputs, and keeps a few of each place and ending: those most like annotations."""

    _places: dict[tuple[int, str, str], list[tuple[bool, int, int, FoundFile]]] = field(default_factory=dict)
    _count: int = 0

    def add(self, file: FoundFile) -> None:
        """Keep a file if its name or its size tells more than those of its place. There may be one for each of millions of
        images: of these the first ones are kept. An empty file tells nothing."""
        suffix = file.suffix
        if suffix not in SUFFIXES or file.fault is not None or not file.size:
            return
        place = (file.root, file.path.partition("/")[0] if "/" in file.path else "", suffix)
        kept = self._places.get(place)
        if kept is None:
            if len(self._places) == MOST_PLACES:
                return
            kept = self._places[place] = []
        elif len(kept) == KEPT and (suffix in ONE_EACH or (self._count > MOST_NAMES and file.size <= kept[0][1])):
            return
        self._count += 1
        size, is_told = (0, False) if suffix in ONE_EACH else (file.size, _TELLING.search(file.path) is not None)
        keep = heapq.heappush if len(kept) < KEPT else heapq.heappushpop
        keep(kept, (is_told, size, -self._count, file))

    @property
    def places(self) -> list[list[FoundFile]]:
        """The files that were kept, those of one place and ending together, those that tell most first."""
        return [[file for *_, file in sorted(kept, reverse=True)] for kept in self._places.values()]


def warnings_of_unused(unused: Unused, images: Images) -> list[str]:
    """Say which files look like annotations or labels of the images, and the option that takes them."""
    masks = {f"masks {each.folder}": each for each in look_for_masks(images)}
    found = {kind: each.sentence for kind, each in masks.items()}
    for files in unused.places:
        for kind, sentence in _looked_at(files, images):
            found.setdefault(kind, f"{sentence}{_beside_masks(kind.partition(' ')[0], list(masks.values()))}")
    has_yaml = any(kind.startswith(_YAML) for kind in found)
    return [sentence for kind, sentence in found.items() if not (has_yaml and kind.startswith("yolo "))]


def _beside_masks(form: str, masks: Sequence[Found]) -> str:
    """Return what the option for annotations of a form needs where a name in them may be that of an image or of its mask."""
    alike = [each for each in masks if (each.have_same_stem if form in _BY_STEM else each.have_same_name)]
    if not alike or form not in (*_BY_STEM, "coco"):
        return ""
    if len(alike) == 1 and alike[0].option:
        return f" {alike[0].option}"
    return f" with {printable(alike[0].images)} as the source, as masks have the names of their images"


@dataclass(frozen=True)
class _UnusedFile:
    """A file that nothing uses, what it begins with, those like it that were kept of its place, and the images."""

    begin: bytes
    file: FoundFile
    files: Sequence[FoundFile]
    images: Images

    @property
    def is_whole(self) -> bool:
        """Whether the beginning is all of the file."""
        return self.file.size <= BEGIN_BYTES and not self.is_packed

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed, and the beginning is not."""
        return self.file.suffix.endswith(".gz")

    @cached_property
    def end(self) -> bytes:
        """The last bytes of a file that is not whole; nothing of a compressed one."""
        if self.is_whole or self.is_packed:
            return b""
        start = max(BEGIN_BYTES, self.file.size - BEGIN_BYTES)
        try:
            return stretch_of(self.file.opened, start, BEGIN_BYTES)
        except (OSError, Rejection):
            return b""

    def names_image(self, name: str) -> str | None:
        """Return the folder of the image that is called so, with an ending or without, None for none."""
        return self.images.folder_of(name, self.file.folder)


_Look = tuple[str, str]
"""A name for what should be said once, and the sentence."""


def _looked_at(files: Sequence[FoundFile], images: Images) -> Iterator[_Look]:
    """Yield what the files of one place look like."""
    if files[0].suffix == ".txt":  # those that are called as images tell more, and no more are read than of others
        named = [file for file in files if _names_image(file, images)]
        files = [*named, *(file for file in files if file not in named)]
    else:
        named = list(files)
    for file in files[:EACH]:
        unused = _UnusedFile(_begin(file), file, named if file in named else [file], images)
        found = _LOOKS[file.suffix](unused) if unused.begin else None
        if found is not None:
            yield found
            if file.suffix in ONE_EACH:
                return


def _names_image(file: FoundFile, images: Images) -> bool:
    name = file.path.rpartition("/")[2]
    return name not in NAMES and images.folder_of(stem(name), file.folder) is not None


def _look(of: str, path: str, what: str, form: str) -> _Look:
    return f"{of} {path}", f"{printable(path)} {what}, and nothing uses it: {_option(form, path)}"


def _of_other_tool(place: str, tool: str) -> _Look:
    what = "no --labels option reads this format; export it as COCO, YOLO or VOC"
    return f"{tool} {place}", f"{printable(place)} has what looks like {tool} annotations, and nothing uses it: {what}"


def _as_json(unused: _UnusedFile) -> _Look | None:
    text = unused.begin.lstrip(b" \t\r\n\xef\xbb\xbf")
    if text.startswith(b"{"):
        return _as_labelme(unused) or _as_via(unused) or _as_coco(unused) or _as_names(unused)
    return _as_table(unused) if text.startswith(b"[") else None


def _as_labelme(unused: _UnusedFile) -> _Look | None:
    """Tell the files of LabelMe, one for each image. The image itself may come before its name."""
    if b'"shapes"' not in unused.begin or not any(
        b'"imagePath"' in part or b'"imageHeight"' in part for part in _parts(unused)
    ):
        return None
    return _of_other_tool(_common(unused.files), "LabelMe")


def _as_via(unused: _UnusedFile) -> _Look | None:
    """Tell a project of the VGG Image Annotator, or what it exports."""
    is_export = b'"regions"' in unused.begin and re.search(rb'"(shape|file)_attributes"', unused.begin)
    if b'"_via_img_metadata"' not in unused.begin and not is_export:
        return None
    return _of_other_tool(unused.file.opened, "VIA")


def _as_coco(unused: _UnusedFile) -> _Look | None:
    """Tell a COCO file by the first objects of its lists, or by how it ends: files have up to gigabytes."""
    has_images = _OF_IMAGES.search(unused.begin) is not None or "file_name" in _first_of(b"images", unused.begin)
    first = _first_of(b"annotations", unused.begin)
    has_annotations = "image_id" in first and not _OF_OBJECTS.isdisjoint(first)
    if unused.is_whole:
        if not (has_images and has_annotations):
            return None
    elif not (has_images or has_annotations or _ends_as_coco(unused)):
        return None
    if not unused.is_packed:
        return _look("coco", unused.file.opened, "looks like COCO annotations", "coco:")
    path, option = unused.file.opened, _option("coco:", unused.file.opened.removesuffix(".gz"))
    return f"coco {path}", f"{printable(path)} looks like COCO annotations, and nothing uses it: unpack it; then {option}"


def _ends_as_coco(unused: _UnusedFile) -> bool:
    """Return whether the end has annotations, or images after annotations, which may begin with a long mask."""
    if b'"image_id"' in unused.end and any(b'"%b"' % name.encode() in unused.end for name in _OF_OBJECTS):
        return True
    return b'"file_name"' in unused.end and _OF_ANNOTATIONS.search(unused.begin) is not None


_OF_IMAGES = re.compile(rb'"images"\s*:\s*\[\s*\{[^}]*"file_name"\s*:')
_OF_ANNOTATIONS = re.compile(rb'"annotations"\s*:\s*\[\s*\{')
_OF_OBJECTS = frozenset(("category_id", "caption"))


def _first_of(name: bytes, text: bytes) -> dict[str, Any]:
    """Return the first object of a list of this name, nothing where it is cut or there is none."""
    begin = re.search(rb'"%b"\s*:\s*\[\s*' % name, text)
    try:
        found, _ = json.JSONDecoder().raw_decode(text[begin.end() :].decode("utf-8", "replace")) if begin else ({}, 0)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _as_names(unused: _UnusedFile) -> _Look | None:
    """Tell an object whose names are those of images."""
    first = _FIRST_NAME.match(unused.begin)
    name = first[1].decode("utf-8", "replace") if first else ""
    return _of_names(unused, [name], dict(_pairs(unused))) if name.endswith(OF_IMAGES) else None


_FIRST_NAME = re.compile(rb'\s*\{\s*"([^"\\]+)"\s*:')


def _pairs(unused: _UnusedFile) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a JSON object, but for those that are cut."""
    text, decoder = unused.begin.decode("utf-8-sig", "replace"), json.JSONDecoder()
    place = text.find("{") + 1
    try:
        while name := _NAME.match(text, place):
            value, place = decoder.raw_decode(text, name.end())
            yield name[1], value
    except (ValueError, RecursionError):
        return


_NAME = re.compile(r'[\s,]*"([^"\\]+)"\s*:\s*')


def _of_names(unused: _UnusedFile, names: Sequence[str], entries: Mapping[str, Any]) -> _Look | None:
    """Return what is said of a list that nearly all begin with the name of an image, with its ending.

    `names` are the first ones, `entries` is what the list has for each name as far as it was read.
    """
    there = [name for name in names if name.endswith(OF_IMAGES) and unused.names_image(name) is not None]
    if (
        not there
        or 2 * len(there) < len(names)
        or (unused.images.have_class_folders and not _are_labels(list(entries.values())))
    ):
        return None
    path, folder = unused.file.opened, unused.names_image(there[0]) or ""
    option = f"{_option('', f'{stem(path)}.csv')}{_lenient(unused, folder, entries)}"
    what = f"write it as a CSV file with the columns {FILE_COLUMNS[0]} and label; then {option}"
    return path, f"{printable(path)} names images, and nothing uses it: {what}"


def _are_labels(values: Sequence[Any]) -> bool:
    """Return whether what a list says of its images may be labels, which repeat, or captions. Sizes and checksums are neither:
    sizes repeat too, but numbers of classes are small. A list of numbers is a size or a box without a class."""
    inner = [each for value in values for each in (value if isinstance(value, list) else [value])]
    if any(isinstance(each, dict) for each in inner):
        return _are_of_labels(name for each in inner if isinstance(each, dict) for name in each)
    words = [str(each) for value in values for each in (_texts_of(value) if isinstance(value, list) else [value])]
    captions = sum(sum(map(str.isalpha, each.split())) > 2 for each in words)
    numbers = [number for each in words if (number := _number(each)) is not None]
    do_repeat = 1 < len(set(words)) <= len(words) / 2
    return (do_repeat and all(abs(number) < len(words) for number in numbers)) or 2 * captions > len(words) > 0


def _texts_of(values: Sequence[Any]) -> list[str]:
    return [each for each in values if isinstance(each, str)]


def _are_of_labels(columns: Iterable[Any]) -> bool:
    """Return whether the name of a column is one for labels, captions or objects."""
    return any(
        column.lower() in LIKE_LABELS or not _OF_LABELS.isdisjoint(map(str.lower, _WORDS.findall(column)))
        for column in columns
        if isinstance(column, str)
    )


_OF_LABELS = frozenset(
    (
        "label",
        "labels",
        "class",
        "classes",
        "classname",
        "category",
        "categories",
        "target",
        "targets",
        "tag",
        "tags",
        "species",
        "breed",
        "attribute",
        "attributes",
        "caption",
        "captions",
        "text",
        "texts",
        "description",
        "descriptions",
        "prompt",
        "prompts",
        "sentence",
        "sentences",
        "comment",
        "comments",
        "object",
        "objects",
        "bbox",
        "bboxes",
        "box",
        "boxes",
        "xmin",
        "ymin",
        "keypoints",
        "polygon",
        "polygons",
        "segmentation",
        "annotation",
        "annotations",
    )
)


def _lenient(unused: _UnusedFile, folder: str, names: Iterable[str]) -> str:
    """Return the option that a file needs if it was read as a whole, and has no row for an image, or one for none."""
    if not unused.is_whole:
        return ""
    paths = [joined(folder, name) for name in dict.fromkeys(names)]
    whole = [path for path in paths if path.endswith(OF_IMAGES)]
    there = unused.images.are_there(whole) + unused.images.are_images([path for path in paths if not path.endswith(OF_IMAGES)])
    return "" if all(there) and len(paths) >= len(unused.images.hashes) else " --lenient-labels"


def _parts(unused: _UnusedFile) -> Iterator[bytes]:
    yield unused.begin
    yield unused.end


def _as_lines(unused: _UnusedFile) -> _Look | None:
    """Tell the labels of YOLO, captions of images, and a list of images with their labels."""
    rows = [line.split() for line in unused.begin.split(b"\n")[: MOST_ROWS if unused.is_whole else -1] if line.strip()]
    if not rows:
        return None
    if not _names_image(unused.file, unused.images):
        if not all(len(row) > 1 for row in rows[:EACH]):
            return None
        entries = dict(_names_in_lines(unused))
        return _of_names(unused, list(entries)[:EACH], entries)
    folder = unused.names_image(stem(unused.file.path.rpartition("/")[2]))
    place = _common(unused.files)
    if all(map(_is_yolo, rows)):
        return _look("yolo", place, "has what looks like YOLO labels", "yolo:")
    numbers = sum(_number(word) is not None for row in rows for word in row)
    if b"\0" in unused.begin or 2 * numbers > sum(map(len, rows)):
        return None
    if folder != unused.file.folder:
        return _look("captions", place, "has what looks like captions of images", "captions:")
    return (
        "captions",
        f"{printable(unused.file.opened)} looks like the caption of an image, and nothing uses it: --labels captions:",
    )


def _is_yolo(row: Sequence[bytes]) -> bool:
    """Return whether a line has the number of a class, and shares of a size."""
    shares = list(map(_number, row[1:]))
    return (
        len(row) >= 5
        and row[0].isdigit()
        and all(share is not None and -OVERSHOOT <= share <= 1 + OVERSHOOT for share in shares[:4])
    )


def _names_in_lines(unused: _UnusedFile) -> Iterator[tuple[str, str]]:
    """Yield the first word of each line and the rest of it."""
    for line in unused.begin.decode("utf-8", "replace").split("\n")[: None if unused.is_whole else -1]:
        name, *rest = line.split(maxsplit=1) or [""]
        if name:
            yield name.rstrip(","), "".join(rest).strip()


def _number(word: bytes | str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _as_xml(unused: _UnusedFile) -> _Look | None:
    if b"<annotations" in unused.begin and _OF_CVAT.search(unused.begin):
        return _of_other_tool(unused.file.opened, "CVAT")
    if b"<annotation" not in unused.begin or not (b"<object" in unused.begin or b"<filename" in unused.begin):
        return None
    return _look("voc", _common(unused.files), "has what looks like VOC annotations", "voc:")


_OF_CVAT = re.compile(rb"<(image|track)\s[^>]*(name|label)=")


def _as_yaml(unused: _UnusedFile) -> _Look | None:
    """Tell the data.yaml of YOLO: it has the names of the classes, which the labels have not."""
    if not (_OF_NAMES.search(unused.begin) and _OF_SPLITS.search(unused.begin)):
        return None
    return _look(_YAML, unused.file.opened, "looks like the data.yaml of YOLO labels", "yolo:")


_YAML = "data.yaml"
_BY_STEM = ("yolo", "voc", _YAML)
"""Annotations that name images without their endings."""

_OF_NAMES, _OF_SPLITS = re.compile(rb"^names\s*:", re.MULTILINE), re.compile(rb"^(train|val|path)\s*:", re.MULTILINE)


def _as_table(unused: _UnusedFile) -> _Look | None:
    """Tell a table with names of inputs in a column."""
    rows = list(islice(_rows(unused), MOST_ROWS))
    for column in dict.fromkeys([*FILE_COLUMNS, *islice(rows[0] if rows else (), MOST_COLUMNS)]):
        names = [row[column] for row in rows if _is_text(row.get(column))] if _is_text(column) else []
        folder = _folder_named_by(names, column, unused)
        if folder is None:
            continue
        if unused.images.have_class_folders and not _are_of_labels(each for row in rows for each in row if each != column):
            return None
        changes = ["write it as JSON lines"] if unused.file.suffix == ".json" else []
        if column not in FILE_COLUMNS:
            changes.append(f"call this column {FILE_COLUMNS[0]}")
        if folder != unused.file.folder or not names[0].endswith(OF_IMAGES):
            changes.append(f"give the paths of the images from its folder on, as in {printable(joined(folder, 'NAME.jpg'))}")
        if len(set(names)) < len(names):
            changes.append("give one row for each image")
        first = f"{'; '.join(changes)}; then " if changes else ""
        what = f"{printable(unused.file.opened)} names images in its column {printable(column)}, and nothing uses it"
        written = f"{unused.file.opened}l" if unused.file.suffix == ".json" else unused.file.opened
        every = [row[column] for row in _rows(unused) if _is_text(row.get(column))]
        return unused.file.opened, f"{what}: {first}{_option('', written)}{_lenient(unused, folder, every)}"
    return None


def _is_text(value: Any) -> bool:
    """Return whether a value is text of at least one character. JSON may have halves of surrogate pairs, which no file name
    has."""
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


def _folder_named_by(names: Sequence[str], column: str, unused: _UnusedFile) -> str | None:
    """Return the folder of the images that a column names, None if it names none.

    Names without an ending may be other things, most of all where they are numbers: half of them must be those of images.
    """
    folder = unused.names_image(names[0]) if names and len(names[0]) <= MOST_CHARACTERS else None
    if folder is None or names[0].endswith(OF_IMAGES):
        return folder
    is_of_names = column in FILE_COLUMNS or not _OF_NAMES_OF_FILES.isdisjoint(map(str.lower, _WORDS.findall(column)))
    if not is_of_names and (names[0].isdecimal() or len(set(names)) < len(names)):
        return None
    there = unused.images.are_images([joined(folder, name) for name in names])
    return folder if 2 * sum(there) >= len(names) else None


MOST_CHARACTERS = 4096
"""Of a name in a table: longer ones are texts."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_OF_NAMES_OF_FILES = frozenset(("id", "ids", "uid", "image", "img", "file", "filename", "name", "path", "photo", "picture"))


def _rows(unused: _UnusedFile) -> Iterator[dict[str, Any]]:
    """Yield the first rows of a table, but for one that may be cut."""
    text = unused.begin.decode("utf-8-sig", "replace")
    text = text if unused.is_whole or unused.file.suffix == ".json" else text[: text.rfind("\n") + 1]
    try:
        if unused.file.suffix == ".jsonl":
            records: Iterable[Any] = map(json.loads, text.splitlines())
        elif unused.file.suffix == ".json":
            records = _items(text)
        else:
            records = csv.DictReader(io.StringIO(text), delimiter="\t" if unused.file.suffix == ".tsv" else ",")
        yield from (record for record in records if isinstance(record, dict))
    except (ValueError, RecursionError, csv.Error):
        return


def _items(text: str) -> Iterator[Any]:
    """Yield the items of a JSON list, but for one that is cut. Raises ValueError there."""
    place, decoder = text.find("[") + 1, json.JSONDecoder()
    while place < len(text):
        item, end = decoder.raw_decode(text, _SPACE.match(text, place).end())  # type: ignore[union-attr]  # it matches all
        yield item
        place = end


_SPACE = re.compile(r"[\s,]*")


_LOOKS: dict[str, Callable[[_UnusedFile], _Look | None]] = {
    ".json": _as_json,
    ".json.gz": _as_json,
    ".txt": _as_lines,
    ".xml": _as_xml,
    **dict.fromkeys(TABLES, _as_table),
    **dict.fromkeys(YAML, _as_yaml),
}


def _begin(file: FoundFile) -> bytes:
    try:
        begin = begin_of(file.opened, BEGIN_BYTES)[:BEGIN_BYTES]
        return zlib.decompressobj(_GZIP).decompress(begin, BEGIN_BYTES) if file.suffix.endswith(".gz") else begin
    except (OSError, Rejection, zlib.error):
        return b""


_GZIP = 31
"""What zlib calls a file of gzip."""


def _common(files: Sequence[FoundFile]) -> str:
    """Return the folder that all of these are in, or below."""
    return common([parent_of(file.opened) for file in files])


def _option(form: str, path: str) -> str:
    """Return the option as it is typed in a shell."""
    return f"--labels {shlex.quote(form + printable(path))}" if path else f"--labels {form}"
