"""Elastic deformation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shardctl.images.codecs.resampling import smoothed
from shardctl.images.geometry import BLACK, Colour, Displacement
from shardctl.transforms.base import ImageTransform, Rng
from shardctl.transforms.image.warp import HOW_TAKEN, INTERPOLATION, OUTSIDE
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import Fill, Number, setting


@dataclass(frozen=True)
class Elastic(ImageTransform):
    """Move every pixel by a smooth random field. It cannot move boxes, polygons and keypoints.

    Source: torchvision's ElasticTransform, on a square image: even numbers from -1 to 1, blurred,
    times alpha / 2 pixels.
    """

    name: ClassVar[str] = "elastic"
    alpha: float = setting(Number(0.0), 50.0, "How far pixels move.")
    sigma: float = setting(
        Number(0.0, 1000.0, above=True),
        5.0,
        "How smooth the field is: sigma of its blur, in pixels.",
    )
    interpolation: str = setting(INTERPOLATION, "bilinear", HOW_TAKEN)
    fill: Colour = setting(Fill(), BLACK, OUTSIDE)

    @property
    def random(self) -> bool:
        """It is drawn."""
        return True

    @property
    def moves(self) -> frozenset[str]:
        """Masks: their numbers go where the pixels go."""
        return frozenset(("masks",))

    def apply(self, picture: Picture, rng: Rng) -> None:
        """Draw a field, and move the pixels."""
        assert rng is not None, "a random step is handed a generator"
        width, height = picture.size
        x, y = (
            smoothed(rng.random((height, width), np.float32) * 2 - 1, self.sigma) for _ in range(2)
        )
        for each in (x, y):
            each *= np.float32(self.alpha / 2)
        picture.displace(Displacement(x, y, self.fill, self.interpolation == "nearest"))
