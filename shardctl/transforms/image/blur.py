"""Blur and sharpness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from PIL import Image

from shardctl.images import pixels
from shardctl.transforms.base import PixelTransform, Rng, between
from shardctl.transforms.image.chance import SometimesPixels
from shardctl.transforms.settings import (
    PROBABILITY,
    Number,
    Optional,
    SettingError,
    Span,
    Whole,
    Word,
    setting,
)


@dataclass(frozen=True)
class GaussianBlur(PixelTransform):
    """Blur by a Gaussian; at the edges the image is mirrored."""

    name: ClassVar[str] = "gaussian_blur"
    kernel_size: int | None = setting(
        Optional(Whole(1, 1001)), None, "Pixels, odd, that it is cut to. Left out: all that count."
    )
    sigma: tuple[float, float] = setting(
        Span(0.0, 100.0, above=True, alone="fixed"), (0.1, 2.0), "Standard deviation in pixels."
    )
    backend: str = setting(Word(("numpy",)), "numpy", "What computes it.")

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
        Number(0.0, 100.0), doc="0: smoothed. 1: the image itself. 2: sharpened."
    )
    p: float = setting(PROBABILITY, 0.5, "Probability of doing it.")

    def pixels(self, image: Image.Image, rng: Rng) -> Image.Image:
        """Blend."""
        return pixels.sharpness(image, self.factor)
