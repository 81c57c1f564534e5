"""Which columns look like places in the image, so that they would be wrong once it is resized, cropped or mirrored."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

PLACE_NAMES = frozenset(
    ("bbox", "bboxes", "box", "boxes", "boundingbox", "boundingboxes", "keypoint", "keypoints", "landmark", "landmarks")
    + ("polygon", "polygons", "points", "segmentation", "segmentations", "rle")
)
"""Names of columns, or of fields in them, that hold places in the image; without _ and - and in lower case.

A single number is none of them: the points of a game.
"""

COORDINATES = tuple(
    frozenset(names.split())
    for names in (
        "xmin ymin xmax ymax",
        "x1 y1 x2 y2",
        "x0 y0 x1 y1",
        "left top right bottom",
        "x y w h",
        "x y width height",
        "cx cy w h",
        "xc yc w h",
        "xcenter ycenter width height",
    )
)
"""Names that are coordinates if all of a group are present."""


def place_columns(fields: Iterable[pa.Field]) -> list[str]:
    """Return the columns that look like places in the image, those inside others with a dot: objects.bbox."""
    return list(_places(fields, ""))


def _places(fields: Iterable[pa.Field], within: str) -> Iterable[str]:
    listed = list(fields)
    plain = {f.name: f.name.lower().replace("_", "").replace("-", "") for f in listed}
    coordinates: set[str] = set().union(*(group for group in COORDINATES if group <= set(plain.values())))
    for f in listed:
        name = plain[f.name]
        if (name in PLACE_NAMES and not _is_number(f.type)) or name in coordinates or _is_of_a_box(name):
            yield within + f.name
        else:
            type_ = f.type
            while pa.types.is_list(type_):
                type_ = type_.value_type
            if pa.types.is_struct(type_):
                yield from _places(type_, f"{within}{f.name}.")


def _is_of_a_box(name: str) -> bool:
    """Return whether this is a name such as `bbox_xywh` or `bbox_left`."""
    return name.startswith("bbox") and name not in PLACE_NAMES


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))
