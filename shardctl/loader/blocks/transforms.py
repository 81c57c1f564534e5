"""The transforms of a loader: resize, crop, flip, convert, normalise, pad. Their options, and
whether they fit the columns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardctl.errors import DatasetError, UsageError
from shardctl.format.arrays import DType, Shape
from shardctl.format.roles import Mask, Names
from shardctl.images.defaults import CENTRE, KEPT_SHARE, MAX_PIXELS
from shardctl.images.geometry import View
from shardctl.loader.blocks.column import Column
from shardctl.system.arguments import caller_level, real_number, whole_number
from shardctl.system.text import lacks

if TYPE_CHECKING:
    from shardctl.transforms.image.views import Resize

Normalization = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation, a number each or one per channel (the last axis)."""


@dataclass(frozen=True)
class Transforms:
    """What is done to values on their way into a batch.

    `decode` False returns images as they are stored. Images are resized first (`resize`), then cut
    to `crop` (height, width) at the centre or (`crop_from` "random") at a random place, then
    mirrored with the probability `flip`. Random choices depend only on (seed, epoch, sample), so
    that all images and masks of a sample that have one size are cut and mirrored alike.
    `channels_first` returns images as (3, height, width); masks stay (height, width). `dtype`
    converts columns, `normalize` computes (x - mean) / std of columns, as float32 or as the
    requested dtype. `pad` has a fill value for each ragged column of numbers to pad; a column
    NAME_length then has the original lengths. `fill` has the values that replace missing numbers;
    without it, they stay None. `relabel` has, by column, the new label of each label. Objects move
    with the main image; those stay of which at least the share `keep_objects` of the area is inside
    then, or the centre ("center"). `derive` are fields that are computed from those of tokens
    (token_features.py). `unmoved` are columns that stay as they are, even if they look like places
    in the images. No image that is resized and cut has more pixels than `max_pixels`.
    """

    decode: bool = True
    crop: tuple[int, int] | None = None
    crop_from: str = "center"
    flip: float = 0.0
    pad: Mapping[str, float] = field(default_factory=dict)
    dtype: Mapping[str, str] = field(default_factory=dict)
    normalize: Mapping[str, Normalization] = field(default_factory=dict)
    seed: int = 0
    resize: Resize | None = None
    channels_first: bool = False
    fill: Mapping[str, float] | None = None
    relabel: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    keep_objects: float | str = KEPT_SHARE
    derive: Names = ()
    unmoved: Names = ()
    max_pixels: int = MAX_PIXELS

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
        objects = [column for column in columns if column.objects is not None]
        self._check_pictures([column for column in columns if column.picture], bool(objects))
        for column in objects:
            # nobody knows how to mirror some keypoints: a left hand becomes a right one
            unknown = column.objects is not None and column.objects.flip is None
            if self.flip and "keypoints" in column.object_members and unknown:
                raise UsageError(
                    f"flip: nothing says which keypoints of {column.name} change places; leave "
                    f"them out: columns=[…, '{column.name}.bbox', '{column.name}.category']"
                )

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
        """The first option that changes the coordinates in images, None if none does."""
        return next(
            (option for option in ("resize", "crop", "flip") if getattr(self, option)), None
        )

    def _check_pictures(self, columns: Sequence[Column], with_objects: bool) -> None:
        """Raise UsageError for options of images that do not fit these columns of images and masks,
        and perhaps of objects."""
        if self.crop_from not in ("center", "random"):
            raise UsageError(f"a crop is from 'center' or 'random' places, not {self.crop_from!r}")
        if self.crop_from == "random" and not self.crop:
            raise UsageError("crop_from='random' needs a crop; give crop= too")
        named = ("resize", "crop", "flip", "channels_first")
        options = [option for option in named if getattr(self, option)]
        if not options:
            return
        if not self.decode or not (columns or (with_objects and self.moving)):
            raise UsageError(
                f"{', '.join(options)}: only for decoded images, and no column has them"
            )
        if self.crop and min(self.crop) < 1:
            raise UsageError(f"a crop to {self.crop[1]}x{self.crop[0]} is impossible")
        for column in columns:
            self.check_crop(column)

    def check_crop(self, column: Column) -> None:
        """Raise UsageError for a crop that is larger than the images of a column, where these share
        a size."""
        shape = self._resized_shape(column)
        if self.crop and shape and (self.crop[0] > shape[0] or self.crop[1] > shape[1]):
            whose = "the images" if column.name == "image" else f"those of {column.name}"
            wanted, there = f"{self.crop[1]}x{self.crop[0]}", f"{shape[1]}x{shape[0]}"
            raise UsageError(f"a crop to {wanted} is larger than {whose}, {there} (width x height)")
        if shape:
            try:
                height, width = self.crop or shape[:2]
                self.bounded(View.whole((width, height)))
            except DatasetError as error:
                raise UsageError(str(error)) from None

    def changes(self, column: Column) -> bool:
        """Return whether values of this column are changed before they are returned."""
        if any(column.name in by_name for by_name in (self.relabel, self.dtype, self.normalize)):
            return True
        looks = self.crop or self.flip or self.resize or self.puts_channels_first(column)
        return bool(looks) and column.picture is not None

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

    def resized_view(self, width: int, height: int) -> View:
        """Return what `resize` makes of an image of this size."""
        whole = View.whole((width, height))
        return whole.scaled(self.resize.resized(whole.size)) if self.resize else whole

    def bounded(self, look: View) -> View:
        """Return what is seen of a resized image. Raises DatasetError if that is more pixels than
        `max_pixels`."""
        width, height = look.size
        if self.resize and width * height > self.max_pixels:
            made, limit = f"{width}x{height} (width x height)", f"{self.max_pixels} pixels"
            raise DatasetError(
                f"resize makes {made} of it, over {limit}; give crop= too, and no cache="
            )
        return look

    def _resized_shape(self, column: Column) -> Shape | None:
        """Return the shape of a column's images before they are cut, None if it differs."""
        stored = column.picture_shape
        if self.resize is None:
            return stored
        if isinstance(self.resize.size, int) and stored is None:
            return None
        width, height = self.resized_view(*(stored[1::-1] if stored else (1, 1))).size
        return height, width, *column.picture_channels

    def picture_shape(self, column: Column) -> Shape | None:
        """Return the final shape of the images or masks of a column; None if it differs between
        samples."""
        shape = self._resized_shape(column)
        if self.crop:
            shape = (*self.crop, *column.picture_channels)
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


