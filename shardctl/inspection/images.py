"""What an image is, from its header: nothing is decoded."""

from __future__ import annotations

from typing import Any

from shardctl.codecs import image
from shardctl.errors import Rejection
from shardctl.layout import ENCODED_IMAGE


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
