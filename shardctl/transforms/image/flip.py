"""Mirroring, left to right and top to bottom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardctl.images.geometry import Look
from shardctl.transforms.base import Rng, ViewTransform, drawn
from shardctl.transforms.settings import PROBABILITY, setting


@dataclass(frozen=True)
class _Flip(ViewTransform):
    p: float = setting(PROBABILITY, 0.5, "Probability of mirroring.")

    @property
    def random(self) -> bool:
        """Whether it is drawn."""
        return 0 < self.p < 1

    @property
    def mirrors(self) -> bool:
        """Left and right change places, as seen from the thing itself."""
        return self.p > 0


@dataclass(frozen=True)
class HorizontalFlip(_Flip):
    """Mirror left to right, with a probability."""

    name: ClassVar[str] = "hflip"

    def view(self, look: Look, rng: Rng) -> Look:
        """Mirror, or leave it."""
        return look.mirrored() if drawn(self.p, rng) else look


@dataclass(frozen=True)
class VerticalFlip(_Flip):
    """Turn upside down as a mirror does, with a probability."""

    name: ClassVar[str] = "vflip"

    def view(self, look: Look, rng: Rng) -> Look:
        """Mirror, or leave it."""
        return look.upside_down() if drawn(self.p, rng) else look
