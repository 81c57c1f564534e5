"""Resizing by the short side, or to an exact size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shardctl.geometry import Size, View
from shardctl.transforms.base import ViewTransform, format_size, parse_size


@dataclass(frozen=True)
class Resize(ViewTransform):
    """One number: the short side becomes that long, the shape is kept. Two: exactly that size, the shape is not."""

    name: ClassVar[str] = "resize"
    size: int | Size

    @classmethod
    def parse(cls, size: Any) -> Resize:
        """Build from what a recipe or an option says."""
        return cls(parse_size(size, "resize"))

    def settings(self) -> dict[str, Any]:
        """Return the settings as they are written in a recipe."""
        return {"size": format_size(self.size)}

    def view(self, view: View, rng: np.random.Generator | None) -> View:
        """Scale the view."""
        if not isinstance(self.size, int):
            return view.scaled(self.size)
        width, height = view.size
        if width <= height:
            return view.scaled((self.size, max(1, int(self.size * height / width))))
        return view.scaled((max(1, int(self.size * width / height)), self.size))

    def output_size(self, size: Size | None) -> Size | None:
        """Return the exact size, or None if it depends on the image's shape."""
        return None if isinstance(self.size, int) else self.size
