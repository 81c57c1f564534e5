"""What fields that are written from Python are for: objects and masks of images, and tokens, as the
caller says."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from shardctl.errors import InputError, UsageError
from shardctl.format.arrays import leaf_of
from shardctl.format.roles import Mask, Objects, Role, Roles
from shardctl.images.codecs.image import decode_mask, open_image
from shardctl.images.defaults import MAX_PIXELS
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.objects import member_types
from shardctl.sources.annotations.objects import ITEMS, objects_type
from shardctl.system.text import printable
from shardctl.transforms.pipeline.deferred_objects import (
    NOT_FINITE,
    are_finite,
    check_runs,
    object_faults,
)
from shardctl.transforms.values import UnfitValue, check_fit, describe, plain_value, python_value

Size = tuple[int, int]
"""(width, height)."""

OWN = ("key", "image", "label", "variant")
"""Fields whose roles are known by their names."""

USUAL: Mapping[str, dict[str, Any]] = {
    "objects": {"names": None},
    "mask": {"store": "png", "shape": None},
    "tokens": {},
}
"""Facts that a role always has in docs/format.md, and that need not be given."""


def roles_of(given: Mapping[str, str | Mapping[str, Any]] | None) -> dict[str, Role]:
    """Return the roles of fields, given by name or as docs/format.md writes them. Raises
    UsageError."""
    roles: dict[str, Role] = {}
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(
            f"roles must be a dict such as {{'objects': 'objects'}}; it is {describe(given)}"
        )
    for name, said in (given or {}).items():
        if not isinstance(said, str | Mapping):
            raise UsageError(
                f"roles: the role of {printable(str(name))} must be a name or a dict; it is "
                f"{describe(said)}"
            )
        facts = {"role": said} if isinstance(said, str) else dict(said)
        usual = USUAL.get(str(facts.get("role")))
        if usual is None or name in OWN:
            raise UsageError(
                f"roles: {printable(str(name))} cannot be {facts.get('role')!r}; fields other than "
                f"{', '.join(OWN)} can be"
                " objects, mask or tokens"
            )
        try:
            roles |= Roles.from_json({name: {**usual, **facts}}).by_name
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"roles: {printable(name)} is not as `shardctl help format` describes a role "
                f"({error})"
            ) from error
    return roles


def objects_column(
    name: str, values: Sequence[Any], given: pa.DataType | None, role: Objects
) -> pa.DataType:
    """Return the type of a column of objects: the given one, or that of the members that some
    values have.

    Raises UsageError for one that objects cannot have.
    """
    members = {str(member) for value in values if isinstance(value, dict) for member in value}
    unknown = sorted(members - set(ITEMS))
    if unknown and given is None:
        raise UsageError(
            f"roles: {printable(name)} has a member {printable(unknown[0])}; objects have "
            f"{', '.join(ITEMS)}"
        )
    type_ = given or objects_type(members)
    try:
        member_types(Column.of(pa.field(name, type_), role))
    except ValueError as error:
        raise UsageError(f"roles: {printable(name)} cannot be objects: {error}") from error
    return type_


def objects_value(
    value: Any, type_: pa.StructType, role: Objects, name: str, size: Size | None
) -> dict[str, Any] | None:
    """Return the objects of a sample as their column takes them; places become float32.

    No other number is changed; an area that is NaN is one that is not known. `size` is that of the
    image, None if there is none. Raises UnfitValue, and Rejection for an RLE that is of no such
    image.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise UnfitValue(f"{describe(value)}, and no dict of lists")
    plain: dict[str, Any] = python_value(plain_value(value))
    wanted = [f.name for f in type_]
    unknown = next((member for member in plain if member not in wanted), None)
    if unknown is not None:
        raise UnfitValue(
            f"a dict with the key {describe(unknown)}; its column has {', '.join(wanted)}"
        )
    lists = {member: plain.get(member) for member in wanted}
    odd = next(
        (member for member, items in lists.items() if not isinstance(items, list | None)), None
    )
    if odd is not None:
        raise UnfitValue(
            f"a dict whose {odd} is {describe(lists[odd])}; it must be a list with an item for "
            "each object"
        )
    areas = lists.get("area")
    if areas is not None:  # one that is not known is NaN where it is read
        lists["area"] = [
            None if isinstance(area, float) and math.isnan(area) else area for area in areas
        ]
    fault = next(chain(object_faults(lists, role), _unfit_members(lists, type_)), None)
    if fault is not None:
        raise UnfitValue(f"a dict {fault}")
    for place, box in enumerate(lists["bbox"] or ()):
        if min(box[2:]) < 0:
            raise UnfitValue(
                f"a dict whose bbox[{place}] is {list(box)}: its width and height must be 0 or more"
            )
    try:
        pa.array([lists], type_)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise UnfitValue(f"a dict with values that objects cannot have ({error})") from error
    for runs in lists.get("rle") or ():
        if runs is not None and size is not None:
            check_runs(runs, name, size)
    return lists


