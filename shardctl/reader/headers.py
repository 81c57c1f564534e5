"""What the headers of images say: width, height and bytes, without decoding them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.codecs import image
from shardctl.errors import Rejection
from shardctl.reader.column import Column

HEADER_FIELDS = {name: pa.int64() for name in ("width", "height", "image_bytes")}
"""What can be asked of images."""


def header_fields(column: Column, values: pa.Array, wanted: list[str]) -> dict[str, pa.Array]:
    """Return these fields of HEADER_FIELDS for every image of a column; null where a header cannot be read."""
    if column.shape:
        known = dict(zip(HEADER_FIELDS, (column.shape[1], column.shape[0], int(np.prod(column.shape))), strict=True))
        return {name: pa.array([known[name]] * len(values), pa.int64()) for name in wanted}
    found = [_header(data.as_py()) for data in values.field("bytes")]
    return {name: pa.array([header[name] for header in found], pa.int64()) for name in wanted}


def _header(data: bytes | None) -> dict[str, Any]:
    if data is None:
        return dict.fromkeys(HEADER_FIELDS)
    try:
        width, height = image.open_image(data, max_pixels=2**62).size
    except Rejection:
        return {"width": None, "height": None, "image_bytes": len(data)}
    return {"width": width, "height": height, "image_bytes": len(data)}
