"""The column `objects` of Hugging Face's metadata files: known by its shape, and made the column
that every format gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.arrays import leaf_of
from shardctl.format.roles import Objects, Role
from shardctl.sources.annotations.base import AnnotationRule, Annotations, Faults, fault, rows_of
from shardctl.sources.annotations.inputs import Rows
from shardctl.sources.annotations.objects import (
    ANNOTATED,
    ANNOTATED_TYPE,
    BEYOND,
    CATEGORIES,
    FLAGS,
    ITEMS,
    OBJECTS,
    Others,
    annotated,
    are_shares,
    checked_objects,
    lists_of_objects,
    named_category,
    objects_type,
    odd_boxes,
    said_of_boxes,
    said_of_others_in,
    why_shares,
)
from shardctl.sources.types import in_order
from shardctl.system.text import composed

READ = [name for name in ITEMS if name != "rle"]
"""Members that are taken over, as far as they are lists of what they should be."""


def without_category(schema: pa.Schema, shown: str) -> list[str]:
    """Say that a column `objects` has boxes and is not read, if it is so for the want of
    categories."""
    if not lists_of_objects(schema) or named_category(schema) is not None:
        return []
    return [
        f"{shown}: objects has bbox and no categories ({' or '.join(CATEGORIES)}): a plain "
        "column, whose boxes stay"
    ]


def take_objects(
    column: pa.ChunkedArray,
    side_rows: Rows,
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
    types = {f.name: f.type for f in column.type}
    types["category"] = types.pop(category)
    names = None
    if not pa.types.is_integer(types["category"].value_type):
        import pyarrow.compute as pc  # 40 ms to import, and most conversions have no such file

        flat = pc.list_flatten(pc.struct_field(column, category))
        names = in_order(name for name in pc.unique(flat).to_pylist() if name is not None)
    members = [name for name in READ if name in types and _fits(name, types[name])]
    left_out = [name for name in types if name not in members]
    there = np.flatnonzero(side_rows >= 0)
    taken = column.take(pa.array(side_rows[there]))
    objects: list[dict[str, Any] | None] = []
    others = Others()
    faults: Faults = {}
    degenerate = shares = with_boxes = 0
    for row, value in zip(there.tolist(), taken.to_pylist(), strict=True):
        try:
            if value is not None:
                value["category"] = value.pop(category)
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
    fields = (table.schema.field(OBJECTS),)
    roles: dict[str, Role] = {OBJECTS: Objects(tuple(names) if names else said)}
    return Annotations(table, rows, fields, (), roles, faults=faults, notices=notices)


def _fits(name: str, type_: pa.DataType) -> bool:
    """Return whether values of a type can become those of a member."""
    leaf, depth = leaf_of(type_)
    wanted = leaf_of(pa.list_(ITEMS[name]))[1]
    return name in ("category", "bbox") or (depth == wanted and not pa.types.is_struct(leaf))


def _objects(
    value: dict[str, Any], members: list[str], names: list[str] | None, said: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return the objects of one image. Raises ValueError for those that are wrong: the end of a
    message."""
    objects = checked_objects({name: value[name] for name in members}, BEYOND)
    categories = objects["category"]
    if None in categories or (
        names is None and any(number < 0 or (said and number >= len(said)) for number in categories)
    ):
        raise ValueError("a category of objects is missing, or below 0, or beyond the names")
    for name, items in objects.items():
        if name == "segmentation":
            objects[name] = [each or [] for each in items]
            if any(len(polygon) < 6 for polygons in objects[name] for polygon in polygons):
                raise ValueError(f"a polygon of {OBJECTS} has fewer than three points")
        elif name in ("iscrowd", *FLAGS):
            objects[name] = [None if item is None else bool(item) for item in items]
    if names is not None:
        numbers = {name: number for number, name in enumerate(names)}
        objects["category"] = [numbers[composed(name)] for name in categories]
    return objects
