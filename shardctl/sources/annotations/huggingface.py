"""The column `objects` of Hugging Face's metadata files: known by its shape, and made the column
that every format gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import is_list, leaf_of
from shardctl.format.roles import Objects
from shardctl.sources.annotations.base import AnnotationRule, Annotations, fault, rows_of
from shardctl.sources.annotations.objects import (
    ANNOTATED,
    ANNOTATED_TYPE,
    BEYOND,
    ITEMS,
    OBJECTS,
    Others,
    annotated,
    are_shares,
    objects_field,
    objects_type,
    odd_boxes,
    said_of_boxes,
    said_of_others_in,
    why_shares,
)
from shardctl.sources.types import in_order
from shardctl.system.text import composed, counted, printable

READ = (
    "id",
    "category",
    "bbox",
    "area",
    "iscrowd",
    "difficult",
    "truncated",
    "segmentation",
    "keypoints",
)
"""Members that are taken over, as far as they are lists of what they should be."""


CATEGORIES = ("category", "categories", "label", "labels", "category_id")
"""What data sets call the categories of the objects. The first of them that is there is taken."""


def has_objects(schema: pa.Schema) -> bool:
    """Return whether there is the column `objects` with lists of boxes and of `category`."""
    return _has_boxes(schema) and _is_list_of(
        _member(schema.field(OBJECTS).type, "category"), _may_be_categories
    )


def named_category(schema: pa.Schema) -> str | None:
    """Return the member of `objects` that has the categories, by any of the usual names; None if
    there is none, or no boxes."""
    if not _has_boxes(schema):
        return None
    type_ = schema.field(OBJECTS).type
    return next(
        (name for name in CATEGORIES if _is_list_of(_member(type_, name), _may_be_categories)), None
    )


def without_category(schema: pa.Schema, shown: str) -> list[str]:
    """Say that a column `objects` has boxes and is not read, if it is so for the want of
    categories."""
    if not _has_boxes(schema) or named_category(schema) is not None:
        return []
    others = ", ".join(f.name for f in schema.field(OBJECTS).type if f.name != "bbox")
    return [
        f"{shown}: objects has bbox and no list of categories ({' or '.join(CATEGORIES)}"
        f"{f'; it has {printable(others)}' if others else ''}): a plain column, whose boxes stay"
    ]


def _has_boxes(schema: pa.Schema) -> bool:
    if OBJECTS not in schema.names or not pa.types.is_struct(schema.field(OBJECTS).type):
        return False
    return _is_list_of(
        _member(schema.field(OBJECTS).type, "bbox"), lambda inner: _is_list_of(inner, _is_number)
    )


def _member(type_: pa.StructType, name: str) -> pa.DataType:
    place = type_.get_field_index(name)
    return type_.field(place).type if place >= 0 else pa.null()


def _may_be_categories(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_large_string(type_)
    )


def _is_list_of(type_: pa.DataType, holds: Any) -> bool:
    """Return whether values are lists of such: Hugging Face has boxes of a fixed length, and polars
    has large lists."""
    return is_list(type_) and bool(holds(type_.value_type))


def _is_number(type_: pa.DataType) -> bool:
    # A list without any item has no type, and stands as one of strings.
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def take_objects(
    column: pa.ChunkedArray,
    side_rows: npt.NDArray[np.int64],
    rule: AnnotationRule,
    shown: str,
    category: str,
    said: tuple[str, ...] | None,
) -> Annotations:
    """Return the objects of a labels file as annotations. `side_rows` has the row of each input, -1
    for none.

    `category` is the member that has the categories; `said` are the names that the file says of
    their numbers. Raises InputError if all boxes are shares of the size of their image.
    """
    column = _renamed(column, category, "category")
    type_ = column.type
    names = None if pa.types.is_integer(type_.field("category").type.value_type) else _names(column)
    members = [
        name
        for name in READ
        if name in [f.name for f in type_] and _fits(name, type_.field(name).type)
    ]
    left_out = [f.name for f in type_ if f.name not in members]
    there = np.flatnonzero(side_rows >= 0)
    taken = column.take(pa.array(side_rows[there]))
    objects: list[dict[str, Any] | None] = []
    others = Others()
    faults: dict[int, Rejection] = {}
    degenerate = shares = with_boxes = 0
    for row, value in zip(there.tolist(), taken.to_pylist(), strict=True):
        try:
            taken_over = None if value is None else _objects(value, members, names, said)
        except ValueError as error:
            faults[row] = fault(f"{shown}: {error}")
            taken_over = None
        objects.append(taken_over)
        if taken_over is not None and taken_over["bbox"]:
            others.update(
                (name, "object")
                for name in left_out
                for item in value[name] or ()
                if item is not None
            )
            with_boxes += 1
            degenerate += odd_boxes(taken_over["bbox"], (0, 0))[1]
            shares += are_shares(taken_over["bbox"])
    if shares and shares == with_boxes:
        raise InputError(f"{why_shares(shown)}, or leave them out with --drop-columns {OBJECTS}")
    rows = rows_of(there, len(side_rows))
    how = pa.array([annotated(rule, None, False)] * len(there), ANNOTATED_TYPE)
    table = pa.table({OBJECTS: pa.array(objects, objects_type(members)), ANNOTATED: how})
    notices = [f"{shown}: {notice}" for notice in said_of_boxes(0, degenerate, rule)]
    notices += said_of_others_in(shown, others)
    role = Objects(tuple(names) if names else said)
    return Annotations(
        table,
        rows,
        (objects_field(members),),
        (),
        {OBJECTS: role},
        faults=faults,
        notices=tuple(notices),
    )


def _renamed(column: pa.ChunkedArray, name: str, new: str) -> pa.ChunkedArray:
    """Return a column of structs whose member `name` is called `new`; a member that was called so
    before is left out."""
    if name == new:
        return column
    kept = [f.with_name(new) if f.name == name else f for f in column.type if f.name != new]
    chunks = [
        pa.StructArray.from_arrays(
            [chunk.field(name if f.name == new else f.name) for f in kept],
            fields=kept,
            mask=chunk.is_null(),
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, pa.struct(kept))


def _fits(name: str, type_: pa.DataType) -> bool:
    """Return whether values of a type can become those of a member."""
    wanted = pa.list_(ITEMS[name])
    return name in ("category", "bbox") or _depth(type_) == _depth(wanted)


def _depth(type_: pa.DataType) -> int:
    leaf, depth = leaf_of(type_)
    return depth if not pa.types.is_struct(leaf) else -1


def _names(column: pa.ChunkedArray) -> list[str]:
    import pyarrow.compute as pc  # 40 ms to import, and most conversions have no such file

    flat = pc.list_flatten(pc.struct_field(column, "category"))
    return in_order(name for name in pc.unique(flat).to_pylist() if name is not None)


def _objects(
    value: dict[str, Any], members: list[str], names: list[str] | None, said: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return the objects of one image. Raises ValueError for those that are wrong: the end of a
    message."""
    boxes, categories = value["bbox"] or [], value["category"] or []
    if len(boxes) != len(categories):
        raise ValueError(
            f"objects has {counted(len(boxes), 'bbox', 'bboxes')} and {len(categories)} of category"
        )
    for box in boxes:
        if box is None or len(box) != 4 or not all(map(_is_place, box)):
            raise ValueError("a bbox of objects is not four finite numbers: x, y, width, height")
    if None in categories or (
        names is None and any(number < 0 or (said and number >= len(said)) for number in categories)
    ):
        raise ValueError("a category of objects is missing, or below 0, or beyond the names")
    result: dict[str, Any] = {}
    for name in members:
        items = value[name]
        if items is not None and len(items) != len(boxes):
            raise ValueError(
                f"objects has {counted(len(boxes), 'bbox', 'bboxes')} and {len(items)} of {name}"
            )
        result[name] = _items(name, items, len(boxes))
    if names is not None:
        numbers = {name: number for number, name in enumerate(names)}
        result["category"] = [numbers[composed(name)] for name in categories]
    return result


def _is_place(number: float | None) -> bool:
    return number is not None and math.isfinite(number) and abs(number) < BEYOND


def _items(name: str, items: list[Any] | None, count: int) -> list[Any]:
    if name in ("segmentation", "keypoints"):
        found = items or [[]] * count
        for each in found:
            for part in each or []:
                wrong = part is None or (
                    len(part) != 3 if name == "keypoints" else len(part) < 6 or len(part) % 2
                )
                if wrong or not all(map(_is_place, part)):
                    raise ValueError(
                        f"objects has {name} that is not made of finite numbers as it should be"
                    )
        return [each or [] for each in found]
    if name in ("iscrowd", "difficult", "truncated"):
        return [None if item is None else bool(item) for item in items or [None] * count]
    return items or [None] * count
