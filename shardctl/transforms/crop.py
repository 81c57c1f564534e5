"""The centre of an image, or a random part of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shardctl.errors import UsageError
from shardctl.geometry import Size, View, cover
from shardctl.transforms.base import ViewTransform, format_size, parse_size, square


@dataclass(frozen=True)
class Crop(ViewTransform):
    """Keep the centre. An image smaller than the crop is enlarged first, its shape kept, until it covers it."""

    name: ClassVar[str] = "crop"
    size: Size

    @classmethod
    def parse(cls, size: Any) -> Crop:
        """Build from what a recipe or an option says."""
        return cls(square(parse_size(size, "crop")))

    def settings(self) -> dict[str, Any]:
        """Return the settings as they are written in a recipe."""
        return {"size": format_size(self.size)}

    def view(self, view: View, rng: np.random.Generator | None) -> View:
        """Cut out the centre."""
        view = view.scaled(cover(view.size, self.size))
        left, top = round((view.size[0] - self.size[0]) / 2), round((view.size[1] - self.size[1]) / 2)
        return view.cropped(left, top, *self.size)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size of the crop."""
        return self.size


@dataclass(frozen=True)
class RandomResizedCrop(ViewTransform):
    """A random part of the image (its share of the area and its shape drawn), resized to `size`.

    Source: the "Inception crop", as in torchvision's RandomResizedCrop: ten tries, then the centre.
    """

    name: ClassVar[str] = "random_resized_crop"
    random: ClassVar[bool] = True
    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    @classmethod
    def parse(cls, size: Any, scale: Any = (0.08, 1.0), ratio: Any = (3 / 4, 4 / 3)) -> RandomResizedCrop:
        """Build from what a recipe or an option says."""
        return cls(
            square(parse_size(size, "random_resized_crop")),
            _span(scale, "scale", 1.0),
            _span(ratio, "ratio", 100.0),
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings as they are written in a recipe."""
        return {"size": format_size(self.size), "scale": list(self.scale), "ratio": list(self.ratio)}

    def view(self, view: View, rng: np.random.Generator | None) -> View:
        """Draw a part of the view."""
        assert rng is not None, "a random transform is handed a generator"
        width, height = view.size
        for _ in range(10):
            area = width * height * (self.scale[0] + rng.random() * (self.scale[1] - self.scale[0]))
            low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
            aspect = math.exp(low + rng.random() * (high - low))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, top = int(rng.random() * (width - w + 1)), int(rng.random() * (height - h + 1))
                return view.cropped(left, top, w, h).scaled(self.size)
        return self._centre(view).scaled(self.size)

    def _centre(self, view: View) -> View:
        """Return the largest central part whose shape is within `ratio`."""
        width, height = view.size
        shape = min(max(width / height, self.ratio[0]), self.ratio[1])
        w, h = (max(1, round(height * shape)), height) if shape < width / height else (width, max(1, round(width / shape)))
        return view.cropped((width - w) // 2, (height - h) // 2, w, h)

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size that every crop is resized to."""
        return self.size


def _span(value: Any, what: str, limit: float) -> tuple[float, float]:
    """Read a pair of numbers, low to high. Raises UsageError."""
    try:
        low, high = (float(part) for part in value)
    except (TypeError, ValueError):
        raise UsageError(f"random_resized_crop: {what} must be two numbers, as in [0.08, 1.0]; it is {value!r}") from None
    if not 0 < low <= high <= limit:
        raise UsageError(f"random_resized_crop: {what} must be rising numbers over 0 and at most {limit:g}; it is {value!r}")
    return low, high
