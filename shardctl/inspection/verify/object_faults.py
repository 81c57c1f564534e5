"""What is wrong with the objects of samples. A module of its own: it brings the loader along, for 70 ms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.format.arrays import Numbers, owners_of
from shardctl.format.roles import Objects, Roles
from shardctl.format.token_columns import list_lengths
from shardctl.inspection.content.objects import rows_of
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.objects import (
    BOX,
    CATEGORY,
    KEYPOINTS,
    POLYGONS,
    RLE,
    member_types,
)
from shardctl.sources.annotations.objects import fault_of_rle
from shardctl.system.text import counted


def object_faults(block: pa.RecordBatch, roles: Roles) -> Iterator[tuple[int, str]]:
    """Yield the first fault of each row of a block whose objects are not as docs/annotations.md
    describes them."""
    for name, role in roles.objects.items():
        if name not in block.schema.names or not block.num_rows:
            continue
        try:
            member_types(Column.of(block.schema.field(name), role))
        except ValueError as error:
            yield 0, f"{name} is not a column of objects: {error}"
            continue
        first: dict[int, str] = {}
        for row, what in _faults(block.column(name), role):
            first.setdefault(row, f"{name} {what}")
        yield from sorted(first.items())


def undecodable_objects(block: pa.RecordBatch, roles: Roles) -> Iterator[tuple[int, str]]:
    """Yield the rows of a block with an RLE that is no mask of its size. It decodes every RLE, one
    after the other."""
    for name in roles.objects:
        type_ = block.schema.field(name).type if name in block.schema.names else pa.null()
        if (
            pa.types.is_struct(type_)
            and type_.get_field_index(RLE) >= 0
            and _is_rle(type_.field(RLE).type.value_type)
        ):
            for row, masks in enumerate(block.column(name).field(RLE)):
                faults = (_rle_fault(mask) for mask in masks.as_py() or ())
                if fault := next(filter(None, faults), None):
                    yield row, f"{name} has an RLE that {fault}"


def _faults(column: pa.StructArray, role: Objects) -> Iterator[tuple[int, str]]:
    lists = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    counts = list_lengths(lists[BOX])
    owners = owners_of(counts)
    whole = True
    for name, items in lists.items():
        lengths = list_lengths(items)
        for row in np.flatnonzero(lengths != counts).tolist():
            whole = False
            yield (
                row,
                f"has {counts[row]} of {BOX} and {lengths[row]} of {name}; there must be one for "
                "each object",
            )
    if not whole:  # nothing more can be said: it is not known what belongs together
        return
    boxes = lists[BOX].flatten()
    for place in np.flatnonzero(~np.isfinite(rows_of(boxes)).all(axis=1)).tolist():
        what = f"has a {BOX} that is not four finite numbers: {boxes[place].as_py()}"
        yield int(owners[place]), what
    if role.names is not None:
        categories = np.asarray(lists[CATEGORY].flatten().fill_null(0))
        for place in np.flatnonzero((categories < 0) | (categories >= len(role.names))).tolist():
            yield (
                int(owners[place]),
                f"has the {CATEGORY} {categories[place]}, and there are names for 0 to "
                f"{len(role.names) - 1}",
            )
    if KEYPOINTS in lists and role.keypoints is not None:
        lengths = list_lengths(lists[KEYPOINTS].flatten())
        for place in np.flatnonzero(lengths > len(role.keypoints)).tolist():
            given = counted(int(lengths[place]), "keypoint")
            yield (
                int(owners[place]),
                f"has an object of {given}, where {len(role.keypoints)} have names",
            )
    if KEYPOINTS in lists:
        for row in _owners_of_not_finite(lists[KEYPOINTS].flatten(), owners):
            yield row, "has an object with a keypoint that is not three finite numbers"
    if POLYGONS in lists:
        of_object = lists[POLYGONS].flatten()
        lengths = list_lengths(of_object.flatten())
        of_polygon = np.repeat(owners, list_lengths(of_object))
        for place in np.flatnonzero(lengths % 2).tolist():
            yield (
                int(of_polygon[place]),
                f"has a polygon of {counted(int(lengths[place]), 'number')}, which are x, y, x, y, "
                "…",
            )
        for row in _owners_of_not_finite(of_object, owners):
            yield row, "has a polygon with a number that is not finite"
    if RLE in lists and _is_rle(lists[RLE].type.value_type):
        masks = lists[RLE].flatten()
        size, counts_ = masks.field("size"), masks.field("counts")
        lacking = pc.and_(masks.is_valid(), pc.or_(size.is_null(), counts_.is_null()))
        for place in np.flatnonzero(np.asarray(lacking)).tolist():
            yield int(owners[place]), "has an RLE without a size or without counts"


def _owners_of_not_finite(lists: pa.Array, owners: Numbers) -> list[int]:
    """Return the owners, one for each object, of lists of lists with a number that is missing, or
    that is not finite."""
    inner = lists.flatten()
    wrong = ~np.isfinite(inner.flatten().to_numpy(zero_copy_only=False))  # a missing number is NaN
    if not wrong.any():
        return []
    of_number = np.repeat(np.repeat(owners, list_lengths(lists)), list_lengths(inner))
    return np.unique(of_number[wrong]).tolist()  # type: ignore[no-any-return]  # numpy's lists are of any type


def _is_rle(type_: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type_) and {"size", "counts"} <= {field.name for field in type_})


def _rle_fault(mask: dict[str, Any] | None) -> str | None:
    if mask is None or mask["size"] is None or mask["counts"] is None:
        return None
    return fault_of_rle(mask)
