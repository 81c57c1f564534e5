"""Mirroring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shardctl.errors import UsageError
from shardctl.geometry import Size, View
from shardctl.transforms.base import ViewTransform


@dataclass(frozen=True)
class HorizontalFlip(ViewTransform):
    """Mirror left to right with probability `p`."""

    name: ClassVar[str] = "hflip"
    random: ClassVar[bool] = True
    p: float = 0.5

    @classmethod
    def parse(cls, p: Any = 0.5) -> HorizontalFlip:
        """Build from what a recipe or an option says."""
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
            raise UsageError(f"hflip: the probability must be a number from 0 to 1; it is {p!r}")
        return cls(float(p))

    def settings(self) -> dict[str, Any]:
        """Return the settings as they are written in a recipe."""
        return {"p": self.p}

    def view(self, view: View, rng: np.random.Generator | None) -> View:
        """Mirror the view, or leave it."""
        assert rng is not None, "a random transform is handed a generator"
        return view.mirrored() if rng.random() < self.p else view

    def output_size(self, size: Size | None) -> Size | None:
        """Return the size unchanged."""
        return size
