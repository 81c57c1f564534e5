"""COCO: images in SPLIT/NAME.jpg, and annotations/instances_SPLIT.json with their objects,
keypoints included.

An image that is not annotated is written and not listed, and one without objects is listed without
any: so `convert` reads both back as they were. Places are those of docs/annotations.md, but for
keypoints: COCO gives numbers of pixels, 0.5 less.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardctl.errors import InputError
from shardctl.format.names import Json
from shardctl.format.python_values import dumps
from shardctl.format.roles import Objects
from shardctl.images.codecs import rle
from shardctl.images.polygons import Polygons
from shardctl.interop.exports.annotated_images import (
    IMAGE_ID,
    NO_NAMES,
    AnnotatedImagesExport,
    ObjectRecord,
    Picture,
    is_whole,
    main_role,
    members_of,
    pictures,
    said_of_members,
    said_of_sizes,
)
from shardctl.interop.exports.base import (
    Column,
    ColumnEncoding,
    Done,
    PartResult,
    Source,
    Work,
    path_below,
)
from shardctl.interop.exports.loose_files import writing
from shardctl.sources.annotations.coco import mirrored_points
from shardctl.sources.annotations.objects import FLAGS, ITEMS
from shardctl.system.files import FileFacts, HashingFile, replacing
from shardctl.system.text import counted

FOLDER = "annotations"

AT_ONCE = 1 << 20
"""Bytes that are written at a time."""


@dataclass(frozen=True)
class Coco(AnnotatedImagesExport):
    """A file for each image, and one for each split with what is marked in them."""

    def encoding_of_other(self, column: Column) -> ColumnEncoding:
        """Say how a column is written that is no image and no objects: ids of images have a
        place."""
        if column.name == IMAGE_ID and is_whole(column.type):
            return ColumnEncoding(column.target)
        return ColumnEncoding(column.target, "value", "instances_SPLIT.json has no place for it")

    def lost_of_objects(self, source: Source) -> str | None:
        """Say what COCO cannot hold of the objects, None if it holds all."""
        found = members_of(source)
        lost = said_of_members(found, _KEPT)
        if found.both:
            lost.append(f"the RLE of {counted(found.both, 'object')} with polygons")
        return ", ".join(lost) or None

    def write(self, work: Work) -> PartResult:
        """Write the images of a shard, and as pieces the lines of its images and of its
        annotations, which lack their ids."""
        role, samples, annotated, objects, classes, renamed = main_role(work.source), 0, 0, 0, 0, 0
        pointed: set[int] = set()
        images_piece, objects_piece = (
            f"{FOLDER}/{what}_{work.split}.{work.number:05d}" for what in ("images", "objects")
        )
        with (
            replacing(work.piece(images_piece)) as images,
            replacing(work.piece(objects_piece)) as annotations,
            writing(work, FOLDER) as loose,
        ):
            for picture in pictures(work, _KEPT):
                samples += 1
                loose.write(f"{work.split}/{picture.name}", picture.data)
                renamed += picture.renamed
                if picture.objects is None:
                    continue
                lines = [
                    _annotation_line(annotated, each, role, picture.key) for each in picture.objects
                ]
                annotations.write(b"".join(lines))
                images.write(_image_line(picture))
                annotated += 1
                objects += len(lines)
                classes = max([classes, *(each["category"] + 1 for each in picture.objects)])
                pointed |= {each["category"] for each in picture.objects if each.get("keypoints")}
        facts = {
            "images": annotated,
            "classes": classes,
            "pointed": sorted(pointed),
            "renamed": renamed,
        }
        pieces = {images_piece: images.facts, objects_piece: annotations.facts, **loose.piece}
        return PartResult(
            samples, {}, {"samples": samples, "objects": objects}, facts, pieces, loose.found
        )

    def finish(self, done: Done) -> dict[str, FileFacts]:
        """Write annotations/instances_SPLIT.json: the pieces of all shards with ids. A split
        without annotations has none."""
        role = main_role(done.source)
        classes = max([0, *(each.facts["classes"] for _, each in done.parts)])
        pointed = {number for _, each in done.parts for number in each.facts["pointed"]}
        categories = [dumps(each).encode() for each in _categories(role, classes, pointed)]
        made: dict[str, FileFacts] = {}
        for split, of_split in done.of_splits():
            if not any(each.facts["images"] for each in of_split):
                continue
            name = f"{FOLDER}/instances_{split}.json"
            images, annotations = (done.pieces(of_split, place) for place in (0, 1))
            image_ids, ids = _ids(images, 0)[0], _ids(annotations, 1)[0]
            starts = np.cumsum([0, *(each.facts["images"] for each in of_split)]).tolist()
            with replacing(path_below(done.folder, name)) as sink:
                sink.write(b'{"info":{"description":"exported by shardctl"},"licenses":[]')
                _write_list(sink, b"categories", iter(categories))
                listed = zip(image_ids, _lines(images), strict=True)
                lines = (b'{"id":%d,%s' % (number, said) for number, (_, said) in listed)
                _write_list(sink, b"images", lines)
                _write_list(sink, b"annotations", _with_ids(annotations, starts, image_ids, ids))
                sink.write(b"}\n")
            made[name] = sink.facts
        return made

    def notes(self, source: Source) -> Iterator[str]:
        """Say what is not in the files of annotations."""
        role, found = main_role(source), members_of(source)
        if found.unannotated:
            images = counted(found.unannotated, "image")
            yield f"{images} not annotated: written, and not listed in {FOLDER}"
        if role.names is None and found.objects:
            yield NO_NAMES
        yield from said_of_sizes(source)
        if role.flip is not None and role.flip != mirrored_points(role.keypoints):
            yield "what each keypoint becomes in a mirrored image has no place in COCO"

    def notes_of(self, done: Done) -> Iterator[str]:
        """Say which files have other names than their keys, and which ids are new."""
        yield from super().notes_of(done)
        for split, of_split in done.of_splits():
            for place, what in enumerate(("image_id", "id of objects")):
                if _ids(done.pieces(of_split, place), place)[1]:
                    yield f"{split}: the {what} is counted from 1, as some have none, or the same"


_KEPT = frozenset(ITEMS).difference(FLAGS)


# --- COCO's own form ---


def _image_line(picture: Picture) -> bytes:
    """Return the id that an image has, if any, and what else is said of it."""
    width, height = picture.size
    own = "" if picture.image_id is None else str(picture.image_id)
    said = dumps({"file_name": picture.name, "width": width, "height": height})
    return f"{own}\t{said[1:]}\n".encode()


def _annotation_line(row: int, each: ObjectRecord, role: Objects, key: str) -> bytes:
    """Return the number of the image in its piece, the id that the object has, if any, and what
    else is said of it."""
    own = each.get("id")
    try:
        said = json.dumps(
            _annotation(each, role), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{key!r}: an object cannot be written ({error}); `shardctl verify` tells more"
        ) from error
    return f"{row}\t{'' if own is None else own}\t{said[1:]}\n".encode()


def _annotation(each: ObjectRecord, role: Objects) -> Json:
    """Return what COCO says of an object, without the ids. Raises ValueError for an RLE that is
    none."""
    said = {
        "category_id": _category_ids(role)[each["category"]],
        "bbox": each["bbox"],
        "area": _area(each),
        "iscrowd": int(each.get("iscrowd") or 0),
        "segmentation": each.get("segmentation") or each.get("rle") or [],
    }
    points = each.get("keypoints")
    if points:
        said["keypoints"] = [value for point in points for value in _pixel(*point)]
        said["num_keypoints"] = sum(point[2] > 0 for point in points)
    return said


def _area(each: ObjectRecord) -> float:
    """Return the area that an object is said to have, else that of its polygons, its RLE or its
    box: COCO's tools need one."""
    if each.get("area") is not None and math.isfinite(each["area"]):
        return float(each["area"])
    if each.get("segmentation"):
        return float(Polygons.of([each["segmentation"]]).areas()[0])
    if each.get("rle") is not None:
        return float(rle.decompress(each["rle"]["counts"].encode())[1::2].sum())
    return float(math.prod(max(0.0, length) for length in each["bbox"][2:]))


