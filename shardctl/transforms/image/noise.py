"""Noise, and what compression leaves in an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from shardctl.images import pixels
from shardctl.transforms.base import PixelTransform, Rng, between
from shardctl.transforms.image.draws import whole
from shardctl.transforms.settings import Number, Span, WholeSpan, setting


@dataclass(frozen=True)
class GaussianNoise(PixelTransform):
    """Add normal noise to each value."""

    name: ClassVar[str] = "gaussian_noise"
    mean: float = setting(Number(-1.0, 1.0), 0.0, "Mean, as a share of 255.")
    sigma: tuple[float, float] = setting(
        Span(0.0, 10.0, alone="fixed"), (0.1, 0.1), "Standard deviation, as a share of 255."
    )

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw the noise."""
        assert rng is not None, "a random step is handed a generator"
        return pixels.gaussian_noise(image, rng, self.mean, between(self.sigma, rng))


@dataclass(frozen=True)
class SaltAndPepper(PixelTransform):
    """Make some pixels white or black."""

    name: ClassVar[str] = "salt_and_pepper"
    amount: tuple[float, float] = setting(
        Span(0.0, 1.0, alone="fixed"), (0.01, 0.06), "Share of the pixels."
    )
    salt: float = setting(Number(0.0, 1.0), 0.5, "Share of these that become white.")

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw the pixels."""
        assert rng is not None, "a random step is handed a generator"
        return pixels.salt_and_pepper(image, rng, between(self.amount, rng), self.salt)


@dataclass(frozen=True)
class Jpeg(PixelTransform):
    """Encode as a JPEG (4:2:0) and decode again."""

    name: ClassVar[str] = "jpeg"
    quality: tuple[int, int] = setting(WholeSpan(1, 100), doc="1 to 100, or [lowest, highest].")

    @property
    def random(self) -> bool:
        """Whether the quality is drawn."""
        return self.quality[0] < self.quality[1]

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Encode and decode."""
        low, high = self.quality
        if low == high:
            return pixels.jpeg(image, low)
        assert rng is not None, "a random step is handed a generator"
        return pixels.jpeg(image, whole(rng, low, high))
