"""Moving what is marked in an image along with its pixels: boxes, polygons, keypoints. docs/annotations.md has the rules.

Coordinates are those of the corners of pixels, as in geometry.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.geometry import Box, Displacement, Matrix, Size, Stage, apply, area, bounds, clipped, corners
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
        """Return what stages do to an image of this size. Raises TypeError for one that no matrix describes."""
        motion = cls.still(size)
        for stage in stages:
            if isinstance(stage, Displacement):
                raise TypeError("a displacement has no matrix")
            motion = motion.then(stage.matrix, stage.size)
        return motion

    def then(self, matrix: Matrix, size: Size) -> Motion:
        """Return this motion followed by another one, onto a canvas of this size."""
        left, top, right, bottom = bounds(apply(matrix, corners(self.seen)))
        seen = (max(left, 0.0), max(top, 0.0), min(right, float(size[0])), min(bottom, float(size[1])))
        return Motion(self.source, matrix @ self.matrix, size, seen)

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
    polygons = _moved_polygons(objects.get("segmentation"), motion)
    before = _moved_boxes(boxes, motion)
    if polygons is not None and not motion.keeps_boxes:
        before = _around(polygons, before)
    after = np.concatenate([np.maximum(before[:, :2], motion.seen[:2]), np.minimum(before[:, 2:], motion.seen[2:])], axis=1)
    visible = _share(before, after)
    whole = np.ones(len(boxes)) if polygons is None else np.zeros(len(boxes))
    cut = None if polygons is None else [[clipped(part, motion.seen) for part in parts] for parts in polygons]
    if polygons is not None and cut is not None:
        whole = np.array([sum(map(area, parts)) for parts in polygons])
        left = np.array([sum(map(area, parts)) for parts in cut])
        visible = np.where(whole > 0, left / np.where(whole > 0, whole, 1.0), visible)
    kept = np.flatnonzero(rule.keeps(before, after, visible))
    made: dict[str, Any] = {name: [values[place] for place in kept] for name, values in objects.items() if name not in _PLACES}
    made["bbox"] = _xywh(after[kept])
    if "area" in objects:
        made["area"] = _moved_areas(objects["area"], boxes, before, visible, motion)[kept].astype(np.float32).tolist()
    if cut is not None:
        made["segmentation"] = [[part.astype(np.float32).ravel() for part in cut[place] if len(part) > 2] for place in kept]
    if objects.get("keypoints") is not None:
        made["keypoints"] = [moved_keypoints(objects["keypoints"][place], motion, role) for place in kept]
    return {name: made[name] for name in objects}


_PLACES = frozenset(("bbox", "area", "segmentation", "keypoints"))


def moved_keypoints(points: Any, motion: Motion, role: Objects) -> list[list[float]]:
    """Return the keypoints (k, 3) of one object after a motion: x, y and v each, (0, 0, 0) for those that are not seen."""
    given = np.asarray(points, np.float64).reshape(-1, 3)
    moved = apply(motion.matrix, given[:, :2])
    seen = ((moved >= motion.seen[:2]) & (moved <= motion.seen[2:])).all(axis=1) & (given[:, 2] > 0)
    made = np.where(seen[:, None], np.column_stack([moved, given[:, 2]]), 0.0).astype(np.float32)
    if motion.mirrored and role.flip is not None:
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


def _moved_polygons(segmentation: Any, motion: Motion) -> list[list[Numbers]] | None:
    if segmentation is None:
        return None
    return [[_moved_polygon(part, motion) for part in parts or ()] for parts in segmentation]


def _moved_polygon(part: Any, motion: Motion) -> Numbers:
    moved = apply(motion.matrix, np.asarray(part, np.float64).reshape(-1, 2))
    return moved if np.isfinite(moved).all() else np.empty((0, 2))  # behind the eye of a perspective


def _around(polygons: list[list[Numbers]], boxes: Numbers) -> Numbers:
    """Return the boxes around the polygons of objects, those of `boxes` where an object has none."""
    points = [np.concatenate([*parts, np.empty((0, 2))]) for parts in polygons]
    found = [bounds(of_one) if len(of_one) else tuple(box) for of_one, box in zip(points, boxes, strict=True)]
    return np.array(found, np.float64)


def _share(before: Numbers, after: Numbers) -> Numbers:
    """Return the share of the area of boxes (n, 4) that is left of them, (n,)."""
    sides = np.clip(after[:, 2:] - after[:, :2], 0.0, None)
    whole = (before[:, 2:] - before[:, :2]).prod(axis=1)
    share: Numbers = sides.prod(axis=1) / np.where(whole > 0, whole, 1.0)
    return share


def _moved_areas(given: Any, boxes: Numbers, before: Numbers, visible: Numbers, motion: Motion) -> Numbers:
    """Return the areas of objects: scaled as the motion scales, of which the visible share is left."""
    areas = np.array([np.nan if value is None else value for value in given], np.float64)
    if motion.matrix[2, 0] or motion.matrix[2, 1]:
        whole = boxes[:, 2] * boxes[:, 3]
        scale = (before[:, 2:] - before[:, :2]).prod(axis=1) / np.where(whole > 0, whole, 1.0)
    else:
        scale = np.full(len(boxes), abs(np.linalg.det(motion.matrix[:2, :2])))
    moved: Numbers = areas * scale * visible
    return moved


def _xywh(boxes: Numbers) -> list[list[float]]:
    made = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).astype(np.float32)
    return made.tolist()  # type: ignore[no-any-return]  # numpy's lists are of any type
