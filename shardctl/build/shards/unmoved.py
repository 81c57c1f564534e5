"""Refuses to move the pixels of images beside columns of records whose first values are images, places or masks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from itertools import islice
from typing import Any

import pyarrow as pa

from shardctl.build.shards.job import Job
from shardctl.build.shards.planned import PlannedUnit
from shardctl.build.shards.record_images import TableImages, bytes_in, columns_of_bytes, holds_image
from shardctl.build.shards.records import records_of
from shardctl.build.shards.retry_hints import RetryHints
from shardctl.errors import Rejection, UsageError
from shardctl.format.list_types import is_list
from shardctl.format.sample import Sample
from shardctl.images.geometry import Size
from shardctl.sources.boxes import has_arrays, place_columns, values_matter, ways_out, why_images, why_places
from shardctl.system.dataclass import dataclass
from shardctl.system.processes.progress_slot import WorkerProgress
from shardctl.transforms.values import UnfitValue, plain_value

LOOKED_AT = 32
"""Records of one unit that are looked at, values that are kept of a column, and items that are kept of a list."""

MOST_BYTES = 2**20
"""What is kept of a text, and of bytes."""


@dataclass
class _Values:
    """The first values of a column that are not missing, each with the size of the image beside it."""

    field: pa.Field
    values: list[Any] = field(default_factory=list)
    sizes: list[Size | None] = field(default_factory=list)

    def places(self) -> list[str]:
        """Return the places, masks and other images that the column is, or has in it."""
        values = _array(self.values, self.field.type)
        return place_columns([self.field], {} if values is None else {self.field.name: values}, self.sizes)


def refuse_unmoved(job: Job, units: Sequence[PlannedUnit], progress: WorkerProgress, hints: RetryHints) -> None:
    """Raise UsageError if the recipe moves the pixels of the image, and other columns of the first records had to move too.

    One unit that can be read is enough, as each of a compressed file may cost all that is before it; more are looked at only
    while a column has no value yet.
    """
    columns, doubtful = columns_of_bytes(job), {f.name: _Values(f) for f in columns_to_look_at(job)}
    needs_sizes = any(has_arrays(each.field.type) for each in doubtful.values())
    images = TableImages(job, progress)
    found, looked, empty = set[str](), False, {*columns, *doubtful}
    for planned in units:
        if not (columns or doubtful) or (looked and not empty):
            break
        progress.begin(planned.number)
        with suppress(Rejection, MemoryError):
            for _, fields in islice(records_of(job, planned, progress, hints), LOOKED_AT):
                looked = True
                progress.enter("decode")
                size = _size(fields, job, images, planned) if needs_sizes else None
                for name, each in doubtful.items():
                    if (value := fields.get(name)) is not None and len(each.values) < LOOKED_AT:
                        each.values.append(_outline(value, each.field.type))
                        each.sizes.append(size)
                empty -= {name for name in empty if _has_value(fields.get(name), name in columns)}
                found |= {name for name in columns if name not in found and holds_image(fields.get(name))}
    progress.leave()
    if found:
        raise UsageError(why_images(job.recipe.moving[0].name, [name for name in columns if name in found]))
    places = [place for each in doubtful.values() for place in each.places()]
    if places:
        step = job.recipe.moving[0].name
        wrong, why = why_places(step, places, list(doubtful))
        raise UsageError(f"{why}. {ways_out(step, wrong, [])}")


def columns_to_look_at(job: Job) -> list[pa.Field]:
    """Return the columns of records of which the first values can say that they have to move; none where nothing moves."""
    if not job.recipe.moving or job.fields is None:
        return []
    moved = {"key", "image", *job.kept_images, *job.recipe.unmoved, *job.layout.roles.by_name, *job.annotation_rules}
    of_records = {job.renames.get(name, name) for name in job.fields.names}
    return [f for f in job.layout.columns if f.name in of_records and f.name not in moved and values_matter(f)]


def _has_value(value: object, of_bytes: bool) -> bool:
    return next(bytes_in(value), None) is not None if of_bytes else value is not None


def _size(fields: Sample, job: Job, images: TableImages, planned: PlannedUnit) -> Size | None:
    """Return (width, height) of the upright image of a record, None if it cannot be read."""
    try:
        data = images.find(fields.get("image"), job.main_image or "image", planned)[0]
        return job.recipe.open_image(data).size
    except Rejection:
        return None


def _outline(value: Any, type_: pa.DataType) -> Any:
    """Return what is needed of a value of a column of this type: of numbers the shape, by the first list at each depth."""
    if value is None or isinstance(type_, pa.FixedShapeTensorType):
        return None
    if isinstance(value, bytes | str):
        return value[:MOST_BYTES]
    if pa.types.is_struct(type_) and isinstance(value, dict):
        return {f.name: _outline(value.get(f.name), f.type) for f in type_}
    if not is_list(type_):
        return None
    if not has_arrays(pa.list_(pa.list_(type_))) or not len(value):  # of text, bytes or structs
        return [_outline(each, type_.value_type) for each in value[:LOOKED_AT]]
    return [_outline(value[0], type_.value_type), *[None] * (len(value) - 1)]


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array | None:
    """Return outlines of values as an array, None if they are none of this type: then only its name tells what it is."""
    if not values:
        return None
    try:
        if isinstance(type_, pa.FixedShapeTensorType):
            flat = pa.array([[0] * type_.storage_type.list_size], type_.storage_type)
            return pa.ExtensionArray.from_storage(type_, flat)
        return pa.array(list(map(plain_value, values)), _unsized(type_))
    except MemoryError:  # Arrow's own is an ArrowException, too
        raise
    except (UnfitValue, pa.ArrowException, OverflowError, ValueError, TypeError):
        return None


def _unsized(type_: pa.DataType) -> pa.DataType:
    """Return a type with lists of any length in place of those of a fixed one."""
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_unsized(f.type)) for f in type_])
    return pa.list_(_unsized(type_.value_type)) if is_list(type_) else type_
