"""Images of which it is known what is marked in them, for the forms that have files of images and of annotations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.codecs.image import open_image
from shardctl.errors import InputError, Rejection, UsageError
from shardctl.exports.base import Column, Part, Place, Progress, form_of_raw
from shardctl.exports.file_names import IMAGE_SUFFIXES, MARK, folded, stem_of
from shardctl.exports.images import suffix_of
from shardctl.exports.loose_files import repeated
from shardctl.exports.rows import batches
from shardctl.exports.source import KEY, Source
from shardctl.json_form import to_json
from shardctl.roles import Objects
from shardctl.sources.exported import Field
from shardctl.storage import counted

IMAGE_ID, WIDTH, HEIGHT = "image_id", "width", "height"

Marked = dict[str, Any]
"""An object: the members that are known of it, in the form of json_form.py."""

NO_NAMES = "the categories have no names, and are called by their numbers"


def marked_columns(source: Source) -> tuple[str, str]:
    """Return the column of the image and that of its objects. Raises InputError if it cannot be told."""
    image, objects = source.exported.roles.main_image, list(source.exported.roles.objects)
    if image is None:
        raise InputError(f"{source.shown}: has no image whose objects could be written; export it to parquet")
    if not objects:
        raise InputError(f"{source.shown}: has no column of objects (convert --labels coco:FILE or yolo:PATH reads such)")
    if len(objects) > 1 and "objects" not in objects:
        raise InputError(f"{source.shown}: has several columns of objects, {', '.join(objects)}; choose one with --columns")
    name = "objects" if "objects" in objects else objects[0]
    type_ = source.exported.columns.field(name).type
    if not pa.types.is_struct(type_) or not {"category", "bbox"} <= {each.name for each in type_}:
        raise InputError(f"{source.shown}: {name} has no lists of bbox and category, as objects have")
    return image, name


def main_role(source: Source) -> Objects:
    """Return what is known of the objects that are written."""
    return source.exported.roles.objects[marked_columns(source)[1]]


def image_place(column: Column) -> Place:
    """Say how the images are written. Raises InputError where some are missing, UsageError where they are no image files."""
    missing = column.missing_images if column.is_image else column.nulls
    if missing:
        have = "has" if missing == 1 else "have"
        raise InputError(
            f"{column.name}: {counted(missing, 'sample')} {have} no image, and each needs a file;"
            f" --where '{column.name} is not None' leaves them out"
        )
    form = "image" if column.is_image else form_of_raw(column)
    if form == "value":
        raise UsageError(f"{column.name}: these arrays have no place in files as they are; use --store png or jpeg:QUALITY")
    return Place(column.target, form)


def is_whole(type_: pa.DataType) -> bool:
    """Return whether a type is one of whole numbers that fit into int64."""
    return bool(pa.types.is_integer(type_) and type_ != pa.uint64())


@dataclass(frozen=True)
class Members:
    """What objects there are: how many, how many images are not annotated, and how many objects have a value of each member.

    `several` have several polygons, `bare` have none, `both` have polygons and an RLE. `points` is the largest number of
    keypoints of an object, `classes` one more than the largest category.
    """

    unannotated: int
    objects: int
    having: Mapping[str, int]
    several: int
    bare: int
    both: int
    points: int
    classes: int


@lru_cache(maxsize=1)
def members_of(source: Source) -> Members:
    """Return what objects the chosen samples have. All of them are looked at, once."""
    name = marked_columns(source)[1]
    fields = [each.name for each in source.exported.columns.field(name).type]
    having = dict.fromkeys(fields, 0)
    unannotated = objects = several = bare = both = points = classes = 0
    for block in source.columns((name,)):
        known = block.column(name).drop_null()
        unannotated += block.num_rows - len(known)
        items = {each: known.field(each).flatten() for each in fields}
        count = len(items["category"])
        objects += count
        polygons = np.zeros(count, np.int64)
        for each, values in items.items():
            having[each] += int(_has_value(values).sum())
        if "segmentation" in items:
            polygons = _lengths(items["segmentation"])
        several += int((polygons > 1).sum())
        bare += int((polygons == 0).sum())
        if "rle" in items and len(items["rle"]) == len(polygons):
            both += int((_has_value(items["rle"]) & (polygons > 0)).sum())
        if "keypoints" in items:
            points = max(points, int(_lengths(items["keypoints"]).max(initial=0)))
        classes = max(classes, int(items["category"].drop_null().to_numpy().max(initial=-1)) + 1)
    return Members(unannotated, objects, having, several, bare, both, points, classes)


def _has_value(values: pa.Array) -> Any:
    """Return which items say something: a list that is not empty, true, or a value."""
    if pa.types.is_list(values.type):
        return _lengths(values) > 0
    if pa.types.is_boolean(values.type):
        return np.asarray(values.fill_null(False))
    return np.asarray(values.is_valid())


def _lengths(values: pa.Array) -> Any:
    return np.asarray(values.value_lengths().fill_null(0)).astype(np.int64)


def said_of_members(found: Members, kept: frozenset[str]) -> list[str]:
    """Say which members have values and no place."""
    return [f"{name} of {counted(number, 'object')}" for name, number in found.having.items() if number and name not in kept]


@dataclass(frozen=True)
class Picture:
    """A sample: `name` is that of its file, `size` the width and height of the upright image, `objects` None if not known."""

    key: str
    name: str
    data: bytes
    size: tuple[int, int]
    objects: list[Marked] | None
    image_id: int | None


def pictures(source: Source, fields: Sequence[Field], part: Part, progress: Progress) -> Iterator[Picture]:
    """Yield the samples of a part. Raises InputError for an image or objects that cannot be read, and DatasetError."""
    image, objects = marked_columns(source)
    several = _repeated(source, part.split)
    role, row = main_role(source), 0
    names = [field.name for field in fields]
    for batch in batches(source, fields, part, progress):
        columns = dict(zip(names, batch.columns, strict=True))
        marked = to_json(columns[objects])
        whole = {name: columns[name].to_pylist() for name in (IMAGE_ID, WIDTH, HEIGHT) if name in columns}
        for place, key in enumerate(columns[KEY].to_pylist()):
            data = columns[image][place].as_py()["bytes"]
            stem = stem_of(key, None, IMAGE_SUFFIXES)
            if folded(stem) in several:
                stem = f"{stem}{MARK}{MARK}{part.number}-{row}"
            known = {name: values[place] for name, values in whole.items()}
            size = _size(key, data, known.get(WIDTH), known.get(HEIGHT))
            each = _objects_of(key, marked[place], role)
            yield Picture(key, f"{stem}.{suffix_of(data)}", data, size, each, known.get(IMAGE_ID))
            row += 1


@lru_cache(maxsize=1)
def _repeated(source: Source, split: str) -> frozenset[str]:
    """Return the names, folded, that several files of a split would have. All keys of the split are looked at, once."""
    keys = (key for block in source.columns((KEY,), split) for key in block.column(KEY).to_pylist())
    return repeated(stem_of(key, None, IMAGE_SUFFIXES) for key in keys)


def _size(key: str, data: bytes, width: int | None, height: int | None) -> tuple[int, int]:
    """Return the width and height of an upright image: as its columns say, else as its header does. Raises InputError."""
    if width is not None and height is not None and width > 0 and height > 0:
        return width, height
    try:
        return open_image(data, 2**62).size
    except Rejection as fault:
        raise InputError(f"{key!r}: its image {fault.message}") from fault


def _objects_of(key: str, objects: dict[str, list[Any]] | None, role: Objects) -> list[Marked] | None:
    """Return the objects of a sample one by one. Raises InputError if their lists or categories do not go together."""
    if objects is None:
        return None
    try:
        each = [dict(zip(objects, items, strict=True)) for items in zip(*objects.values(), strict=True)]
    except (TypeError, ValueError):
        raise InputError(f"{key!r}: its objects have lists that differ in length; `shardctl verify` tells more") from None
    most = 2**31 if role.names is None else len(role.names)
    odd = next((item["category"] for item in each if item["category"] is None or not 0 <= item["category"] < most), most)
    if odd != most:
        raise InputError(f"{key!r}: an object has the category {odd}, which has no name; `shardctl verify` tells more")
    return each
