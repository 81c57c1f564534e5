"""What the values of each field of a batch are, known before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.object_columns import member_types
from shardctl.loader.blocks.transforms import Transforms


@dataclass(frozen=True)
class Spec:
    """The kind of values of one field of a batch.

    `shape` is that of one sample, and `dtype` that of its numbers. "fixed" fields are arrays
    (batch, *shape), "padded" ones arrays (batch, longest, …) filled up with `fill`, "ragged" ones
    lists of arrays with axes of length -1; "text" and "bytes" ones are lists, and "other" ones
    anything. "whole" fields are of the whole batch, which cannot be cut or joined to others.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype(np.int64)
    fill: float = 0


def specs_of(columns: Sequence[Column], transforms: Transforms) -> dict[str, Spec]:
    """Return the kind of values of each field of a batch of these columns."""
    specs = {}
    for column in columns:
        if column.objects is not None and column.name in transforms.pad:
            specs.update(_padded_objects(column, transforms.pad[column.name]))
            continue
        specs[column.name] = _spec(column, transforms)
        if column.name in transforms.pad:
            specs[f"{column.name}_length"] = Spec(
                "fixed", (column.ndim,) if column.ndim > 1 else ()
            )
    return specs


def _padded_objects(column: Column, value: float) -> dict[str, Spec]:
    """Return what `Marked.padded` returns."""
    name, specs = column.name, {}
    for member, kind in member_types(column).items():
        if member not in column.object_members:
            continue
        padded = kind.dtype is not None and Spec(
            "padded", (-1, *kind.shape), kind.dtype, kind.fill(value)
        )
        specs[f"{name}.{member}"] = padded or Spec("other")
    there, annotated = Spec("padded", (-1,), np.dtype(bool)), Spec("fixed", (), np.dtype(bool))
    return {
        **specs,
        f"{name}_length": Spec("fixed"),
        f"{name}_mask": there,
        f"{name}_annotated": annotated,
    }


def _spec(column: Column, transforms: Transforms) -> Spec:
    if column.is_encoded_picture and transforms.decode:
        shape, channels = transforms.picture_shape(column), column.picture_channels
        of_any_size = (
            (*channels, -1, -1) if transforms.puts_channels_first(column) else (-1, -1, *channels)
        )
        return Spec(
            "fixed" if shape else "ragged",
            shape or of_any_size,
            transforms.dtype(column.name, column.pixel_dtype),
        )
    if column.is_boolean:
        return Spec("fixed", (), np.dtype(bool))
    if column.dtype is None:
        return Spec("text" if column.is_text else "bytes" if column.kind == "variable" else "other")
    dtype = transforms.dtype(column.name, column.dtype)
    if column.is_ragged:
        fill, shape = transforms.pad.get(column.name), (-1,) * column.ndim
        return Spec("ragged", shape, dtype) if fill is None else Spec("padded", shape, dtype, fill)
    return Spec("fixed", fixed_shape(column, transforms), dtype)


def fixed_shape(column: Column, transforms: Transforms) -> tuple[int, ...]:
    """Return the shape of a value of a "fixed" column in a batch."""
    changed = transforms.picture_shape(column) if column.picture is not None else None
    return changed or column.shape
