"""Noise, and what compression leaves in an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from shardctl.images import pixels
from shardctl.system.options import Number, Whole, Word, setting
from shardctl.transforms.base import PixelTransform, Rng, between
from shardctl.transforms.image.draws import SometimesPixels, whole
from shardctl.transforms.settings import PROBABILITY, SettingError, Span, WholeSpan


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
    quality: tuple[int, int] = setting(WholeSpan(1, 100), help="1 to 100, or [lowest, highest].")

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


@dataclass(frozen=True)
class GaussianBlur(PixelTransform):
    """Blur by a Gaussian; at the edges the image is mirrored."""

    name: ClassVar[str] = "gaussian_blur"
    kernel_size: int | None = setting(
        Whole(1, 1001), None, "Pixels, odd, that it is cut to. Left out: all that count."
    )
    sigma: tuple[float, float] = setting(
        Span(0.0, 100.0, above=True, alone="fixed"), (0.1, 2.0), "Standard deviation in pixels."
    )
    backend: str = setting(Word("numpy"), "numpy", "What computes it.")

    def __post_init__(self) -> None:
        if self.kernel_size is not None and self.kernel_size % 2 == 0:
            raise SettingError(f"kernel_size must be odd; it is {self.kernel_size}", "kernel_size")

    @property
    def random(self) -> bool:
        """Whether sigma is drawn."""
        return self.sigma[0] < self.sigma[1]

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Blur."""
        return pixels.gaussian_blur(image, between(self.sigma, rng), self.kernel_size)


@dataclass(frozen=True)
class AdjustSharpness(SometimesPixels):
    """Blend with a smoothed image."""

    name: ClassVar[str] = "adjust_sharpness"
    factor: float = setting(
        Number(0.0, 100.0), help="0: smoothed. 1: the image itself. 2: sharpened."
    )
    p: float = setting(PROBABILITY, 0.5, "Probability of doing it.")

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Blend."""
        return pixels.sharpness(image, self.factor)
