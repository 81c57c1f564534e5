"""Refuses to move the pixels of images beside columns that would be wrong then: places, masks, other images without a role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, Rejection, UsageError
from shardctl.format.roles import Image, Label, Mask, Objects, Plain, Tokens
from shardctl.images.codecs.image import open_image
from shardctl.images.geometry import Size
from shardctl.loader.blocks.batch import BatchReader, columns_of
from shardctl.loader.blocks.block_sources import GatherOptions
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.shards import Indices, Shards
from shardctl.loader.blocks.transforms import Transforms
from shardctl.system.text import lacks

if TYPE_CHECKING:
    from shardctl.sources.boxes import First

LOOKED_AT = 16
"""Samples whose values are looked at."""


def refuse_unmoved(shards: Shards, columns: Sequence[Column], transforms: Transforms, samples: Indices) -> None:
    """Raise UsageError if columns would be wrong in batches whose images are resized, cut or mirrored.

    `columns` are read; others tell what these are, as y1 does of x1. Of the first of `samples` (n,), those in one block, the
    values are looked at. Columns in `unmoved` of the transforms are left out; UsageError if there are none of these names, or
    their roles say that they move.
    """
    _check_unmoved(shards, transforms)
    if transforms.moving is None or not len(samples):
        return
    from shardctl.sources.boxes import column_of, place_columns, said_places, values_matter, why_places  # 20 ms, rarely needed

    roles, read = shards.layout.roles, [column.name for column in columns]
    plain = [f for f in shards.layout.columns if not isinstance(roles.get(f.name), Image | Objects)]
    plain = [f for f in plain if f.name != "key" and f.name not in transforms.unmoved]
    said = said_places(plain, roles.by_name)
    others = [f for f in plain if f.name not in said]
    known = {name for name, role in roles.by_name.items() if isinstance(role, Label | Tokens | Plain)}
    doubtful = [f.name for f in others if f.name in read and f.name not in known and values_matter(f)]
    first, sizes = _looked_at(shards, doubtful, columns, samples)
    names = {f.name for f in plain if f.name in read}
    places = [place for place in (*said, *place_columns(others, first, sizes)) if column_of(place, names)]
    wrong, why = why_places(transforms.moving, places, names)
    if wrong:
        kept = ", ".join(repr(name) for name in read if name not in wrong)
        raise UsageError(
            f"{why}. Leave out {transforms.moving}; or get these columns as they are with unmoved={wrong}; or leave them out:"
            f" columns=[{kept}]"
        )


def _check_unmoved(shards: Shards, transforms: Transforms) -> None:
    """Raise UsageError if `unmoved` names what is no column, or what moves with the image because of its role."""
    roles, names = shards.layout.roles, shards.layout.columns.names
    unknown = [name for name in transforms.unmoved if name not in names]
    if unknown:
        raise UsageError(f"unmoved: {lacks('column', unknown[0], names)}")
    if transforms.moving is None:
        return
    for name in transforms.unmoved:
        role = roles.get(name)
        what = "a mask" if isinstance(role, Mask) else "an image" if isinstance(role, Image) else "objects"
        if isinstance(role, Image | Objects):
            raise UsageError(
                f"unmoved: {name} is {what} by its role, and {transforms.moving} moves it with the images. Leave it out of"
                f" unmoved=, or read it unchanged with another loader, without {transforms.moving}"
            )


def _looked_at(
    shards: Shards, names: Sequence[str], columns: Sequence[Column], samples: Indices
) -> tuple[First, list[Size | None]]:
    """Return the first values of columns, and the sizes of the images of their samples; nothing where a shard is damaged."""
    if not names:
        return {}, []
    blocks = np.searchsorted(shards.starts, samples, side="right")
    near = samples[blocks == blocks[0]][:LOOKED_AT]
    pictures = [column for column in columns if column.picture is not None and not isinstance(column.picture, Mask)]
    main = next((column for column in pictures if column.name == shards.layout.roles.main_image), None)
    image = main or next(iter(pictures), None)
    read = [*names, image.name] if image is not None else names
    try:
        table = BatchReader(shards, columns_of(shards, read), Transforms(), GatherOptions()).table(near)
    except DatasetError:  # the batches tell of it, or leave it out
        return {}, []
    values = {name: pa.concat_arrays(table.column(name).chunks) for name in read}
    return {name: values[name] for name in names}, [] if image is None else _sizes(image, values[image.name])


def _sizes(image: Column, values: pa.Array) -> list[Size | None]:
    """Return (width, height) of images, None where there is none that can be read."""
    if image.shape:
        height, width = image.shape[:2]
        return [(width, height)] * len(values)
    return [_size(value) for value in values.field("bytes").to_pylist()]


def _size(data: bytes | None) -> Size | None:
    try:
        return None if data is None else open_image(data, max_pixels=2**62).size
    except Rejection:
        return None
