"""The pixels inside of outlines: polygons and runs of single objects as masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.images.codecs import rle


def object_masks(objects: Mapping[str, Any], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return the mask of each object of a sample, (n, height, width): 1 where its polygons or its
    RLE are, 0 elsewhere.

    `size` is (height, width). Raises ValueError for runs of another size.
    """
    every, runs = objects.get("segmentation"), objects.get("rle")
    number = len(every if every is not None else runs if runs is not None else ())
    masks = np.zeros((number, *size), np.uint8)
    for place in range(number):
        if runs is not None and runs[place] is not None:
            height, width = (int(side) for side in runs[place]["size"])
            if (height, width) != tuple(size):
                raise ValueError(
                    f"a mask of {width}x{height} is not of the size of its image, "
                    f"{size[1]}x{size[0]}"
                )
            masks[place] |= rle.decode(runs[place]["counts"], size)
        if every is not None:
            masks[place] |= inside(every[place], size)
    return masks


def inside(polygons: Iterable[Any], size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return which pixels of an image (height, width) have their centre in one of the polygons (x,
    y, x, y, … from the corner).

    A place that a polygon goes around twice is outside of it, as in SVG's rule `evenodd`.
    """
    covered = np.zeros(size, bool)
    for polygon in polygons:
        points = np.asarray(polygon, np.float64).reshape(-1, 2)
        if len(points) >= 3:
            covered |= _inside(points, size)
    return covered


def _inside(points: npt.NDArray[np.float64], size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Return which pixels have their centre in one polygon (n, 2)."""
    height, width = size
    x, y = points.T
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    # The rows that each edge crosses: those whose centre is at its upper end or below it, and above
    # its lower end.
    first = np.clip(np.ceil(np.minimum(y, next_y) - 0.5), 0, height).astype(np.int64)
    last = np.clip(np.ceil(np.maximum(y, next_y) - 0.5), 0, height).astype(np.int64)
    crossed = last - first
    edges = np.repeat(np.arange(len(x)), crossed)
    rows = np.arange(int(crossed.sum())) - np.repeat(np.cumsum(crossed) - crossed - first, crossed)
    share = (rows + 0.5 - y[edges]) / (next_y - y)[edges]
    at = x[edges] + share * (next_x - x)[edges]
    # All pixels from the first one whose centre is right of the crossing on change from outside to
    # inside, or back.
    columns = np.clip(np.ceil(at - 0.5), 0, width).astype(np.int64)
    changes = np.bincount(rows * (width + 1) + columns, minlength=height * (width + 1)).reshape(
        height, width + 1
    )
    found: npt.NDArray[np.bool_] = np.cumsum(changes, axis=1)[:, :width] % 2 == 1
    return found
