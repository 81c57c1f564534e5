"""The kind of a column's values, and their places in a block: the parts of Arrow's memory layout
that reading needs.

https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import (
    Array,
    Bools,
    DType,
    Numbers,
    Shape,
    dtype_of,
    edges_of,
    is_binary,
    is_list,
    is_number,
    is_text,
    items_of,
)
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Image, Mask, Names, Objects, Role
from shardctl.format.token_columns import list_lengths
from shardctl.loader.blocks.gather import Located, gather


@dataclass(frozen=True)
class Column:
    """One column of a dataset.

    `kind` is "fixed" (numbers, and arrays of one shape: `width` bytes per sample), "variable"
    (text, bytes, encoded images, lists of numbers: items of `width` bytes), "nested" (lists of
    lists of numbers) or "other". `dtype` is that of the numbers, None for text and bytes. `picture`
    is the role of images and masks, `objects` that of what is marked in an image, None for all
    others; of objects, only `members` are wanted, all of them for None.
    """

    name: str
    type: pa.DataType
    kind: str
    width: int = 1
    dtype: DType | None = None
    shape: Shape = ()
    picture: Image | None = None
    objects: Objects | None = None
    members: Names | None = None

    @classmethod
    def of(cls, field: pa.Field, role: Role | None = None) -> Column:
        """Look at a field's type. Of the roles, those of images, masks and objects say how values
        are read."""
        return cls(
            field.name,
            field.type,
            *_places_of(field.type),
            picture=role if isinstance(role, Image) else None,
            objects=role if isinstance(role, Objects) else None,
        )

    @property
    def is_flat(self) -> bool:
        """Whether the values lie in one piece of memory each, so that they can be read where they
        are."""
        return self.kind in ("fixed", "variable")

    @property
    def is_text(self) -> bool:
        """Whether the values are strings."""
        return is_text(self.type)

    @property
    def offset_dtype(self) -> DType:
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
    def object_members(self) -> Names:
        """The wanted members of a column of objects."""
        if self.members is not None:
            return self.members
        return tuple(field.name for field in self.type) if pa.types.is_struct(self.type) else ()

    def wanted(self, array: pa.Array) -> pa.Array:
        """Return values of the column; of objects, the wanted members."""
        if self.members is None:
            return array
        members = [array.field(member) for member in self.members]
        return pa.StructArray.from_arrays(
            members, list(self.members), mask=array.is_null() if array.null_count else None
        )

    @property
    def picture_shape(self) -> Shape | None:
        """The decoded shape that the images or masks share, as stored; None if it differs."""
        return self.shape or (self.picture.shape if self.picture is not None else None)

    @property
    def pixel_dtype(self) -> DType:
        """The type of the numbers of decoded images and masks."""
        is_deep = isinstance(self.picture, Mask) and self.picture.bits == 16
        return self.dtype or np.dtype(np.uint16 if is_deep else np.uint8)

    @property
    def picture_channels(self) -> Shape:
        """The axes behind height and width: (3,) for images, () for masks."""
        return () if isinstance(self.picture, Mask) else (3,)


def _places_of(
    type_: pa.DataType,
) -> tuple[str, int, DType | None, Shape]:
    """Return the kind, the width, the type of numbers and the shape of values of a type."""
    is_tensor = isinstance(type_, pa.FixedShapeTensorType)
    leaf, sizes = (type_.value_type, tuple(type_.shape)) if is_tensor else _lists(type_)
    if is_number(leaf) and (is_tensor or 0 not in sizes):
        dtype = dtype_of(leaf)
        if all(size >= 0 for size in sizes):
            return "fixed", math.prod(sizes) * dtype.itemsize, dtype, sizes
        return "variable" if len(sizes) == 1 else "nested", dtype.itemsize, dtype, ()
    is_bytes = is_binary(type_)
    is_variable = is_bytes or type_.equals(ENCODED_IMAGE) or is_text(type_)
    return "variable" if is_variable else "other", 1, None, ()


def _lists(type_: pa.DataType) -> tuple[pa.DataType, Shape]:
    """Return the element type of nested lists, and the sizes of the lists from the outermost on, -1
    for any size."""
    sizes: list[int] = []
    while is_list(type_):
        sizes.append(type_.list_size if pa.types.is_fixed_size_list(type_) else -1)
        type_ = type_.value_type
    return type_, tuple(sizes)


Flat = tuple[pa.Buffer, Array | None]
"""One column of one block: its bytes, and for a "variable" one where its values begin and the last
ends, (rows + 1,)."""


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
        return data, None
    buffers = values.buffers()
    offsets, data = buffers[1], buffers[-1]
    if column.dtype is not None and values.values.null_count:
        return None
    dtype = column.offset_dtype
    if offsets is None or offsets.size < (len(array) + 1) * dtype.itemsize:
        raise ValueError(f"column {column.name} has too few offsets")
    data = data if data is not None else pa.py_buffer(b"")
    return data, np.frombuffer(offsets, dtype, len(array) + 1)


class Block:
    """A block in memory. The places of a column's values are looked up once."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._flats: dict[str, Flat | None] = {}
        self._checked: set[str] = set()
        self._lying: dict[str, pa.Array] = {}

    def row(self, column: Column, row: int) -> pa.Array:
        """Return the value in a row, (1,), where it lies. Raises ValueError for one that cannot be
        read."""
        array = self._lying.get(column.name)
        if array is None:
            array = self.batch.column(column.name)
            array.validate()
            self._lying[column.name] = array
        value = array.slice(row, 1)
        if column.kind != "fixed":
            value.validate(full=True)
        return column.wanted(value)

    def checked(self, column: Column) -> pa.Array:
        """Return the values of a column for Arrow to read: all of them are looked at first, once.

        Raises ValueError for values that cannot be.
        """
        array = self.batch.column(column.name)
        if column.name not in self._checked:
            array.validate(full=True)
            self._checked.add(column.name)
        return column.wanted(array)

    def flat(self, column: Column) -> Flat | None:
        """Return the buffers of a column, as `flatten` does."""
        if column.name not in self._flats:
            self._flats[column.name] = flatten(self.batch.column(column.name), column)
        return self._flats[column.name]