def crop_size(name: str, crop: Any) -> tuple[int, int] | None:
    """Return (height, width) from one number, from two, or from "WIDTHxHEIGHT"."""
    if crop is None:
        return None
    size = _size(name, crop)
    return (size, size) if isinstance(size, int) else size


def _size(name: str, value: Any) -> int | tuple[int, int]:
    """Return one number, or (height, width)."""
    if isinstance(value, str):
        from shardctl.transforms.settings import Sides

        try:
            parsed = Sides().read(value)
        except ValueError as error:
            raise UsageError(f"{name} {error}; it is {value!r}") from None
        return parsed if isinstance(parsed, int) else parsed[::-1]
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise UsageError(f"{name} takes one number or (height, width); it is {value!r}")
        height, width = (whole_number(name, side) for side in value)
        return height, width
    return whole_number(name, value)


def resize_step(name: str, resize: Any) -> Resize | None:
    """Return the same transform as in a conversion, where width comes before height."""
    if resize is None:
        return None
    from shardctl.transforms.image.views import Resize  # 20 ms, which most loaders never need

    size = _size(name, resize)
    step: Resize = Resize.parse(size=size if isinstance(size, int) else size[::-1])
    return step


def kept_objects(name: str, keep: Any) -> float | str:
    """Return the share of an object that must be inside of a moved image, or "center"."""
    if isinstance(keep, str) and keep == CENTRE:
        return keep
    share = math.nan if isinstance(keep, str) else real_number(name, keep)
    if not 0 <= share <= 1:
        raise UsageError(f"{name} is a share of the area from 0 to 1, or 'center'; it is {keep!r}")
    return share


def probability(name: str, flip: Any) -> float:
    """Return the probability of mirroring an image."""
    if isinstance(flip, bool | np.bool_):
        return 0.5 if flip else 0.0
    share = real_number(name, flip)
    if not 0 <= share <= 1:
        raise UsageError(
            f"{name} is True (for half of the images), or a probability from 0 to 1; it is {flip!r}"
        )
    return share
