"""The columns of samples that are made in Python, and the rows of these samples."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image as PilImage

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.arrays import leaf_of
from shardctl.format.layout import ENCODED_IMAGE, Layout, image_tensor
from shardctl.format.roles import Image, Mask, Objects, Role, Roles, Sample
from shardctl.format.shard import Compression
from shardctl.format.token_columns import is_list_of_whole_numbers
from shardctl.images.codecs import image
from shardctl.images.codecs.image import ImageEncoding, decode_mask, open_image
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.geometry import Size
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.objects import member_types
from shardctl.making.options import Options
from shardctl.sources.annotations.objects import ITEMS, objects_type
from shardctl.system.text import printable
from shardctl.transforms.pipeline.deferred_objects import (
    NOT_FINITE,
    are_finite,
    check_runs,
    object_faults,
)
from shardctl.transforms.values import (
    UnfitValue,
    check_fit,
    describe,
    for_column,
    holds_narrow_floats,
    is_text,
    plain_value,
    python_value,
    rounded,
    type_for,
)

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
        raise UsageError(f"roles is a dict such as {{'objects': 'objects'}}, not {describe(given)}")
    for name, said in (given or {}).items():
        facts = {"role": said} if isinstance(said, str) else said
        shown = printable(name)
        if not isinstance(facts, Mapping):
            raise UsageError(f"roles: {shown} must be a name or a dict; it is {describe(said)}")
        usual = USUAL.get(str(facts.get("role")))
        if usual is None or name in OWN:
            raise UsageError(
                f"roles: {shown} cannot be {facts.get('role')!r}; fields but {', '.join(OWN)} "
                "can be objects, mask or tokens"
            )
        try:
            roles |= Roles.from_json({name: {**usual, **facts}}).by_name
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"roles: {shown} is no role as in `shardctl help format` ({error})"
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
    lists = {f.name: plain.get(f.name) for f in type_}
    if unknown := [member for member in plain if member not in lists]:
        raise UnfitValue(
            f"a dict with the key {describe(unknown[0])}; its column has {', '.join(lists)}"
        )
    for member, items in lists.items():
        if not isinstance(items, list | None):
            raise UnfitValue(
                f"a dict whose {member} is {describe(items)}, not a list with an item per object"
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
                f"a dict whose bbox[{place}] is {list(box)}, with a negative width or height"
            )
    try:
        pa.array([lists], type_)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise UnfitValue(f"a dict that objects cannot be ({error})") from error
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
                        f"whose area[{place}] is {describe(area)}, {NOT_FINITE}; an unknown one is None"
                    )
        if member.name == "rle" or pa.types.is_floating(leaf_of(item)[0]):
            # check_runs reads an RLE; numbers of floating types are rounded to them
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
        if not (
            isinstance(value, np.ndarray)
            and value.dtype in (np.uint8, np.uint16)
            and value.ndim == 2
            and value.size
        ):
            raise InputError(
                f"{who}: its mask is {describe(value)}, not a uint8 or uint16 array (height, "
                "width) or the bytes of an image"
            )
        values = value
        data = image.encoded(PilImage.fromarray(np.ascontiguousarray(values)), "PNG")
    if values.dtype.itemsize * 8 > role.bits:
        raise InputError(
            f"{who}: its mask has 16 bits; give roles={{…: {{'role': 'mask', 'bits': 16}}}}"
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
    if isinstance(image, np.ndarray) and image.ndim == 3:
        return image.shape[1], image.shape[0]
    return None


SHARD_BYTES = 128 << 20


@dataclass(frozen=True)
class ShardLimits:
    """When a shard is full."""

    bytes: int
    samples: int

    @classmethod
    def of(cls, shard_size: int | None, samples_per_shard: int | None) -> ShardLimits:
        """Read the arguments of `write`. Raises UsageError."""
        Options(shard_size=shard_size, samples_per_shard=samples_per_shard).check()
        if samples_per_shard is not None:
            return cls(1 << 62, samples_per_shard)
        return cls(shard_size or SHARD_BYTES, 1 << 62)


Names = tuple[str, ...] | None


@dataclass(frozen=True)
class WriteSchema:
    """What the caller says of the fields, and of shards: `names` are those of the values of tuples."""

    names: Names
    schema: pa.Schema | None
    classes: tuple[str, ...] | None
    store: str | None
    compression: str
    roles: Mapping[str, Role]
    limits: ShardLimits


class Fields:
    """The columns of a dataset, found in its first samples, and what makes a row of a sample."""

    def __init__(self, first: list[Sample], given: WriteSchema) -> None:
        for number, sample in enumerate(first):
            _refuse_no_sample(sample, number)
        self.given = given
        names = dict.fromkeys(
            chain.from_iterable(first) if given.schema is None else given.schema.names
        )
        names.pop("key", None)
        self._names = frozenset((*names, "key"))
        self._lacked: set[str] = set()
        self._narrow = frozenset(f.name for f in given.schema or () if holds_narrow_floats(f.type))
        self._store: ImageEncoding | None = None
        self._shape: tuple[int, int, int] | None = None
        columns = [pa.field("key", pa.string())]
        for name in names:
            values = [sample.get(name) for sample in first]
            role, said = given.roles.get(name), None
            if given.schema is not None:
                said = given.schema.field(name).type
            if name == "image":
                type_ = self._image_type(values, said)
            elif isinstance(role, Objects):
                type_ = objects_column(name, values, said, role)
            elif isinstance(role, Mask):
                type_ = ENCODED_IMAGE
                if said not in (None, type_):
                    raise UsageError(
                        f"roles: {printable(name)} is a mask, of type {type_}, and the schema says {said}"
                    )
            elif name == "label" and given.classes:
                type_ = pa.int64()
            else:
                type_ = _found(name, values) if said is None else said
                if role is not None and not is_list_of_whole_numbers(type_):
                    raise UsageError(
                        f"roles: {printable(name)} is of type {type_}, and no list of whole numbers"
                    )
                if given.schema is not None:
                    columns.append(given.schema.field(name))
                    continue
            columns.append(pa.field(name, type_))
        if given.classes and "label" not in names:
            raise UsageError("classes name the values of label, but the samples have no label")
        if given.store and self._store is None:
            raise UsageError(f"store {given.store} is for images, but the samples have none")
        if missing := [name for name in given.roles if name not in names]:
            raise UsageError(
                f"roles: the samples have no field {printable(missing[0])}; they have "
                f"{', '.join(names)}"
            )
        if self._store is None and any(
            isinstance(role, Objects | Mask) for role in given.roles.values()
        ):
            raise UsageError("roles: objects and masks need an image, and the samples have none")
        self.shapes: set[tuple[int, int, int]] = set()
        """The first two shapes of images that differ."""
        kind = "image" if self._store else "text"
        image_role = Image(str(self._store), self._shape) if self._store else None
        self.layout = Layout.by_name(
            kind, pa.schema(columns), image_role, given.classes, annotated=given.roles
        )
        self.label = self.layout.columns.get_field_index("label")

    @property
    def compression(self) -> Compression:
        """How blocks are compressed; where nothing is said, as a conversion would (recipe.py)."""
        usual = "none" if self.layout.image else "zstd:3"
        said = self.given.compression
        return Compression.parse(usual if said == "auto" else said)

    @property
    def final_layout(self) -> Layout:
        """The layout with the decoded shape that all images turned out to share."""
        return self.layout.with_shape(next(iter(self.shapes)) if len(self.shapes) == 1 else None)

    def _image_type(self, values: list[Any], type_: pa.DataType | None) -> pa.DataType:
        value = next((value for value in values if value is not None), None)
        raw = isinstance(type_, pa.FixedShapeTensorType)
        kept = isinstance(value, bytes)
        self._store = ImageEncoding.parse(self.given.store or ("source" if kept else "raw"))
        if self._store.name == "none":
            raise UsageError("store none is for conversions; leave image out of the samples")
        if kept != (self._store.name == "source") or (
            type_ is not None and raw != (self._store.name == "raw")
        ):
            came = "encoded images are kept (source)" if kept else "pixels cannot be kept as source"
            raise UsageError(f"store {self._store} does not fit the field image: {came}")
        if self._store.name != "raw":
            return ENCODED_IMAGE
        _refuse_no_pixels(value, "sample 0" if values[0] is not None else "a sample")
        self._shape = tuple(type_.shape) if raw else value.shape  # type: ignore[union-attr]  # raw: it is a tensor
        assert self._shape is not None, "of pixels"
        return image_tensor(self._shape)

    def values(self, sample: Sample, number: int) -> tuple[Any, ...]:
        """Return the row of a sample. Raises InputError."""
        _refuse_no_sample(sample, number)
        key = sample.get("key", f"{number:09d}")
        if not isinstance(key, str) or not key or not is_text(key):
            raise InputError(
                f"sample {number:,}: its key is {describe(key)}; it must be a string of UTF-8"
            )
        who = f"sample {number:,} ({printable(key)})"
        where = "the first samples" if self.given.schema is None else "the schema"
        if odd := [name for name in sample if name not in self._names]:
            hint = "; give a schema" if self.given.schema is None else ""
            raise InputError(
                f"{who} has a field {printable(odd[0])}, which is not in {where}{hint}"
            )
        for name in self._names.difference(sample, self._lacked, ("key",)):
            self._lacked.add(name)
            warnings.warn(
                f"{who} lacks the field {printable(name)}, which is in {where}: there, and in "
                "others that lack it, it is None",
                stacklevel=2,
            )
        others = list(self.layout.columns)[1:]
        return key, *(self._value(field, sample, key, who) for field in others)

    def _value(self, field: pa.Field, sample: Sample, key: str, who: str) -> Any:
        value, role = sample.get(field.name), self.given.roles.get(field.name)
        try:
            if isinstance(role, Objects):
                return objects_value(
                    value, field.type, role, field.name, size_of(sample.get("image"))
                )
            if isinstance(role, Mask):
                return mask_value(value, role, f"{key}.png", who, size_of(sample.get("image")))
            if field.name == "image" and self._store is not None:
                return self._image(value, key, who)
            if field.name == "label" and self.given.classes:
                return self._class_of(value)
            return for_column(
                rounded(value, field.type) if field.name in self._narrow else value, field.type
            )
        except UnfitValue as problem:
            raise InputError(
                f"{who}: the field {printable(field.name)} is {problem}; its column is of type "
                f"{field.type}"
            ) from problem
        except Rejection as rejection:
            raise InputError(f"{who}: {rejection.message}") from rejection

    def _image(self, value: Any, key: str, who: str) -> Any:
        assert self._store is not None, "of images"
        if self._store.name == "source":
            if not isinstance(value, bytes):
                raise UnfitValue(describe(value))
            opened = image.open_image(value)
            image.check(opened)
            self.remember((opened.size[1], opened.size[0], 3))
            return value, key
        _refuse_no_pixels(value, who)
        self.remember(value.shape)
        if self._store.name == "raw":
            if value.shape != self._shape:
                raise InputError(
                    f"{who}: its image is {describe(value)}; store raw needs one size, {self._shape}"
                )
            return value
        return self._store.encode(value), (key.rpartition(".")[0] or key) + self._store.suffix

    def remember(self, shape: tuple[int, int, int]) -> None:
        """Take note of the shape of an image."""
        if len(self.shapes) < 2:
            self.shapes.add(shape)

    def _class_of(self, value: Any) -> int | None:
        classes = self.given.classes or ()
        if value is None:
            return None
        if isinstance(value, str) and value in classes:
            return classes.index(value)
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 0 <= value < len(classes):
            raise UnfitValue(f"{describe(value)}, and no class")
        return int(value)


def _refuse_no_sample(sample: Any, number: int) -> None:
    if not isinstance(sample, dict):
        raise InputError(
            f"sample {number:,} is {describe(sample)}, not a dict such as {{'label': 1}}; give a "
            "list with a dict for each sample"
        )
    for name in sample:
        if not isinstance(name, str):
            raise InputError(f"sample {number:,}: names of fields are strings; one is {name!r}")
    if not sample:
        raise InputError(f"sample {number:,} is an empty dict; give it fields")


def _refuse_no_pixels(value: Any, who: str) -> None:
    fits = (
        isinstance(value, np.ndarray)
        and not isinstance(value, np.ma.MaskedArray)
        and value.dtype == np.uint8
    )
    if not fits or value.ndim != 3 or value.shape[2] != 3 or not value.size:
        raise InputError(
            f"{who}: its image is {describe(value)}; all are uint8 arrays (height, width, 3), or "
            "the bytes of image files"
        )


def _found(name: str, values: list[Any]) -> pa.DataType:
    """Return the type of a column in which all values come out as they went in. Raises InputError
    if there is none."""
    plain = []
    for number, value in enumerate(values):
        try:
            plain.append(plain_value(value))
        except UnfitValue as problem:
            raise InputError(
                f"sample {number:,}: the field {printable(name)} is {problem}, which no column "
                "holds"
            ) from problem
    if (type_ := type_for(plain)) is not None:
        return type_
    kinds: dict[str, str] = {}
    for number, value in enumerate(plain):
        if (own := type_for([value])) is None:
            raise InputError(
                f"sample {number:,}: the field {printable(name)} is {describe(values[number])}, "
                "which no column holds without a schema"
            )
        if value is not None:
            of = f" of type {own}" if isinstance(value, list | dict) else ""
            here = f"{describe(values[number])}{of} in sample {number:,}"
            kinds.setdefault(f"{type(values[number])} {own}", here)
    which = " and ".join(list(kinds.values())[:2])
    raise InputError(
        f"the field {printable(name)} has values of several types, {which}; give a schema, or "
        "one type"
    )
