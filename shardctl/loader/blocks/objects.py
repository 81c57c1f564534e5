"""The objects of a batch: read from a struct of lists, moved with their images, given sample by
sample or filled up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, Rejection, UsageError
from shardctl.format.arrays import (
    Array,
    Bools,
    Bytes,
    DType,
    Numbers,
    Shape,
    is_number,
    leaf_of,
)
from shardctl.format.roles import Objects
from shardctl.format.shard import VERIFY_ADVICE
from shardctl.format.token_columns import list_lengths
from shardctl.images.codecs.image import open_image
from shardctl.images.codecs.jpeg import plain_size
from shardctl.images.polygons import Polygons, stretches
from shardctl.loader.blocks.column import Column, is_missing, numbers_of
from shardctl.loader.blocks.gather import Located
from shardctl.loader.blocks.locate import BlockSources, Samples
from shardctl.loader.blocks.memory import Batch
from shardctl.loader.blocks.pictures import encoded_images, limit_of, most_pixels, why_not_made
from shardctl.loader.blocks.shards import Shards
from shardctl.loader.blocks.transforms import Misfit, Transforms

if TYPE_CHECKING:
    from shardctl.loader.blocks.picture_steps import BatchSteps
    from shardctl.transforms.pipeline.deferred_objects import DeferredObjects

Memory = Callable[[str, Shape, DType], Array]
"""Returns an array for a member, of this shape and type, whatever is in it."""

BOX, CATEGORY, AREA, KEYPOINTS, POLYGONS, RLE = (
    "bbox",
    "category",
    "area",
    "keypoints",
    "segmentation",
    "rle",
)


@dataclass(frozen=True)
class MemberType:
    """What a member has for each object: numbers of this `shape` and `dtype` (-1: any length), or
    anything for dtype None."""

    shape: Shape = ()
    dtype: DType | None = None

    def fill(self, value: float) -> float:
        """Return what is put where there is no object: -1 for whole numbers, False, and `value` for
        all other numbers."""
        kind = "" if self.dtype is None else self.dtype.kind
        return -1 if kind == "i" else 0 if kind == "b" else value


BOX_TYPE = MemberType((4,), np.dtype(np.float32))
CATEGORY_TYPE = MemberType((), np.dtype(np.int64))


def member_types(column: Column) -> dict[str, MemberType]:
    """Return all members of a column of objects. Raises ValueError for a type that is not one of
    objects."""
    type_ = column.type
    if not pa.types.is_struct(type_) or not all(
        pa.types.is_list(field.type) or pa.types.is_large_list(field.type) for field in type_
    ):
        raise ValueError("it is not a struct of lists")
    types = {field.name: _member_type(field, column.objects) for field in type_}
    if types.get(BOX) != BOX_TYPE or types.get(CATEGORY) != CATEGORY_TYPE:
        raise ValueError("it needs a bbox of four numbers and a category for each object")
    lists = [
        name
        for name in (KEYPOINTS, POLYGONS)
        if name in types and _depth(type_.field(name).type) != 3
    ]
    if lists:
        raise ValueError(f"its {lists[0]} are not lists of lists for each object")
    return types


def _member_type(field: pa.Field, role: Objects | None) -> MemberType:
    item = field.type.value_type
    if field.name == KEYPOINTS:
        points = -1 if role is None or role.keypoints is None else len(role.keypoints)
        return MemberType((points, 3), np.dtype(np.float32))
    inner = Column.of(pa.field(field.name, item))
    if inner.is_boolean:
        return MemberType((), np.dtype(bool))
    if inner.kind != "fixed" or inner.dtype is None:
        return MemberType()
    dtype = np.dtype(np.int64) if inner.dtype.kind in "iu" else inner.dtype
    as_float32 = dtype.kind == "f" and field.name in (BOX, AREA)
    return MemberType(inner.shape, np.dtype(np.float32) if as_float32 else dtype)


def _depth(type_: pa.DataType) -> int:
    leaf, depth = leaf_of(type_)
    return depth if is_number(leaf) else 0


Member = Array | Polygons | list[Any]
"""(T, …) numbers, or a list of T values."""


@dataclass(frozen=True)
class Marked:
    """The objects of n samples, T in all, one behind the other.

    `counts` (n,) says how many each sample has, and `annotated` (n,) which samples were looked at
    for objects at all.
    """

    counts: Numbers
    annotated: Bools
    members: dict[str, Member]
    types: dict[str, MemberType]

    @classmethod
    def of(cls, array: pa.StructArray, types: dict[str, MemberType]) -> Marked:
        """Read the members of an Arrow array of structs of lists. Raises Misfit."""
        annotated = ~is_missing(array)
        lists = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        counts = list_lengths(lists[BOX] if BOX in lists else array.field(0))
        members: dict[str, Member] = {}
        for name, type_ in types.items():
            lengths = list_lengths(lists[name])
            wrong = np.flatnonzero(lengths != counts)
            if len(wrong):
                place = int(wrong[0])
                raise Misfit(place, f"has {counts[place]} boxes and {lengths[place]} of {name}")
            members[name] = _member(name, lists[name].flatten(), type_, counts)
        return cls(counts, annotated, members, types)

    def with_categories(self, table: Numbers) -> Marked:
        """Return the same objects with table[n] for the category n. Raises Misfit for one that
        is not in it."""
        categories: Any = self.members.get(CATEGORY)
        if categories is None:
            return self
        wrong = np.flatnonzero((categories < -1) | (categories >= len(table)))
        if len(wrong):
            raise Misfit(
                _owner(self.counts, wrong[0]),
                f"has the category {categories[wrong[0]]}, which is not one of {len(table)}",
            )
        renumbered = np.append(table, -1)[categories]
        return replace(self, members={**self.members, CATEGORY: renumbered})

    def only(self, names: Collection[str]) -> Marked:
        """Return the same objects with these members alone."""
        return replace(
            self, members={name: member for name, member in self.members.items() if name in names}
        )

    def samples(self) -> list[dict[str, Any] | None]:
        """Return the members of each sample: arrays (objects, …) of numbers, lists of all else.
        None if not annotated."""
        whole = {
            name: member.lists() if isinstance(member, Polygons) else member
            for name, member in self.members.items()
        }
        return [
            {name: member[part] for name, member in whole.items()} if annotated else None
            for part, annotated in zip(stretches(self.counts), self.annotated.tolist(), strict=True)
        ]

    def padded(self, name: str, value: float, memory: Memory) -> dict[str, Any]:
        """Return the fields of a batch: arrays (n, most objects, …) filled up, and which objects
        are there.

        Polygons, RLE and all else that is not numbers of one shape are a list for each sample.
        """
        most = int(self.counts.max(initial=0))
        there = np.arange(most) < self.counts[:, None]
        fields: dict[str, Any] = {}
        for member, values in self.members.items():
            field = f"{name}.{member}"
            if isinstance(values, np.ndarray):
                filled = memory(field, (len(self.counts), most, *values.shape[1:]), values.dtype)
                filled.fill(self.types[member].fill(value))
                filled[there] = values
                fields[field] = filled
            else:
                each = values.lists() if isinstance(values, Polygons) else values
                fields[field] = [each[part] for part in stretches(self.counts)]
        return {
            **fields,
            f"{name}_length": self.counts,
            f"{name}_mask": there,
            f"{name}_annotated": self.annotated,
        }


def _member(name: str, values: pa.Array, type_: MemberType, counts: Numbers) -> Member:
    """Return the values of T objects."""
    if name == KEYPOINTS:
        return _keypoints(values, type_, counts)
    if name == POLYGONS:
        return _polygons(values, counts)
    if name == RLE:
        return [runs and {**runs, "size": np.array(runs["size"])} for runs in values.to_pylist()]
    if type_.dtype is None:
        return list(values.to_pylist())
    numbers, missing = numbers_of(values, Column.of(pa.field(name, values.type)))
    found = numbers.astype(type_.dtype)
    if missing is not None:
        found[missing] = type_.fill(np.nan)
    return found


def _keypoints(values: pa.Array, type_: MemberType, counts: Numbers) -> Array:
    """Return the points of T objects, (T, points, 3); those that an object lacks are 0, 0, 0: not
    there."""
    lengths = list_lengths(values)
    most = int(lengths.max(initial=0)) if type_.shape[0] < 0 else type_.shape[0]
    wrong = np.flatnonzero(lengths > most)
    if len(wrong):
        raise Misfit(
            _owner(counts, wrong[0]),
            f"has an object of {lengths[wrong[0]]} keypoints, where {most} have names",
        )
    points = values.flatten()
    numbers, _ = numbers_of(points, Column.of(pa.field(KEYPOINTS, points.type)))
    found = np.zeros((len(lengths), most, 3), np.float32)
    found[np.arange(most) < lengths[:, None]] = numbers
    return found


def _polygons(values: pa.Array, counts: Numbers) -> Polygons:
    of_object = list_lengths(values)
    lists = values.flatten()
    lengths = list_lengths(lists)
    wrong = np.flatnonzero(lengths % 2)
    if len(wrong):
        raise Misfit(
            _owner(counts, _owner(of_object, wrong[0])),
            f"has a polygon of {lengths[wrong[0]]} numbers, which are x, y, x, y, …",
        )
    numbers = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return Polygons(numbers.reshape(-1, 2), lengths // 2, of_object)


def _owner(counts: Numbers, number: np.int64 | int) -> int:
    """Return whose one of many items is, given how many each has: the sample that an object is
    of."""
    return int(np.searchsorted(np.cumsum(counts), number, side="right"))


class ObjectReader:
    """Reads the columns of objects of batches. Threads may share it.

    `hidden` is the column of the main image where it must be read for the sizes of its images, and
    was not asked for. `cut` objects were left out because too little of them is inside.
    """

    def __init__(self, shards: Shards, columns: list[Column], transforms: Transforms) -> None:
        """Raises UsageError for transforms that do not fit, DatasetError for a column that is not
        one of objects."""
        self._shards, self._transforms = shards, transforms
        self.cut = 0
        objects = [column for column in columns if column.objects is not None]
        self._types: dict[str, dict[str, MemberType]] = {}
        for column in objects:
            try:
                self._types[column.name] = member_types(column)
            except ValueError as error:
                raise DatasetError(
                    f"{shards.root}: {column.name} is not a column of objects: {error}"
                ) from None
        self._image = self._main_image(objects[0]) if objects and transforms.moving else None
        if self._image is not None and transforms.recipe is not None:
            from shardctl.transforms.pipeline.deferred_objects import Annotated

            self._annotated = Annotated(shards.layout, transforms.recipe.keep_objects)
        self.hidden: list[Column] = []
        if self._image is not None and self._image.picture_shape is None:
            read = {column.name for column in columns}
            self.hidden = [] if self._image.name in read else [self._image]

    def _main_image(self, column: Column) -> Column:
        """Return the column of the images that the objects are in."""
        layout = self._shards.layout
        name = layout.roles.main_image
        if name is None:
            raise UsageError(
                f"{column.name} moves with the main image, and none of {len(layout.roles.images)} columns "
                f"of images is called image; leave {column.name} out with columns="
            )
        return Column.of(layout.columns.field(name), layout.roles.images[name])

    def read(self, column: Column, sources: BlockSources) -> Batch:
        """Return the fields of a column of objects in a batch. Raises DamageError."""
        wanted = sources.wanted
        assert column.objects is not None
        types, members = self._types[column.name], column.object_members
        # how many there are, and which of them stay
        needed = {BOX} if self._image is None else {BOX, POLYGONS, RLE}
        read = tuple(name for name in types if name in members or name in needed)
        try:
            stored = sources.take(replace(column, members=read))
            found = Marked.of(stored, {name: types[name] for name in read})
            if self._image is not None and wanted.steps is not None:
                before = int(found.counts.sum())
                stored = self._moved(column.name, stored, self._image, sources, wanted.steps)
                found = Marked.of(stored, found.types)
                gone = before - int(found.counts.sum())
                self.cut += gone  # no call comes in between, in which another thread could add
            return self._shown(column, found, wanted)
        except Misfit as malformed:
            why = f"{column.name}: {malformed}; {VERIFY_ADVICE}"
            raise wanted.unreadable(malformed.place, why) from malformed

    def given(self, column: Column, values: pa.Array, wanted: Samples) -> Batch:
        """Return the fields of a column of objects that functions made. Raises Misfit."""
        types = {name: self._types[column.name][name] for name in column.object_members}
        return self._shown(column, Marked.of(values, types), wanted)

    def _shown(self, column: Column, found: Marked, wanted: Samples) -> Batch:
        transforms, name = self._transforms, column.name
        if name in transforms.relabel:
            found = found.with_categories(np.array(transforms.relabel[name], np.int64))
        found = found.only(column.object_members)
        if name not in transforms.pad:
            return {name: found.samples()}
        return found.padded(name, transforms.pad[name], wanted.memory.array)

    def _moved(
        self, name: str, stored: pa.Array, image: Column, sources: BlockSources, steps: BatchSteps
    ) -> pa.Array:
        """Return objects where the pixels of their images went, as a conversion moves them."""
        wanted, recipe = sources.wanted, self._shards.manifest.recipe
        objects: list[Any] = stored.to_pylist()
        places = [place for place, each in enumerate(objects) if each and each[BOX]]
        datas: Iterable[Bytes | None] = repeat(None)
        if image.picture_shape is None:
            located = sources.locate(image)
            if not isinstance(located, Located):
                located = encoded_images(image, sources.memory.take(image), wanted)
            datas = located.at(np.array(places, np.int64)).rows()
        most, keeps = most_pixels(recipe), recipe.get("truncated") == "keep"
        waiting: dict[int, DeferredObjects] = {}
        for place, data in zip(places, datas):  # noqa: B905 - one of them has no end
            try:
                if data is None:
                    height, width = image.picture_shape[:2]  # type: ignore[index]  # all have one size
                    size = width, height
                else:
                    limit = limit_of(image, data, most)
                    size = plain_size(data) or open_image(data.tobytes(), limit, keeps).size
                stages = steps.stages(place, size)
            except Rejection as rejection:
                why = why_not_made(image, rejection, steps.step)
                raise wanted.unreadable(place, f"{image.name}: {why}") from rejection
            given = {name: objects[place]}
            try:
                moved, _ = self._annotated.moved(given, size, stages, RLE in objects[place], True)
            except Rejection as rejection:
                raise Misfit(place, rejection.message) from rejection
            made = moved.get(name, objects[place])
            if not isinstance(made, dict):
                waiting[place] = made
            objects[place] = made
        settled = self._annotated.settled([*waiting.values()])
        for place, made in zip(waiting, settled, strict=True):
            objects[place] = made
        return pa.array(objects, stored.type)
