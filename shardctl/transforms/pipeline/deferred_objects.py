"""What is marked in an image, moved along with it through the steps of a recipe."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.layout import Layout
from shardctl.format.roles import Mask, Objects, Roles, Sample
from shardctl.images.codecs import rle
from shardctl.images.codecs.image import Opened, mask_png, open_image
from shardctl.images.codecs.resampling import patch_mover, resampled_mask
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.geometry import Size, Stage
from shardctl.images.object_geometry import (
    Keep,
    Motion,
    MovedMasks,
    VisibleSpans,
    moved_objects,
    moved_together,
    visible_columns,
)
from shardctl.sources.annotations.base import BAD, AnnotationRule
from shardctl.sources.annotations.finishing import (
    as_stored,
    fitted,
    mask_values,
    orientation_of,
    turned_objects,
    upright_mask,
)
from shardctl.sources.annotations.objects import OBJECTS, checked_objects, has_objects, size_of_runs
from shardctl.system.text import counted, printable, some
from shardctl.transforms.values import UnfitValue, describe, plain_value, python_value, value_size

Members = dict[str, Any]
"""The objects of an image, a list for each member; or one of them, or a mask."""

WAITING_BYTES = 16 << 10
"""Bytes of the objects of an image from which they are moved at once: there is little to win, and
memory that they need and do not get is their record's own."""


@dataclass(frozen=True, eq=False)
class DeferredObjects:
    """The objects of an image of this size that are moved by stages later, together with others: in
    a fifth of the time.

    `bytes` is about what they take: less than WAITING_BYTES.
    """

    objects: Members
    size: Size
    stages: tuple[Stage, ...]
    role: Objects
    bytes: int


Marked = tuple[Size, Sample]
"""An image before a person's functions: its (width, height), and its objects and masks."""


PLACE_MEMBERS = ("bbox", "segmentation", "rle", "keypoints")
"""The members of objects that are places in the image."""


