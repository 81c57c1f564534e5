"""What an image is, from its header: nothing is decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.codecs import image
from shardctl.errors import Rejection
from shardctl.inspection.blocks import is_image
from shardctl.shard import ENCODED_IMAGE


def image_facts(block: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return width, height, stored bytes and format of every image of a block, without decoding it. None: no such image."""
    column = next(column for field, column in zip(block.schema, block.columns, strict=True) if is_image(field))
    if isinstance(column.type, pa.FixedShapeTensorType):
        shape = list(column.type.shape)
        (height, width), size = (shape + [1, 1])[:2], int(np.prod(shape))
        return [{"width": width, "height": height, "image_bytes": size, "format": "raw"}] * block.num_rows
    return [facts_of(value.as_py()) for value in column.field("bytes")]


def facts_of(data: bytes | None) -> dict[str, Any]:
    """Return width, height, stored bytes, format and mode of an encoded image; an `error` where it cannot be opened."""
    nothing = {"width": None, "height": None, "format": None, "image_bytes": len(data) if data is not None else None}
    if data is None:
        return nothing
    try:
        opened = image.open_image(data, max_pixels=2**62)
    except Rejection as rejection:
        return {**nothing, "error": rejection.message}
    width, height = opened.size
    return {**nothing, "width": width, "height": height, "format": opened.format, "mode": opened.mode}


def is_encoded_image(value: Any) -> bool:
    """Return whether a stored value is an image in a file format."""
    return isinstance(value, dict) and set(value) == {f.name for f in ENCODED_IMAGE}
