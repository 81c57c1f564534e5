"""Moving what is marked in an image along with its pixels: boxes, polygons, keypoints. docs/annotations.md has the rules.

Coordinates are those of the corners of pixels, as in geometry.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.geometry import Box, Displacement, Matrix, Size, Stage, Warp, apply, bounds, corners, inverted, moving, scaling
from shardctl.outlines import Polygons
from shardctl.roles import Objects

Numbers = npt.NDArray[np.float64]

CENTRE = "center"
"""Keep an object if the centre of its box is still in the image."""

KEPT_SHARE = 0.1
"""The part of an object's area that must be visible for it to be kept, unless a recipe says otherwise."""


@dataclass(frozen=True, eq=False)
class Motion:
    """Where the points of an image of the size `source` have gone.

    `matrix` maps them to the output, whose size is `size`. `seen` is the part of the output where the image is to be seen:
    less than all of it where it was put onto a larger canvas, or cut before. `before` is the motion that came before this one:
    what is turned after it was cut was cut along other lines than those of the output.
    """

    source: Size
    matrix: Matrix
    size: Size
    seen: Box
    before: Motion | None = None

    @classmethod
    def still(cls, size: Size, before: Motion | None = None) -> Motion:
        """Return the motion that changes nothing of an image of this size."""
        return cls(size, np.eye(3), size, (0.0, 0.0, float(size[0]), float(size[1])), before)

    @classmethod
    def of(cls, size: Size, stages: Iterable[Stage]) -> Motion:
        """Return what stages do to an image of this size. Raises TypeError for one that no matrix describes."""
        motion = cls.still(size)
        for stage in stages:
            if isinstance(stage, Displacement):
                raise TypeError("a displacement has no matrix")
            if isinstance(stage, Warp):
                motion = motion.then(stage.view.matrix, stage.view.size).then(_forward(stage), stage.size)
            else:
                motion = motion.then(stage.matrix, stage.size)
        return motion

    def then(self, matrix: Matrix, size: Size) -> Motion:
        """Return this motion followed by another one, onto a canvas of this size."""
        if not _keeps_boxes(matrix) and not self.is_still:
            return Motion.still(self.size, self).then(matrix, size)
        left, top, right, bottom = _around_moved(self.seen, matrix)
        seen = (max(left, 0.0), max(top, 0.0), min(right, float(size[0])), min(bottom, float(size[1])))
        return Motion(self.source, matrix @ self.matrix, size, seen, self.before)

    @property
    def legs(self) -> list[Motion]:
        """The motions before this one, and this one at the end, each from where the one before it ends."""
        return [*(self.before.legs if self.before else ()), self]

    @property
    def is_still(self) -> bool:
        """Whether nothing moves, and nothing is cut off, since the motion before it."""
        whole = (0.0, 0.0, float(self.source[0]), float(self.source[1]))
        return self.size == self.source and self.seen == whole and np.array_equal(self.matrix, np.eye(3))

    @property
    def keeps_boxes(self) -> bool:
        """Whether boxes stay boxes: no rotation, no shear, no perspective."""
        return _keeps_boxes(self.matrix)


def _forward(warp: Warp) -> Matrix:
    """Return the map from the view of a warp to its output. What became a line is nowhere, and all that is marked in it."""
    try:
        matrix = inverted(warp.inverse_matrix)
    except np.linalg.LinAlgError:
        return moving(-1.0, -1.0) @ scaling(0.0, 0.0)
    matrix /= matrix[2, 2]
    return matrix


def _keeps_boxes(matrix: Matrix) -> bool:
    return not (matrix[0, 1] or matrix[1, 0] or matrix[2, 0] or matrix[2, 1])


def _around_moved(box: Box, matrix: Matrix) -> Box:
    """Return the smallest box around the moved corners of one."""
    if not _keeps_boxes(matrix):
        return bounds(apply(matrix, corners(box)))
    (across, _, right), (_, down, below), _ = matrix.tolist()  # numpy takes ten times as long for so few numbers
    x, y = (box[0] * across + right, box[2] * across + right), (box[1] * down + below, box[3] * down + below)
    return min(x), min(y), max(x), max(y)