class Annotated:
    """The annotations that samples of a layout have beside their main image. `rule` says which
    objects a cut keeps.

    Objects of tables may have no role: their types are those of the table. Those that are `unmoved`
    stay as they are. `of_records` are the masks and objects that came with records as they are, and
    how each is read.
    """

    def __init__(
        self,
        layout: Layout | None,
        rule: Keep,
        of_records: Mapping[str, AnnotationRule] = MappingProxyType({}),
        unmoved: Collection[str] = (),
    ) -> None:
        roles = layout.roles if layout else Roles()
        objects = dict(roles.objects)
        if layout and not objects and has_objects(layout.columns) and OBJECTS not in unmoved:
            objects = {OBJECTS: Objects()}
        self._of_records, self._rule = tuple(of_records.items()), rule
        self._objects = tuple(objects.items())
        self._masks = [
            (name, role) for name, role in roles.images.items() if isinstance(role, Mask)
        ]
        self._marked = [
            (name, role, _members(layout, name)) for name, role in roles.objects.items()
        ]

    def __bool__(self) -> bool:
        return bool(self._objects or self._masks)

    def count(self, sample: Sample) -> int:
        """Return how many objects are marked in a sample."""
        found = (sample.get(name) for name, _ in self._objects)
        return sum(len(objects.get("bbox") or ()) for objects in found if isinstance(objects, dict))

    def marked(self, sample: Sample, size: Size) -> Marked:
        """Return what is marked in an image of this size."""
        return size, {name: sample.get(name) for name, _ in (*self._objects, *self._masks)}

    def unmoved(self, before: Marked, sample: Sample) -> list[str]:
        """Return the objects and masks of a sample that are where they were before."""
        given = {name: places for name, value in before[1].items() if (places := _places_of(value))}
        return [name for name, places in given.items() if places == _places_of(sample.get(name))]

    def check_moved(self, before: Marked, sample: Sample, size: Size, who: str) -> None:
        """Raise Rejection if functions changed the size of an image, and not what is marked in it.
        `who` set the image."""
        left = self.unmoved(before, sample) if size != before[0] else []
        for name, _ in self._masks:
            mask = sample.get(name)
            if (
                name not in left
                and isinstance(mask, dict)
                and isinstance(mask.get("bytes"), bytes)
                and open_image(mask["bytes"], sys.maxsize).size != size
            ):
                left.append(name)
        if left:
            sizes = " to ".join(f"{width}x{height}" for width, height in (before[0], size))
            message = f"{who} changed the image from {sizes}, and not {some(left)}"
            raise _unfit(message)

    def check(self, sample: Sample, setter: Callable[[str], str]) -> None:
        """Raise Rejection if a person's functions made objects that could not be read. `setter`
        names who set a field.

        Whether a value fits the type of its column is not looked at here.
        """
        for name, role, members in self._marked:
            objects = sample.get(name)
            if not isinstance(objects, dict) or not members.issuperset(objects):
                continue
            lists = {member: objects.get(member) for member in sorted(members)}
            if all(items is None or _is_list(items) for items in lists.values()):
                for fault in object_faults(lists, role):
                    message = f"{setter(name)} set {name} to a dict {fault}"
                    raise _unfit(message)

    def upright(self, sample: Sample, opened: Opened) -> int:
        """Make the masks and objects that came with a record those of its upright image. Raises
        Rejection.

        Returns how many objects the rule for boxes has dropped. What needs no change is left as it
        came.
        """
        dropped = 0
        for name, rule in self._of_records:
            given = sample.get(name)
            if given is None or not any(given.values()):
                continue
            if name == OBJECTS:
                sample[name] = _upright_objects(given, rule, opened)
                dropped += len(given["bbox"] or ()) - len(sample[name]["bbox"] or ())
            else:
                sample[name] = _upright_mask(given, name, rule, opened)
        return dropped

    def moved(
        self,
        sample: Sample,
        size: Size,
        stages: Sequence[Stage],
        of_table: bool,
        later: bool = False,
    ) -> tuple[Sample, int]:
        """Return the annotations of a sample after an image of this size went through stages, and
        how many objects fell away.

        Masks stay the bytes that they are if nothing moves them. Objects that came with a record
        (`of_table`) are checked first; those of annotations were. With `later` they may be
        DeferredObjects, none of which fell away so far: `settled` moves these. Raises Rejection.
        """
        changed: Sample = {}
        lost = 0
        if stages:
            for name, role in self._objects:
                given = sample.get(name)
                if given is None or not any(given.values()):
                    continue
                may_wait = later and not of_table and given["bbox"] and not given.get("rle")
                if may_wait and (taken := value_size(given)) < WAITING_BYTES:
                    changed[name] = DeferredObjects(given, size, tuple(stages), role, taken)
                else:
                    checked = _checked(given, size) if of_table else given
                    changed[name] = self._moved_objects(
                        checked, Motion.of(size, stages), stages, role
                    )
                    lost += len(checked["bbox"]) - len(changed[name]["bbox"])
            for name, mask in self._masks:
                if sample.get(name) is not None:
                    changed[name] = _moved_mask(sample[name], name, stages, mask, size)
        return changed, lost

    def settled(self, waiting: Sequence[DeferredObjects]) -> list[Members]:
        """Return objects that were to be moved later."""
        moved: list[Members] = [{} for _ in waiting]
        for _, role in self._objects:
            places = [place for place, each in enumerate(waiting) if each.role is role]
            given = [waiting[place] for place in places]
            moving = [(each.objects, Motion.of(each.size, each.stages)) for each in given]
            for place, made in zip(places, moved_together(moving, role, self._rule), strict=True):
                moved[place] = made
        return moved

    def _moved_objects(
        self, given: Members, motion: Motion, stages: Sequence[Stage], role: Objects
    ) -> Members:
        runs = given.get("rle")
        if not runs or all(each is None for each in runs):
            return moved_objects(given, motion, role, self._rule)
        masks, moves = MovedMasks(len(runs)), [patch_mover(stage) for stage in stages]
        visible: VisibleSpans | None = None
        made: list[Members | None] = [None] * len(runs)
        for place, each in enumerate(runs):
            if each is None:
                continue
            height, width = each["size"]
            visible = visible or visible_columns(motion, (width, height))
            mask = rle.decode_patch(each["counts"], (height, width))
            moved = masks.moved(
                place,
                mask,
                visible,
                lambda mask: reduce(lambda made, move: move(made), moves, mask),
            )
            if moved is not None:
                made[place] = {"size": list(moved.shape), "counts": rle.encode_patch(moved)}
        return moved_objects({**given, "rle": made}, motion, role, self._rule, masks)


