"""Noise, and what compression leaves in an image."""

from __future__ import annotations

from PIL import Image

from shardctl.images import pixels
from shardctl.system.options import Number, Whole, Word, setting
from shardctl.transforms.base import PixelTransform, Range, Rng, between
from shardctl.transforms.image.draws import SometimesPixels, whole
from shardctl.transforms.settings import PROBABILITY, SettingError, Span, WholeSpan


class GaussianNoise(PixelTransform, step="gaussian_noise"):
    """Add normal noise to each value."""

    mean: float = setting(Number(-1.0, 1.0), 0.0, "Mean, as a share of 255.")
    sigma: Range = setting(
        Span(0.0, 10.0, alone="fixed"), (0.1, 0.1), "Standard deviation, as a share of 255."
    )

    draws = True

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw the noise."""
        return pixels.gaussian_noise(image, rng, self.mean, between(self.sigma, rng))


class SaltAndPepper(PixelTransform, step="salt_and_pepper"):
    """Make some pixels white or black."""

    amount: Range = setting(Span(0.0, 1.0, alone="fixed"), (0.01, 0.06), "Share of the pixels.")
    salt: float = setting(Number(0.0, 1.0), 0.5, "Share of these that become white.")

    draws = True

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Draw the pixels."""
        return pixels.salt_and_pepper(image, rng, between(self.amount, rng), self.salt)


class Jpeg(PixelTransform, step="jpeg"):
    """Encode as a JPEG (4:2:0) and decode again."""

    quality: tuple[int, int] = setting(WholeSpan(1, 100), help="1 to 100, or [lowest, highest].")

    @property
    def random(self) -> bool:
        """Whether the quality is drawn."""
        return self.quality[0] < self.quality[1]

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Encode and decode."""
        low, high = self.quality
        return pixels.jpeg(image, whole(rng, low, high) if low < high else low)


class GaussianBlur(PixelTransform, step="gaussian_blur"):
    """Blur by a Gaussian; at the edges the image is mirrored."""

    kernel_size: int | None = setting(
        Whole(1, 1001), None, "Pixels, odd, that it is cut to. Left out: all that count."
    )
    sigma: Range = setting(
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


class AdjustSharpness(SometimesPixels, step="adjust_sharpness"):
    """Blend with a smoothed image."""

    factor: float = setting(
        Number(0.0, 100.0), help="0: smoothed. 1: the image itself. 2: sharpened."
    )
    p: float = setting(PROBABILITY, 0.5, "Probability of doing it.")

    change = staticmethod(pixels.sharpness)
