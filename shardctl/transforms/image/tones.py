"""Tones: the values of each channel, mapped by a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from shardctl.images import pixels
from shardctl.transforms.base import Rng
from shardctl.transforms.image.chance import SometimesPixels
from shardctl.transforms.settings import PROBABILITY, Number, Whole, setting

_CHANCE = "Probability of doing it."


@dataclass(frozen=True)
class Autocontrast(SometimesPixels):
    """Stretch each channel so that its lowest value becomes 0 and its highest 255."""

    name: ClassVar[str] = "autocontrast"
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Stretch."""
        return pixels.autocontrast(image)


@dataclass(frozen=True)
class Equalize(SometimesPixels):
    """Spread the values of each channel evenly over 0 to 255."""

    name: ClassVar[str] = "equalize"
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Spread."""
        return pixels.equalize(image)


@dataclass(frozen=True)
class Posterize(SometimesPixels):
    """Keep the highest bits of each value."""

    name: ClassVar[str] = "posterize"
    bits: int = setting(Whole(0, 8), doc="How many bits are kept.")
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Cut the lower bits off."""
        return pixels.posterize(image, self.bits)


@dataclass(frozen=True)
class Solarize(SometimesPixels):
    """Invert the values at and above a threshold."""

    name: ClassVar[str] = "solarize"
    threshold: float = setting(Number(0.0, 256.0), doc="The lowest value that is inverted.")
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Invert the brighter values."""
        return pixels.solarize(image, self.threshold)


@dataclass(frozen=True)
class Invert(SometimesPixels):
    """Replace each value v by 255 - v."""

    name: ClassVar[str] = "invert"
    p: float = setting(PROBABILITY, 0.5, _CHANCE)

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Invert."""
        return pixels.invert(image)
