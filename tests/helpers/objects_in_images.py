"""Datasets of images with masks and objects, for loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from handmade import write_dataset
from pictures import encoded
from PIL import Image

import shardctl
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Mask, Objects, Role
from shardctl.sources.annotations.objects import ITEMS, objects_type

FLOATS = pa.list_(pa.float32())
OBJECTS = objects_type(set(ITEMS) - {"difficult", "truncated"})
CATEGORIES = ("cat", "dog", "owl")
ROLE = Objects(CATEGORIES, keypoints=("nose", "left eye", "right eye"), flip=(0, 2, 1))
FIELDS = pa.schema(
    [("key", pa.string()), ("image", ENCODED_IMAGE), ("mask", ENCODED_IMAGE), ("objects", OBJECTS)]
)
NOISE = np.random.default_rng(0).integers(0, 256, (24, 24)).astype(np.uint8)
"""The pixels of every image and mask from the top left: any part of it can be found again."""

Thing = dict[str, Any]
"""One object: its members by name."""


def thing(box: list[float], category: int = 0, **members: Any) -> Thing:
    usual = {"id": 7, "area": box[2] * box[3], "iscrowd": False, "rle": None}
    return {
        "bbox": box,
        "category": category,
        **usual,
        "segmentation": [],
        "keypoints": [],
        **members,
    }


def struct(things: list[Thing] | None) -> dict[str, list[Any]] | None:
    if things is None:
        return None
    return {field.name: [each[field.name] for each in things] for field in OBJECTS}


def png(width: int, height: int, grey: bool = False) -> tuple[bytes, str]:
    values = NOISE[:height, :width]
    return encoded(Image.fromarray(values if grey else np.stack([values] * 3, axis=2))), "x.png"


def write(
    root: Path,
    samples: list[list[Thing] | None],
    sizes: list[tuple[int, int]] | None = None,
    role: Objects = ROLE,
    compression: str = "none",
) -> shardctl.Dataset:
    """Write samples with these objects, and images and masks of these sizes (width, height)."""
    rows = [
        (f"k{place}", png(*size), png(*size, grey=True), struct(things))
        for place, (things, size) in enumerate(
            zip(samples, sizes or [(16, 12)] * len(samples), strict=True)
        )
    ]
    roles: dict[str, Role] = {"mask": Mask("png"), "objects": role}
    write_dataset(root, FIELDS, rows, 3, compression, sample_bytes=400_000, roles=roles)
    return shardctl.open(root)


POLYGONS = [[4, 4, 12, 4, 12, 8], [4, 4, 8, 8, 4, 8]]
SAMPLES: list[list[Thing] | None] = [
    [thing([1, 2, 3, 4], 2, id=10, iscrowd=True), thing([0, 0, 16, 12], 1, id=11)],
    [],
    None,
    [thing([4, 4, 8, 4], keypoints=[[5, 5, 2], [6, 7, 1], [0, 0, 0]], segmentation=POLYGONS)],
]
