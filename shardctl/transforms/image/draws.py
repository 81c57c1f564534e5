"""Steps that change the values of pixels with a probability `p`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
from PIL import Image

from shardctl.images.geometry import Size
from shardctl.images.pixels import Rectangle
from shardctl.system.options import declared_in
from shardctl.transforms.base import PixelTransform, Range, Rng, between, drawn
from shardctl.transforms.picture import Picture

TRIES = 10
"""How often a rectangle is drawn until one fits."""


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a whole number from `low` to `high`, both included."""
    return low + int(rng.random() * (high - low + 1))


def order(rng: np.random.Generator, count: int) -> list[int]:
    """Draw an order of the numbers below `count`, all orders being equally likely."""
    return [int(place) for place in rng.permutation(count)]


def jitter(rng: np.random.Generator, spans: Mapping[str, Range]) -> list[tuple[str, float]]:
    """Draw in which order adjustments are made, and the factor of each: (its name, the factor)."""
    names, factors = list(spans), [between(span, rng) for span in spans.values()]
    return [(names[place], factors[place]) for place in order(rng, len(names))]


def rectangle(rng: np.random.Generator, size: Size, scale: Range, ratio: Range) -> Rectangle | None:
    """Draw the rectangle of a random erasing in an image of `size`; None if none of ten fits.

    Its share of the area is uniform in `scale`, the logarithm of height / width uniform between
    those of `ratio`, and its place uniform. It is lower and narrower than the image.
    """
    width, height = size
    logarithms = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        area = width * height * between(scale, rng)
        aspect = math.exp(between(logarithms, rng))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            top = whole(rng, 0, height - h)
            return whole(rng, 0, width - w), top, w, h
    return None


class SometimesPixels(PixelTransform):
    """Changes the values of pixels with probability `p`; an image that is left as it is needs no
    pixels."""

    p: float

    change: ClassVar[Callable[..., Image.Image]]
    """What a step does that is one function of the image and the step's other settings."""

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Return the changed image."""
        settings = [getattr(self, name) for name in declared_in(type(self)) if name != "p"]
        return type(self).change(image, *settings)

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change the pixels, or leave them."""
        if drawn(self.p, rng):
            super().apply(picture, rng)
