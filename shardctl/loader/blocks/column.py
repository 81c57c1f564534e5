"""The kind of a column's values, and their places in a block: the parts of Arrow's memory layout
that reading needs.

https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.arrays import dtype_of
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.list_types import is_list
from shardctl.format.roles import Image, Mask, Objects, Plain, Role


@dataclass(frozen=True)
class Column:
    """One column of a dataset.

    `kind` is "fixed" (numbers, and arrays of one shape: `width` bytes per sample), "variable"
    (text, bytes, encoded images, lists of numbers: items of `width` bytes), "nested" (lists of
    lists of numbers) or "other". `dtype` is that of the numbers, None for text and bytes. `picture`
    is the role of images and masks, `objects` that of what is marked in an image, None for all
    others; of objects, only `members` are wanted, all of them for None. `plain` is the role of what
    is neither.
    """

    name: str
    type: pa.DataType
    kind: str
    width: int = 1
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    picture: Image | None = None
    objects: Objects | None = None
    members: tuple[str, ...] | None = None
    plain: Plain | None = None

    @classmethod
    def of(cls, field: pa.Field, role: Role | None = None) -> Column:
        """Look at a field's type. Of the roles, those of images, masks and objects say how values
        are read."""
        picture = role if isinstance(role, Image) else None
        objects = role if isinstance(role, Objects) else None
        plain = role if isinstance(role, Plain) else None
        return replace(
            cls._of_type(field.name, field.type), picture=picture, objects=objects, plain=plain
        )

    @classmethod
    def _of_type(cls, name: str, type_: pa.DataType) -> Column:
        if isinstance(type_, pa.FixedShapeTensorType) and _is_number(type_.value_type):
            dtype = dtype_of(type_.value_type)
            shape = tuple(type_.shape)
            return cls(
                name,
                type_,
                "fixed",
                int(np.prod(shape, dtype=np.int64)) * dtype.itemsize,
                dtype,
                shape,
            )
        leaf, sizes = _lists(type_)
        if _is_number(leaf) and 0 not in sizes:
            dtype = dtype_of(leaf)
            if all(size >= 0 for size in sizes):
                return cls(
                    name,
                    type_,
                    "fixed",
                    int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize,
                    dtype,
                    sizes,
                )
            if len(sizes) == 1:
                return cls(name, type_, "variable", dtype.itemsize, dtype)
            return cls(name, type_, "nested", dtype.itemsize, dtype)
        if (
            type_.equals(ENCODED_IMAGE)
            or _is_text(type_)
            or pa.types.is_binary(type_)
            or pa.types.is_large_binary(type_)
        ):
            return cls(name, type_, "variable")
        return cls(name, type_, "other")

    @property
    def is_flat(self) -> bool:
        """Whether the values lie in one piece of memory each, so that they can be read where they
        are."""
        return self.kind in ("fixed", "variable")

    @property
    def is_text(self) -> bool:
        """Whether the values are strings."""
        return _is_text(self.type)

    @property
    def offset_dtype(self) -> np.dtype[Any]:
        """The type of the numbers that say where the values of a "variable" column begin."""
        large = (pa.types.is_large_list, pa.types.is_large_string, pa.types.is_large_binary)
        return np.dtype(np.int64 if any(is_large(self.type) for is_large in large) else np.int32)

    @property
    def is_boolean(self) -> bool:
        """Whether the values are True and False."""
        return bool(pa.types.is_boolean(self.type))

    @property
    def is_ragged(self) -> bool:
        """Whether the values are lists of numbers that may have any length."""
        return self.kind in ("variable", "nested") and self.dtype is not None

    @property
    def ndim(self) -> int:
        """The nesting depth of lists of numbers."""
        return len(_lists(self.type)[1])

    @property
    def is_encoded_image(self) -> bool:
        """Whether the values have the type of images in a file format."""
        return bool(self.type.equals(ENCODED_IMAGE))

    @property
    def is_encoded_picture(self) -> bool:
        """Whether the values are images or masks in a file format, which can be decoded."""
        return self.picture is not None and self.is_encoded_image

    @property
    def object_members(self) -> tuple[str, ...]:
        """The wanted members of a column of objects."""
        if self.members is not None:
            return self.members
        return tuple(field.name for field in self.type) if pa.types.is_struct(self.type) else ()

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the column of a block; of objects, the wanted members."""
        array = batch.column(self.name)
        if self.members is None:
            return array
        members = [array.field(member) for member in self.members]
        return pa.StructArray.from_arrays(
            members, list(self.members), mask=array.is_null() if array.null_count else None
        )

    @property
    def picture_shape(self) -> tuple[int, ...] | None:
        """The decoded shape that the images or masks share, as stored; None if it differs."""
        return self.shape or (self.picture.shape if self.picture is not None else None)

    @property
    def pixel_dtype(self) -> np.dtype[Any]:
        """The type of the numbers of decoded images and masks."""
        return np.dtype(
            np.uint16 if isinstance(self.picture, Mask) and self.picture.bits == 16 else np.uint8
        )

    @property
    def picture_channels(self) -> tuple[int, ...]:
        """The axes behind height and width: (3,) for images, () for masks."""
        return () if isinstance(self.picture, Mask) else (3,)


