"""The transforms of a loader: the steps of a recipe, then convert, normalise, pad. Their options, and
whether they fit the columns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardctl.errors import UsageError
from shardctl.format.arrays import DType, Shape
from shardctl.format.roles import Mask, Names, Role
from shardctl.loader.blocks.column import Column
from shardctl.system.arguments import caller_level, real_number
from shardctl.system.text import lacks

if TYPE_CHECKING:
    from shardctl.transforms.recipe import Recipe

Normalization = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation, a number each or one per channel (the last axis)."""


@dataclass(frozen=True)
class Transforms:
    """What is done to values on their way into a batch.

    `decode` False returns images as they are stored. The steps of a `recipe` change images, and what
    is marked in them, before all else. `channels_first` returns images as (3, height, width); masks
    stay (height, width). `dtype` converts columns, `normalize` computes (x - mean) / std of columns,
    as float32 or as the requested dtype. `pad` has a fill value for each ragged column of numbers to
    pad; a column NAME_length then has the original lengths. `fill` has the values that replace
    missing numbers; without it, they stay None. `relabel` has, by column, the new label of each
    label. `derive` are fields that are computed from those of tokens (token_features.py). `unmoved`
    are columns that stay as they are, even if they look like places in the images.
    """

    decode: bool = True
    recipe: Recipe | None = None
    pad: Mapping[str, float] = field(default_factory=dict)
    dtype: Mapping[str, str] = field(default_factory=dict)
    normalize: Mapping[str, Normalization] = field(default_factory=dict)
    channels_first: bool = False
    fill: Mapping[str, float] | None = None
    relabel: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    derive: Names = ()
    unmoved: Names = ()

    def check(self, columns: Sequence[Column]) -> None:
        """Raise UsageError for options that do not fit these columns."""
        by_name = {column.name: column for column in columns}
        for option in ("pad", "dtype", "normalize", "fill"):
            for name in getattr(self, option) or ():
                if name not in by_name:
                    raise UsageError(
                        f"{option} is for columns that are read: {lacks('column', name, by_name)}"
                    )
        for name in self.pad:
            if not by_name[name].is_ragged and by_name[name].objects is None:
                raise UsageError(
                    f"pad: {name} is not a ragged column of numbers, nor one of objects"
                )
        for name in (*self.dtype, *self.normalize):
            column = by_name[name]
            if column.dtype is None and not (column.is_encoded_picture and self.decode):
                raise UsageError(f"{name} holds no numbers to convert or normalise")
        for name, normalization in self.normalize.items():
            _check_normalization(name, normalization, by_name[name])
        for name, kind in self.dtype.items():
            _check_dtype(name, kind, by_name[name], name in self.normalize)
        for option, values in (("pad", self.pad), ("fill", self.fill or {})):
            for name, value in values.items():
                self._check_value(option, by_name[name], value)
        self.check_pictures(columns)

    def _check_value(self, option: str, column: Column, value: Any) -> None:
        """Raise UsageError for a value that a column of a batch cannot hold."""
        if option == "pad" and column.objects is not None:
            real_number(f"{option}: the value for {column.name}", value)
            return
        is_mask = isinstance(column.picture, Mask) and option == "fill"
        if column.dtype is None and not column.is_boolean and not is_mask:
            raise UsageError(f"{option}: {column.name} holds no numbers")
        if isinstance(value, bool | np.bool_) or (
            isinstance(value, float | np.floating) and not np.isfinite(value)
        ):
            number = float(value)
        else:
            number = real_number(f"{option}: the value for {column.name}", value)
        stored = column.pixel_dtype if is_mask else column.dtype or np.dtype(bool)
        dtype = self.dtype_of(column.name, stored)
        if dtype.kind == "f":
            return
        least, most = (0, 1) if dtype.kind == "b" else range_of(dtype)
        if not (least <= number <= most and number == int(number)):
            raise UsageError(f"{option}: {value!r} does not fit {column.name}, which is {dtype}")

    @property
    def moving(self) -> str | None:
        """The first step that moves what is in the images, None if none does."""
        moving = self.recipe.moving if self.recipe else ()
        return moving[0].name if moving else None

    def check_pictures(self, columns: Sequence[Column]) -> None:
        """Raise UsageError for steps, and options of images, that do not fit these columns."""
        pictures = [column for column in columns if column.picture]
        marked = [column for column in columns if column.objects is not None]
        named = ["channels_first"] if self.channels_first else []
        if self.recipe is not None:
            named += [
                str(step.settings().get("target", step.name)) for step in self.recipe.transform
            ]
        if not named:
            return
        if not self.decode or not (pictures or (marked and self.moving)):
            raise UsageError(f"{', '.join(named)}: only for decoded images, and no column has them")
        if self.recipe is None:
            return
        from shardctl.transforms.image_steps import refuse_immovable  # 20 ms

        members: dict[str, tuple[Role | None, Names]] = {
            column.name: (column.picture or column.objects, column.object_members)
            for column in (*pictures, *marked)
        }
        refuse_immovable(self.recipe.image_transforms, members)
        for column in pictures:
            shape = self.picture_shape(column)
            if shape is not None and math.prod(shape) > 3 * self.recipe.max_pixels:
                raise UsageError(
                    f"{named[-1]} makes images of more than {self.recipe.max_pixels:,} pixels"
                )

    def changes(self, column: Column) -> bool:
        """Return whether values of this column are changed before they are returned."""
        name = column.name
        if name in self.relabel or name in self.dtype or name in self.normalize:
            return True
        return column.picture is not None and (
            self.recipe is not None or self.puts_channels_first(column)
        )

    def puts_channels_first(self, column: Column) -> bool:
        """Return whether the channels of this column's values come before their height and
        width."""
        return (
            self.channels_first
            and column.picture is not None
            and not isinstance(column.picture, Mask)
        )

    def dtype_of(self, name: str, stored: Any) -> DType:
        """Return the type that a column's numbers get."""
        return np.dtype(self.dtype.get(name, "float32" if name in self.normalize else stored))

    def picture_shape(self, column: Column) -> Shape | None:
        """Return the final shape of the images or masks of a column; None if it differs between
        samples."""
        shape = column.picture_shape
        if self.recipe is not None:
            size = self.recipe.output_size_of(None if shape is None else (shape[1], shape[0]))
            shape = None if size is None else (size[1], size[0], *column.picture_channels)
        return (shape[2], *shape[:2]) if shape and self.puts_channels_first(column) else shape


