"""A small dataset to try things on: photo-like images in class folders, some text, and stories for a language model."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardctl.images.codecs import backend  # before PIL: where that is broken, it says so in a sentence

# isort: split
from PIL import Image, ImageFilter

from shardctl.errors import StorageError
from shardctl.system.files import naming_the_path
from shardctl.system.text import printable

CLASSES = ("dunes", "forest", "harbour", "night", "sunset", "snow")
_WORDS = [
    "the",
    "quiet",
    "boat",
    "drifts",
    "past",
    "a",
    "row",
    "of",
    "lamps",
    "while",
    "rain",
    "falls",
    "on",
    "warm",
    "stone",
    "and",
    "nobody",
    "speaks",
    "of",
    "the",
    "long",
    "road",
    "home",
    "under",
    "slow",
    "clouds",
    "that",
    "carry",
    "the",
    "smell",
    "of",
    "salt",
    "and",
    "cut",
    "grass",
    "over",
    "hills",
    "we",
    "knew",
    "as",
    "children",
]


STORIES = 2000
"""Stories: enough for a small language model to learn what comes next."""


def make_demo(folder: str | Path, images: int = 300, texts: int = 200, seed: int = 0) -> dict[str, int]:
    """Write `images` images into class folders under photos/, `texts` lines and 20 files of text, and STORIES stories.

    The same seed gives the same files. If it fails or is interrupted, what it wrote is removed. Raises StorageError if the
    folder holds something already, and InstallError where no imaging package works.
    """
    backend.require_one()
    root = Path(folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise StorageError(f"{printable(str(root))}: is not empty; give a new or empty folder")
    photos, text, lines, stories = root / "photos", root / "texts", root / "lines.jsonl", root / "stories.jsonl"
    existed = root.exists()
    try:
        with naming_the_path(root):
            for number in range(images):
                _write_image(photos, number, np.random.default_rng([seed, 1, number]))
            _write_texts(text, np.random.default_rng([seed, 2]))
            _write_lines(lines, texts, np.random.default_rng([seed, 3]))
            _write_stories(stories, np.random.default_rng([seed, 4]))
    except BaseException:  # Ctrl-C too: half a folder would be refused by the next call
        for folder in (photos, text):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            lines.unlink(missing_ok=True)
            stories.unlink(missing_ok=True)
            if not existed:
                root.rmdir()
        raise
    return {"images": images, "classes": min(images, len(CLASSES)), "text_files": 20, "text_lines": texts, "stories": STORIES}


def _write_image(root: Path, number: int, rng: np.random.Generator) -> None:
    kind = CLASSES[number % len(CLASSES)]
    width, height = (int(side) for side in rng.integers(180, 640, 2))
    picture = Image.fromarray(_scene(width, height, rng)).filter(ImageFilter.GaussianBlur(0.6))
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


def _scene(width: int, height: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Draw a sky, a ground, a few soft shapes and the grain of a sensor: (height, width, 3) uint8."""
    y, x = np.mgrid[0:height, 0:width]
    horizon = height * rng.uniform(0.35, 0.7) + height * 0.05 * np.sin(x / width * rng.uniform(2, 9) + rng.uniform(0, 6))
    sky, ground = rng.uniform(60, 240, 3), rng.uniform(20, 160, 3)
    fade = (y / height)[..., None]
    scene = np.where((y < horizon)[..., None], sky * (1.1 - 0.5 * fade), ground * (0.6 + 0.6 * fade))
    for _ in range(int(rng.integers(4, 12))):
        cx, cy, r = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.03, 0.2) * width
        # Further out than three radii a shape is not to be seen, and most of the picture is further out.
        rows, columns = slice(max(0, int(cy - 3 * r)), int(cy + 3 * r) + 1), slice(max(0, int(cx - 3 * r)), int(cx + 3 * r) + 1)
        distance = ((x[rows, columns] - cx) ** 2 + (y[rows, columns] - cy) ** 2) / r**2
        near = np.exp(-(distance.astype(np.float32) ** np.float32(rng.uniform(0.7, 4))))[..., None]
        scene[rows, columns] += (rng.uniform(0, 255, 3).astype(np.float32) - scene[rows, columns]) * near
    grain = rng.normal(0, rng.uniform(2, 9), (height, width, 1))
    pixels: npt.NDArray[np.uint8] = np.clip(scene + grain, 0, 255).astype(np.uint8)
    return pixels


def _sentence(rng: np.random.Generator) -> str:
    words = rng.choice(_WORDS, int(rng.integers(6, 30)))
    return " ".join(words).capitalize() + "."


def _write_texts(root: Path, rng: np.random.Generator) -> None:
    for number in range(20):
        folder = root / ("calm" if number % 2 else "stormy")
        folder.mkdir(parents=True, exist_ok=True)
        text = "\n".join(_sentence(rng) for _ in range(int(rng.integers(5, 40))))
        (folder / f"{number:02d}.txt").write_text(text + "\n", encoding="utf-8")


def _write_lines(path: Path, count: int, rng: np.random.Generator) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count):
            line = {"text": _sentence(rng), "id": number, "score": round(float(rng.uniform(0, 1)), 3), "tags": ["demo"]}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


_PEOPLE = ("Anna", "Boris", "Chen", "Dilara", "Emeka", "Fatima", "Goran", "Hana")
_FRUITS = ("apples", "pears", "plums", "figs", "limes", "dates")
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def _write_stories(path: Path, rng: np.random.Generator) -> None:
    """Write stories of which the end follows from the beginning."""
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(STORIES):
            sentences = [_story(rng) for _ in range(int(rng.integers(1, 5)))]
            file.write(json.dumps({"text": " ".join(sentences)}) + "\n")


def _story(rng: np.random.Generator) -> str:
    one, other = (str(name) for name in rng.choice(_PEOPLE, 2, replace=False))
    fruit, first, more = str(rng.choice(_FRUITS)), int(rng.integers(1, 7)), int(rng.integers(1, 7))
    given = int(rng.integers(0, first + 1))
    return (
        f"{one} has {_NUMBERS[first]} {fruit}. {other} has {_NUMBERS[more]} {fruit}. {one} gives {_NUMBERS[given]} of them to"
        f" {other}. Now {one} has {_NUMBERS[first - given]} {fruit}, and {other} has {_NUMBERS[more + given]}."
    )