def _unfit(message: str) -> Rejection:
    return Rejection("transform", BAD, message)


def _places_of(value: Any) -> Any:
    """Return what says where objects or a mask are; None, or nothing, for none."""
    if not isinstance(value, dict):
        return None
    if "bytes" in value:
        return value["bytes"]
    with suppress(UnfitValue):
        members = [name for name in PLACE_MEMBERS if name in value]
        places = {name: python_value(plain_value(value[name])) for name in members}
        return places if any(places.values()) else None
    return None


def _members(layout: Layout | None, name: str) -> frozenset[str]:
    """Return the members of a column of objects."""
    type_ = layout.columns.field(name).type if layout else pa.null()
    return frozenset(f.name for f in type_) if pa.types.is_struct(type_) else frozenset()


def object_faults(lists: Members, role: Objects) -> Iterator[str]:
    """Yield what is wrong with objects that Python made, as the end of a sentence; places in lists
    are counted from 0."""
    missing = [member for member, items in lists.items() if items is None]
    if missing:
        yield f"without {missing[0]}; it must have the lists {', '.join(lists)}"
        return
    first = "bbox" if "bbox" in lists else next(iter(lists), "")
    for member, items in lists.items():
        if len(items) != len(lists[first]):
            yield f"with {len(lists[first])} of {first} and {len(items)} of {member}"
            return
    for place, box in enumerate(lists.get("bbox", ())):
        numbers = box if _is_list(box) and len(box) == 4 else [None]
        if not are_finite(numbers) or not all(
            isinstance(each, int | float | np.integer | np.floating) for each in numbers
        ):
            yield (
                f"whose bbox[{place}] is {describe(box)}; it must be four finite numbers, none "
                "beyond float32"
            )
    most = "" if role.names is None else f" to {len(role.names) - 1}"
    for place, category in enumerate(lists.get("category", ())):
        is_number = isinstance(category, int | np.integer) and not isinstance(category, bool)
        is_known = (
            is_number and category >= 0 and (role.names is None or category < len(role.names))
        )
        if category is None or (is_number and not is_known):
            yield (
                f"whose category[{place}] is {describe(category)}; categories are whole numbers "
                f"from 0{most}"
            )
    for place, polygons in enumerate(lists.get("segmentation", ())):
        odd = [len(polygon) for polygon in _lists_in(polygons) if len(polygon) % 2]
        if odd:
            yield (
                f"whose segmentation[{place}] has a polygon of {counted(odd[0], 'number')}; they "
                "are x, y, x, y, …"
            )
        elif not all(map(are_finite, _lists_in(polygons))):
            yield f"whose segmentation[{place}] has a polygon with {NOT_FINITE}"
    for place, points in enumerate(lists.get("keypoints", ())):
        if not all(map(are_finite, _lists_in(points))):
            yield f"whose keypoints[{place}] have {NOT_FINITE}"
        named = role.keypoints
        if named is not None and _is_list(points) and len(points) not in (0, len(named)):
            yield (
                f"whose keypoints[{place}] are {counted(len(points), 'point')}; {len(named)} have "
                "names, and there may be none"
            )


