"""Pascal VOC: an XML file for each image."""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np

from shardctl.format.roles import Objects
from shardctl.sources.annotations.base import AnnotationRule, Annotations, Source, rows_of
from shardctl.sources.annotations.inputs import PathTable, lists_in, told_by_lists
from shardctl.sources.annotations.objects import (
    BEYOND,
    FLAGS,
    Marked,
    ObjectsWriter,
    Others,
    said_of_others_in,
)
from shardctl.sources.annotations.per_image import (
    LARGEST,
    Digest,
    Found,
    Matched,
    match_all,
    match_files,
    read_objects,
    said_of_others,
    walked,
)
from shardctl.sources.files import fetch_all, is_folder, read_small
from shardctl.sources.types import in_order
from shardctl.sources.walk import FoundFile
from shardctl.system.locations import beside, join, name_of, parent_of
from shardctl.system.text import composed, counted

ZERO_BASED = "zero-based"

ROOT = "annotation"
FILE_NAME = "annotation/filename"
SIZE = ("annotation/size/width", "annotation/size/height")
OBJECT = "annotation/object"
CORNERS = tuple(f"bndbox/{name}" for name in ("xmin", "ymin", "xmax", "ymax"))
TURNED = tuple(f"robndbox/{name}" for name in ("cx", "cy", "w", "h", "angle"))
SAID = {"0": False, "1": True}
"""What flags say; anything else has no place."""
KNOWN = ("name", "bndbox", "robndbox", *FLAGS)
PLACES = frozenset(("name", "bndbox", *CORNERS, *TURNED))
NOTHING = ("", "Unspecified")
"""Texts that say nothing: tools write the second as `pose` where nobody said it."""

_SETS = "ImageSets/Main"
"""Where lists of the images of each split are, beside the folder of the files."""


def read(
    sources: Sequence[Source], inputs: PathTable, rule: AnnotationRule, scratch: Path
) -> Annotations:
    """Read the files of all folders. One that is wrong rejects its image."""
    matched = Matched()
    lost: list[FoundFile] = []
    zero_based = {source.path for source in sources if (ZERO_BASED, "") in source.options}
    offsets: dict[int, int] = {}
    lists, places = list[str](), list[str]()
    for source in sources:
        within = join(source.path, "Annotations")
        folder = within if is_folder(within) else source.path
        found = walked(folder, (".xml",), "XML files")
        here, others = match_all(found, inputs, folder, "XML files", ".xml", _match)
        matched |= here
        lost += others
        sets = join(parent_of(folder), _SETS)
        lists += lists_in(sets)
        places += (folder, sets)
        offsets |= dict.fromkeys(here, int(source.path not in zero_based))
    classes: dict[str, int] = {}
    digest, left_out, at_zero = Digest(), Others(), 0

    def made(row: int, said: dict[str, str], records: list[Record]) -> tuple[Marked, Any]:
        nonlocal at_zero
        objects, zeros = _objects(records, classes, offsets[row])
        at_zero += zeros
        for _, record in records:
            texts = {
                path.partition("/")[0]: text
                for path, text in record.items()
                if path not in PLACES and text not in NOTHING
            }
            for name, text in texts.items():
                if name not in KNOWN or (name in FLAGS and text not in SAID):
                    left_out[name, "object"] += 1
        try:
            width, height = (int(float(said[name])) for name in SIZE)
        except (KeyError, ValueError, OverflowError):
            return objects, None
        fits = 0 < width < 2**31 and 0 < height < 2**31
        return objects, (width, height) if fits else None

    def parsed(row: int, data: bytes) -> tuple[Marked, Any]:
        with suppress(ValueError):
            return made(row, *_parse_quickly(data))
        return made(row, *parse(data))  # it says what is wrong, and where

    annotated = sorted(matched)
    writer = ObjectsWriter(scratch / "voc.arrow", rule, relative=False)
    faults = read_objects(writer, annotated, matched, digest, parsed)
    _places.cache_clear()
    names = in_order(classes)
    # which place each class has among the names, by the number that it has had so far
    number = np.argsort([classes[name] for name in names])
    rows = rows_of(annotated, len(inputs))
    notices = said_of_others(lost, annotated, inputs, "XML file", "not annotated")
    if at_zero:
        notices.append(
            f"{counted(at_zero, 'box begins', 'boxes begin')} at 0, and VOC counts from 1: if "
            f"these count from 0, use --labels voc+{ZERO_BASED}:PATH"
        )
    return writer.finish(
        rows,
        Objects(tuple(names) or None),
        numbers=number,
        digests=(digest.hex(),),
        faults=faults,
        notices=[*notices, *said_of_others_in("XML files", left_out)],
        splits=told_by_lists(lists),
        places=places,
    )


