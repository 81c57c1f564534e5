"""A small dataset of images with objects, keypoints and masks, whose every number is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from handmade import generation_of
from pictures import png as png

from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.roles import Image, Mask, Objects, Role, Roles
from shardctl.format.shard import Compression
from shardctl.format.tables import MADE_BY
from shardctl.images.codecs.rle import compress
from shardctl.making.write.fields import ShardLimits
from shardctl.making.write.writer import ShardSeries, finish
from shardctl.sources.annotations.objects import objects_type

WIDTH, HEIGHT = 64, 48
GREY = (90, 90, 90)
NAMES, POINTS = ("person", "dog", "owl"), ("nose", "left ear", "right ear")
OBJECTS = Objects(NAMES, (1, 18, 90), None, POINTS, ((0, 1), (0, 2)), (0, 2, 1))
CLASSES = Mask("source", None, ("background", "grass"), 255)

OBJECTS_TYPE = objects_type(("category", "bbox", "iscrowd", "segmentation", "rle", "keypoints"))

PERSON: dict[str, Any] = {
    "category": 0,
    "bbox": [4, 6, 16, 12],
    "iscrowd": False,
    "segmentation": [],
    "rle": None,
    "keypoints": [[8, 8, 2], [12, 10, 1], [0, 0, 0]],
}
NO_POINTS = {**PERSON, "keypoints": []}
POLYGON = [32, 24, 56, 24, 32, 40]
DOG = {**NO_POINTS, "category": 1, "bbox": [32, 24, 24, 16], "segmentation": [POLYGON]}
CROWD = {**NO_POINTS, "bbox": [0, 0, 64, 48], "iscrowd": True}


def together(objects: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return objects as a dict of lists."""
    return {name: [each[name] for each in objects] for name in PERSON}


def classes_of_pixels() -> Any:
    """Return a mask (48, 64): four rows of no class, and below grass in the left half."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[:, : WIDTH // 2] = 1
    mask[:4] = 255
    return mask


def sample(number: int) -> tuple[Any, ...]:
    """Return sample 0 to 3 of four: two objects, none, not annotated and without a mask, a crowd;
    then again."""
    half = HEIGHT * WIDTH // 2
    crowd = {**CROWD, "rle": {"size": [HEIGHT, WIDTH], "counts": compress([half, half])}}
    objects = (together([PERSON, DOG]), together([]), None, together([crowd]))[number % 4]
    image = png(np.full((HEIGHT, WIDTH, 3), GREY, np.uint8))
    mask = None if number % 4 == 2 else (png(classes_of_pixels()), "mask.png")
    return f"k{number:02d}.png", (image, "image.png"), objects, mask


def write_annotated(root: Path, compression: str = "none", change: Any = None) -> Path:
    """Write 12 samples of the split train and 4 of val; `change` is called with each before it is
    written."""
    fields = [
        ("key", pa.string()),
        ("image", ENCODED_IMAGE),
        ("objects", OBJECTS_TYPE),
        ("mask", ENCODED_IMAGE),
    ]
    roles: dict[str, Role] = {"image": Image("source"), "objects": OBJECTS, "mask": CLASSES}
    layout = Layout("image", pa.schema(fields), Roles(roles))
    entries, encoding = [], Compression.parse(compression)
    with generation_of(root) as new:
        for split, numbers in (("train", range(12)), ("val", range(12, 16))):
            limits = ShardLimits(1 << 62, 5)
            series = ShardSeries(new.root, new.id, layout, split, encoding, limits)
            for number in numbers:
                series.add(sample(number) if change is None else change(sample(number)), 2_000_000)
            series.close()
            entries += series.entries
        finish(new, layout, entries, encoding, {"made_by": MADE_BY})
    return root
