"""The last steps on values: resize, crop, flip, convert, normalise, pad. One pass over each value, while it is in cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.arguments import real_number
from shardctl.errors import DatasetError, UsageError
from shardctl.geometry import View
from shardctl.order import key_of, mix64
from shardctl.reader.column import Column
from shardctl.shard import Layout

if TYPE_CHECKING:
    from shardctl.transforms.resize import Resize

Shape = tuple[int, ...]
IMAGE, LABEL = "image", "label"
_CROP, _FLIP = 11, 12
"""The purpose of a random key: each purpose has its own random stream."""

Normalization = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation, a number each or one per channel (the last axis)."""


@dataclass(frozen=True)
class Finish:
    """What is done to values on their way into a batch.

    `decode` False returns images as they are stored. Images are resized first (`resize`), then cut to `crop` (height, width)
    at the centre or (`crop_from` "random") at a random place, then mirrored with the probability `flip`. Random choices
    depend only on (seed, epoch, sample). `channels_first` returns images as (3, height, width). `dtypes` converts columns,
    `normalize` computes (x - mean) / std of columns, as float32 or as the requested dtype. `pad` has a fill value for each
    ragged column of numbers to pad; a column NAME_length then has the original lengths. `fill` has the values that replace
    missing numbers; without it, they stay None. `relabel` has the new label of each label.
    """

    decode: bool = True
    crop: tuple[int, int] | None = None
    crop_from: str = "center"
    flip: float = 0.0
    pad: Mapping[str, float] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    normalize: Mapping[str, Normalization] = field(default_factory=dict)
    seed: int = 0
    resize: Resize | None = None
    channels_first: bool = False
    fill: Mapping[str, float] | None = None
    relabel: tuple[int, ...] | None = None

    def check(self, columns: Sequence[Column], layout: Layout) -> None:
        """Raise UsageError for options that do not fit these columns."""
        by_name = {column.name: column for column in columns}
        named = {"pad": self.pad, "dtype": self.dtypes, "normalize": self.normalize, "fill": self.fill or {}}
        for option, names in named.items():
            for name in names:
                if name not in by_name:
                    raise UsageError(f"{option}: no column {name} is read; there are {', '.join(by_name)}")
        for name in self.pad:
            if not by_name[name].is_ragged:
                raise UsageError(f"pad: {name} is not a ragged column of numbers")
        for name in (*self.dtypes, *self.normalize):
            column = by_name[name]
            if column.dtype is None and not (column.is_encoded_image and self.decode):
                raise UsageError(f"{name} holds no numbers to convert or normalise")
        for name, normalization in self.normalize.items():
            _check_normalization(name, normalization, by_name[name])
        for name, kind in self.dtypes.items():
            _check_dtype(name, kind, by_name[name], name in self.normalize)
        for option, values in (("pad", self.pad), ("fill", self.fill or {})):
            for name, value in values.items():
                self._check_value(option, by_name[name], value)
        self._check_images(by_name.get(IMAGE), layout)

    def _check_value(self, option: str, column: Column, value: Any) -> None:
        """Raise UsageError for a value that a column of a batch cannot hold."""
        if column.dtype is None and not column.is_boolean:
            raise UsageError(f"{option}: {column.name} holds no numbers")
        if isinstance(value, bool | np.bool_) or (isinstance(value, float | np.floating) and not np.isfinite(value)):
            number = float(value)
        else:
            number = real_number(f"{option}: the value for {column.name}", value)
        dtype = np.dtype(bool) if column.dtype is None else self.dtype(column.name, column.dtype)
        if dtype.kind == "f":
            return
        least, most = (0, 1) if dtype.kind == "b" else _range(dtype)
        if not (least <= number <= most and number == int(number)):
            raise UsageError(f"{option}: {value!r} does not fit {column.name}, which is {dtype}")

    def _check_images(self, column: Column | None, layout: Layout) -> None:
        if self.crop_from not in ("center", "random"):
            raise UsageError(f"a crop is taken from the center or from random places, not from {self.crop_from!r}")
        if self.crop_from == "random" and not self.crop:
            raise UsageError("crop_from='random' needs a crop; give crop= too")
        asked = {"resize": self.resize, "crop": self.crop, "flip": self.flip, "channels_first": self.channels_first}
        options = [option for option, value in asked.items() if value]
        if not options:
            return
        if column is None or not self.decode or not (column.is_encoded_image or len(column.shape) == 3):
            raise UsageError(f"{', '.join(options)}: only for decoded images, and there are none among the columns")
        if self.resize and not column.is_encoded_image and not (column.dtype == np.uint8 and column.shape[2] == 3):
            raise UsageError("resize is for images (height, width, 3) of uint8; these are of another kind")
        if self.crop and min(self.crop) < 1:
            raise UsageError(f"a crop to {self.crop[0]}x{self.crop[1]} is impossible")
        shape = self._resized_shape(layout.shape)
        if self.crop and shape and (self.crop[0] > shape[0] or self.crop[1] > shape[1]):
            raise UsageError(f"a crop to {self.crop[0]}x{self.crop[1]} is larger than the images, {shape[0]}x{shape[1]}")

    def changes(self, column: Column) -> bool:
        """Return whether values of this column are changed before they are returned."""
        view = column.name == IMAGE and bool(self.crop or self.flip or self.resize or self.channels_first)
        relabelled = column.name == LABEL and self.relabel is not None
        return view or relabelled or column.name in self.dtypes or column.name in self.normalize

    def dtype(self, name: str, stored: Any) -> np.dtype[Any]:
        """Return the type that a column's numbers get."""
        return np.dtype(self.dtypes.get(name, "float32" if name in self.normalize else stored))

    def resized_view(self, width: int, height: int) -> View:
        """Return what `resize` makes of an image of this size."""
        whole = View.whole((width, height))
        return self.resize.view(whole, None) if self.resize else whole

    def _resized_shape(self, stored: Shape | None) -> Shape | None:
        if self.resize is None:
            return stored
        if isinstance(self.resize.size, int) and stored is None:
            return None
        width, height = self.resized_view(*(stored[1::-1] if stored else (1, 1))).size
        return height, width, 3

    def image_shape(self, stored: Shape | None) -> Shape | None:
        """Return the final shape of images; None if it differs between images. `stored` is (height, width, channels)."""
        shape = self._resized_shape(stored)
        if self.crop:
            shape = (*self.crop, shape[2] if shape else 3)
        return (shape[2], *shape[:2]) if shape and self.channels_first else shape


