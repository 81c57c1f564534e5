"""Rectangles that are painted over. What is marked in the image stays."""

from __future__ import annotations

from PIL import Image

from shardctl.images import pixels
from shardctl.images.geometry import BLACK, Colour
from shardctl.system.options import Number, setting
from shardctl.transforms.base import PixelTransform, Range, Rng
from shardctl.transforms.image.draws import SometimesPixels, rectangle
from shardctl.transforms.settings import COLOUR, PROBABILITY, OrWord, Span

_VALUE = setting(
    OrWord(COLOUR, "random"),
    BLACK,
    "Colour of the rectangle, or random: each value is drawn evenly from 0 to 255.",
)


def _erased(
    image: Image.Image, box: pixels.Rectangle, value: Colour | None, rng: Rng
) -> Image.Image:
    if value is None:
        return pixels.erase_with_noise(image, box, rng)
    return pixels.erase(image, box, value)


class Erase(PixelTransform, step="erase"):
    """Paint over a given rectangle."""

    left: float = setting(Number(0.0, 1.0), help="Where it begins, as a share of the width.")
    top: float = setting(Number(0.0, 1.0), help="Where it begins, as a share of the height.")
    width: float = setting(Number(0.0, 1.0), help="As a share of that of the image.")
    height: float = setting(Number(0.0, 1.0), help="As a share of that of the image.")
    value: Colour | None = _VALUE

    @property
    def random(self) -> bool:
        """Whether its values are drawn."""
        return self.value is None

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Paint."""
        (left, right), (top, bottom) = (
            (round(first * side), min(side, round((first + share) * side)))
            for first, share, side in zip(
                (self.left, self.top), (self.width, self.height), image.size, strict=True
            )
        )
        if right == left or bottom == top:
            return image
        return _erased(image, (left, top, right - left, bottom - top), self.value, rng)


class RandomErasing(SometimesPixels, step="random_erasing"):
    """Paint over a random rectangle, with a probability. Objects that it hides stay marked.

    Source: torchvision's RandomErasing: ten tries for a rectangle that is smaller than the image,
    else none. Its random values are those of a normal distribution, which are for images that were
    normalised; here they are even.
    """

    p: float = setting(PROBABILITY, 0.5, "Probability of doing it.")
    scale: Range = setting(Span(0.0, 1.0), (0.02, 0.33), "Share of the area.")
    ratio: Range = setting(Span(0.0, 100.0, above=True), (0.3, 3.3), "Height by width.")
    value: Colour | None = _VALUE

    draws = True

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw a rectangle, and paint."""
        box = rectangle(rng, image.size, self.scale, self.ratio)
        return image if box is None else _erased(image, box, self.value, rng)
