"""What one annotation of a COCO file says of an object."""

from __future__ import annotations

from math import isnan
from typing import Any

from shardctl.images.codecs import rle
from shardctl.system.text import counted


class BadError(ValueError):
    """What is wrong with an annotation, as the end of a sentence."""


def members_of(element: dict[str, Any]) -> dict[str, Any]:
    """Return what an annotation says of an object. Raises BadError; numbers are looked at together,
    later."""
    category, bbox, points = (
        element.get("category_id"),
        element.get("bbox"),
        element.get("keypoints"),
    )
    if type(category) is not int:
        raise BadError("has no category_id that is a whole number")
    polygons, runs = _shape(element.get("segmentation"))
    if not bbox and (polygons or runs):
        bbox = _box_of_runs(runs) if runs else _box_around(polygons)
    if not isinstance(bbox, list) or len(bbox) != 4:
        raise BadError("has no bbox of four numbers")
    if points is not None and (not isinstance(points, list) or len(points) % 3):
        raise BadError("has keypoints that are no triples of x, y and v")
    crowd, own, area = element.get("iscrowd"), element.get("id"), element.get("area")
    if crowd not in (None, 0, 1):
        raise BadError("has an iscrowd that is neither 0 nor 1")
    if area is not None and type(area) not in (int, float):
        raise BadError("has an area that is not a number")
    return {
        "id": own if type(own) is int else None,
        "category": category,
        "bbox": bbox,
        "area": None if type(area) is float and isnan(area) else area,
        "iscrowd": bool(crowd) if crowd is not None else None,
        "segmentation": polygons,
        "rle": runs,
        "keypoints": [points[place : place + 3] for place in range(0, len(points), 3)]
        if points
        else [],
    }


def _shape(given: Any) -> tuple[list[list[float]], dict[str, Any] | None]:
    """Return the polygons and the RLE of an object. Raises BadError."""
    if not given:
        return [], None
    if isinstance(given, dict):
        return [], _runs(given)
    if not isinstance(given, list):
        raise BadError("has a segmentation that is neither polygons nor RLE")
    polygons = [polygon for polygon in given if polygon != []]
    for polygon in polygons:
        if not isinstance(polygon, list):
            raise BadError("has a polygon that is not a list of numbers")
        if len(polygon) < 6 or len(polygon) % 2:
            raise BadError(
                f"has a polygon of {counted(len(polygon), 'number')}; it takes an even number from "
                "6 on"
            )
    return polygons, None


def _runs(given: dict[str, Any]) -> dict[str, Any]:
    """Return an RLE in its compressed form. Raises BadError."""
    size, counts = given.get("size"), given.get("counts")
    if (
        not isinstance(size, list)
        or len(size) != 2
        or not all(type(n) is int and 0 < n < 2**31 for n in size)
    ):
        raise BadError("has an RLE without a size of two whole numbers")
    if isinstance(counts, str) and counts.isascii():
        return {"size": size, "counts": counts.encode()}
    if not isinstance(counts, list) or not all(type(n) is int and 0 <= n < 2**40 for n in counts):
        raise BadError("has an RLE whose counts are neither a string nor whole numbers")
    if sum(counts) != size[0] * size[1]:
        raise BadError(
            f"has an RLE of {sum(counts)} pixels, and its size {size[1]}x{size[0]} has "
            f"{size[0] * size[1]}"
        )
    return {"size": size, "counts": rle.compress(counts)}


def _box_of_runs(runs: dict[str, Any]) -> list[float]:
    """Return the smallest box around the mask of an RLE. Raises BadError."""
    try:
        return rle.box(runs["counts"], runs["size"][0])
    except ValueError as error:
        raise BadError(f"has an RLE that is {error}") from None


def _box_around(polygons: list[list[float]]) -> list[float]:
    try:
        x = [number for polygon in polygons for number in polygon[::2]]
        y = [number for polygon in polygons for number in polygon[1::2]]
        return [min(x), min(y), max(x) - min(x), max(y) - min(y)]
    except TypeError:
        raise BadError("has a polygon with something else than numbers") from None