@dataclass(frozen=True)
class Spec:
    """The kind of values of one field of a batch.

    `shape` is that of one sample, and `dtype` that of its numbers. "fixed" fields are arrays
    (batch, *shape), "padded" ones arrays (batch, longest, …) filled up with `fill`, "ragged" ones
    lists of arrays with axes of length -1; "text" and "bytes" ones are lists, and "other" ones
    anything. "whole" fields are of the whole batch, which cannot be cut or joined to others.
    """

    kind: str
    shape: Shape = ()
    dtype: DType = np.dtype(np.int64)
    fill: float = 0


@dataclass(frozen=True)
class Lists:
    """The lists of n samples: `numbers` one behind the other, and how long the lists of every depth
    are.

    `lengths[0]` (n,) has the lengths of the samples' own lists, `lengths[1]` those of the lists in
    them, and so on. `missing` says which numbers are missing (their value is 0), None if none is.
    `lacking` says which samples are missing or have a missing list in them (it is of length 0):
    (n,), or empty if none is. `original` is the Arrow array that they came in.
    """

    numbers: Array
    lengths: list[Numbers]
    missing: Bools | None = None
    lacking: Bools = field(default_factory=lambda: np.empty(0, bool))
    original: pa.Array | None = None

    @classmethod
    def of(cls, array: pa.Array) -> Lists:
        """Read the lists of an Arrow array of lists of numbers."""
        lengths: list[Numbers] = []
        original = array
        lacking = np.zeros(len(array), bool)
        while not is_number(array.type):
            if array.null_count:
                lacking[_owners(lengths, np.flatnonzero(is_missing(array)))] = True
            lengths.append(list_lengths(array))
            array = array.flatten()  # without the lists that are missing
        missing = is_missing(array) if array.null_count else None
        numbers = _plain(array.fill_null(0) if array.null_count else array)
        return cls(numbers, lengths, missing, lacking, original)

    @classmethod
    def lying(cls, column: Column, located: Located) -> Lists:
        """Copy the lists of numbers of a column from where they lie; none is missing."""
        lengths = located.length // column.width
        data = gather(located).buffers()[2]
        if data is None:
            return cls(np.empty(0, column.dtype), [lengths])
        return cls(np.frombuffer(data, column.dtype, int(lengths.sum())), [lengths])

    @property
    def incomplete(self) -> Bools:
        """Which samples lack anything: they are missing, or a list or a number in them, (n,)."""
        found = np.zeros(len(self.lengths[0]), bool)
        found[: len(self.lacking)] = self.lacking
        if self.missing is not None:
            found[self.owners(np.flatnonzero(self.missing))] = True
        return found

    def owners(self, places: Numbers) -> Numbers:
        """Return the sample that each of these numbers is of."""
        return _owners(self.lengths, places)

    @cached_property
    def _edges(self) -> list[list[int]]:
        """Where each list of a depth begins among the items of the next, and where the last one
        ends."""
        return [edges_of(lengths).tolist() for lengths in self.lengths]

    def arrays(self) -> list[Any]:
        """Return one array for each sample. Where the lists in it are not of one length, it is a
        list of arrays."""
        return [self._array(0, place) for place in range(len(self.lengths[0]))]

    def arrays_or_none(self) -> list[Any]:
        """Return the same with None for what is missing: a sample, or numbers, whose sample is a
        list then."""
        found = self.arrays()
        for place in np.flatnonzero(self.incomplete).tolist():
            found[place] = self.original[place].as_py() if self.original is not None else None
        return found

    def _array(self, depth: int, place: int) -> Any:
        begin, end = self._edges[depth][place : place + 2]
        shape = [end - begin]
        for deeper in range(depth + 1, len(self.lengths)):
            lengths = self.lengths[deeper][begin:end]
            if len(lengths) and (lengths != lengths[0]).any():
                return [
                    self._array(depth + 1, inner)
                    for inner in range(*self._edges[depth][place : place + 2])
                ]
            shape.append(int(lengths[0]) if len(lengths) else 0)
            begin, end = self._edges[deeper][begin], self._edges[deeper][end]
        return self.numbers[begin:end].reshape(shape)

    def sizes(self) -> Numbers:
        """Return how long each sample is: (n,), for lists of lists (n, depths), the longest at each
        depth."""
        if len(self.lengths) == 1:
            return self.lengths[0]
        found = np.zeros((len(self.lengths[0]), len(self.lengths)), np.int64)
        for depth, lengths in enumerate(self.lengths):
            owners = _owners(self.lengths[:depth], np.arange(len(lengths)))
            np.maximum.at(found[:, depth], owners, lengths)
        return found

    def padded(self, fill: float, memory: Callable[[Shape], Array]) -> Array:
        """Return one array (n, longest, …) of `memory`, filled up with `fill`."""
        longest = (
            self.sizes().reshape(len(self.lengths[0]), len(self.lengths)).max(axis=0, initial=0)
        )
        padded = memory((len(self.lengths[0]), *longest.tolist()))
        padded.fill(fill)
        if len(self.lengths) == 1:
            padded[np.arange(longest[0]) < self.lengths[0][:, None]] = self.numbers
            return padded
        # of the lists of a depth, then of the items in them: at the end, of the numbers
        places = np.arange(len(padded))
        for lengths, most in zip(self.lengths, longest.tolist(), strict=True):
            places = (places[:, None] * most + np.arange(most))[np.arange(most) < lengths[:, None]]
        padded.reshape(-1)[places] = self.numbers
        return padded


