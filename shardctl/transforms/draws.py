"""What the random transforms draw, from the generator of the sample: distributed as in torchvision's `transforms.v2`.

The same seed gives other values than there: only the distributions are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shardctl.geometry import Size
from shardctl.pixels.erasing import Box

Span = tuple[float, float]
"""The lowest and the highest value of a uniform distribution."""

TRIES = 10
"""How often a rectangle is drawn until one fits."""


def around(centre: float, strength: float, least: float = 0.0) -> Span:
    """Return the span from `centre - strength`, but no less than `least`, to `centre + strength`."""
    return max(least, centre - strength), centre + strength


def uniform(rng: np.random.Generator, span: Span) -> float:
    """Draw from a span."""
    return span[0] + (span[1] - span[0]) * rng.random()


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a whole number from `low` to `high`, both included."""
    return low + int(rng.random() * (high - low + 1))


def order(rng: np.random.Generator, count: int) -> list[int]:
    """Draw an order of the numbers below `count`, all orders being equally likely."""
    return [int(place) for place in rng.permutation(count)]


def jitter(rng: np.random.Generator, spans: Sequence[Span | None]) -> list[tuple[int, float]]:
    """Draw in which order adjustments are made, and the factor of each: (its place in `spans`, the factor).

    None leaves an adjustment out.
    """
    factors = [None if span is None else uniform(rng, span) for span in spans]
    drawn = ((place, factors[place]) for place in order(rng, len(spans)))
    return [(place, factor) for place, factor in drawn if factor is not None]


def rectangle(rng: np.random.Generator, size: Size, scale: Span, ratio: Span) -> Box | None:
    """Draw the rectangle of a random erasing in an image of `size`; None if none of ten fits.

    Its share of the area is uniform in `scale`, the logarithm of height / width uniform between those of `ratio`, and its
    place uniform. It is lower and narrower than the image.
    """
    width, height = size
    for _ in range(TRIES):
        area = width * height * uniform(rng, scale)
        aspect = math.exp(uniform(rng, (math.log(ratio[0]), math.log(ratio[1]))))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            top = whole(rng, 0, height - h)
            return whole(rng, 0, width - w), top, w, h
    return None
