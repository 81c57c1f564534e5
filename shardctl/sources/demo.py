"""A small dataset to try things on: images in class folders, scenes with boxes, some text, stories
for a language model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from shardctl.format.arrays import Bytes, Floats

# before PIL: where that is broken, it says so in a sentence
from shardctl.images.codecs import backend

# isort: split
from PIL import Image, ImageDraw, ImageFilter

from shardctl.errors import StorageError
from shardctl.system.files import naming_the_path
from shardctl.system.text import printable

Look = tuple[tuple[int, int, int], tuple[int, int, int]]

LOOKS: dict[str, Look] = {
    "dunes": ((150, 180, 215), (200, 160, 100)),
    "forest": ((140, 170, 185), (55, 95, 45)),
    "harbour": ((165, 175, 185), (55, 95, 140)),
    "night": ((35, 35, 70), (35, 32, 38)),
    "sunset": ((225, 130, 80), (80, 50, 60)),
    "snow": ((195, 205, 225), (225, 230, 240)),
}
"""The colors of sky and ground in each class."""

SPREAD = 24.0
"""How much a color differs from image to image: the standard deviation of its red, green and
blue."""

CLASSES = tuple(LOOKS)
_WORDS = (
    "the,quiet,boat,drifts,past,a,row,of,lamps,while,rain,falls,on,warm,stone,and,nobody,speaks,of,the,long,road,home,under,slow,clouds,that,carry,the,smell,of,salt,and,cut,grass,over,hills,we,knew,as,children"
).split(",")


STORIES = 2000
"""Stories: enough for a small language model to learn what comes next."""


def make_demo(
    folder: str | Path, images: int = 300, texts: int = 200, seed: int = 0, scenes: int = 100
) -> dict[str, int]:
    """Write `images` images into class folders under photos/, `scenes` images with a COCO file
    under scenes/, `texts` lines and 20 files of text, and STORIES stories.

    The same seed gives the same files. If it fails or is interrupted, what it wrote is removed.
    Raises StorageError if the folder holds something already, and InstallError where no imaging
    package works.
    """
    backend.require_one()
    root = Path(folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise StorageError(f"{printable(root)}: is not empty; give a new or empty folder")
    existed = root.exists()
    try:
        with naming_the_path(root):
            for number in range(images):
                _write_image(root / "photos", number, default_rng([seed, 1, number]))
            shapes = _write_scenes(root / "scenes", scenes, seed)
            _write_texts(root / "texts", default_rng([seed, 2]))
            for name, records in (
                ("lines", _lines(texts, default_rng([seed, 3]))),
                ("stories", _stories(default_rng([seed, 4]))),
            ):
                lines = "".join(f"{json.dumps(record)}\n" for record in records)
                (root / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    except BaseException:  # Ctrl-C too: half a folder would be refused by the next call
        for made in root.iterdir() if existed else [root]:
            if made.is_dir():
                shutil.rmtree(made, ignore_errors=True)
            elif made.exists():
                made.unlink()
        raise
    return {
        "images": images,
        "classes": min(images, len(CLASSES)),
        "scenes": scenes,
        "scene_objects": shapes,
        "text_files": 20,
        "text_lines": texts,
        "stories": STORIES,
    }


def _write_image(root: Path, number: int, rng: Generator) -> None:
    kind = CLASSES[number % len(CLASSES)]
    width, height = rng.integers(180, 640, 2).tolist()
    picture = _view(width, height, LOOKS[kind], rng)
    folder = root / kind
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{kind}-{number:04d}"
    # A few of every form that real folders have: PNG, grey, transparent, turned by EXIF.
    form = number % 20
    if form == 17:
        picture.save(stem.with_suffix(".png"))
    elif form == 18:
        picture.convert("L").save(stem.with_suffix(".jpg"), quality=88)
    elif form == 19:
        turned = Image.Exif()
        turned[0x0112] = 6
        picture.save(stem.with_suffix(".jpg"), quality=88, exif=turned)
    else:
        picture.save(stem.with_suffix(".jpg"), quality=int(rng.integers(75, 96)))


def _view(width: int, height: int, look: Look, rng: Generator) -> Image.Image:
    """Draw a sky, a ground, a few soft shapes and the grain of a sensor."""
    # All but the grain is soft: half the size is enough, and takes a quarter of the time.
    soft = Image.fromarray(_soft_view(max(1, width // 2), max(1, height // 2), look, rng))
    grain = rng.standard_normal((height, width, 1), dtype=np.float32) * np.float32(
        rng.uniform(2, 9)
    )
    pixels = np.asarray(soft.resize((width, height), Image.Resampling.BILINEAR)) + grain
    return Image.fromarray(np.clip(pixels, 0, 255, out=pixels).astype(np.uint8)).filter(
        ImageFilter.GaussianBlur(0.6)
    )


def _soft_view(width: int, height: int, look: Look, rng: Generator) -> Bytes:
    x, y = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
    horizon = height * rng.uniform(0.35, 0.7) + height * 0.05 * np.sin(
        x / width * rng.uniform(2, 9) + rng.uniform(0, 6)
    )
    sky, ground = (np.clip(rng.normal(color, SPREAD), 5, 250).astype(np.float32) for color in look)
    fade = (y / height)[..., None]
    scene = np.where(
        (y < horizon)[..., None],
        sky * (np.float32(1.1) - fade / 2),
        ground * (np.float32(0.6) + fade * 3 / 5),
    )
    for _ in range(int(rng.integers(4, 12))):
        cx, cy, r = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.03, 0.2) * width
        # Further out than three radii a shape is not to be seen, and most of the picture is further
        # out.
        rows = slice(max(0, int(cy - 3 * r)), int(cy + 3 * r) + 1)
        columns = slice(max(0, int(cx - 3 * r)), int(cx + 3 * r) + 1)
        distance = (
            (x[columns] - np.float32(cx)) ** 2 + (y[rows] - np.float32(cy)) ** 2
        ) / np.float32(r**2)
        near = np.exp(-(distance ** np.float32(rng.uniform(0.7, 4))))[..., None]
        scene[rows, columns] += (
            rng.uniform(0, 255, 3).astype(np.float32) - scene[rows, columns]
        ) * near
    pixels: Bytes = np.clip(scene, 0, 255).astype(np.uint8)
    return pixels


def _sentence(rng: Generator) -> str:
    words = rng.choice(_WORDS, int(rng.integers(6, 30)))
    return " ".join(words).capitalize() + "."


def _write_texts(root: Path, rng: Generator) -> None:
    for number in range(20):
        folder = root / ("calm" if number % 2 else "stormy")
        folder.mkdir(parents=True, exist_ok=True)
        text = "\n".join(_sentence(rng) for _ in range(int(rng.integers(5, 40))))
        (folder / f"{number:02d}.txt").write_text(text + "\n", encoding="utf-8")


def _lines(count: int, rng: Generator) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "text": _sentence(rng),
            "id": number,
            "score": round(float(rng.uniform(0, 1)), 3),
            "tags": ["demo"],
        }


_PEOPLE = "Anna,Boris,Chen,Dilara,Emeka,Fatima,Goran,Hana".split(",")
_FRUITS = "apples,pears,plums,figs,limes,dates".split(",")
_NUMBERS = "no,one,two,three,four,five,six,seven,eight,nine,ten,eleven,twelve".split(",")


def _stories(rng: Generator) -> Iterator[dict[str, Any]]:
    """Yield stories of which the end follows from the beginning."""
    for _ in range(STORIES):
        yield {"text": " ".join(_story(rng) for _ in range(int(rng.integers(1, 5))))}


def _story(rng: Generator) -> str:
    one, other = (str(name) for name in rng.choice(_PEOPLE, 2, replace=False))
    fruit, first, more = str(rng.choice(_FRUITS)), int(rng.integers(1, 7)), int(rng.integers(1, 7))
    given = int(rng.integers(0, first + 1))

    def of(number: int) -> str:
        return f"{_NUMBERS[number]} {fruit.removesuffix('s') if number == 1 else fruit}"

    return (
        f"{one} has {of(first)}. {other} has {of(more)}. {one} gives {_NUMBERS[given]} of them to "
        f"{other}. Now {one} has {of(first - given)}, and {other} has {_NUMBERS[more + given]}."
    )


# --- scenes for a detector: shapes of three kinds on backgrounds, with their boxes and outlines as
# a COCO file ---

KINDS = ("ball", "box", "tent")
FILE = "instances.json"

_FINER = 4
"""Outlines are drawn so much finer than the pixels are."""

Outline = Floats
"""Corners: (corners, 2), x and y in pixels, whole quarters of a pixel."""


def _write_scenes(folder: Path, count: int, seed: int) -> int:
    """Write `count` scenes and their COCO file into a folder. Return how many shapes they show."""
    folder.mkdir(parents=True)
    images, annotations = [], []
    for number in range(count):
        rng = default_rng([seed, 5, number])
        picture, shapes = _scene(rng)
        name = f"scene-{number:04d}.jpg"
        picture.save(folder / name, quality=92)
        images.append(
            {"id": number, "file_name": name, "width": picture.width, "height": picture.height}
        )
        annotations += [
            {"image_id": number, "category_id": 1 + kind, **_described(outline)}
            for kind, outline in shapes
        ]
    described = {
        "images": images,
        "annotations": [{"id": number, **each} for number, each in enumerate(annotations, 1)],
        "categories": [
            {"id": 1 + kind, "name": name, "supercategory": "shape"}
            for kind, name in enumerate(KINDS)
        ],
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


def _scene(rng: Generator) -> tuple[Image.Image, list[tuple[int, Outline]]]:
    """Draw a background, and up to five shapes that do not touch. One scene in twenty or so has
    none."""
    width, height = rng.integers(128, 257, 2).tolist()
    picture = _background(width, height, rng)
    shapes: list[tuple[int, Outline]] = []
    for _ in range(0 if rng.random() < 0.05 else int(rng.integers(1, 6))):
        kind = int(rng.integers(len(KINDS)))
        tries = (_outline(kind, width, height, rng) for _ in range(10))
        apart = (tried for tried in tries if all(_apart(tried, other) for _, other in shapes))
        if (outline := next(apart, None)) is not None:
            shapes.append((kind, outline))
            _draw(picture, outline, rng)
    return picture, shapes


def _background(width: int, height: int, rng: Generator) -> Image.Image:
    """Draw colors that flow into each other, with the grain of a sensor."""
    rough = Image.fromarray(rng.integers(70, 180, (3, 3, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    grain = rng.standard_normal((height, width, 1), dtype=np.float32) * 5
    return Image.fromarray(np.clip(np.asarray(rough) + grain, 0, 255).astype(np.uint8))


def _outline(kind: int, width: int, height: int, rng: Generator) -> Outline:
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
    before, after = one.max(axis=0) + 3 < other.min(axis=0), other.max(axis=0) + 3 < one.min(axis=0)
    return bool((before | after).any())


def _draw(picture: Image.Image, outline: Outline, rng: Generator) -> None:
    """Draw a shape in a color that is not like what lies below it."""
    left, top = np.floor(outline.min(axis=0)).astype(int).tolist()
    right, bottom = np.ceil(outline.max(axis=0)).astype(int).tolist()
    part = (left, top, right, bottom)
    below = np.asarray(picture.crop(part)).mean(axis=(0, 1))
    color = (below + 127 + rng.uniform(-50, 50, 3)) % 255
    mask = Image.new("L", ((right - left) * _FINER, (bottom - top) * _FINER))
    corners = (outline - (left, top)) * _FINER
    # Pillow's places are the centres of pixels, and it fills those that an edge goes through: half
    # a fine pixel inwards.
    inwards = corners - 0.5 + np.sign(corners.mean(axis=0) - corners) * 0.5
    ImageDraw.Draw(mask).polygon(inwards.ravel().tolist(), fill=255)
    mask = mask.resize((right - left, bottom - top), Image.Resampling.BOX)
    picture.paste(tuple(color.astype(int).tolist()), part, mask)
