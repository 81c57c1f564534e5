"""Moving what is marked in an image along with its pixels: boxes, polygons, keypoints. docs/annotations.md has the rules.

Coordinates are those of the corners of pixels, as in geometry.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.geometry import (
    Box,
    Displacement,
    Matrix,
    Size,
    Stage,
    Warp,
    apply,
    bounds,
    corners,
    inverted,
    moving,
    scaling,
)
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
    less than all of it where it was put onto a larger canvas, or cut before.
    """

    source: Size
    matrix: Matrix
    size: Size
    seen: Box

    @classmethod
    def still(cls, size: Size) -> Motion:
        """Return the motion that changes nothing of an image of this size."""
        return cls(size, np.eye(3), size, (0.0, 0.0, float(size[0]), float(size[1])))

    @classmethod
    def of(cls, size: Size, stages: Iterable[Stage]) -> Motion:
        """Return what stages do to an image of this size as one map. Raises TypeError for one that no matrix describes.

        Stages that turn what others have cut off are a `series`.
        """
        motion = cls.still(size)
        for stage in stages:
            if isinstance(stage, Displacement):
                raise TypeError("a displacement has no matrix")
            motion = motion.then(stage.matrix, stage.size)
        return motion

    @classmethod
    def series(cls, size: Size, stages: Iterable[Stage]) -> list[Motion]:
        """Return what stages do to an image of this size as motions, each from the output of the one before.

        What is cut off stays so: a map that turns or bends would carry a part of it back onto its canvas, where there is only
        the fill, and `seen` cannot say that. So another motion begins at such a map if something was cut off before it.
        Raises TypeError for a stage that no matrix describes.
        """
        motions, motion = list[Motion](), cls.still(size)
        for stage in stages:
            if isinstance(stage, Displacement):
                raise TypeError("a displacement has no matrix")
            if not isinstance(stage, Warp):
                motion = motion.then(stage.matrix, stage.size)
                continue
            motion = motion.then(stage.view.matrix, stage.view.size)
            if motion.cuts:
                motions.append(motion)
                motion = cls.still(stage.view.size)
            motion = motion.then(_forward(stage), stage.size)
        return [*motions, motion]

    def then(self, matrix: Matrix, size: Size) -> Motion:
        """Return this motion followed by another one, onto a canvas of this size."""
        left, top, right, bottom = bounds(apply(matrix, corners(self.seen)))
        seen = (max(left, 0.0), max(top, 0.0), min(right, float(size[0])), min(bottom, float(size[1])))
        return Motion(self.source, matrix @ self.matrix, size, seen)

    @property
    def cuts(self) -> bool:
        """Whether a part of the image is not seen any more."""
        width, height = self.source
        whole = bounds(apply(self.matrix, corners((0.0, 0.0, float(width), float(height)))))
        return not np.allclose(whole, self.seen, rtol=0.0, atol=1e-6)

    @property
    def mirrored(self) -> bool:
        """Whether left and right have changed places."""
        return bool(np.linalg.det(self.matrix[:2, :2]) < 0)

    @property
    def is_still(self) -> bool:
        """Whether nothing moves, and nothing is cut off."""
        still = Motion.still(self.source)
        return self.size == still.size and self.seen == still.seen and np.array_equal(self.matrix, still.matrix)

    @property
    def keeps_boxes(self) -> bool:
        """Whether boxes stay boxes: no rotation, no shear, no perspective."""
        m = self.matrix
        return not (m[0, 1] or m[1, 0] or m[2, 0] or m[2, 1])


