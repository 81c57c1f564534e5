"""Elastic deformation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shardctl.geometry import BLACK, Colour, Displacement
from shardctl.transforms.base import ImageTransform, Rng
from shardctl.transforms.picture import Picture
from shardctl.transforms.settings import Fill, Number, setting
from shardctl.transforms.warp import HOW_TAKEN, INTERPOLATION, OUTSIDE


@dataclass(frozen=True)
class Elastic(ImageTransform):
    """Move every pixel by a smooth random field. It cannot move boxes, polygons and keypoints.

    Source: torchvision's ElasticTransform, on a square image: even numbers from -1 to 1, blurred, times alpha / 2 pixels.
    """

    name: ClassVar[str] = "elastic"
    alpha: float = setting(Number(0.0), 50.0, "How far pixels move.")
    sigma: float = setting(Number(0.0, 1000.0, above=True), 5.0, "How smooth the field is: sigma of its blur, in pixels.")
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
        x, y = (self._field(rng.random((height, width), np.float32)) for _ in range(2))
        picture.displace(Displacement(x, y, self.fill, self.interpolation == "nearest"))

    def _field(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        field = _blurred(_blurred(values * 2 - 1, self.sigma, 0), self.sigma, 1)
        field *= np.float32(self.alpha / 2)
        return field


def _blurred(values: npt.NDArray[np.float32], sigma: float, axis: int) -> npt.NDArray[np.float32]:
    """Blur along one axis by a Gaussian of 8 sigma, the image mirrored at its edges."""
    half = int(8 * sigma + 1) // 2
    places = np.arange(-half, half + 1)
    kernel = np.exp(-0.5 * (places / sigma) ** 2)
    kernel = (kernel / kernel.sum()).astype(np.float32)
    length = values.shape[axis]
    # One mirror may be too short for the kernel: np.pad mirrors as often as it takes.
    padded = np.pad(
        values, [(half, half) if each == axis else (0, 0) for each in range(2)], "reflect" if length > 1 else "edge"
    )
    blurred = np.zeros_like(values)
    for place, weight in enumerate(kernel):
        blurred += weight * (padded[place : place + length] if axis == 0 else padded[:, place : place + length])
    return blurred
