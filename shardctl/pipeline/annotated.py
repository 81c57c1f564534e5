"""What is marked in an image, moved along with it through the steps of a recipe."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardctl.annotations.base import BAD
from shardctl.annotations.huggingface import has_objects
from shardctl.annotations.objects import OBJECTS
from shardctl.codecs import rle
from shardctl.codecs.image import MAX_PIXELS, decode_mask
from shardctl.codecs.resampling import resampled_mask
from shardctl.errors import Rejection
from shardctl.geometry import Size, Stage
from shardctl.layout import Layout
from shardctl.motion import KeepRule, Motion, moved_objects
from shardctl.roles import Mask, Objects, Roles
from shardctl.sample import Sample


class Annotated:
    """The annotations that samples of a layout have beside their main image. `rule` says which objects a cut keeps.

    Objects of tables have no role: their types are those of the table.
    """

    def __init__(self, layout: Layout | None, rule: KeepRule) -> None:
        roles = layout.roles if layout else Roles()
        of_table = {OBJECTS: Objects()} if layout and not roles.objects and has_objects(layout.columns) else {}
        self._objects = tuple((roles.objects or of_table).items())
        self._of_table = bool(of_table)
        self._masks = tuple((name, role) for name, role in roles.images.items() if isinstance(role, Mask))
        self._rule = rule

    def __bool__(self) -> bool:
        return bool(self._objects or self._masks)

    def count(self, sample: Sample) -> int:
        """Return how many objects are marked in a sample."""
        found = (sample.get(name) for name, _ in self._objects)
        return sum(len(objects.get("bbox") or ()) for objects in found if isinstance(objects, dict))

    def fault(self, sample: Sample) -> tuple[str, str] | None:
        """Return the column of objects whose lists do not go together, and in what; None if there is none.

        Those of tables stay as they came.
        """
        for name, _ in () if self._of_table else self._objects:
            objects = sample.get(name)
            if not isinstance(objects, dict):
                continue
            counts = {member: 0 if items is None else len(items) for member, items in objects.items()}
            boxes = counts.get("bbox", 0)
            missing = [member for member in ("category", "bbox") if member not in objects]
            other = next((member for member, count in counts.items() if count != boxes), None)
            if missing or other is not None:
                return name, f"without {missing[0]}" if missing else f"with {boxes} of bbox and {counts[str(other)]} of {other}"
        return None

    def moved(self, sample: Sample, size: Size, stages: Sequence[Stage]) -> tuple[Sample, int]:
        """Return the annotations of a sample after an image of this size went through stages, and how many objects fell away.

        Masks stay the bytes that they are if nothing moves them.
        """
        changed: Sample = {}
        lost = 0
        if stages:
            motion = Motion.of(size, stages) if self._objects else None
            for name, role in self._objects:
                given = sample.get(name)
                if given is not None and motion is not None and any(given.values()):
                    checked = _checked(given, name, size) if self._of_table else given
                    changed[name] = self._moved_objects(checked, motion, stages, role)
                    lost += len(checked["bbox"]) - len(changed[name]["bbox"])
            for name, mask in self._masks:
                if sample.get(name) is not None:
                    changed[name] = _moved_mask(sample[name], stages, mask, size)
        return changed, lost

    def _moved_objects(self, given: dict[str, Any], motion: Motion, stages: Sequence[Stage], role: Objects) -> dict[str, Any]:
        runs = given.get("rle")
        numbered = {**given, "rle": list(range(len(runs)))} if runs else given
        made = moved_objects(numbered, motion, role, self._rule)
        if runs:
            made["rle"] = [_moved_rle(runs[place], stages) for place in made["rle"]]
        return made


def _checked(objects: dict[str, Any], name: str, size: Size) -> dict[str, Any]:
    """Return objects of a table whose lists go together, those that are missing as lists of nothing. Raises Rejection.

    Those of annotations are checked when they are read; those of tables come as they are. `size` is that of the image.
    """
    count = len(objects["bbox"] or ())
    for member, items in objects.items():
        if items is not None and len(items) != count:
            message = f"{name} has {count} of bbox and {len(items)} of {member}; there must be one for each object"
            raise Rejection("transform", BAD, message)
    if not all(_are_numbers(box, 4) for box in objects["bbox"] or ()):
        raise Rejection("transform", BAD, f"a bbox of {name} is not four numbers: x, y, width, height")
    for polygon in chain.from_iterable(each or () for each in objects.get("segmentation") or ()):
        if not _are_numbers(polygon) or len(polygon) % 2:
            raise Rejection("transform", BAD, f"a polygon of {name} is not a list of numbers: x, y, x, y, …")
    for point in chain.from_iterable(each or () for each in objects.get("keypoints") or ()):
        if not isinstance(point, list) or len(point) != 3 or not all(type(number) in (int, float) for number in point):
            raise Rejection("transform", BAD, f"a keypoint of {name} is not three numbers: x, y, v")
    for runs in objects.get("rle") or ():
        if runs is not None:
            _check_runs(runs, name, size)
    made = {member: [None] * count if items is None else items for member, items in objects.items()}
    if "keypoints" in made:
        made["keypoints"] = [each or [] for each in made["keypoints"]]
    return made


def _are_numbers(values: Any, count: int | None = None) -> bool:
    fits = isinstance(values, list) and (count is None or len(values) == count)
    return fits and all(type(value) in (int, float) and math.isfinite(value) for value in values)


def _check_runs(runs: Any, name: str, size: Size) -> None:
    """Raise Rejection for the RLE of an object that is none, or is not of the size of its image."""
    try:
        height, width = runs["size"]
        rle.decode(runs["counts"], (height, width))
    except (TypeError, KeyError, ValueError):
        raise Rejection("transform", BAD, f"an RLE of {name} is not one, with a size and counts") from None
    if (width, height) != size:
        message = f"an RLE of {name} is of {width}x{height}, and the image has {size[0]}x{size[1]}"
        raise Rejection("transform", BAD, message)


def _moved_rle(runs: dict[str, Any] | None, stages: Sequence[Stage]) -> dict[str, Any] | None:
    """Return the pixels of an object, which are runs of a mask, after stages."""
    if runs is None:
        return None
    height, width = runs["size"]
    values: npt.NDArray[Any] = rle.decode(runs["counts"], (height, width))
    for stage in stages:
        values = resampled_mask(values, stage, 0)
    return {"size": list(values.shape), "counts": rle.encode(values)}


def _moved_mask(mask: dict[str, Any], stages: Sequence[Stage], role: Mask, size: Size) -> dict[str, Any]:
    """Return the mask of an image of this size after stages, as a PNG with the same kind of numbers and palette."""
    values, fill = decode_mask(mask["bytes"], max(MAX_PIXELS, size[0] * size[1])), role.ignore or 0
    if fill > np.iinfo(values.dtype).max:  # a mask of 8 bits among those of 16
        values = values.astype(np.uint16)
    for stage in stages:
        values = resampled_mask(values, stage, fill)
    with Image.open(io.BytesIO(mask["bytes"])) as before:
        made = Image.fromarray(np.ascontiguousarray(values))
        if before.mode == "P" and values.dtype == np.uint8 and (palette := before.getpalette()):
            made.putpalette(palette)
    target = io.BytesIO()
    made.save(target, "PNG")
    return {**mask, "bytes": target.getvalue()}
