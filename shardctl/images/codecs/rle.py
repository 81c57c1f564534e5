"""Masks of single objects as COCO keeps them: the lengths of runs down the columns, written as
printable bytes.

A mask begins with a run of zeros (which may be of length 0), then runs of ones and zeros take
turns. The compressed form has the difference of each length to the one before the last, in groups
of five bits with the lowest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.format.arrays import Bools, owners_of
from shardctl.images.geometry import Counts, Patch, Values

MOST_GROUPS = 8
"""Groups of five bits of one length: 40 bits are more pixels than an image may have."""

_FIRST = 48
"""The byte that stands for a group of zeros."""


def compress(runs: Sequence[int] | Counts) -> bytes:
    """Return the lengths of runs as COCO's compressed bytes."""
    lengths = np.asarray(runs, np.int64)
    left = lengths.copy()
    left[3:] -= lengths[1:-2]
    groups = np.zeros((len(left), MOST_GROUPS + 1), np.uint8)
    written = np.zeros(groups.shape, bool)
    alive = np.ones(len(left), bool)
    for place in range(groups.shape[1]):
        group = left & 0x1F
        left = left >> 5
        more = np.where(group & 0x10, left != -1, left != 0)
        written[:, place] = alive
        groups[:, place] = group + 0x20 * more + _FIRST
        alive = alive & more
    return groups[written].tobytes()


def decompress(counts: bytes) -> Counts:
    """Return the lengths of the runs, (n,) int64. Raises ValueError for bytes that COCO's
    compression does not give."""
    codes = np.frombuffer(counts, np.uint8).astype(np.int64) - _FIRST
    if not len(codes):
        return np.zeros(0, np.int64)
    ends = np.flatnonzero(codes & 0x20 == 0)
    if codes.min() < 0 or codes.max() > 0x3F or not len(ends) or ends[-1] != len(codes) - 1:
        raise ValueError("not the compressed lengths of runs")
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if sizes.max() > MOST_GROUPS:
        raise ValueError("a run is longer than an image can be")
    places = np.arange(len(codes)) - np.repeat(starts, sizes)
    runs = np.add.reduceat((codes & 0x1F) << (5 * places), starts)
    runs -= np.where(codes[ends] & 0x10, np.left_shift(1, 5 * sizes), 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    if runs.min() < 0:
        raise ValueError("a run has a length below 0")
    # a sum of whole numbers may begin anew at 0
    if runs.sum(dtype=np.float64) >= 1 << 5 * MOST_GROUPS:
        raise ValueError("the runs are longer than an image can be")
    return runs


def decode(counts: bytes, size: tuple[int, int]) -> Bools:
    """Return the mask of an object, (height, width) bool; `size` is (height, width).

    Raises ValueError if the bytes are no compressed runs, or their runs do not fill the size.
    """
    return decode_patch(counts, size).whole()


def decode_patch(counts: bytes, size: tuple[int, int]) -> Patch:
    """Return the mask of an object as `decode` does, without the pixels around it."""
    runs = decompress(counts)
    height, width = size
    if int(runs.sum()) != height * width:
        raise ValueError(
            f"its runs have {int(runs.sum())} pixels, and {width}x{height} are {width * height}"
        )
    across, down, (left, high, columns, rows) = _ones(runs, height)
    # in the pixels of the patch, column after column
    places: Values = (across - left) * rows + down - high + [0, 1]
    lengths = np.diff(places.ravel(), prepend=0, append=rows * columns)
    pixels = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).reshape(columns, rows).T
    return Patch(pixels, high, left, size)


def _ones(runs: Counts, height: int) -> tuple[Counts, Counts, tuple[int, int, int, int]]:
    """Return the columns and the rows of the first and the last pixel of each run of ones, (n, 2)
    each, and the smallest box around them, x, y, width and height: four zeros without ones."""
    after = np.cumsum(runs)
    ends = np.stack([after - runs, after - 1], axis=1)[1::2][runs[1::2] > 0]
    across, down = np.divmod(ends, height)
    if not len(ends):
        return across, down, (0, 0, 0, 0)
    left, right = int(across[0, 0]), int(across[-1, 1])
    # a run that goes on in the next column has the last pixel of one and the first of the other
    whole = (across[:, 0] != across[:, 1]).any()
    high, low = (0, height) if whole else (int(down.min()), int(down.max()) + 1)
    return across, down, (left, high, right - left + 1, low - high)


def box(counts: bytes, height: int) -> list[float]:
    """Return the smallest box around a mask, x, y, width and height; four zeros for one without
    ones. Raises ValueError."""
    return list(_ones(decompress(counts), height)[2])


def encode(mask: Bools) -> bytes:
    """Return the compressed runs of a mask, (height, width) bool."""
    return encode_patch(Patch.of(np.asarray(mask, bool)))


def encode_patch(patch: Patch) -> bytes:
    """Return the compressed runs of a mask."""
    (height, width), (rows, columns) = patch.shape, patch.pixels.shape
    # a row without a pixel is between two columns, unless these are whole
    between = min(rows + 1, height)
    values = np.zeros(columns * between + 2, bool)
    values[1:-1].reshape(columns, between)[:, :rows] = patch.pixels.T
    across, down = np.divmod(np.flatnonzero(values[1:] != values[:-1]), max(1, between))
    changes = (across + patch.left) * height + down + patch.top
    runs = np.diff(changes, prepend=0, append=height * width)
    return compress(runs[:-1] if len(changes) and not runs[-1] else runs)


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
            masks[place] |= decode(runs[place]["counts"], size)
        if every is not None:
            masks[place] |= inside(every[place], size)
    return masks


def inside(polygons: Iterable[Any], size: tuple[int, int]) -> Bools:
    """Return which pixels of an image (height, width) have their centre in one of the polygons (x,
    y, x, y, … from the corner).

    A place that a polygon goes around twice is outside of it, as in SVG's rule `evenodd`.
    """
    height, width = size
    covered = np.zeros(size, bool)
    for polygon in polygons:
        points = np.asarray(polygon, np.float64).reshape(-1, 2)
        if len(points) < 3:
            continue
        (x, y), (next_x, next_y) = points.T, np.roll(points, -1, axis=0).T
        # The rows that each edge crosses: those whose centre is at its upper end or below it, and
        # above its lower end.
        first, last = (
            np.clip(np.ceil(end - 0.5), 0, height).astype(np.int64)
            for end in (np.minimum(y, next_y), np.maximum(y, next_y))
        )
        crossed = last - first
        edges = owners_of(crossed)
        before = np.repeat(np.cumsum(crossed) - crossed - first, crossed)
        rows = np.arange(int(crossed.sum())) - before
        share = (rows + 0.5 - y[edges]) / (next_y - y)[edges]
        at = x[edges] + share * (next_x - x)[edges]
        # All pixels from the first one whose centre is right of the crossing on change from outside
        # to inside, or back.
        columns = np.clip(np.ceil(at - 0.5), 0, width).astype(np.int64)
        changes = np.bincount(rows * (width + 1) + columns, minlength=height * (width + 1))
        within = np.cumsum(changes.reshape(height, width + 1), axis=1)[:, :width]
        covered |= within % 2 == 1
    return covered