def _match(found: Sequence[FoundFile], inputs: PathTable, shown: str) -> Found:
    """Find the image of each file by its own name, and of those that are left by the name that they
    say."""
    matched, lost = match_files(found, inputs, shown)
    said: dict[FoundFile, str] = {}
    fetch_all(file.opened for file in lost)
    for file in lost:
        with suppress(OSError, ValueError):
            if name := parse(read_small(file.opened, LARGEST))[0].get(FILE_NAME):
                said[file] = name.replace("\\", "/")

    def called(file: FoundFile) -> str:
        return said[file] if "/" in said[file] else beside(file.path, said[file])

    more, _ = match_files(
        list(said), inputs, shown, called, lambda file: beside(file.opened, name_of(said[file]))
    )
    both = more | matched
    found_now = set(both.values())
    return both, [file for file in lost if file.opened not in found_now]


Record = tuple[int, dict[str, str]]
"""The line where an object begins, and the text of its elements by their paths in it."""


QUICK = 1 << 14
"""The largest file that is parsed quickly: what is kept of its tags takes ten times the memory."""

TRIED = 1000
"""Where so many more files have tags of their own than tags that are known, none is parsed quickly."""

_PLAIN = bytes({*b"\t\r\n", *range(32, 256)} - {*b"&"})
"""What the text of such a file has, beside all that begins with FFC0 in UTF-8."""


def _parse_quickly(data: bytes) -> tuple[dict[str, str], list[Record]]:
    """Return what `parse` does, but for the lines. Raises ValueError for a file that may be wrong,
    or takes more care.

    Files that have the same tags have their texts at the same places, and where < and > are around
    tags alone, these are quickly told from the texts.
    """
    data = data.removeprefix(BOM_UTF8).rstrip(b" \t\r\n")
    if (
        len(data) > QUICK
        or data[:1] + data[-1:] != b"<>"
        or data.count(b"<") != data.count(b">")
        or data.translate(None, _PLAIN)
        or b"\xef\xbf" in data
    ):
        raise ValueError
    of_tags = _places.cache_info()
    if of_tags.misses > TRIED + of_tags.hits:
        raise ValueError  # to learn the places takes longer than to parse
    text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    parts = text.replace(">", "<").split("<")
    texts = [*parts[2::2], ""]
    said, *objects = [
        {path: texts[place].strip() for path, place in each} for each in _places(*parts[1::2])
    ]
    if data[1:2] == b"?" and texts[0].strip(" \t\n"):
        raise ValueError  # it is outside of the root
    return said, [(0, each) for each in objects]


@lru_cache(256)
def _places(*tags: str) -> list[list[tuple[str, int]]]:
    """Return where the texts of elements are: first of those outside of objects, then of those in
    each object.

    Each path has the place of its text among those that follow the tags, -1 for one without text.
    Raises ValueError as `parse` does, for another encoding, and for comments and the like.
    """
    begin = tags[0].lower().replace("'", '"')
    if any(tag[:1] in ("?", "!") for tag in tags[begin[:1] == "?" :]) or (
        "encoding" in begin and 'encoding="utf-8"' not in begin
    ):
        raise ValueError
    numbers = ("", *range(1, len(tags) - 1), "")
    marked = "".join(f"<{tag}>{number}" for tag, number in zip(tags, numbers, strict=True))
    said, records = parse(marked.encode())
    return [
        [(path, int(number or -1)) for path, number in each.items()]
        for each in (said, *(record for _, record in records))
    ]