def zeros(schema: pa.Schema) -> dict[str, float]:
    """Return a `fill` for every column of numbers: for callers that do not use the values."""
    columns = [Column.of(field) for field in schema]
    return {column.name: 0 for column in columns if column.dtype is not None or column.is_boolean}


def _check_normalization(name: str, normalization: Normalization, column: Column) -> None:
    channels = column.shape[-1] if column.shape else 1
    if column.picture is not None:
        channels = math.prod(column.picture_channels)
    try:
        mean, std = (np.asarray(part, np.float64) for part in normalization)
        fits = all(part.ndim < 2 and part.size in (1, channels) for part in (mean, std))
        fits = fits and bool(np.isfinite([*mean.flat, *std.flat]).all() and std.all())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise UsageError(
            f"normalize: {name} takes (mean, std), each one finite number or one for each of "
            f"{channels} channels, std not 0, not {normalization!r}"
        )
    if (
        column.picture is not None
        and column.pixel_dtype == np.uint8
        and 0 < mean.max() <= 1
        and abs(std).max() <= 1
    ):
        warnings.warn(
            f"normalize: the mean and std of {name} look made for pixels of 0 to 1, and these "
            "are 0 to 255: multiply both by 255",
            UserWarning,
            caller_level(),
        )


def _check_dtype(name: str, kind: Any, column: Column, normalized: bool) -> None:
    try:
        wanted = np.dtype(kind)
    except TypeError:
        wanted = np.dtype(object)
    if wanted.kind not in "fiu" or kind is None:
        raise UsageError(
            f"dtype {kind!r} of {name} is not a numpy type of numbers, such as float16, float32, "
            "uint8 or int64"
        )
    stored = column.pixel_dtype if column.dtype is None else column.dtype
    if wanted.kind != "f" and (normalized or stored.kind == "f"):
        what = "what normalize gives" if normalized else stored.name
        raise UsageError(
            f"dtype {wanted} of {name} would cut off the fractions of {what}; give a float type"
        )


def range_of(dtype: DType) -> tuple[Any, Any]:
    """Return the least and the greatest finite number of a type."""
    info, kind = (np.finfo(dtype), float) if dtype.kind == "f" else (np.iinfo(dtype), int)
    return kind(info.min), kind(info.max)
