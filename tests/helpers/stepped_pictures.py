"""Pictures after the steps of a recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from shardctl.transforms.base import ImageTransform
from shardctl.transforms.picture import Picture
from shardctl.transforms.table import parse_step


def picture_of(image: Image.Image, *steps: dict[str, Any], seed: int = 0) -> Picture:
    """Do the steps of a recipe to an image."""
    picture = Picture(image.size)
    picture.begin(image)
    rng = np.random.default_rng(seed)
    for given_step in steps:
        step = parse_step(given_step)
        assert isinstance(step, ImageTransform)
        step.apply(picture, rng)
    return picture


def done(image: Image.Image, *steps: dict[str, Any], seed: int = 0) -> Any:
    return picture_of(image, *steps, seed=seed).pixels


TURNING: list[dict[str, Any]] = [
    {"name": "crop", "size": "50x40"},
    {"name": "random_resized_crop", "size": "60x50"},
    {"name": "hflip", "p": 1},
    {"name": "random_rotation", "degrees": 60},
    {"name": "random_affine", "degrees": 20, "scale": [0.6, 1.5], "shear": 20},
    {"name": "random_perspective", "p": 1},
    {"name": "random_perspective", "p": 1, "distortion_scale": 0.9},
    {"name": "pad", "margin": 9},
    {"name": "resize", "size": 70},
    {"name": "invert"},
]
