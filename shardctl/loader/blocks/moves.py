"""Where a loader puts the images of a batch: what its resize, crop and flip do to the coordinates of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardctl.errors import DatasetError
from shardctl.images.geometry import Size
from shardctl.loader.blocks.convert import Views
from shardctl.loader.blocks.gather import Indices
from shardctl.loader.blocks.transforms import Transforms
from shardctl.system.dataclass import dataclass

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moves:
    """What is done to the coordinates of n things, in pixels from the corner of an upright image.

    (x, y) of the stored image is at (x, y) * `scale` + `shift` of the image in the batch; the scale of x is negative where
    it is mirrored. What is below `low` or above `high` is cut off: what is outside of an image, and nothing if it is as it is
    stored. Each is (n, 2).
    """

    scale: Floats
    shift: Floats
    low: Floats
    high: Floats

    def at(self, places: Indices) -> Moves:
        """Return those at these places, of which any may come several times."""
        return Moves(self.scale[places], self.shift[places], self.low[places], self.high[places])


class Unmovable(Exception):
    """The image at `place` is too small for the crop, or too large."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def moves_of(transforms: Transforms, samples: Indices, epoch: int, sizes: Sequence[Size]) -> Moves:
    """Return what the transforms do to the images of these samples, whose stored sizes are (width, height) each.

    Raises Unmovable for an image that the crop does not fit in, and one that is resized to too many pixels.
    """
    views = Views(transforms, samples, epoch)
    scales, shifts, lows, highs = [], [], [], []
    for place, (width, height) in enumerate(sizes):
        resized = transforms.resized_view(width, height).size if transforms.resize else (width, height)
        try:
            left, top, right, bottom = views.box(*resized, place)
            transforms.refuse_large((right - left, bottom - top))
        except DatasetError as error:
            raise Unmovable(place, str(error)) from error
        across, down = resized[0] / width, resized[1] / height
        if views.mirrored(place):
            scales.append((-across, down))
            shifts.append((right, -top))
        else:
            scales.append((across, down))
            shifts.append((-left, -top))
        still = scales[-1] == (1.0, 1.0) and (left, top, right, bottom) == (0, 0, width, height)
        lows.append((-np.inf, -np.inf) if still else (0.0, 0.0))
        highs.append((np.inf, np.inf) if still else (right - left, bottom - top))
    return Moves(*(np.array(each, np.float64).reshape(-1, 2) for each in (scales, shifts, lows, highs)))