def _owners(lengths: list[Numbers], places: Numbers) -> Numbers:
    """Return the samples that these items are of, below lists of these lengths at each depth."""
    for of_depth in reversed(lengths):
        places = np.searchsorted(np.cumsum(of_depth), places, side="right")
    return places


def _plain(array: pa.Array) -> Array:
    """Return the values of an array without missing ones, (n,), writable: a tensor may share
    them."""
    plain: Array = array.to_numpy(zero_copy_only=False)
    return plain if plain.flags.writeable else plain.copy()


def is_missing(array: pa.Array) -> Bools:
    """Return which values are missing, (n,)."""
    return _plain(array.is_null())


def numbers_of(array: pa.Array, column: Column) -> tuple[Array, Bools | None]:
    """Return the numbers of a "fixed" column, (n, *shape), and which of them are missing; None if
    none is."""
    inner = array.storage if isinstance(array, pa.ExtensionArray) else array
    shape, missing = (len(array), *column.shape), is_missing(inner) if inner.null_count else None
    while pa.types.is_fixed_size_list(inner.type):
        size = inner.type.list_size
        inner = items_of(inner)
        if missing is not None or inner.null_count:
            missing = is_missing(inner) | (False if missing is None else np.repeat(missing, size))
    if inner.null_count:
        inner = inner.fill_null(False if column.is_boolean else 0)
    return _plain(inner).reshape(shape), None if missing is None else missing.reshape(shape)


def with_none(numbers: Array, missing: Bools) -> list[Any]:
    """Return one value for each sample, None if it is missing as a whole; where a part is, it is a
    list."""
    lacking = missing.reshape(len(missing), -1)
    some: list[bool] = np.any(lacking, axis=1).tolist()
    every: list[bool] = np.all(lacking, axis=1).tolist()
    found: list[Any] = []
    for place, value in enumerate(numbers):
        if not some[place]:
            found.append(value)
        elif every[place]:
            found.append(None)
        else:
            with_holes = value.astype(object)
            with_holes[missing[place]] = None
            found.append(with_holes.tolist())
    return found
