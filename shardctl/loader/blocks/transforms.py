"""The transforms of a loader: the steps of a recipe, then convert, normalise, pad. Their options, whether
they fit the columns, and the values of a column on their way into a batch: one pass over each value,
while it is in cache."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardctl.errors import UsageError
from shardctl.format.arrays import Array, DType, Shape
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
        example = ", such as ([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]) of ImageNet"
        raise UsageError(
            f"normalize: {name} takes (mean, std), each one finite number or one for each of "
            f"{channels} channels, std not 0{example if channels == 3 else ''}; it is "
            f"{normalization!r}"
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


class Misfit(Exception):
    """A value is not as it should be. `place` is its index among those that were looked at, then its
    sample once that is known."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place

    def of(self, place: int) -> Misfit:
        """Say which sample it is of."""
        self.place = place
        return self


class Converter:
    """Writes the transformed values of one column into a batch."""

    def __init__(self, transforms: Transforms, column: Column, stored: Any) -> None:
        """`stored` is the type of the stored numbers."""
        self.dtype = transforms.dtype_of(column.name, stored)
        normalization = transforms.normalize.get(column.name)
        self._affine = (
            None if normalization is None else _Affine(normalization, np.dtype(stored), self.dtype)
        )
        self.planes = transforms.puts_channels_first(column)
        self._limits = None if self._affine else _limits(np.dtype(stored), self.dtype)

    def converted(self, values: Array, place: int) -> Array:
        """Return an image or mask, converted and normalised, as a copy."""
        shape = (values.shape[2], *values.shape[:2]) if self.planes else values.shape
        out = np.empty(shape, self.dtype)
        self.write_one(values, place, out)
        return out

    def write_one(self, values: Array, place: int, out: Array) -> None:
        """Do as `write` for the values of one sample."""
        try:
            self.write(values, out)
        except Misfit as misfit:
            raise misfit.of(place) from None

    def write(self, values: Array, out: Array) -> None:
        """Convert and normalise `values` into `out`, in one piece and of the same shape, or an
        image with its channels first.

        Raises Misfit for a value that does not fit.
        """
        if self._limits is not None:
            _check_fit(values, self._limits, self.dtype)
        if self.planes:
            for channel in range(values.shape[2]):
                plane = values[:, :, channel]
                if self._affine is None:
                    np.copyto(out[channel], plane, casting="unsafe")
                else:
                    self._affine.write(plane, out[channel], channel)
        elif self._affine is not None:
            self._affine.write(values, out)
        else:
            _copy(values, out)


_Limits = tuple[Any, Any]


def _limits(stored: DType, wanted: DType) -> _Limits | None:
    """Return the least and the greatest stored number that fit a type; None if all do."""
    have, fits = range_of(stored), range_of(wanted)
    if fits[0] <= have[0] and have[1] <= fits[1]:
        return None
    return stored.type(max(have[0], fits[0])), stored.type(min(have[1], fits[1]))


def _check_fit(values: Array, limits: _Limits, dtype: DType) -> None:
    """Raise Misfit for a number outside of the limits; NaN and infinities have their place in
    floating point numbers."""
    wrong = (values < limits[0]) | (values > limits[1])
    if values.dtype.kind == "f":
        wrong &= np.isfinite(values)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise Misfit(at, f"{values.reshape(-1)[at]} does not fit {dtype}")


class _Affine:
    """(x - mean) / std, as x * scale + shift."""

    def __init__(self, normalization: Normalization, stored: DType, wanted: DType) -> None:
        mean, std = (np.asarray(part, np.float64) for part in normalization)
        self._work = np.result_type(stored, wanted, np.float32)
        self._scale, self._shift = (
            part.astype(self._work) for part in np.broadcast_arrays(1 / std, -mean / std)
        )
        self._rows: dict[int, tuple[Array, Array]] = {}
        most = max(abs(bound) for bound in range_of(stored)) * float(np.abs(1 / std).max()) + float(
            np.abs(mean / std).max()
        )
        self._may_overflow = wanted != self._work and not most <= range_of(wanted)[1]

    def write(self, values: Array, out: Array, channel: int | None = None) -> None:
        """Write values, with their channels last, or those of one channel of an image."""
        work = out if out.dtype == self._work else np.empty(out.shape, self._work)
        if channel is None:
            _copy(values, work)
            # A row of an image at a time: numpy is ten times as slow where it takes up a few
            # channels at a time.
            in_rows = self._scale.size > 1 and work.ndim > 1
            made = work.reshape(*work.shape[:-2], -1) if in_rows else work
            values, (scale, shift) = made, self._repeated(made.shape[-1])
        else:
            made, one = work, channel if self._scale.size > 1 else 0
            scale, shift = self._scale.reshape(-1)[one], self._shift.reshape(-1)[one]
        np.multiply(values, scale, out=made)
        np.add(made, shift, out=made)
        if self._may_overflow:
            _check_fit(work, range_of(out.dtype), out.dtype)
        if work is not out:
            np.copyto(out, work, casting="unsafe")

    def _repeated(self, width: int) -> tuple[Array, Array]:
        """Return scale and shift, repeated for each value of a row."""
        if self._scale.size == 1:
            return self._scale, self._shift
        if width not in self._rows:
            repeats = width // self._scale.size
            self._rows[width] = np.tile(self._scale, repeats), np.tile(self._shift, repeats)
        return self._rows[width]


def _copy(values: Array, out: Array) -> None:
    """Convert values. A mirrored image goes channel by channel: numpy is six times as slow with
    runs of one pixel."""
    if values.ndim == 3 and values.strides[1] < 0:
        for channel in range(values.shape[2]):
            np.copyto(out[:, :, channel], values[:, :, channel], casting="unsafe")
    else:
        out[...] = values  # half the time of copyto for the small ones