def _forward(warp: Warp) -> Matrix:
    """Return the map from the view of a warp to its output. What became a line is nowhere, and all that is marked in it."""
    try:
        matrix = inverted(warp.inverse_matrix)
    except np.linalg.LinAlgError:
        return moving(-1.0, -1.0) @ scaling(0.0, 0.0)
    return matrix / matrix[2, 2]  # type: ignore[no-any-return]  # numpy's quotient is of any type


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
    boxes = np.asarray(objects["bbox"], np.float64).reshape(-1, 4)
    if motion.is_still or not len(boxes):
        return dict(objects)
    before = _moved_boxes(boxes, motion)
    low, high = np.array(motion.seen[:2]), np.array(motion.seen[2:])
    polygons = cut = None
    if objects.get("segmentation") is not None:
        polygons = _moved_polygons(Polygons.of(objects["segmentation"]), motion)
        before = before if motion.keeps_boxes else _around(polygons, before)
        cut = polygons.cut(low, high)
    after = np.concatenate([np.maximum(before[:, :2], low), np.minimum(before[:, 2:], high)], axis=1)
    visible = _share(before, after)
    if polygons is not None and cut is not None:
        whole = polygons.areas()
        visible = np.divide(whole if cut is polygons else cut.areas(), whole, out=visible, where=whole > 0)
    kept = rule.keeps(before, after, visible)
    places = np.flatnonzero(kept).tolist()
    made: dict[str, Any] = {
        name: [values[place] for place in places] for name, values in objects.items() if name not in _PLACES
    }
    made["bbox"] = _xywh(after[kept])
    if "area" in objects:
        areas = _moved_areas(objects["area"], boxes, before, visible, motion).astype(np.float32).tolist()
        made["area"] = [None if objects["area"][place] is None else areas[place] for place in places]
    if "segmentation" in objects:
        made["segmentation"] = [[] for _ in places] if cut is None else cut.only(kept).without_slivers().lists()
    if "keypoints" in objects:
        points = objects["keypoints"] or [[]] * len(boxes)
        made["keypoints"] = [moved_keypoints(points[place], motion, role) for place in places]
    return {name: made[name] for name in objects}


_PLACES = frozenset(("bbox", "area", "segmentation", "keypoints"))


def moved_keypoints(points: Any, motion: Motion, role: Objects) -> list[list[float]]:
    """Return the keypoints (k, 3) of one object after a motion: x, y and v each, (0, 0, 0) for those that are not seen."""
    given = np.asarray(points, np.float64).reshape(-1, 3)
    moved = apply(motion.matrix, given[:, :2])
    seen = ((moved >= motion.seen[:2]) & (moved <= motion.seen[2:])).all(axis=1) & (given[:, 2] > 0)
    made = np.where(seen[:, None], np.column_stack([moved, given[:, 2]]), 0.0).astype(np.float32)
    if motion.mirrored and role.flip is not None and len(made):  # an object may have no keypoints at all
        made = made[list(role.flip)]
    return made.tolist()  # type: ignore[no-any-return]  # numpy's lists are of any type


def _moved_boxes(boxes: Numbers, motion: Motion) -> Numbers:
    """Return boxes (n, 4) given as x, y, width, height, moved, as left, top, right, bottom."""
    left, top, right, bottom = boxes[:, 0], boxes[:, 1], boxes[:, 0] + boxes[:, 2], boxes[:, 1] + boxes[:, 3]
    if motion.keeps_boxes:
        m = motion.matrix
        x, y = np.stack([left, right]) * m[0, 0] + m[0, 2], np.stack([top, bottom]) * m[1, 1] + m[1, 2]
    else:
        around = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
        moved = apply(motion.matrix, around)
        x, y = moved[..., 0].T, moved[..., 1].T
    return np.stack([x.min(axis=0), y.min(axis=0), x.max(axis=0), y.max(axis=0)], axis=1)


def _moved_polygons(polygons: Polygons, motion: Motion) -> Polygons:
    points = apply(motion.matrix, polygons.points)
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
    """Return the share of the area of boxes (n, 4) that is left of them, (n,)."""
    sides = np.clip(after[:, 2:] - after[:, :2], 0.0, None)
    with np.errstate(invalid="ignore"):  # a perspective puts some corners at infinity
        whole = (before[:, 2:] - before[:, :2]).prod(axis=1)
    share: Numbers = sides.prod(axis=1) / np.where(whole > 0, whole, 1.0)
    return share


def _moved_areas(given: Any, boxes: Numbers, before: Numbers, visible: Numbers, motion: Motion) -> Numbers:
    """Return the areas of objects: scaled as the motion scales, of which the visible share is left."""
    areas = np.array([np.nan if value is None else value for value in given], np.float64)
    if motion.matrix[2, 0] or motion.matrix[2, 1]:
        whole = boxes[:, 2] * boxes[:, 3]
        with np.errstate(invalid="ignore"):
            scale = (before[:, 2:] - before[:, :2]).prod(axis=1) / np.where(whole > 0, whole, 1.0)
    else:
        scale = np.full(len(boxes), abs(np.linalg.det(motion.matrix[:2, :2])))
    with np.errstate(invalid="ignore"):
        moved: Numbers = areas * scale * visible
    return moved


def _xywh(boxes: Numbers) -> list[list[float]]:
    made = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).astype(np.float32)
    return made.tolist()  # type: ignore[no-any-return]  # numpy's lists are of any type
