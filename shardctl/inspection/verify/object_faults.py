"""What is wrong with the objects of samples. A module of its own: it brings the loader along, for 70 ms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.format.arrays import Array, Numbers, owners_of
from shardctl.format.roles import Objects, Roles
from shardctl.format.token_columns import list_lengths
from shardctl.inspection.content.statistics import rows_of
from shardctl.inspection.verify.check import RowFaults
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


def object_faults(block: pa.RecordBatch, roles: Roles) -> RowFaults:
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


def undecodable_objects(block: pa.RecordBatch, roles: Roles) -> RowFaults:
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
                whole = (
                    mask
                    for mask in masks.as_py() or ()
                    if mask and None not in (mask["size"], mask["counts"])
                )
                if fault := next(filter(None, map(fault_of_rle, whole)), None):
                    yield row, f"{name} has an RLE that {fault}"


def _faults(column: pa.StructArray, role: Objects) -> RowFaults:
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
    for place, row in _where(~np.isfinite(rows_of(boxes)).all(axis=1), owners):
        yield row, f"has a {BOX} that is not four finite numbers: {boxes[place].as_py()}"
    if role.names is not None:
        categories = np.asarray(lists[CATEGORY].flatten().fill_null(0))
        for place, row in _where((categories < 0) | (categories >= len(role.names)), owners):
            yield (
                row,
                f"has the {CATEGORY} {categories[place]}, and there are names for 0 to "
                f"{len(role.names) - 1}",
            )
    if KEYPOINTS in lists:
        points = lists[KEYPOINTS].flatten()
        if role.keypoints is not None:
            lengths = list_lengths(points)
            for place, row in _where(lengths > len(role.keypoints), owners):
                given = counted(int(lengths[place]), "keypoint")
                yield row, f"has an object of {given}, where {len(role.keypoints)} have names"
        for row in _owners_of_not_finite(points, owners):
            yield row, "has an object with a keypoint that is not three finite numbers"
    if POLYGONS in lists:
        of_object = lists[POLYGONS].flatten()
        lengths = list_lengths(of_object.flatten())
        for place, row in _where(lengths % 2, np.repeat(owners, list_lengths(of_object))):
            given = counted(int(lengths[place]), "number")
            yield row, f"has a polygon of {given}, which are x, y, x, y, …"
        for row in _owners_of_not_finite(of_object, owners):
            yield row, "has a polygon with a number that is not finite"
    if RLE in lists and _is_rle(lists[RLE].type.value_type):
        masks = lists[RLE].flatten()
        size, counts_ = masks.field("size"), masks.field("counts")
        lacking = pc.and_(masks.is_valid(), pc.or_(size.is_null(), counts_.is_null()))
        for _, row in _where(np.asarray(lacking), owners):
            yield row, "has an RLE without a size or without counts"


def _where(wrong: Array | np.bool_, owners: Numbers) -> Iterator[tuple[int, int]]:
    """Yield the places of what is wrong, each with its owner."""
    places = np.flatnonzero(wrong)
    return zip(places.tolist(), owners[places].tolist(), strict=True)


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
