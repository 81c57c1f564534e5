"""Moving what is marked in an image along with its pixels: boxes, polygons, keypoints.
docs/annotations.md has the rules.

What has a mask, of polygons or of pixels, is judged, measured and boxed by what is left of that:
`cut_to` and `MovedMasks`.

Coordinates are those of the corners of pixels, as in geometry.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.format.arrays import Bools, Floats, owners_of
from shardctl.format.roles import Objects
from shardctl.images.defaults import CENTRE
from shardctl.images.geometry import (
    Box,
    Counts,
    Displacement,
    Matrix,
    Patch,
    Size,
    Stage,
    Values,
    View,
    Warp,
    apply,
    bounds,
    box_edges,
    corners,
    inverted,
    moving,
    scaling,
)
from shardctl.images.polygons import Polygons

_ROUNDING = 1e-9
"""How far a share may be off by the rounding of numbers."""


@dataclass(frozen=True, eq=False)
class Motion:
    """Where the points of an image of the size `source` have gone.

    `matrix` maps them to the output, whose size is `size`. `seen` is the part of the output where
    the image is to be seen: less than all of it where it was put onto a larger canvas, or cut
    before. `before` is the motion that came before this one: what is turned after it was cut was
    cut along other lines than those of the output.
    """

    source: Size
    matrix: Matrix
    size: Size
    seen: Box
    before: Motion | None = None

    @classmethod
    def still(cls, size: Size, before: Motion | None = None) -> Motion:
        """Return the motion that changes nothing of an image of this size."""
        return cls(size, np.eye(3), size, View.whole(size).box, before)

    @classmethod
    def of(cls, size: Size, stages: Iterable[Stage]) -> Motion:
        """Return what stages do to an image of this size. Raises TypeError for one that no matrix
        describes."""
        motion = cls.still(size)
        for stage in stages:
            if isinstance(stage, Displacement):
                raise TypeError("a displacement has no matrix")
            if isinstance(stage, Warp):
                motion = motion.then(stage.view.matrix, stage.view.size)
                try:
                    matrix = inverted(stage.inverse_matrix)
                    matrix /= matrix[2, 2]
                except np.linalg.LinAlgError:
                    # what became a line is nowhere, and all that is marked in it
                    matrix = moving(-1.0, -1.0) @ scaling(0.0, 0.0)
            else:
                matrix = stage.matrix
            motion = motion.then(matrix, stage.size)
        return motion

    def then(self, matrix: Matrix, size: Size) -> Motion:
        """Return this motion followed by another one, onto a canvas of this size."""
        if not _keeps_boxes(matrix) and not self.is_still:
            return Motion.still(self.size, self).then(matrix, size)
        left, top, right, bottom = bounds(apply(matrix, corners(self.seen)))
        seen = (
            max(left, 0.0),
            max(top, 0.0),
            min(right, float(size[0])),
            min(bottom, float(size[1])),
        )
        return Motion(self.source, matrix @ self.matrix, size, seen, self.before)

    @property
    def legs(self) -> list[Motion]:
        """The motions before this one, and this one at the end, each from where the one before it
        ends."""
        return [*(self.before.legs if self.before else ()), self]

    @property
    def is_still(self) -> bool:
        """Whether nothing moves, and nothing is cut off, since the motion before it."""
        return (
            self.size == self.source
            and self.seen == (0, 0, *self.source)
            and np.array_equal(self.matrix, np.eye(3))
        )

    @property
    def keeps_boxes(self) -> bool:
        """Whether boxes stay boxes: no rotation, no shear, no perspective."""
        return _keeps_boxes(self.matrix)

    @property
    def is_turned(self) -> bool:
        """Whether boxes do not stay boxes in it, or in a motion before."""
        return self.before is not None or not self.keeps_boxes

    @property
    def limits(self) -> tuple[Floats, Floats]:
        """The corners of the part that is seen, (x, y) each."""
        return np.array(self.seen[:2]), np.array(self.seen[2:])

    @property
    def mirrors(self) -> bool:
        """Whether left and right change places."""
        return bool(np.linalg.det(self.matrix[:2, :2]) < 0)

    def points(self, points: Floats, _: Counts | None = None) -> Floats:
        """Return where points (..., 2) go."""
        return apply(self.matrix, points)

    def boxes(self, boxes: Floats) -> Floats:
        """Return the smallest boxes around the moved corners of boxes (n, 4): left, top, right,
        bottom."""
        moved = self.points(corners(boxes))
        return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1).clip(-_FAR, _FAR)

    def growth(
        self, boxes: Floats, to: Floats, polygons: Polygons | None, moved: Polygons | None
    ) -> Floats | float:
        """Return how many times as large areas become: those of polygons where an object has some,
        else those of boxes (n, 4)."""
        if not (self.matrix[2, 0] or self.matrix[2, 1]):
            return float(abs(np.linalg.det(self.matrix[:2, :2])))
        after, before = ((each[:, 2:] - each[:, :2]).prod(axis=1) for each in (to, boxes))
        # of what the perspective throws behind the eye, where there are no corners
        grown = _ratio(after, before, np.ones(len(boxes)))
        outlines = Polygons.of([[each.ravel()] for each in corners(boxes)])
        for own, made in ((outlines, _moved_polygons(outlines, self)), (polygons, moved)):
            if own is not None and made is not None:
                areas = made.areas()
                grown = np.where(areas > 0, _ratio(areas, own.areas(), grown), grown)
        return grown


@dataclass(frozen=True, eq=False)
class Moves:
    """What is done to the coordinates of n things, each in an image of its own, in pixels from the
    corner of an upright image.

    (x, y) of the stored image becomes (x, y) * `scale` + `shift`. The scale of x is negative in a
    mirrored image. Parts below `low` or above `high`, the edges of the image, are cut off. Each
    array is (n, 2).
    """

    scale: Floats
    shift: Floats
    low: Floats
    high: Floats

    keeps_boxes = True

    @classmethod
    def of(cls, motions: Sequence[Motion], which: Counts) -> Moves:
        """Return what these motions do to things (n,) that each say `which` is theirs. Each keeps
        boxes, with no motion before."""
        matrices = np.array([motion.matrix for motion in motions])[which]
        seen = np.array([motion.seen for motion in motions])[which]
        return cls(matrices[:, (0, 1), (0, 1)], matrices[:, :2, 2], seen[:, :2], seen[:, 2:])

    @property
    def limits(self) -> tuple[Floats, Floats]:
        """The corners of the part that is seen, (n, 2) each."""
        return self.low, self.high

    def points(self, points: Floats, of: Counts) -> Floats:
        """Return where points (m, 2) go; `of` (m,) says which thing each is of."""
        return points * self.scale[of] + self.shift[of]

    def boxes(self, boxes: Floats) -> Floats:
        """Return the moved boxes (n, 4): left, top, right, bottom."""
        one, other = (boxes[:, place : place + 2] * self.scale + self.shift for place in (0, 2))
        return np.concatenate([np.minimum(one, other), np.maximum(one, other)], axis=1)

    def growth(self, *_: Any) -> Floats:
        """Return how many times as large areas become, (n,)."""
        grown: Floats = np.abs(self.scale).prod(axis=1)
        return grown


def _keeps_boxes(matrix: Matrix) -> bool:
    return not (matrix[0, 1] or matrix[1, 0] or matrix[2, 0] or matrix[2, 1])


Keep = float | str
"""Which objects are kept when an image is cut: those of which at least this share of the area is
visible, or with CENTRE those whose centre is."""


def _are_kept(rule: Keep, before: Floats, after: Floats, visible: Floats, masked: Bools) -> Bools:
    """Return which of n objects are kept: (n,).

    `before` (n, 4) are their moved boxes (left, top, right, bottom), `after` what is visible of
    them, `visible` (n,) the visible share of their area. Those that are `masked` (n,) are seen
    where their mask is, whatever their box says.
    """
    inside = (after[:, 2:] > after[:, :2]).all(axis=1)
    # A box without an area has no share of it: it is kept where it lies in the image.
    flat = ~(before[:, 2:] > before[:, :2]).all(axis=1) & ~masked
    inside = (inside | masked) & (visible > 0)
    centre = (before[:, :2] + before[:, 2:]) / 2
    at_the_end = (centre == after[:, 2:]) & (before[:, :2] == before[:, 2:])
    centred = ((centre >= after[:, :2]) & ((centre < after[:, 2:]) | at_the_end)).all(axis=1)
    if rule == CENTRE:
        return np.asarray((inside | flat) & centred)
    return np.where(flat, centred, inside & (visible >= float(rule) - _ROUNDING))


VisibleSpans = tuple[Counts, Counts]
"""The pixels of an image that are still seen: those from the first to before the second column that
is given for each row."""


def visible_columns(motion: Motion, size: Size) -> VisibleSpans:
    """Return which pixels of an image of this size have their centre still in the image after a
    motion: (height,) each."""
    rows = np.arange(size[1]) + 0.5
    first, end = np.full(size[1], -np.inf), np.full(size[1], np.inf)
    matrix = np.eye(3)
    for leg in motion.legs:
        matrix = leg.matrix @ matrix
        across, down, depth = matrix
        left, top, right, bottom = leg.seen
        sides = (
            across - left * depth,
            right * depth - across,
            down - top * depth,
            bottom * depth - down,
            depth,
        )
        # a pixel is seen where none of these is below 0
        for x, y, constant in np.stack(sides).tolist():
            rest = y * rows + constant
            if x > 0:
                first = np.maximum(first, -rest / x)
            elif x < 0:
                end = np.minimum(end, -rest / x)
            else:
                end[rest < 0] = -np.inf
    places = (np.ceil((each - 0.5).clip(0, size[0])).astype(np.int64) for each in (first, end))
    begins, ends = places
    return begins, np.maximum(begins, ends)


class MovedMasks:
    """What has become of the masks of n objects that are pixels.

    `there` (n,) says which objects have one with a pixel. `share` (n,) is which part of its pixels
    is in the image: 0 also where no new pixel is nearest to one of them. `times` (n,) is how many
    times as many pixels the moved one has, and `boxes` (n, 4) are around these: left, top, right,
    bottom.
    """

    def __init__(self, count: int) -> None:
        self.there = np.zeros(count, bool)
        self.share, self.times = np.ones(count), np.ones(count)
        self.boxes = np.zeros((count, 4))

    def moved(
        self, place: int, mask: Patch, visible: VisibleSpans, move: Callable[[Patch], Patch]
    ) -> Patch | None:
        """Return what `move` makes of the mask of an object; None if nothing is left of it."""
        total = seen = np.count_nonzero(mask.pixels)
        if not total:  # its box says where it is
            return move(mask)
        height, width = mask.pixels.shape
        first, end = (
            columns[mask.top : mask.top + height, None] - mask.left for columns in visible
        )
        if first.max() > 0 or end.min() < width:
            columns = np.arange(width)
            seen = np.count_nonzero(mask.pixels & (columns >= first) & (columns < end))
        self.there[place], self.share[place] = True, seen / total
        after = move(mask) if seen else None
        count = 0 if after is None else np.count_nonzero(after.pixels)
        self.times[place] = count / total
        if after is None or not count:
            self.share[place] = 0.0
            return None
        (top, bottom), (left, right) = (
            np.flatnonzero(after.pixels.any(axis=axis))[[0, -1]].tolist() for axis in (1, 0)
        )
        self.boxes[place] = (
            np.array([left, top, right + 1, bottom + 1]) + (after.left, after.top) * 2
        )
        return after

    def measured(
        self, boxes: Floats, growth: Floats | float, visible: Floats, turned: bool = False
    ) -> tuple[Floats, Floats]:
        """Return the boxes (n, 4) of objects and how many times as large their areas are (n,).

        They are those of the masks where these are cut or `turned`. Else what is given is finer
        than pixels: the boxes, and the `growth` of areas. Objects without a mask have the `visible`
        share of them.
        """
        by_pixels = self.there & ((self.share < 1) | _ends_before(boxes) | turned)
        times = np.where(by_pixels, self.times, growth * np.where(self.there, 1.0, visible))
        return np.where(by_pixels[:, None], self.boxes, boxes), times


def cut_to(
    before: Floats, polygons: Polygons | None, low: Floats, high: Floats, turned: bool = False
) -> tuple[Floats, Floats, Floats, Bools, Polygons | None]:
    """Return what of moved boxes (n, 4) and polygons lies between two corners, (x, y) for all or
    (n, 2) for each.

    It is what of the boxes is there, and the boxes that they get, (n, 4) each; the share of their
    area that is seen, and which have polygons with an area, (n,) each; and the cut polygons. Where
    the polygons of an object are cut, or all is `turned`, it gets the smallest box around what is
    left of them. The share is that of the area of the polygons, else of the box.
    """
    within = after = _between(before, low, high)
    whole, left = before[:, 2:] - before[:, :2], (after[:, 2:] - after[:, :2]).clip(0)
    visible = _ratio(left.prod(axis=1), whole.prod(axis=1), np.ones(len(before)))
    masked = np.zeros(len(before), bool)
    if polygons is None or not len(polygons.points):
        return within, after, visible, masked, polygons
    cut, areas = polygons.cut(low, high), polygons.areas()
    masked = areas > 0
    visible = np.divide(areas if cut is polygons else cut.areas(), areas, out=visible, where=masked)
    if turned:
        after = np.where(masked[:, None], cut.around(after), after)
    leaves = masked & ((visible < 1 - _ROUNDING) | _ends_before(within))
    if leaves.any():
        of_each = (np.broadcast_to(limit, (len(before), 2))[leaves] for limit in (low, high))
        around = polygons.only(leaves).boxes_within(*of_each)
        # what is outside may have an area by the rounding of numbers
        nothing = around[:, 0] >= around[:, 2]
        visible[leaves] = np.where(nothing, 0.0, visible[leaves])
        after = after.copy()
        after[leaves] = np.where(nothing[:, None], after[leaves], around)
    return within, after, visible, masked, cut


MovedPlaces = tuple[Bools, npt.NDArray[np.float32], Floats, Polygons | None]


def moved_places(
    xywh: Floats,
    polygons: Polygons | None,
    legs: Sequence[Motion | Moves],
    rule: Keep,
    masks: MovedMasks | None = None,
    turned: bool = False,
) -> MovedPlaces:
    """Move the places of n objects. Return which are kept, (n,); of these, the boxes as x, y, width
    and height, and how many times as large their areas are, (kept,); and their polygons.

    A box (n, 4) becomes the smallest box around its moved corners, and is cut at the edge. Where an
    object has polygons, or `masks` of pixels, and these are cut or `turned`, it becomes the
    smallest box around what is left of them. Polygons are cut at the edge too.
    """
    whole = boxes = box_edges(xywh)
    visible: Floats = np.ones(len(boxes))
    growth: Floats = np.ones(len(boxes))
    kept = np.ones(len(boxes), bool)
    for leg in legs:
        low, high = leg.limits
        if polygons is not None and (visible < 1).any():
            polygons = polygons.without_spikes(visible < 1)
        moved = None if polygons is None else _moved_polygons(polygons, leg)
        before = leg.boxes(boxes)
        whole = before if whole is boxes else leg.boxes(whole)
        growth = growth * leg.growth(boxes, before, polygons, moved)
        if moved is not None and not leg.keeps_boxes:
            before = moved.around(before)
        within, boxes, share, masked, polygons = cut_to(
            before, moved, low, high, not leg.keeps_boxes
        )
        visible = visible * share
        if before is not whole:
            within = _between(whole, low, high)
        there, seen = (boxes[:, 2:] >= boxes[:, :2]).all(axis=1) | masked, visible
        if masks is not None:
            there, masked = there | masks.there, masked | masks.there
            seen = np.where(masks.there, masks.share, visible)
        kept &= there & _are_kept(rule, whole, within, seen, masked)
    times = growth * visible
    if masks is not None:
        boxes, times = masks.measured(boxes, growth, visible, turned)
    if polygons is not None:
        polygons = polygons.only(kept).without_slivers()
    boxes = boxes[kept]
    made = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).astype(np.float32)
    return kept, made, times[kept], polygons


def moved_objects(
    objects: Mapping[str, Any],
    motion: Motion,
    role: Objects,
    rule: Keep,
    masks: MovedMasks | None = None,
) -> dict[str, Any]:
    """Return the objects of a sample after a motion: a struct of lists with an item for each object
    that is kept.

    Keypoints that are no longer seen become (0, 0, 0). In a mirrored image the keypoints of the
    left and of the right side change their names (`role.flip`).
    """
    xywh = np.asarray(objects["bbox"], np.float64).reshape(-1, 4)
    if not len(xywh) or (motion.is_still and motion.before is None):
        return dict(objects)
    outlines = _all_polygons([objects])
    moved = moved_places(xywh, outlines, motion.legs, rule, masks, motion.is_turned)
    return next(_of_samples([(objects, motion)], role, moved))


Moving = tuple[Mapping[str, Any], Motion]
"""The objects of a sample, and their motion."""


def moved_together(given: Sequence[Moving], role: Objects, rule: Keep) -> list[dict[str, Any]]:
    """Return the objects of several samples, each after its own motion, as `moved_objects` gives
    them one by one.

    Those that are only scaled, mirrored and cut are moved all at once: a call of numpy takes longer
    than a few points.
    """
    plain = [
        bool(objects["bbox"]) and not motion.is_turned and not motion.is_still
        for objects, motion in given
    ]
    several = list(compress(given, plain))
    made: Iterator[dict[str, Any]] = iter(())
    if several:
        of_objects = owners_of(np.array([len(objects["bbox"]) for objects, _ in several]))
        moves = Moves.of([motion for _, motion in several], of_objects)
        boxes = list(chain.from_iterable(objects["bbox"] for objects, _ in several))
        polygons = _all_polygons([objects for objects, _ in several])
        moved = moved_places(np.array(boxes, np.float64), polygons, [moves], rule)
        made = _of_samples(several, role, moved)
    return [
        next(made) if is_plain else moved_objects(*each, role, rule)
        for each, is_plain in zip(given, plain, strict=True)
    ]


def _of_samples(
    given: Sequence[Moving], role: Objects, moved: MovedPlaces
) -> Iterator[dict[str, Any]]:
    """Yield the objects of each sample, with the places that `moved_places` gave for all of
    them."""
    stays, boxes, times = (each.tolist() for each in moved[:3])
    polygons = moved[3]
    outlines = [] if polygons is None else polygons.lists()
    first = of_all = 0
    for objects, motion in given:
        count = len(objects["bbox"])
        places = [place for place in range(count) if stays[of_all + place]]
        part = slice(first, first + len(places))
        made: dict[str, Any] = {}
        for name, values in objects.items():
            if name == "bbox":
                made[name] = boxes[part]
            elif name == "area":
                made[name] = [
                    None if values[place] is None else float(np.float32(values[place] * share))
                    for place, share in zip(places, times[part], strict=True)
                ]
            elif name == "segmentation":
                made[name] = outlines[part]
            elif name == "keypoints":
                points = values or [[]] * count
                made[name] = [
                    moved_keypoints(
                        np.asarray(points[place], np.float64).reshape(-1, 3), motion.legs, role
                    ).tolist()
                    if points[place]
                    else []
                    for place in places
                ]
            else:
                made[name] = [values[place] for place in places]
        first, of_all = part.stop, of_all + count
        yield made


def _all_polygons(given: Sequence[Mapping[str, Any]]) -> Polygons:
    return Polygons.of(
        chain.from_iterable(
            objects.get("segmentation") or [()] * len(objects["bbox"]) for objects in given
        )
    )


def moved_keypoints(
    points: Values, legs: Sequence[Motion], role: Objects
) -> npt.NDArray[np.float32]:
    """Return the keypoints of an object (k, 3), x, y and v each, after a motion: (0, 0, 0) for those
    that are not seen.

    Where it is mirrored, the keypoints of its left and of its right side change their names.
    """
    places, seen, mirrored = points[:, :2], points[:, 2] > 0, False
    for leg in legs:
        low, high = leg.limits
        places = leg.points(places)
        seen = seen & ((places >= low) & (places <= high)).all(axis=1)
        mirrored = mirrored != leg.mirrors
    exact = np.concatenate([places, points[:, 2:]], axis=1)
    exact[~seen] = 0.0
    made = exact.astype(np.float32)
    return made[list(role.flip)] if role.flip is not None and mirrored else made


_FAR = 1e7
"""Coordinates that a perspective puts at infinity, or behind the eye: far away from any image."""


def _ends_before(boxes: Floats) -> Bools:
    """Return which boxes (n, 4) were outside, so that what `_between` gave of them ends before it
    begins, (n,)."""
    return np.asarray((boxes[:, 2:] < boxes[:, :2]).any(axis=1))


def _between(boxes: Floats, low: Floats, high: Floats) -> Floats:
    """Return what of boxes (n, 4) lies between two corners; one that is outside ends before it
    begins."""
    return np.concatenate([np.maximum(boxes[:, :2], low), np.minimum(boxes[:, 2:], high)], axis=1)


def _moved_polygons(polygons: Polygons, leg: Motion | Moves) -> Polygons:
    if not len(polygons.points):
        return polygons
    points = leg.points(polygons.points, polygons.owners[polygons.of_points])
    finite = np.isfinite(points).all(axis=1)
    if finite.all():
        return polygons.at(points)
    # behind the eye of a perspective
    lost = np.bincount(polygons.of_points[~finite], minlength=len(polygons.lengths)) > 0
    lengths = np.where(lost, 0, polygons.lengths)
    return Polygons(points[~lost[polygons.of_points]], lengths, polygons.counts)


def _ratio(some: Floats, others: Floats, otherwise: Floats) -> Floats:
    """Return some / others, (n,); `otherwise` where the others are nothing."""
    found: Floats = np.divide(some, others, out=otherwise.copy(), where=others > 0)
    return found
