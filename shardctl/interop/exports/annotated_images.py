"""Images of which it is known what is marked in them, for the forms that have files of images and
of annotations."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.python_values import to_json
from shardctl.format.roles import Objects
from shardctl.format.token_columns import list_lengths
from shardctl.images.codecs.image import open_image
from shardctl.interop.exports.base import (
    KEY,
    Column,
    ColumnEncoding,
    Done,
    Export,
    Source,
    Work,
    file_form,
    suffix_of,
)
from shardctl.interop.exports.loose_files import (
    IMAGE_SUFFIXES,
    MARK,
    NameSet,
    folded,
    plain_stem,
    safe_name,
)
from shardctl.system.text import counted

IMAGE_ID, WIDTH, HEIGHT = "image_id", "width", "height"

MOST_CATEGORIES = 100_000
"""The most categories without names: each is listed."""

ObjectRecord = dict[str, Any]
"""An object: the members that are known of it, in the form of python_values.py."""

NO_NAMES = "the categories have no names but their numbers"


def marked_columns(source: Source) -> tuple[str, str]:
    """Return the column of the image and that of its objects. Raises InputError if it cannot be
    told."""
    image, objects = source.exported.roles.main_image, list(source.exported.roles.objects)
    if image is None:
        raise InputError(f"{source.shown}: has no images, and so no objects; export it to parquet")
    if not objects:
        raise InputError(
            f"{source.shown}: has no column of objects, as --labels of convert and roles= of "
            "shardctl.write make"
        )
    if len(objects) > 1 and "objects" not in objects:
        raise InputError(
            f"{source.shown}: has several columns of objects, {', '.join(objects)}; choose one "
            "with --columns"
        )
    name = "objects" if "objects" in objects else objects[0]
    type_ = source.type_of(name)
    if not pa.types.is_struct(type_) or not {"category", "bbox"} <= {each.name for each in type_}:
        raise InputError(
            f"{source.shown}: {name} has no lists of bbox and category, as objects have"
        )
    return image, name


def main_role(source: Source) -> Objects:
    """Return what is known of the objects that are written."""
    return source.exported.roles.objects[marked_columns(source)[1]]


class AnnotatedImagesExport(Export):
    """An export of images and of what is marked in them."""

    def check(self, source: Source) -> None:
        """Raise InputError if no objects can be written, UsageError for splits that some file
        systems do not tell apart."""
        marked_columns(source)
        same = NameSet.repeated(source.splits)
        if same:
            splits = ", ".join(split for split in source.splits if folded(split) in same)
            raise UsageError(
                f"{source.shown}: some file systems take the splits {splits} for one; export one "
                "alone (--split)"
            )
        if main_role(source).names is None and members_of(source).classes > MOST_CATEGORIES:
            raise InputError(
                f"{source.shown}: an object has the category {members_of(source).classes - 1:,}; "
                f"without names there may be {MOST_CATEGORIES:,}"
            )

    @abstractmethod
    def encoding_of_other(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written that is neither of these, nor the key or a size."""

    def form_of_objects(self) -> str:
        """Return the word for how objects are written."""
        return self.name

    @abstractmethod
    def lost_of_objects(self, source: Source) -> str | None:
        """Say what the form cannot hold of the objects, None if it holds all."""

    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written; a size is in the image."""
        image, objects = marked_columns(column.source)
        if column.name == KEY:
            return ColumnEncoding(column.target, "name")
        if column.name == image:
            return ColumnEncoding(column.target, file_form(column))
        if column.name == objects:
            return ColumnEncoding(
                column.target, self.form_of_objects(), self.lost_of_objects(column.source)
            )
        if column.name in (WIDTH, HEIGHT) and is_whole(column.type):
            return None
        return self.encoding_of_other(column)

    def encoding_as_json(self, column: Column) -> ColumnEncoding | None:
        """Return None: there is no place for JSON text either."""
        return None

    def encoding_of_rest(self, column: Column) -> ColumnEncoding | None:
        """Say how objects are written without what the form cannot hold of them."""
        is_objects = column.name == marked_columns(column.source)[1]
        return ColumnEncoding(column.target, self.form_of_objects()) if is_objects else None

    def notes_of(self, done: Done) -> Iterator[str]:
        """Say how many files are not called as their keys are; `renamed` in the facts of each part
        counts them."""
        if renamed := sum(each.facts["renamed"] for _, each in done.parts):
            yield (
                f"{counted(renamed, 'file')} with another name than the key: a split has one "
                "folder (`shardctl help annotations`)"
            )


def is_whole(type_: pa.DataType) -> bool:
    """Return whether a type is one of whole numbers that fit into int64."""
    return bool(pa.types.is_integer(type_) and type_ != pa.uint64())


@dataclass(frozen=True)
class Members:
    """What objects there are: how many, how many images are not annotated, and how many objects
    have a value of each member.

    `several` have several polygons, `bare` have none, `both` have polygons and an RLE. `points`
    counts the objects by how many keypoints they have, `classes` is one more than the largest
    category.
    """

    unannotated: int
    objects: int
    having: Mapping[str, int]
    several: int
    bare: int
    both: int
    points: Mapping[int, int]
    classes: int


@lru_cache(maxsize=1)
def members_of(source: Source) -> Members:
    """Return what objects the chosen samples have. All of them are looked at, once."""
    name = marked_columns(source)[1]
    fields = [each.name for each in source.type_of(name)]
    having = dict.fromkeys(fields, 0)
    unannotated = objects = several = bare = both = classes = 0
    points: Counter[int] = Counter()
    for block in source.columns((name,)):
        known = block.column(name).drop_null()
        unannotated += block.num_rows - len(known)
        items = {each: known.field(each).flatten() for each in fields}
        count = len(items["category"])
        objects += count
        for each, values in items.items():
            having[each] += int(_has_value(values).sum())
        polygons = np.zeros(count, np.int64)
        if "segmentation" in items:
            polygons = list_lengths(items["segmentation"])
        several += int((polygons > 1).sum())
        bare += int((polygons == 0).sum())
        if "rle" in items and len(items["rle"]) == len(polygons):
            both += int((_has_value(items["rle"]) & (polygons > 0)).sum())
        if "keypoints" in items:
            points.update(list_lengths(items["keypoints"]).tolist())
        classes = max(classes, int(items["category"].drop_null().to_numpy().max(initial=-1)) + 1)
    return Members(unannotated, objects, having, several, bare, both, points, classes)


def _has_value(values: pa.Array) -> Any:
    """Return which items say something: a list that is not empty, true, or a value."""
    if pa.types.is_list(values.type):
        return list_lengths(values) > 0
    if pa.types.is_boolean(values.type):
        return np.asarray(values.fill_null(False))
    return np.asarray(values.is_valid())


def said_of_members(found: Members, kept: frozenset[str]) -> list[str]:
    """Say which members have values and no place."""
    return [
        f"{name} of {counted(number, 'object')}"
        for name, number in found.having.items()
        if number and name not in kept
    ]


@dataclass(frozen=True)
class Picture:
    """A sample: `name` is that of its file, `size` the width and height of the upright image,
    `objects` None if not known.

    `renamed` says whether the file could not be called as the key is.
    """

    key: str
    name: str
    data: bytes
    size: tuple[int, int]
    objects: list[ObjectRecord] | None
    image_id: int | None
    renamed: bool


def pictures(work: Work, members: Collection[str]) -> Iterator[Picture]:
    """Yield the samples of a part, with these members of objects. Raises InputError for an image or
    objects that cannot be read, and DatasetError."""
    image, objects = marked_columns(work.source)
    several = _repeated(work.source, work.split)
    role, row = main_role(work.source), 0
    for batch in work.batches():
        columns = {field.name: batch.column(field.written) for field in work.fields}
        ids = columns[IMAGE_ID].to_pylist() if IMAGE_ID in columns else repeat(None)
        marked = objects_of(columns[KEY], columns[objects], role, members)
        for stored, image_id, (key, each) in zip(columns[image], ids, marked, strict=False):
            data = stored["bytes"].as_py()
            plain = plain_stem(key, work.split, IMAGE_SUFFIXES)
            stem = safe_name(plain)
            if folded(stem) in several:
                stem = f"{stem}{MARK}{MARK}{work.number}-{row}"
            yield Picture(
                key,
                f"{stem}.{suffix_of(data)}",
                data,
                size_of(key, data),
                each,
                image_id,
                stem != plain,
            )
            row += 1


@lru_cache(maxsize=1)
def _repeated(source: Source, split: str) -> NameSet:
    """Return the names, folded, that several files of a split would have. All keys of the split are
    looked at, once."""
    keys = (key for block in source.columns((KEY,), split) for key in block.column(KEY).to_pylist())
    return NameSet.repeated(safe_name(plain_stem(key, split, IMAGE_SUFFIXES)) for key in keys)


def size_of(key: str, data: bytes) -> tuple[int, int]:
    """Return the width and height of an upright image, from its header. Raises InputError.

    Columns of this name may be those of the image before it was resized, or turned by EXIF.
    """
    try:
        return open_image(data, 2**62).size
    except Rejection as fault:
        raise InputError(f"{key!r}: its image {fault.message}") from fault


def stored_size(image: pa.Scalar, key: str) -> tuple[int, int]:
    """Return the width and height of a stored image, encoded or raw. Raises InputError."""
    if isinstance(image.type, pa.FixedShapeTensorType):
        height, width = image.type.shape[:2]
        return width, height
    return size_of(key, image["bytes"].as_py())


def objects_of(
    keys: pa.Array, objects: pa.Array, role: Objects, members: Collection[str]
) -> Iterator[tuple[str, list[ObjectRecord] | None]]:
    """Yield the key of each sample and its objects one by one, with these members. Raises
    InputError if their lists or categories do not go together."""
    classes = range(2**31 if role.names is None else len(role.names))
    needed = pa.struct([field for field in objects.type if field.name in members])
    for key, lists in zip(keys.to_pylist(), to_json(objects.cast(needed)), strict=True):
        try:
            each = lists and [
                dict(zip(lists, items, strict=True)) for items in zip(*lists.values(), strict=True)
            ]
        except (TypeError, ValueError):
            raise InputError(
                f"{key!r}: its lists of objects differ in length; `shardctl verify` tells more"
            ) from None
        for item in each or ():
            if item["category"] not in classes:
                raise InputError(
                    f"{key!r}: the category {item['category']} of an object has no name; "
                    "`shardctl verify` tells more"
                )
        yield key, each


def said_of_sizes(source: Source) -> Iterator[str]:
    """Say what becomes of columns with the size of the image, if there are some."""
    if there := [name for name in (WIDTH, HEIGHT) if name in source.names]:
        yield f"the columns {' and '.join(there)} are not written: images have sizes"
