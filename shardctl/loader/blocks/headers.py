"""What the headers of images say: width, height and bytes, without decoding them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.roles import Roles
from shardctl.images.codecs import image
from shardctl.loader.blocks.column import Column

HEADER_FIELDS = {name: pa.int64() for name in ("width", "height", "image_bytes")}
"""What can be asked of images and masks: their size in pixels, and the bytes that are stored."""

HEADER = pa.struct(list(HEADER_FIELDS.items()))
"""The fields of a header together."""


def askable_headers(roles: Roles) -> dict[str, pa.DataType]:
    """Return what a condition may ask of images: NAME.width, … of each field, and width, … of the main one alone."""
    of_main = HEADER_FIELDS if roles.main_image is not None else {}
    return {**of_main, **dict.fromkeys(roles.images, HEADER)}


def headers_of(column: Column, values: pa.Array) -> pa.StructArray:
    """Return the header of every image of a column, of type HEADER; its fields are null where it cannot be read."""
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