def _unfit_members(lists: dict[str, Any], type_: pa.StructType) -> Iterator[str]:
    """Yield what is wrong with numbers of objects other than their places, as the end of a
    sentence."""
    for member in type_:
        items, item = lists[member.name], member.type.value_type
        if member.name == "area":
            for place, area in enumerate(items):
                if area is not None and not are_finite(area):
                    yield (
                        f"whose area[{place}] is {describe(area)}, {NOT_FINITE}; an area that "
                        "is "
                        "not known is None"
                    )
        if member.name == "rle" or _is_rounded(item):  # check_runs reads an RLE
            continue
        with suppress(UnfitValue):
            check_fit(items, pa.list_(item))
            continue
        kind = f"a whole number ({item})" if pa.types.is_integer(item) else f"of type {item}"
        for place, value in enumerate(items):
            try:
                check_fit(value, item)
            except UnfitValue:
                yield f"whose {member.name}[{place}] is {describe(value)}; it must be {kind}"


def _is_rounded(type_: pa.DataType) -> bool:
    """Return whether numbers of a type are rounded to it: those of floating types."""
    return bool(pa.types.is_floating(leaf_of(type_)[0]))


def mask_value(
    value: Any, role: Mask, path: str, who: str, size: Size | None
) -> tuple[bytes, str] | None:
    """Return a mask as the bytes of an image file with its path: bytes stay as they are, numbers
    (H, W) become a PNG.

    `size` is that of the image, None if there is none. Raises InputError, and Rejection for bytes
    that are no mask.
    """
    if value is None:
        return None
    if isinstance(value, bytes):
        values, data = decode_mask(value, MAX_PIXELS), value
    else:
        fits = (
            isinstance(value, np.ndarray)
            and value.dtype in (np.uint8, np.uint16)
            and value.ndim == 2
            and value.size
        )
        if not fits:
            raise InputError(
                f"{who}: its mask is {describe(value)}; it must be a numpy array of shape (height, "
                "width) and type uint8 or"
                " uint16, or the bytes of an image file"
            )
        values, target = value, io.BytesIO()
        Image.fromarray(np.ascontiguousarray(values)).save(target, "PNG")
        data = target.getvalue()
    if values.dtype.itemsize * 8 > role.bits:
        raise InputError(
            f"{who}: its mask has 16 bits for each pixel; say so: "
            f"roles={{…: {{'role': 'mask', 'bits': 16}}}}"
        )
    if size is not None and (values.shape[1], values.shape[0]) != size:
        shown = f"{values.shape[1]}x{values.shape[0]}"
        raise InputError(f"{who}: its mask has {shown} pixels, and its image {size[0]}x{size[1]}")
    return data, path


def size_of(image: Any) -> Size | None:
    """Return the (width, height) of pixels or of an encoded image, upright; None for anything else.
    Raises Rejection."""
    if isinstance(image, bytes):
        return open_image(image).size
    return (
        (image.shape[1], image.shape[0])
        if isinstance(image, np.ndarray) and image.ndim == 3
        else None
    )