def _pixel(x: float, y: float, seen: float) -> list[float]:
    """Return a keypoint as COCO counts it: the middle of the first pixel is 0."""
    if seen <= 0:
        return [0, 0, 0]
    moved = (np.array([x, y], np.float32) - np.float32(0.5)).astype(str)
    return [*map(float, moved), int(seen) if seen == int(seen) else seen]


@lru_cache(maxsize=8)
def _category_ids(role: Objects) -> Sequence[int]:
    """Return the id of each category: that of the source, else counted from 1."""
    if role.ids and len(set(role.ids)) == len(role.names or ()):
        return role.ids
    return range(1, 2**31)


def _categories(role: Objects, classes: int, pointed: set[int]) -> Iterator[Json]:
    """Yield the categories, of which `classes` are there at least. Those that are `pointed` have
    objects with keypoints."""
    names = role.names if role.names is not None else tuple(map(str, range(classes)))
    for number, name in enumerate(names):
        category: Json = {"id": _category_ids(role)[number], "name": name}
        if role.supercategories is not None:
            category["supercategory"] = role.supercategories[number]
        if role.keypoints is not None and (number in pointed or not pointed):
            category["keypoints"] = list(role.keypoints)
            category["skeleton"] = [[one + 1, other + 1] for one, other in role.skeleton or ()]
        yield category


# --- the pieces of all parts, put together ---


def _lines(pieces: Sequence[Path], cells: int = 1) -> Iterator[list[bytes]]:
    """Yield the cells of all lines, of which the last one is JSON without its first bracket."""
    for piece in pieces:
        with open(piece, "rb") as lines:
            for line in lines:
                yield line[:-1].split(b"\t", cells)


def _ids(pieces: Sequence[Path], place: int) -> tuple[Sequence[int], bool]:
    """Return the ids in this cell of all lines if all have one, and no two the same, else numbers
    from 1 on; and whether some of these stand in the place of ids."""
    found, missing = array("q"), 0
    for cells in _lines(pieces, place + 1):
        found.append(int(cells[place] or 0))
        missing += not cells[place]
    if not missing and len(np.unique(found)) == len(found):
        return found, False
    return range(1, len(found) + 1), missing < len(found)


def _with_ids(
    pieces: Sequence[Path], starts: Sequence[int], image_ids: Sequence[int], ids: Sequence[int]
) -> Iterator[bytes]:
    """Yield all annotations. `starts` are the number of the first image of each piece."""
    numbers = iter(ids)
    for piece, start in zip(pieces, starts, strict=False):
        for row, _, said in _lines([piece], 2):
            yield b'{"id":%d,"image_id":%d,%s' % (next(numbers), image_ids[start + int(row)], said)


def _write_list(sink: HashingFile, name: bytes, elements: Iterator[bytes]) -> None:
    """Write a member of the file, with an element in each line."""
    waiting = bytearray(b',\n"%s":[' % name)
    for number, element in enumerate(elements):
        waiting += (b",\n" if number else b"\n") + element
        if len(waiting) >= AT_ONCE:
            sink.write(waiting)
            waiting = bytearray()
    sink.write(waiting + b"]")