@dataclass(frozen=True)
class KeepRule:
    """Which objects are kept when an image is cut: those of which at least `share` of the area is visible, or with CENTRE
    those whose centre is."""

    share: float | None = KEPT_SHARE

    @classmethod
    def of(cls, rule: float | str) -> KeepRule:
        """Read a number from 0 to 1, or `center`."""
        return cls(None if rule == CENTRE else float(rule))

    def keeps(self, before: Numbers, after: Numbers, visible: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of n objects are kept: (n,).

        `before` (n, 4) are their moved boxes (left, top, right, bottom), `after` what is visible of them, `visible` (n,) the
        visible share of their area.
        """
        inside = (after[:, 2:] > after[:, :2]).all(axis=1)
        # A box without an area has no share of it: it is kept where it lies in the image.
        flat = ~(before[:, 2:] > before[:, :2]).all(axis=1)
        centre = (before[:, :2] + before[:, 2:]) / 2
        at_the_end = (centre == after[:, 2:]) & (before[:, :2] == before[:, 2:])
        centred = ((centre >= after[:, :2]) & ((centre < after[:, 2:]) | at_the_end)).all(axis=1)
        if self.share is None:
            return np.asarray((inside | flat) & centred)
        return np.where(flat, centred, inside & (visible >= self.share - 1e-9))


def moved_objects(objects: Mapping[str, Any], motion: Motion, role: Objects, rule: KeepRule) -> dict[str, Any]:
    """Return the objects of a sample after a motion: a struct of lists with an item for each object that is kept.

    A box becomes the smallest box around its moved corners, or, where it is turned and has polygons, around these, and is cut
    at the edge. Polygons are cut at the edge too; keypoints that are no longer seen become (0, 0, 0). In a mirrored image the
    keypoints of the left and of the right side change their names (`role.flip`).
    """
    xywh = np.asarray(objects["bbox"], np.float64).reshape(-1, 4)
    if not len(xywh) or (motion.is_still and motion.before is None):
        return dict(objects)
    whole = boxes = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)
    polygons = None if objects.get("segmentation") is None else Polygons.of(objects["segmentation"])
    visible: Numbers = np.ones(len(boxes))
    growth: Numbers | float = 1.0
    kept = np.ones(len(boxes), bool)
    for leg in motion.legs:
        low, high = np.array(leg.seen[:2]), np.array(leg.seen[2:])
        moved = None if polygons is None else _moved_polygons(polygons, leg)
        cut = None if moved is None else moved.cut(low, high)
        before = _moved_boxes(boxes, leg)
        whole = before if whole is boxes else _moved_boxes(whole, leg)
        if moved is not None and not leg.keeps_boxes:
            before = _around(moved, before)
        growth = growth * _growth(boxes, before, leg)
        after = _between(before, low, high)
        share = _share(before, after)
        if moved is not None and cut is not None:
            areas = moved.areas()
            share = np.divide(areas if cut is moved else cut.areas(), areas, out=share, where=areas > 0)
            after = after if leg.keeps_boxes else _around(cut, after)
        visible *= share
        there = (after[:, 2:] >= after[:, :2]).all(axis=1)
        kept &= there & rule.keeps(whole, after if before is whole else _between(whole, low, high), visible)
        boxes, polygons = after, cut
    places = np.flatnonzero(kept).tolist()
    made: dict[str, Any] = {
        name: [values[place] for place in places] for name, values in objects.items() if name not in _PLACES
    }
    made["bbox"] = _xywh(boxes[kept])
    if "area" in objects:
        left = np.broadcast_to(growth * visible, len(boxes)).tolist()
        given = objects["area"]
        made["area"] = [_grown(given[place], left[place]) for place in places]
    if "segmentation" in objects:
        made["segmentation"] = [[] for _ in places] if polygons is None else polygons.only(kept).without_slivers().lists()
    if "keypoints" in objects:
        points = objects["keypoints"] or [[]] * len(boxes)
        made["keypoints"] = [moved_keypoints(points[place], motion, role) for place in places]
    return {name: made[name] for name in objects}


_PLACES = frozenset(("bbox", "area", "segmentation", "keypoints"))


Moving = tuple[Mapping[str, Any], Motion]
"""The objects of a sample, and their motion."""


def moved_together(given: Sequence[Moving], role: Objects, rule: KeepRule) -> list[dict[str, Any]]:
    """Return the objects of several samples, each after its own motion, as `moved_objects` gives them one by one.

    Those that are only scaled, mirrored and cut are moved all at once: a call of numpy takes longer than a few points.
    """
    plain = [
        objects["bbox"] and motion.before is None and motion.keeps_boxes and not motion.is_still for objects, motion in given
    ]
    at_once = _moved_at_once([each for each, is_plain in zip(given, plain, strict=True) if is_plain], role, rule)
    return [
        next(at_once) if is_plain else moved_objects(*each, role, rule) for each, is_plain in zip(given, plain, strict=True)
    ]


def _moved_at_once(given: Sequence[Moving], role: Objects, rule: KeepRule) -> Iterator[dict[str, Any]]:
    if not given:
        return
    counts = np.array([len(objects["bbox"]) for objects, _ in given])
    of_object = np.repeat(np.arange(len(given)), counts)
    matrices = np.array([motion.matrix for _, motion in given])
    scale, shift = matrices[:, (0, 1), (0, 1)][of_object], matrices[:, :2, 2][of_object]
    seen = np.array([motion.seen for _, motion in given])[of_object]
    low, high = seen[:, :2], seen[:, 2:]
    xywh = np.array(list(chain.from_iterable(objects["bbox"] for objects, _ in given)), np.float64)
    one, other = xywh[:, :2] * scale + shift, (xywh[:, :2] + xywh[:, 2:]) * scale + shift
    before: Numbers = np.concatenate([np.minimum(one, other), np.maximum(one, other)], axis=1).clip(-_FAR, _FAR)
    after = _between(before, low, high)
    visible = _share(before, after)
    polygons = _all_polygons(given)
    if len(polygons.points):
        of_point = polygons.owners[polygons.of_points]
        moved = polygons.at(polygons.points * scale[of_point] + shift[of_point])
        polygons, areas = moved.cut(low, high), moved.areas()
        visible = np.divide(areas if polygons is moved else polygons.areas(), areas, out=visible, where=areas > 0)
    kept = (after[:, 2:] >= after[:, :2]).all(axis=1) & rule.keeps(before, after, visible)
    left = (np.abs(np.linalg.det(matrices[:, :2, :2]))[of_object] * visible)[kept].tolist()
    boxes, outlines = _xywh(after[kept]), polygons.only(kept).without_slivers().lists()
    stays, first, of_all = kept.tolist(), 0, 0
    for objects, motion in given:
        places = [place for place in range(len(objects["bbox"])) if stays[of_all + place]]
        end = first + len(places)
        made: dict[str, Any] = {}
        for name, values in objects.items():
            if name == "bbox":
                made[name] = boxes[first:end]
            elif name == "area":
                made[name] = [_grown(values[place], share) for place, share in zip(places, left[first:end], strict=True)]
            elif name == "segmentation":
                made[name] = outlines[first:end]
            elif name == "keypoints":
                points = values or [[]] * len(objects["bbox"])
                made[name] = [moved_keypoints(points[place], motion, role) if points[place] else [] for place in places]
            else:
                made[name] = [values[place] for place in places]
        first, of_all = end, of_all + len(objects["bbox"])
        yield made


def _all_polygons(given: Sequence[Moving]) -> Polygons:
    return Polygons.of(chain.from_iterable(objects.get("segmentation") or [()] * len(objects["bbox"]) for objects, _ in given))


def _grown(area: float | None, times: float) -> float | None:
    return None if area is None else float(np.float32(area * times))


def moved_keypoints(points: Any, motion: Motion, role: Objects) -> list[list[float]]:
    """Return the keypoints (k, 3) of one object after a motion: x, y and v each, (0, 0, 0) for those that are not seen."""
    given = np.asarray(points, np.float64).reshape(-1, 3)
    places, seen, mirrored = given[:, :2], given[:, 2] > 0, False
    for leg in motion.legs:
        places = apply(leg.matrix, places)
        seen = seen & ((places >= leg.seen[:2]) & (places <= leg.seen[2:])).all(axis=1)
        mirrored ^= bool(np.linalg.det(leg.matrix[:2, :2]) < 0)
    made = np.where(seen[:, None], np.column_stack([places, given[:, 2]]), 0.0).astype(np.float32)
    if mirrored and role.flip is not None and len(made):  # an object may have no keypoints at all
        made = made[list(role.flip)]
    return made.tolist()  # type: ignore[no-any-return]  # numpy's lists are of any type


def _moved_boxes(boxes: Numbers, leg: Motion) -> Numbers:
    """Return the smallest boxes around the moved corners of boxes (n, 4): left, top, right, bottom."""
    left, top, right, bottom = boxes.T
    if leg.keeps_boxes:
        m = leg.matrix
        x, y = np.stack([left, right]) * m[0, 0] + m[0, 2], np.stack([top, bottom]) * m[1, 1] + m[1, 2]
    else:
        around = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
        moved = apply(leg.matrix, around)
        x, y = moved[..., 0].T, moved[..., 1].T
    made: Numbers = np.stack([x.min(axis=0), y.min(axis=0), x.max(axis=0), y.max(axis=0)], axis=1)
    return made.clip(-_FAR, _FAR)


_FAR = 1e7
"""Coordinates that a perspective puts at infinity, or behind the eye: far away from any image."""


def _between(boxes: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Return what of boxes (n, 4) lies between two corners; one that is outside ends before it begins."""
    return np.concatenate([np.maximum(boxes[:, :2], low), np.minimum(boxes[:, 2:], high)], axis=1)


def _moved_polygons(polygons: Polygons, leg: Motion) -> Polygons:
    points = apply(leg.matrix, polygons.points)
    finite = np.isfinite(points).all(axis=1)
    if finite.all():
        return polygons.at(points)
    lost = np.bincount(polygons.of_points[~finite], minlength=len(polygons.lengths)) > 0  # behind the eye of a perspective
    lengths = np.where(lost, 0, polygons.lengths)
    return Polygons(points[~lost[polygons.of_points]], lengths, polygons.counts)


def _around(polygons: Polygons, boxes: Numbers) -> Numbers:
    """Return the boxes around the polygons of objects, those of `boxes` where an object has none."""
    found = [tuple(box) if around is None else around for around, box in zip(polygons.boxes(), boxes, strict=True)]
    return np.array(found, np.float64)


def _share(before: Numbers, after: Numbers) -> Numbers:
    """Return the share of the area of boxes (n, 4) that is left of them, (n,): 1 of a box without an area."""
    sides = np.clip(after[:, 2:] - after[:, :2], 0.0, None)
    whole = (before[:, 2:] - before[:, :2]).prod(axis=1)
    share: Numbers = np.where(whole > 0, sides.prod(axis=1) / np.where(whole > 0, whole, 1.0), 1.0)
    return share


def _growth(boxes: Numbers, moved: Numbers, leg: Motion) -> Numbers | float:
    """Return how many times as large areas become."""
    if leg.matrix[2, 0] or leg.matrix[2, 1]:
        whole = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        grown: Numbers = (moved[:, 2:] - moved[:, :2]).prod(axis=1) / np.where(whole > 0, whole, 1.0)
        return grown
    return float(abs(np.linalg.det(leg.matrix[:2, :2])))


def _xywh(boxes: Numbers) -> list[list[float]]:
    made = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).astype(np.float32)
    return made.tolist()  # type: ignore[no-any-return]  # numpy's lists are of any type