def zeros(schema: pa.Schema) -> dict[str, float]:
    """Return a `fill` for every column of numbers: for callers that do not use the values."""
    columns = [Column.of(field) for field in schema]
    return {column.name: 0 for column in columns if column.dtype is not None or column.is_boolean}


def _check_normalization(name: str, normalization: Normalization, column: Column) -> None:
    try:
        mean, std = (np.asarray(part, np.float64) for part in normalization)
    except (TypeError, ValueError):
        raise UsageError(
            f"normalize: {name} takes (mean, std), numbers or one for each channel; it is {normalization!r}"
        ) from None
    channels = 3 if column.is_encoded_image else column.shape[-1] if column.shape else 1
    for part in (mean, std):
        if part.ndim > 1 or part.size not in (1, channels):
            raise UsageError(f"normalize: {name} takes one number or one for each of {channels} channels, not {part.tolist()}")
        if not np.isfinite(part).all():
            raise UsageError(f"normalize: {name} takes finite numbers, not {part.tolist()}")
    if not (std != 0).all():
        raise UsageError(f"normalize: {name} has a standard deviation of 0")


def _check_dtype(name: str, kind: Any, column: Column, normalized: bool) -> None:
    try:
        wanted = np.dtype(kind)
    except TypeError:
        wanted = np.dtype(object)
    if wanted.kind not in "fiu" or kind is None:
        raise UsageError(f"dtype {kind!r} of {name} is not a numpy type of numbers")
    stored = np.dtype(np.uint8) if column.dtype is None else column.dtype
    if wanted.kind != "f" and (normalized or stored.kind == "f"):
        what = "what normalize gives" if normalized else stored.name
        raise UsageError(
            f"dtype {wanted} of {name} would cut off the fractions of {what}; give a type of floating point numbers"
        )


