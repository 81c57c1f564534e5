"""Scenes for a detector: shapes of three kinds on backgrounds, with their boxes and outlines as a COCO file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.images.codecs import backend

# isort: split
from PIL import Image, ImageDraw

KINDS = ("ball", "box", "tent")
FILE = "instances.json"

_FINER = 4
"""Outlines are drawn so much finer than the pixels are."""

Outline = npt.NDArray[np.float64]
"""Corners: (corners, 2), x and y in pixels, whole quarters of a pixel."""


def write_scenes(folder: Path, count: int, seed: int) -> int:
    """Write `count` scenes and their COCO file into a folder. Return how many shapes they show."""
    backend.require_one()
    folder.mkdir(parents=True)
    images, annotations = [], []
    for number in range(count):
        rng = np.random.default_rng([seed, 5, number])
        picture, shapes = _scene(rng)
        name = f"scene-{number:04d}.jpg"
        picture.save(folder / name, quality=92)
        images.append({"id": number, "file_name": name, "width": picture.width, "height": picture.height})
        annotations += [{"image_id": number, "category_id": 1 + kind, **_described(outline)} for kind, outline in shapes]
    described = {
        "images": images,
        "annotations": [{"id": number, **each} for number, each in enumerate(annotations, 1)],
        "categories": [{"id": 1 + kind, "name": name, "supercategory": "shape"} for kind, name in enumerate(KINDS)],
    }
    (folder / FILE).write_text(json.dumps(described) + "\n", encoding="utf-8")
    return len(annotations)


def _described(outline: Outline) -> dict[str, Any]:
    low, high = outline.min(axis=0), outline.max(axis=0)
    (x, y), (after_x, after_y) = outline.T, np.roll(outline, -1, axis=0).T
    return {
        "bbox": [*low.tolist(), *(high - low).tolist()],
        "segmentation": [outline.ravel().tolist()],
        "area": abs(float((x * after_y - after_x * y).sum())) / 2,
        "iscrowd": 0,
    }


def _scene(rng: np.random.Generator) -> tuple[Image.Image, list[tuple[int, Outline]]]:
    """Draw a background, and up to five shapes that do not touch. One scene in twenty or so has none."""
    width, height = (int(side) for side in rng.integers(128, 257, 2))
    picture = _background(width, height, rng)
    shapes: list[tuple[int, Outline]] = []
    for _ in range(0 if rng.random() < 0.05 else int(rng.integers(1, 6))):
        kind, outline = int(rng.integers(len(KINDS))), None
        for _ in range(10):
            tried = _outline(kind, width, height, rng)
            if all(_apart(tried, other) for _, other in shapes):
                outline = tried
                break
        if outline is not None:
            shapes.append((kind, outline))
            _draw(picture, outline, rng)
    return picture, shapes


def _background(width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """Draw colors that flow into each other, with the grain of a sensor."""
    rough = Image.fromarray(rng.integers(70, 180, (3, 3, 3), dtype=np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.standard_normal((height, width, 1), dtype=np.float32) * 5
    return Image.fromarray(np.clip(np.asarray(rough) + grain, 0, 255).astype(np.uint8))


def _outline(kind: int, width: int, height: int, rng: np.random.Generator) -> Outline:
    """Return the corners of a shape that lies inside of the image."""
    sides = rng.uniform(0.16, 0.45, 2) * min(width, height)
    if KINDS[kind] == "ball":
        sides[1] = sides[0]
        angles = np.arange(48) * (2 * np.pi / 48)
        corners = np.stack([0.5 + np.cos(angles) / 2, 0.5 + np.sin(angles) / 2], axis=1)
    elif KINDS[kind] == "box":
        corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], dtype=np.float64)
    else:
        corners = np.array([(rng.uniform(0.3, 0.7), 0), (1, 1), (0, 1)])
    place = rng.uniform(2, np.array([width, height]) - sides - 2)
    return np.round((place + corners * sides) * _FINER) / _FINER


def _apart(one: Outline, other: Outline) -> bool:
    """Say whether the boxes of two shapes have some pixels between them."""
    return bool((one.max(axis=0) + 3 < other.min(axis=0)).any() or (other.max(axis=0) + 3 < one.min(axis=0)).any())


def _draw(picture: Image.Image, outline: Outline, rng: np.random.Generator) -> None:
    """Draw a shape in a color that is not like what lies below it."""
    left, top = np.floor(outline.min(axis=0)).astype(int).tolist()
    right, bottom = np.ceil(outline.max(axis=0)).astype(int).tolist()
    part = (left, top, right, bottom)
    below = np.asarray(picture.crop(part)).mean(axis=(0, 1))
    color = (below + 127 + rng.uniform(-50, 50, 3)) % 255
    mask = Image.new("L", ((right - left) * _FINER, (bottom - top) * _FINER))
    corners = (outline - (left, top)) * _FINER
    # Pillow's places are the centres of pixels, and it fills those that an edge goes through: half a fine pixel inwards.
    inwards = corners - 0.5 + np.sign(corners.mean(axis=0) - corners) * 0.5
    ImageDraw.Draw(mask).polygon([(x, y) for x, y in inwards.tolist()], fill=255)
    mask = mask.resize((right - left, bottom - top), Image.Resampling.BOX)
    picture.paste(tuple(int(value) for value in color), part, mask)