def _lists(type_: pa.DataType) -> tuple[pa.DataType, tuple[int, ...]]:
    """Return the element type of nested lists, and the sizes of the lists from the outermost on, -1
    for any size."""
    sizes: list[int] = []
    while is_list(type_):
        sizes.append(type_.list_size if pa.types.is_fixed_size_list(type_) else -1)
        type_ = type_.value_type
    return type_, tuple(sizes)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


@dataclass(frozen=True)
class Flat:
    """One column of one block: its bytes, and for a "variable" one where its values begin and the
    last ends, (rows + 1,)."""

    rows: int
    data: pa.Buffer
    offsets: npt.NDArray[Any] | None


def flatten(array: pa.Array, column: Column) -> Flat | None:
    """Return the buffers of a "fixed" or "variable" column; None if a value is null, which buffers
    do not show.

    Raises ValueError for buffers that are too small for the rows.
    """
    array.validate()  # before nulls are counted in a bitmap that may be too short
    values = (
        array.field(0)
        if column.is_encoded_image
        else array.storage
        if isinstance(array, pa.ExtensionArray)
        else array
    )
    if array.null_count or values.null_count:
        return None
    if column.kind == "fixed":
        inner = values
        while isinstance(inner, pa.FixedSizeListArray):
            inner = inner.values
            if inner.null_count:
                return None
        data = inner.buffers()[-1]
        if data is None or data.size < len(array) * column.width:
            raise ValueError(f"column {column.name} has too few bytes")
        return Flat(len(array), data, None)
    buffers = values.buffers()
    offsets, data = buffers[1], buffers[-1]
    if column.dtype is not None and values.values.null_count:
        return None
    dtype = column.offset_dtype
    if offsets is None or offsets.size < (len(array) + 1) * dtype.itemsize:
        raise ValueError(f"column {column.name} has too few offsets")
    return Flat(
        len(array),
        data if data is not None else pa.py_buffer(b""),
        np.frombuffer(offsets, dtype, len(array) + 1),
    )


class Block:
    """A block in memory. The places of a column's values are looked up once."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._flats: dict[str, Flat | None] = {}
        self._checked: set[str] = set()

    def checked(self, column: Column) -> pa.Array:
        """Return the values of a column for Arrow to read: all of them are looked at first, once.

        Raises ValueError for values that cannot be.
        """
        if column.name not in self._checked:
            self.batch.column(column.name).validate(full=True)
            self._checked.add(column.name)
        return column.values(self.batch)

    def flat(self, column: Column) -> Flat | None:
        """Return the buffers of a column, as `flatten` does."""
        if column.name not in self._flats:
            self._flats[column.name] = flatten(self.batch.column(column.name), column)
        return self._flats[column.name]