class Misfit(Exception):
    """A number does not fit the requested type. `at` is its index among those converted, `place` its sample once known."""

    def __init__(self, at: int, value: Any, dtype: np.dtype[Any]) -> None:
        super().__init__(f"{value} does not fit {dtype}")
        self.at, self.place = at, at

    def of(self, place: int) -> Misfit:
        """Say which sample it is of."""
        self.place = place
        return self


class Finisher:
    """Writes the finished values of one column into a batch."""

    def __init__(self, finish: Finish, name: str, stored: Any, samples: npt.NDArray[np.int64], epoch: int) -> None:
        self.dtype = finish.dtype(name, stored)
        self._finish = finish
        self._affine = _Affine(finish.normalize[name], np.dtype(stored), self.dtype) if name in finish.normalize else None
        self._views = _Views(finish, samples, epoch) if name == IMAGE and (finish.crop or finish.flip) else None
        self._resizes = name == IMAGE and finish.resize is not None
        self._planes = name == IMAGE and finish.channels_first
        self._limits = None if self._affine else _limits(np.dtype(stored), self.dtype)

    @property
    def one_by_one(self) -> bool:
        """Whether each sample is finished by itself: its view may be another than that of the next."""
        return self._views is not None or self._resizes or self._planes

    def resized(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a stored image (height, width, 3), resized."""
        if not self._resizes:
            return values
        from shardctl.codecs.image import resample

        return resample(values, self._finish.resized_view(values.shape[1], values.shape[0]).size)

    def view(self, values: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
        """Return the crop of an image (height, width, 3), without a copy. Raises DatasetError if it is too small."""
        return self._views.of(values, place) if self._views else values

    def finished(self, values: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
        """Return the crop of an image, converted and normalised, as a copy."""
        view = self.view(values, place)
        height, width, channels = view.shape
        out = np.empty((channels, height, width) if self._planes else view.shape, self.dtype)
        self.write(view, out)
        return out

    def write(self, values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Convert and normalise `values` into `out`, in one piece and of the same shape, or an image with its channels first.

        Raises Misfit for a value that does not fit.
        """
        if self._limits is not None:
            _check_fit(values, self._limits, self.dtype)
        if self._planes:
            for channel in range(values.shape[2]):
                self._write_plane(values[:, :, channel], out[channel], channel)
        elif self._affine is not None:
            self._affine.write(values, out)
        else:
            _copy(values, out)

    def _write_plane(self, values: npt.NDArray[Any], out: npt.NDArray[Any], channel: int) -> None:
        if self._affine is None:
            np.copyto(out, values, casting="unsafe")
        else:
            self._affine.write_plane(values, out, channel)


_Limits = tuple[Any, Any]


def _limits(stored: np.dtype[Any], wanted: np.dtype[Any]) -> _Limits | None:
    """Return the least and the greatest stored number that fit a type; None if all do."""
    have, fits = _range(stored), _range(wanted)
    if fits[0] <= have[0] and have[1] <= fits[1]:
        return None
    return stored.type(max(have[0], fits[0])), stored.type(min(have[1], fits[1]))


def _range(dtype: np.dtype[Any]) -> _Limits:
    info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return (float(info.min), float(info.max)) if dtype.kind == "f" else (int(info.min), int(info.max))


def _check_fit(values: npt.NDArray[Any], limits: _Limits, dtype: np.dtype[Any]) -> None:
    """Raise Misfit for a number outside of the limits; NaN and infinities have their place in floating point numbers."""
    wrong = (values < limits[0]) | (values > limits[1])
    if values.dtype.kind == "f":
        wrong &= np.isfinite(values)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise Misfit(at, values.reshape(-1)[at], dtype)


class _Affine:
    """(x - mean) / std, as x * scale + shift."""

    def __init__(self, normalization: Normalization, stored: np.dtype[Any], wanted: np.dtype[Any]) -> None:
        mean, std = (np.asarray(part, np.float64) for part in normalization)
        self._work = np.result_type(stored, wanted, np.float32)
        self._scale, self._shift = (part.astype(self._work) for part in np.broadcast_arrays(1 / std, -mean / std))
        self._rows: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
        most = max(abs(bound) for bound in _range(stored)) * float(np.abs(1 / std).max()) + float(np.abs(mean / std).max())
        self._may_overflow = wanted != self._work and not most <= _range(wanted)[1]

    def write(self, values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        work = out if out.dtype == self._work else np.empty(out.shape, self._work)
        _copy(values, work)
        # A row of an image at a time: numpy is ten times as slow where it takes up a few channels at a time.
        in_rows = self._scale.size > 1 and work.ndim > 1
        rows = work.reshape(*work.shape[:-2], work.shape[-2] * work.shape[-1]) if in_rows else work
        scale, shift = self._repeated(rows.shape[-1])
        self._apply(rows, scale, shift, rows)
        self._narrow(work, out)

    def write_plane(self, values: npt.NDArray[Any], out: npt.NDArray[Any], channel: int) -> None:
        """Write one channel of an image."""
        work = out if out.dtype == self._work else np.empty(out.shape, self._work)
        one = channel if self._scale.size > 1 else 0
        self._apply(values, self._scale.reshape(-1)[one], self._shift.reshape(-1)[one], work)
        self._narrow(work, out)

    def _apply(self, values: npt.NDArray[Any], scale: Any, shift: Any, work: npt.NDArray[Any]) -> None:
        np.multiply(values, scale, out=work)
        np.add(work, shift, out=work)

    def _narrow(self, work: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Convert the computed values to the requested type. Raises Misfit."""
        if self._may_overflow:
            _check_fit(work, _range(out.dtype), out.dtype)
        if work is not out:
            np.copyto(out, work, casting="unsafe")

    def _repeated(self, width: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return scale and shift, repeated for each value of a row."""
        if self._scale.size == 1:
            return self._scale, self._shift
        if width not in self._rows:
            repeats = width // self._scale.size
            self._rows[width] = np.tile(self._scale, repeats), np.tile(self._shift, repeats)
        return self._rows[width]


def _copy(values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Convert values. A mirrored image goes channel by channel: numpy is six times as slow with runs of one pixel."""
    if values.ndim == 3 and values.strides[1] < 0:
        for channel in range(values.shape[2]):
            np.copyto(out[:, :, channel], values[:, :, channel], casting="unsafe")
    else:
        np.copyto(out, values, casting="unsafe")


class _Views:
    """The crop of each image, drawn from (seed, epoch, sample)."""

    def __init__(self, finish: Finish, samples: npt.NDArray[np.int64], epoch: int) -> None:
        self._crop, self._random = finish.crop, finish.crop_from == "random"
        crops, flips = (self._draw(finish.seed, epoch, purpose, samples) for purpose in (_CROP, _FLIP))
        lowest_first = (flips & np.uint64(1)) << np.uint64(63) | flips >> np.uint64(1)  # so that 0.5 asks for the lowest bit
        self._draws: tuple[list[int], list[int]] = (crops.tolist(), lowest_first.tolist())
        self._least_flipped = round(2**64 * (1 - finish.flip))

    def _draw(self, seed: int, epoch: int, purpose: int, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return mix64(samples.astype(np.uint64) + np.uint64(key_of(seed, epoch, purpose)))

    def of(self, image: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
        if self._crop:
            free_y, free_x = image.shape[0] - self._crop[0], image.shape[1] - self._crop[1]
            if free_y < 0 or free_x < 0:
                have, want = f"{image.shape[0]}x{image.shape[1]}", f"{self._crop[0]}x{self._crop[1]}"
                raise DatasetError(f"{have} is too small for a crop to {want}; give resize= too, or a smaller crop")
            top, left = round(free_y / 2), round(free_x / 2)  # as the step `crop` of a recipe and torchvision's CenterCrop
            if self._random:
                draw = self._draws[0][place]
                top, left = (draw & 0xFFFFFFFF) * (free_y + 1) >> 32, (draw >> 32) * (free_x + 1) >> 32
            image = image[top : top + self._crop[0], left : left + self._crop[1]]
        return image[:, ::-1] if self._draws[1][place] >= self._least_flipped else image
