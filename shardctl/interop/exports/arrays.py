"""Columns of tensors, and of lists of one length, as numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError


def is_packed(type_: pa.DataType) -> bool:
    """Return whether a type is a tensor, or a list of one length, of numbers."""
    if not isinstance(type_, pa.FixedShapeTensorType) and not pa.types.is_fixed_size_list(type_):
        return False
    return is_number(type_.value_type)


def is_number(type_: pa.DataType) -> bool:
    """Return whether a type is one of numbers that numpy has too."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def has_gaps(array: pa.Array) -> bool:
    """Return whether a value is missing inside a column of lists or tensors."""
    storage = array.storage if isinstance(array.type, pa.FixedShapeTensorType) else array
    return bool(storage.flatten().null_count)


def arrays_of(array: pa.Array) -> list[Any]:
    """Return the rows of a column of tensors, or of lists of one length, none of which is
    missing."""
    if isinstance(array.type, pa.FixedShapeTensorType):
        return pixels_of(array)
    size = array.type.list_size
    return list(
        np.asarray(array.values.slice(array.offset * size, len(array) * size)).reshape(
            len(array), size
        )
    )


def pixels_of(array: pa.Array) -> list[Any]:
    """Return the arrays in a column of tensors, without a copy; None for a missing one."""
    size = array.type.storage_type.list_size
    storage = array.storage
    flat = storage.values.slice(storage.offset * size, len(array) * size)
    if flat.null_count:
        raise InputError("a tensor lacks some of its numbers")
    rows = np.asarray(flat).reshape(len(array), *array.type.shape)
    if not array.null_count:
        return list(rows)
    return [
        row if valid else None
        for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]
