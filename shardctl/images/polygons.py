"""The polygons of many objects: cut off at the edges of their images, and measured, all at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.format.arrays import Bools, Floats, edges_of, owners_of
from shardctl.images.geometry import Counts

_FEWEST = 3
"""Points of a polygon; what is left with fewer when it was cut off is not one."""

_NOTHING = (np.inf, np.inf, -np.inf, -np.inf)
"""The box around nothing."""

_BESIDE = 1e-6
"""Pixels from a corner at which a polygon is looked for: one may begin at the corner, and be on its
other side."""


@dataclass(frozen=True)
class Polygons:
    """The outlines of T objects: `points` (P, 2) one behind the other, `lengths` the points of each
    polygon, `counts` (T,) the polygons of each object."""

    points: Floats
    lengths: Counts
    counts: Counts

    @classmethod
    def of(cls, objects: Iterable[Iterable[Any] | None]) -> Polygons:
        """Read the polygons of objects: lists (or arrays) of x, y, x, y, … for each."""
        listed = [list(each or ()) for each in objects]
        parts = list(chain.from_iterable(listed))
        lengths, counts = (np.array([*map(len, each)], np.int64) for each in (parts, listed))
        points = np.concatenate([np.empty(0), *(np.asarray(part, np.float64) for part in parts)])
        return cls(points.reshape(-1, 2), lengths // 2, counts)

    @cached_property
    def owners(self) -> Counts:
        """The object that each polygon is of."""
        return owners_of(self.counts)

    @cached_property
    def of_points(self) -> Counts:
        """The polygon that each point is of."""
        return owners_of(self.lengths)

    def at(self, points: Floats) -> Polygons:
        """Return the same polygons with their points in other places."""
        return replace(self, points=points)

    def lists(self) -> list[list[npt.NDArray[np.float32]]]:
        """Return the polygons of each object as x, y, x, y, … in float32."""
        flat = self.points.astype(np.float32).reshape(-1)
        arrays = [flat[part] for part in stretches(2 * self.lengths)]
        return [arrays[part] for part in stretches(self.counts)]

    def around(self, otherwise: Floats) -> Floats:
        """Return the smallest box around the polygons of each object, (T, 4): that of `otherwise`
        for one that has none."""
        owners, found = self.owners[self.of_points], np.full((len(self.counts), 4), _NOTHING)
        np.minimum.at(found[:, :2], owners, self.points)
        np.maximum.at(found[:, 2:], owners, self.points)
        return np.where(np.isfinite(found), found, otherwise)

    def cut(self, low: Floats, high: Floats) -> Polygons:
        """Return what lies between `low` and `high`, (x, y) for all or (T, 2) for each object. A
        polygon outside has no points.

        Source: Sutherland and Hodgman, "Reentrant polygon clipping", 1974. A part that falls into
        several pieces stays one polygon, whose pieces are connected along the edge.
        """
        shape, of_points = (len(self.counts), 2), self.of_points
        low, high = (np.broadcast_to(limit, shape)[self.owners] for limit in (low, high))
        outside = ((self.points < low[of_points]) | (self.points > high[of_points])).any(axis=1)
        if not outside.any():
            return self
        leaves = np.bincount(of_points[outside], minlength=len(self.lengths)) > 0
        chosen = leaves[of_points]
        points, lengths = self.points[chosen], self.lengths[leaves]
        for axis, (sign, limits) in product((0, 1), ((1.0, low), (-1.0, high))):
            points, lengths = _half(points, lengths, axis, sign, limits[leaves, axis])
        after = self.lengths.copy()
        after[leaves] = lengths
        from_cut = np.repeat(leaves, after)
        together = np.empty((len(from_cut), 2))
        together[from_cut], together[~from_cut] = points, self.points[~chosen]
        return Polygons(together, after, self.counts)

    def without_spikes(self, objects: Bools) -> Polygons:
        """Return the same polygons, those of some objects (T,) without points that a line goes to
        and comes straight back from.

        `cut` leaves such points on edges. They change no area, and a box around them would be too
        large.
        """
        polygons = self
        while len(polygons.points):
            following = _following(polygons.lengths)
            before = np.empty_like(polygons.points)
            before[following] = polygons.points
            there, back = before - polygons.points, polygons.points[following] - polygons.points
            along = (there == 0) & (back == 0)
            chosen = objects[polygons.owners][polygons.of_points]
            spikes = chosen & (
                (there == 0).all(axis=1) | (along[:, ::-1] & (there * back > 0)).any(axis=1)
            )
            if not spikes.any():
                break
            lengths = np.bincount(polygons.of_points[~spikes], minlength=len(polygons.lengths))
            polygons = Polygons(polygons.points[~spikes], lengths, polygons.counts)
        return polygons

    def boxes_within(self, low: Floats, high: Floats) -> Floats:
        """Return the smallest box around what of each object lies between `low` and `high`, as for
        `cut`.

        It is left, top, right, bottom, (T, 4): inf, inf, -inf, -inf where nothing does. The points
        of `cut` do not tell it: pieces of one polygon are connected along the edge, and so may be
        an edge and a piece that is cut off after it.
        """
        low, high = (np.broadcast_to(limit, (len(self.counts), 2)) for limit in (low, high))
        owners = self.owners[self.of_points]
        low_, high_ = low[owners], high[owners]
        way = self.points[_following(self.lengths)] - self.points
        with np.errstate(divide="ignore", invalid="ignore"):
            one, other = (low_ - self.points) / way, (high_ - self.points) / way
        aside = (way == 0) & ((self.points <= low_) | (self.points >= high_))
        enter = np.where(way == 0, -np.inf, np.minimum(one, other)).max(axis=1).clip(0, None)
        leave = np.where(way == 0, np.inf, np.maximum(one, other)).min(axis=1).clip(None, 1)
        # what only runs along the limit is none of it
        middle = self.points + way * ((enter + leave) / 2)[:, None]
        seen = (
            (enter < leave) & ~aside.any(axis=1) & ((middle > low_) & (middle < high_)).all(axis=1)
        )
        found = np.full((len(self.counts), 4), _NOTHING)
        for at in (enter, leave):
            places = np.clip(self.points + way * at[:, None], low_, high_)[seen]
            np.minimum.at(found[:, :2], owners[seen], places)
            np.maximum.at(found[:, 2:], owners[seen], places)
        for across, down in product((low, high), repeat=2):
            corner = np.stack([across[:, 0], down[:, 1]], axis=1)
            covered = self._cover(corner, (low + high) / 2)[:, None]
            np.minimum(found[:, :2], corner, out=found[:, :2], where=covered)
            np.maximum(found[:, 2:], corner, out=found[:, 2:], where=covered)
        return found

    def _cover(self, corners: Floats, centres: Floats) -> Bools:
        """Return of which objects a polygon goes around a corner of theirs (T, 2), or right beside
        it, towards a centre."""
        x, y = (corners + np.sign(centres - corners) * _BESIDE)[self.owners][self.of_points].T
        (from_x, from_y), (to_x, to_y) = self.points.T, self.points[_following(self.lengths)].T
        crosses = (from_y <= y) != (to_y <= y)
        share = np.divide(y - from_y, to_y - from_y, out=np.zeros_like(y), where=crosses)
        right = crosses & (from_x + share * (to_x - from_x) > x)
        around = np.bincount(self.of_points, right, len(self.lengths)) % 2 == 1
        return np.bincount(self.owners, around, len(self.counts)) > 0

    def areas(self) -> Floats:
        """Return the area of all polygons of each object together, (T,), by the shoelace
        formula."""
        (x, y), (next_x, next_y) = self.points.T, self.points[_following(self.lengths)].T
        crossed = x * next_y - next_x * y
        of_polygons = np.abs(np.bincount(self.of_points, crossed, len(self.lengths))) / 2
        return np.bincount(self.owners, of_polygons, len(self.counts)).astype(np.float64)

    def without_slivers(self) -> Polygons:
        """Return only what has at least three points."""
        stay = self.lengths >= _FEWEST
        counts = np.bincount(self.owners[stay], minlength=len(self.counts))
        return Polygons(self.points[stay[self.of_points]], self.lengths[stay], counts)

    def only(self, objects: Bools) -> Polygons:
        """Return the polygons of some objects, (T,)."""
        stay = objects[self.owners]
        return Polygons(self.points[stay[self.of_points]], self.lengths[stay], self.counts[objects])


def stretches(lengths: Counts) -> list[slice]:
    """Return the stretches of these lengths, one behind the other."""
    return [slice(begin, end) for begin, end in pairwise(edges_of(lengths).tolist())]


def _following(lengths: Counts) -> Counts:
    """Return for each point of polygons of these lengths the place of the next one, the first again
    for the last."""
    lengths = lengths[lengths > 0]
    ends = np.cumsum(lengths)
    following = np.arange(1, int(lengths.sum()) + 1)
    following[ends - 1] = ends - lengths
    return following


def _half(
    points: Floats, lengths: Counts, axis: int, sign: float, limits: Floats
) -> tuple[Floats, Counts]:
    """Return what of polygons is where `axis` is at least (sign 1) or at most (sign -1) the limit
    of each."""
    owners = owners_of(lengths)
    limit = limits[owners]
    distance = sign * (points[:, axis] - limit)
    inside = distance >= 0
    if inside.all():
        return points, lengths
    following = _following(lengths)
    crosses = inside != inside[following]
    share = np.divide(
        distance, distance - distance[following], out=np.zeros_like(distance), where=crosses
    )
    crossing = points + (points[following] - points) * share[:, None]
    crossing[:, axis] = limit
    stay = np.stack([inside, crosses], axis=1)
    left = np.stack([points, crossing], axis=1)[stay]
    return left, np.bincount(np.repeat(owners, 2)[stay.reshape(-1)], minlength=len(lengths))
