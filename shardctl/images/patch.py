"""The mask of one object of an image: the pixels in its box, and where they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PixelMask = npt.NDArray[np.bool_]
"""(height, width): whether a pixel is one of an object."""


@dataclass(frozen=True, eq=False)
class Patch:
    """The `pixels` of a mask of the size `shape`, (height, width), from a row and a column on. No
    other is of the object.

    What is done to it takes as long as the object is large, and not the image: there may be a
    hundred in an image.
    """

    pixels: PixelMask
    top: int
    left: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: PixelMask) -> Patch:
        """Return all of a mask."""
        return cls(mask, 0, 0, mask.shape)

    def whole(self) -> PixelMask:
        """Return the mask with all of its pixels. Its columns lie one after the other."""
        mask = np.zeros(self.shape, bool, order="F")
        height, width = self.pixels.shape
        mask[self.top : self.top + height, self.left : self.left + width] = self.pixels
        return mask

    def taken(self, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]) -> Patch:
        """Return the mask that has these rows and columns of this one, which go up, or down."""
        height, width = self.pixels.shape
        down = np.flatnonzero((rows >= self.top) & (rows < self.top + height))
        across = np.flatnonzero((columns >= self.left) & (columns < self.left + width))
        seen = self.pixels[rows[down, None] - self.top, columns[across] - self.left]
        return Patch(
            seen,
            int(down[0]) if len(down) else 0,
            int(across[0]) if len(across) else 0,
            (len(rows), len(columns)),
        )

    def gathered(self, rows: npt.NDArray[Any], columns: npt.NDArray[Any]) -> Patch:
        """Return the mask of the pixels at any rows and columns of this one, (height, width) each;
        -1 stands for none."""
        height, width = self.pixels.shape
        inside = (
            (rows >= self.top)
            & (rows < self.top + height)
            & (columns >= self.left)
            & (columns < self.left + width)
        )
        pixels = np.zeros(inside.shape, bool)
        places = (
            (each[inside] - first).astype(np.intp)
            for each, first in ((rows, self.top), (columns, self.left))
        )
        pixels[inside] = self.pixels[tuple(places)]
        return Patch.of(pixels)

    def padded(self, top: int, left: int, shape: tuple[int, int]) -> Patch:
        """Return the mask on a larger canvas."""
        return Patch(self.pixels, self.top + top, self.left + left, shape)
