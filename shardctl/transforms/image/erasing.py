"""Rectangles that are painted over. What is marked in the image stays."""

from __future__ import annotations

from typing import Any

from PIL import Image

from shardctl.images import pixels
from shardctl.images.geometry import BLACK, Colour
from shardctl.system.options import Number, setting
from shardctl.transforms.base import PixelTransform, Rng
from shardctl.transforms.image.draws import SometimesPixels, rectangle
from shardctl.transforms.settings import PROBABILITY, Fill, Span


class Value(Fill):
    """A colour, or `random` (None): each value is drawn."""

    absent = "random"

    def read(self, value: Any) -> Any:
        """Return the colour."""
        try:
            return None if value == self.absent else super().read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {self.absent!r}") from None

    def schema(self) -> dict[str, Any]:
        """Return the schema of a colour, and of that word."""
        return {"anyOf": [*super().schema()["anyOf"], {"const": self.absent}]}


_VALUE = "Colour of the rectangle, or random: each value is drawn evenly from 0 to 255."


def _erased(
    image: Image.Image, box: pixels.Rectangle, value: Colour | None, rng: Rng
) -> Image.Image:
    if value is not None:
        return pixels.erase(image, box, value)
    return pixels.erase_with_noise(image, box, rng)


class Erase(PixelTransform, step="erase"):
    """Paint over a given rectangle."""

    left: float = setting(Number(0.0, 1.0), help="Where it begins, as a share of the width.")
    top: float = setting(Number(0.0, 1.0), help="Where it begins, as a share of the height.")
    width: float = setting(Number(0.0, 1.0), help="As a share of that of the image.")
    height: float = setting(Number(0.0, 1.0), help="As a share of that of the image.")
    value: Colour | None = setting(Value(), BLACK, _VALUE)

    @property
    def random(self) -> bool:
        """Whether its values are drawn."""
        return self.value is None

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Paint."""
        width, height = image.size
        left, right = (
            min(width, round(share * width)) for share in (self.left, self.left + self.width)
        )
        top, bottom = (
            min(height, round(share * height)) for share in (self.top, self.top + self.height)
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
    scale: tuple[float, float] = setting(Span(0.0, 1.0), (0.02, 0.33), "Share of the area.")
    ratio: tuple[float, float] = setting(
        Span(0.0, 100.0, above=True), (0.3, 3.3), "Height by width."
    )
    value: Colour | None = setting(Value(), BLACK, _VALUE)

    @property
    def random(self) -> bool:
        """It is drawn."""
        return self.p > 0

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw a rectangle, and paint."""
        box = rectangle(rng, image.size, self.scale, self.ratio)
        return image if box is None else _erased(image, box, self.value, rng)
