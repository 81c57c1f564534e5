"""Where a loader puts the images of a batch: what its resize, crop and flip do to the coordinates of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardctl.errors import DatasetError
from shardctl.geometry import Size
from shardctl.reader.convert import Views
from shardctl.reader.gather import Indices
from shardctl.reader.transforms import Transforms

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moves:
    """What is done to the coordinates of n things, in pixels from the corner of an upright image.

    (x, y) of the stored image is at (x, y) * `scale` + `shift` of the image in the batch, whose width and height are `size`.
    Each is (n, 2); the scale of x is negative where the image is mirrored.
    """

    scale: Floats
    shift: Floats
    size: Floats

    def at(self, places: Indices) -> Moves:
        """Return those at these places, of which any may come several times."""
        return Moves(self.scale[places], self.shift[places], self.size[places])


class TooSmall(Exception):
    """The image at `place` is too small for the crop."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def moves_of(transforms: Transforms, samples: Indices, epoch: int, sizes: Sequence[Size]) -> Moves:
    """Return what the transforms do to the images of these samples, whose stored sizes are (width, height) each.

    Raises TooSmall for an image that the crop does not fit in.
    """
    views = Views(transforms, samples, epoch)
    scales, shifts, seen = [], [], []
    for place, (width, height) in enumerate(sizes):
        resized = transforms.resized_view(width, height).size if transforms.resize else (width, height)
        try:
            left, top, right, bottom = views.box(*resized, place)
        except DatasetError as error:
            raise TooSmall(place, str(error)) from error
        across, down = resized[0] / width, resized[1] / height
        if views.mirrored(place):
            scales.append((-across, down))
            shifts.append((right, -top))
        else:
            scales.append((across, down))
            shifts.append((-left, -top))
        seen.append((right - left, bottom - top))
    return Moves(*(np.array(each, np.float64).reshape(-1, 2) for each in (scales, shifts, seen)))