def parse(data: bytes) -> tuple[dict[str, str], list[Record]]:
    """Read the XML of one image: the text of its elements by path, and its objects. Raises
    ValueError: no XML, a DOCTYPE, another root."""
    said: dict[str, str] = {}
    objects: list[Record] = []
    path: list[str] = []
    text: list[str] = []
    parser = expat.ParserCreate()

    def wrong(why: str) -> ValueError:
        return ValueError(f"line {parser.CurrentLineNumber}: {why}")

    def start(name: str, _: dict[str, str]) -> None:
        if len(path) >= 32:
            raise wrong("elements are nested deeper than 32 levels")
        path.append(name)
        text.clear()
        if path[0] != ROOT:
            raise wrong(f"the root is {name}, and that of a VOC file is annotation")
        if "/".join(path) == OBJECT:
            objects.append((parser.CurrentLineNumber, {}))

    def end(_: str) -> None:
        where, into = "/".join(path), said
        if where.startswith(f"{OBJECT}/"):
            where, into = where.removeprefix(f"{OBJECT}/"), objects[-1][1]
            if where in into and path[2] in KNOWN:
                raise wrong(f"an object has more than one {path[2]}")
        into.setdefault(where, "".join(text).strip())
        path.pop()
        text.clear()

    def refuse(*_: Any) -> None:
        raise wrong("it has a DOCTYPE, which is not read; remove it")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = text.append
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(
            f"line {error.lineno}: not XML ({expat.errors.messages[error.code]})"
        ) from None
    except LookupError as error:  # no such encoding
        raise ValueError(f"line 1: not XML that can be read ({error})") from None
    finally:
        # they refer to the parser, which would stay with them until the collector comes
        parser.StartElementHandler = parser.EndElementHandler = None
        parser.CharacterDataHandler = parser.StartDoctypeDeclHandler = None
    return said, objects


def _objects(records: list[Record], classes: dict[str, int], offset: int) -> tuple[Marked, int]:
    """Return the objects of one image, and how many begin at 0. Raises ValueError for one that is
    wrong."""
    categories, boxes, polygons, at_zero = list[int](), list[list[float]](), list[Any](), 0
    for line, record in records:
        name, polygon = record.get("name"), None
        if not name:
            raise ValueError(f"line {line}: an object has no name")
        try:
            if TURNED[0] in record:
                polygon = _turned_box(*(float(record[each]) for each in TURNED))
                x, y = polygon[::2], polygon[1::2]
                edges = [min(x), min(y), max(x), max(y)]
            else:
                edges = list(map(float, _corners_of(record)))
        except (KeyError, ValueError):
            raise ValueError(
                f"line {line}: the object {name!r:.60} has no bndbox of four numbers"
            ) from None
        left, top, right, bottom = edges
        if not (-BEYOND < left <= right < BEYOND and -BEYOND < top <= bottom < BEYOND):
            within = all(abs(edge) < BEYOND for edge in edges)  # which nan is not
            wrong = "ends before it begins" if within else "is beyond any image"
            raise ValueError(f"line {line}: the bndbox of the object {name!r:.60} {wrong}")
        first = 0 if polygon else offset  # the places of a turned box are no pixels
        at_zero += first and (left == 0 or top == 0)
        categories.append(classes.setdefault(composed(name), len(classes)))
        boxes.append([left - first, top - first, right - left + first, bottom - top + first])
        polygons.append([polygon] if polygon else [])
    objects: Marked = {"category": categories, "bbox": boxes}
    if any(polygons):
        objects["segmentation"] = polygons
    for flag in FLAGS:
        said = [SAID.get(record.get(flag, "")) for _, record in records]
        if {*said} - {None}:
            objects[flag] = list(map(bool, said))
    return objects, at_zero


_corners_of = itemgetter(*CORNERS)


def _turned_box(x: float, y: float, width: float, height: float, angle: float) -> list[float]:
    """Return the corners of a box that is turned around its center, by radians to the right, as
    roLabelImg has it."""
    cos, sin = math.cos(angle), math.sin(angle)
    corners = [(-width, -height), (width, -height), (width, height), (-width, height)]
    return [
        each
        for a, b in corners
        for each in (x + (a * cos - b * sin) / 2, y + (a * sin + b * cos) / 2)
    ]