NOT_FINITE = "a number that is not finite, or beyond float32"


def are_finite(numbers: Any) -> bool:
    """Return whether all of some numbers are finite as float32; True too for what are no
    numbers."""
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(numbers, np.float32)).all())
    except OverflowError:
        return False
    except (TypeError, ValueError):
        return True


def _lists_in(items: Any) -> list[Any]:
    return [each for each in items if _is_list(each)] if _is_list(items) else []


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _checked(objects: Members, size: Size) -> Members:
    """Return objects of a table whose lists go together, those that are missing as lists of
    nothing. Raises Rejection.

    Those of annotations are checked when they are read; those of tables come as they are. `size` is
    that of the image.
    """
    try:
        made = checked_objects(objects, math.inf, finite_points=False)
    except ValueError as error:
        raise _unfit(str(error)) from None
    for runs in objects.get("rle") or ():
        if runs is not None:
            check_runs(runs, OBJECTS, size)
    return made


def check_runs(runs: Any, name: str, size: Size) -> None:
    """Raise Rejection for the RLE of an object that is none, or is not of the size of its image."""
    try:
        height, width = runs["size"]
        rle.decode_patch(runs["counts"], (height, width))
    except (TypeError, KeyError, ValueError):
        raise _unfit(f"an RLE of {name} is not one, with a size and counts") from None
    if (width, height) != size:
        message = f"an RLE of {name} is of {width}x{height}, and the image has {size[0]}x{size[1]}"
        raise _unfit(message)


def _upright_objects(given: Members, rule: AnnotationRule, opened: Opened) -> Members:
    """Return objects of a table in the frame of the upright image, and within it by the rule.
    Raises Rejection."""
    orientation = 1
    if opened.orientation != 1:
        said, what = size_of_runs(given), "objects' RLE masks"
        orientation = orientation_of(said, rule.frame, opened.size, opened.orientation, what)
    if orientation == 1 and rule.boxes == "keep":
        return given
    stored = as_stored(opened.size, orientation)
    objects = _checked(given, stored)
    if orientation != 1:
        if "segmentation" in objects:
            objects["segmentation"] = [each or [] for each in objects["segmentation"]]
        objects = turned_objects(objects, orientation, stored)
    return fitted(objects, opened.size, rule.boxes)


def _upright_mask(mask: Members, name: str, rule: AnnotationRule, opened: Opened) -> Members:
    """Return a mask of a record as it is where it fits the upright image, else turned, as a PNG.
    Raises Rejection."""
    size = open_image(mask["bytes"], max(MAX_PIXELS, opened.size[0] * opened.size[1])).size
    if opened.orientation == 1:
        if size != opened.size:
            raise _other_size(name, size, opened.size)
        return mask
    try:
        return upright_mask(mask, size, rule.frame, opened)
    except Rejection as rejection:
        raise rejection.saying(f"{printable(name)}: {rejection.message}") from None


def _other_size(name: str, size: Size, of_image: Size) -> Rejection:
    sizes = f"{size[0]}x{size[1]}, and the image has {of_image[0]}x{of_image[1]}"
    return _unfit(f"{printable(name)}: its mask is of {sizes}")


def _moved_mask(
    mask: Members, name: str, stages: Sequence[Stage], role: Mask, size: Size
) -> Members:
    """Return the mask of an image of this size after stages, as a PNG with the same kind of numbers
    and palette.

    `name` is that of its field. Raises Rejection.
    """
    values, fill = mask_values(mask["bytes"], size), role.ignore or 0
    if values.shape != (size[1], size[0]):
        raise _other_size(name, (values.shape[1], values.shape[0]), size)
    if fill > np.iinfo(values.dtype).max:  # a mask of 8 bits among those of 16
        values = values.astype(np.uint16)
    for stage in stages:
        values = resampled_mask(values, stage, fill)
    return {**mask, "bytes": mask_png(values, mask["bytes"])}
