"""What an image is, from its header, and what is marked in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardctl.errors import Rejection
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Objects
from shardctl.images.codecs import image
from shardctl.images.codecs.drawing import name_of


def facts_of(data: bytes | None) -> dict[str, Any]:
    """Return width, height, stored bytes, format and mode of an encoded image; an `error` where it
    cannot be opened."""
    nothing = {
        "width": None,
        "height": None,
        "format": None,
        "image_bytes": len(data) if data is not None else None,
    }
    if data is None:
        return nothing
    try:
        opened = image.open_image(data, max_pixels=2**62)
    except Rejection as rejection:
        return {**nothing, "error": rejection.message}
    width, height = opened.size
    return {
        **nothing,
        "width": width,
        "height": height,
        "format": opened.format,
        "mode": opened.mode,
    }


def is_encoded_image(value: Any) -> bool:
    """Return whether a stored value is an image in a file format."""
    return isinstance(value, dict) and set(value) == {f.name for f in ENCODED_IMAGE}


_MOST_FLOAT = float(np.finfo(np.float32).max)


def plain_objects(objects: dict[str, Any]) -> dict[str, Any]:
    """Return the objects of a sample as JSON has them: numbers of 32 bits in their shortest form,
    RLE as text."""
    return {name: _plain(value) for name, value in objects.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        narrow = np.float32(value) if abs(value) <= _MOST_FLOAT else np.float32(0)
        return float(str(narrow)) if float(narrow) == value else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return plain_objects(value)
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def is_objects(value: Any) -> bool:
    """Return whether a stored value is the objects of a sample: a dict of lists, with a box and a
    category for each."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), list) for name in ("bbox", "category")
    )


def object_rows(objects: dict[str, Any], role: Objects) -> tuple[list[str], list[list[Any]]]:
    """Return the objects of a sample as a table for people: its header, and a row for each
    object."""
    header = ["object", "category", "x", "y", "width", "height"]
    count = len(objects["bbox"])
    extra = [
        (said, values) for said, values in _more_of(objects) if len(values) == count and any(values)
    ]
    rows = []
    for number, (box, category) in enumerate(
        zip(objects["bbox"], objects["category"], strict=False)
    ):
        sides = ["" if side is None else float(f"{side:.6g}") for side in (box or [None] * 4)]
        name = "" if category is None else name_of(category, role.names)
        rows.append([number, name, *sides, *(values[number] for _, values in extra)])
    return header + [said for said, _ in extra], rows


def _more_of(objects: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what else is known of objects: the name of a column, and a short value for each
    object."""
    yield (
        "area",
        [float(f"{area:.6g}") if area is not None else "" for area in objects.get("area") or ()],
    )
    for member, said in (
        ("iscrowd", "crowd"),
        ("difficult", "difficult"),
        ("truncated", "truncated"),
    ):
        yield said, [said if value else "" for value in objects.get(member) or ()]
    polygons = [
        f"{len(each)} ({sum(len(polygon or ()) for polygon in each) // 2} points)" if each else ""
        for each in objects.get("segmentation") or ()
    ]
    yield "polygons", polygons
    yield "RLE", ["RLE" if each else "" for each in objects.get("rle") or ()]
    points = [
        f"{sum(bool(point and point[2]) for point in each)} of {len(each)}" if each else ""
        for each in objects.get("keypoints") or ()
    ]
    yield "keypoints", points
