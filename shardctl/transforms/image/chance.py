"""Steps that change the values of pixels with a probability `p`."""

from __future__ import annotations

from shardctl.transforms.base import PixelTransform, Rng, drawn
from shardctl.transforms.picture import Picture


class SometimesPixels(PixelTransform):
    """Changes the values of pixels with probability `p`; an image that is left as it is needs no
    pixels."""

    p: float

    @property
    def random(self) -> bool:
        """Whether it is drawn."""
        return 0 < self.p < 1

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Change the pixels, or leave them."""
        if drawn(self.p, rng):
            super().apply(picture, rng)
