"""Image files of one colour, and pictures saved as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image


def image(
    path: Path, size: tuple[int, int] = (30, 20), colour: tuple[int, int, int] = (90, 60, 30)
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def images(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        image(root / name, colour=(number * 20 % 256, 10, 10))
    return root


def saved(picture: Image.Image, path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)
    return path
