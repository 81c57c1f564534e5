"""Random access to the samples of a dataset: sample numbers in, columns of a batch out.
docs/loader.md."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, Rejection, UsageError
from shardctl.format.exact_values import python_values
from shardctl.format.roles import Image, Mask, Objects, Roles
from shardctl.images.codecs import image
from shardctl.loader.blocks.batch import BatchReader, columns_of
from shardctl.loader.blocks.block_sources import GatherOptions, in_place
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.memory import (
    Batch,
    BatchMemory,
    lend_free_memory,
    rounded,
    without_views,
)
from shardctl.loader.blocks.pictures import most_pixels
from shardctl.loader.blocks.shards import Indices, Shards, identity
from shardctl.loader.blocks.specs import Spec
from shardctl.loader.blocks.transforms import Normalization, Transforms, zeros
from shardctl.system.arguments import caller_level
from shardctl.system.text import lacks

if TYPE_CHECKING:
    from shardctl.sources.boxes import Shown

__all__ = [
    "HEADER_FIELDS",
    "Batch",
    "BatchMemory",
    "BatchReader",
    "Column",
    "GatherOptions",
    "Indices",
    "Normalization",
    "Shards",
    "Spec",
    "Transforms",
    "askable_headers",
    "columns_of",
    "headers_of",
    "identity",
    "in_place",
    "lend_free_memory",
    "most_pixels",
    "python_values",
    "refuse_unmoved",
    "rounded",
    "without_views",
    "zeros",
]


# --- what stays as it is beside images whose pixels are moved: refused if it is a place, else named
# ---


def refuse_unmoved(
    shards: Shards, columns: Sequence[Column], transforms: Transforms, samples: Indices
) -> None:
    """Raise UsageError if columns would be wrong in batches whose images are resized, cut or
    mirrored; warn of what may be so.

    `columns` are read; others tell what these are, as y1 does of x1. Of the first of `samples`
    (n,), those in one block, the values are looked at. Columns in `unmoved` of the transforms are
    left out; UsageError if there are none of these names, or their roles say that they move.
    """
    _check_unmoved(shards, transforms)
    if transforms.moving is None or not len(samples):
        return
    # 20 ms
    from shardctl.sources.boxes import (
        beside_images,
        column_of,
        has_values_to_see,
        said_of_unknown,
        why_wrong,
    )

    roles, read = shards.layout.roles.by_name, [column.name for column in columns]
    moved = {
        "key",
        "variant",
        *transforms.unmoved,
        *(n for n, role in roles.items() if isinstance(role, Image | Objects)),
    }
    beside = [f for f in shards.layout.columns if f.name not in moved]
    to_see = [
        f.name
        for f in beside
        if f.name in read and f.name not in roles and has_values_to_see(f.type)
    ]
    wrong, unknown = beside_images(beside, roles, _first_kinds(shards, to_see, samples))
    names = [f.name for f in beside if f.name in read]
    if places := [place for place in wrong if column_of(place, names) is not None]:
        stay = list(dict.fromkeys(column_of(place, names) for place in places))
        kept = ", ".join(repr(name) for name in read if name not in stay)
        raise UsageError(
            f"{why_wrong(transforms.moving, places)}. Leave out {transforms.moving}; or get these "
            "columns as they are with"
            f" unmoved={stay}; or leave them out: columns=[{kept}]"
        )
    if unknown := [name for name in unknown if name in names]:
        warnings.warn(
            said_of_unknown(transforms.moving, unknown, "unmoved=[…]"), UserWarning, caller_level()
        )


def _check_unmoved(shards: Shards, transforms: Transforms) -> None:
    """Raise UsageError if `unmoved` names what is no column, or what moves with the image because
    of its role."""
    roles, names = shards.layout.roles, shards.layout.columns.names
    unknown = [name for name in transforms.unmoved if name not in names]
    if unknown:
        raise UsageError(f"unmoved: {lacks('column', unknown[0], names)}")
    if transforms.moving is None:
        return
    for name in transforms.unmoved:
        role = roles.get(name)
        what = (
            "a mask"
            if isinstance(role, Mask)
            else "an image"
            if isinstance(role, Image)
            else "objects"
        )
        if isinstance(role, Image | Objects):
            raise UsageError(
                f"unmoved: {name} is {what} by its role, and {transforms.moving} moves it with the "
                "images. Leave it out of"
                f" unmoved=, or read it unchanged with another loader, without {transforms.moving}"
            )


def _first_kinds(shards: Shards, names: Sequence[str], samples: Indices) -> Shown:
    """Return what the first values of columns are; nothing where a shard is damaged."""
    if not names:
        return {}
    from shardctl.sources.boxes import LOOKED_AT, kinds_of

    blocks = np.searchsorted(shards.starts, samples, side="right")
    near = samples[blocks == blocks[0]][:LOOKED_AT]
    try:
        table = BatchReader(shards, columns_of(shards, names), Transforms(), GatherOptions()).table(
            near
        )
        values = {name: table.column(name).to_pylist() for name in names}
    except (DatasetError, UnicodeDecodeError):  # the batches tell of it, or leave it out
        return {}
    return {name: set().union(*map(kinds_of, listed)) for name, listed in values.items()}


# --- what the headers of images say: width, height and bytes, without decoding them ---

HEADER_FIELDS = {name: pa.int64() for name in ("width", "height", "image_bytes")}
"""What can be asked of images and masks: their size in pixels, and the bytes that are stored."""

HEADER = pa.struct(list(HEADER_FIELDS.items()))
"""The fields of a header together."""


def askable_headers(roles: Roles) -> dict[str, pa.DataType]:
    """Return what a condition may ask of images: NAME.width, … of each field, and width, … of the
    main one alone."""
    of_main = HEADER_FIELDS if roles.main_image is not None else {}
    return {**of_main, **dict.fromkeys(roles.images, HEADER)}


def headers_of(column: Column, values: pa.Array) -> pa.StructArray:
    """Return the header of every image of a column, of type HEADER; its fields are null where it
    cannot be read."""
    if column.shape:
        known = {"width": column.shape[1], "height": column.shape[0], "image_bytes": column.width}
        return pa.array([known] * len(values), HEADER)
    return pa.array([_header(data.as_py()) for data in values.field("bytes")], HEADER)


def _header(data: bytes | None) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        width, height = image.open_image(data, max_pixels=2**62).size
    except Rejection:
        return {"width": None, "height": None, "image_bytes": len(data)}
    return {"width": width, "height": height, "image_bytes": len(data)}
