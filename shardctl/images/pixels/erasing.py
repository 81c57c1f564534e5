"""Rectangles that are painted over."""

from __future__ import annotations

import numpy as np
from PIL import Image

Rectangle = tuple[int, int, int, int]
"""left, top, width, height, in pixels."""


def erase(
    image: Image.Image, box: Rectangle, colour: tuple[int, int, int] = (0, 0, 0)
) -> Image.Image:
    """Return the image with a rectangle of one colour."""
    left, top, width, height = box
    made = image.copy()
    made.paste(colour, (left, top, left + width, top + height))
    return made


def erase_with_noise(image: Image.Image, box: Rectangle, rng: np.random.Generator) -> Image.Image:
    """Return the image with a rectangle whose values are drawn uniformly from 0 to 255."""
    left, top, width, height = box
    made = image.copy()
    noise = rng.integers(0, 256, (height, width, 3), np.uint8)
    made.paste(Image.fromarray(noise), (left, top))
    return made
