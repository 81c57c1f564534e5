"""The polygons of all objects of a batch: moved, cut off at the edges of their images, and measured, all at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.reader.gather import Indices
from shardctl.reader.moves import Floats, Moves

Numbers = npt.NDArray[Any]

_FEWEST = 3
"""Points of a polygon; what is left with fewer when it was cut off is not one."""


@dataclass(frozen=True)
class Polygons:
    """The outlines of T objects: `points` (P, 2) one behind the other, `lengths` the points of each polygon, `counts` (T,)."""

    points: Numbers
    lengths: Indices
    counts: Indices

    @property
    def owners(self) -> Indices:
        """The object that each polygon is of."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def lists(self) -> list[list[Numbers]]:
        """Return the polygons of each object as x, y, x, y, … in float32."""
        flat = self.points.astype(np.float32).reshape(-1)
        arrays = [flat[part] for part in parts(2 * self.lengths)]
        return [arrays[part] for part in parts(self.counts)]

    def moved(self, moves: Moves) -> Polygons:
        """Return the polygons where the images of their objects were put."""
        of_point = moves.at(np.repeat(self.owners, self.lengths))
        return replace(self, points=self.points * of_point.scale + of_point.shift)

    def cut(self, moves: Moves) -> Polygons:
        """Return what is inside of the images of the objects. A polygon that is outside has no points."""
        of_point = moves.at(np.repeat(self.owners, self.lengths))
        outside = np.any((self.points < of_point.low) | (self.points > of_point.high), axis=1)
        if not outside.any():
            return self
        leaves = np.bincount(self._of_points[outside], minlength=len(self.lengths)) > 0
        chosen = leaves[self._of_points]
        points, lengths = _cut(self.points[chosen], self.lengths[leaves], moves.at(self.owners[leaves]))
        after = self.lengths.copy()
        after[leaves] = lengths
        from_cut = np.repeat(leaves, after)
        together = np.empty((len(from_cut), 2))
        together[from_cut], together[~from_cut] = points, self.points[~chosen]
        return Polygons(together, after, self.counts)

    @property
    def _of_points(self) -> Indices:
        """The polygon that each point is of."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def areas(self) -> Floats:
        """Return the area of all polygons of each object together, (T,), by the shoelace formula."""
        following = self.points[_following(self.lengths)]
        crossed = self.points[:, 0] * following[:, 1] - following[:, 0] * self.points[:, 1]
        of_polygons = np.abs(np.bincount(self._of_points, crossed, len(self.lengths))) / 2
        return np.bincount(self.owners, of_polygons, len(self.counts)).astype(np.float64)

    def without_slivers(self) -> Polygons:
        """Return only what has at least three points."""
        stay = self.lengths >= _FEWEST
        if stay.all():
            return self
        counts = np.bincount(self.owners[stay], minlength=len(self.counts))
        return Polygons(self.points[stay[self._of_points]], self.lengths[stay], counts)

    def of(self, objects: npt.NDArray[np.bool_]) -> Polygons:
        """Return the polygons of some objects, (T,)."""
        stay = objects[self.owners]
        return Polygons(self.points[stay[self._of_points]], self.lengths[stay], self.counts[objects])


def parts(lengths: Indices) -> list[slice]:
    """Return the stretches of these lengths, one behind the other."""
    return [slice(begin, end) for begin, end in pairwise([0, *np.cumsum(lengths).tolist()])]


def _following(lengths: Indices) -> Indices:
    """Return for each point of polygons of these lengths the place of the next one, the first again for the last."""
    lengths = lengths[lengths > 0]
    ends = np.cumsum(lengths)
    following = np.arange(1, int(lengths.sum()) + 1)
    following[ends - 1] = ends - lengths
    return following


def _cut(points: Floats, lengths: Indices, moves: Moves) -> tuple[Floats, Indices]:
    """Return what of polygons is inside of the image of each: its points, and how many each has then.

    Source: Sutherland and Hodgman, "Reentrant polygon clipping", 1974. A part that falls into several pieces stays one
    polygon, whose pieces are connected along the edge.
    """
    for axis in (0, 1):
        for sign, limits in ((1.0, moves.low), (-1.0, moves.high)):
            points, lengths = _half(points, lengths, axis, sign, limits[:, axis])
    return points, lengths


def _half(points: Floats, lengths: Indices, axis: int, sign: float, limits: Floats) -> tuple[Floats, Indices]:
    """Return what of polygons is where `axis` is at least (sign 1) or at most (sign -1) the limit of each."""
    limit = np.repeat(limits, lengths)
    distance = sign * (points[:, axis] - limit)
    inside = distance >= 0
    if inside.all():
        return points, lengths
    following = _following(lengths)
    crosses = inside != inside[following]
    at = np.flatnonzero(crosses)
    after = following[at]
    share = distance[at] / (distance[at] - distance[after])
    crossings = points[at] + (points[after] - points[at]) * share[:, None]
    crossings[:, axis] = limit[at]
    # Each point gives itself where it is inside, and behind it the crossing where the line to the next one crosses.
    gives = inside.astype(np.int64) + crosses
    ends = np.cumsum(gives)
    left = np.empty((int(gives.sum()), 2))
    left[(ends - gives)[inside]], left[ends[at] - 1] = points[inside], crossings
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return left, np.bincount(owners, gives, len(lengths)).astype(np.int64)
