"""The values of one column, transformed on their way into a batch: one pass over each value, while
it is in cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardctl.errors import DatasetError
from shardctl.format.arrays import Array, DType
from shardctl.images.geometry import Size, View
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.locate import Samples
from shardctl.loader.blocks.transforms import Normalization, Transforms, range_of
from shardctl.system.permutation import key_of, mix64

_CROP, _FLIP = 11, 12
"""The purpose of a random key: each purpose has its own random stream."""


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

    def __init__(
        self, transforms: Transforms, column: Column, stored: Any, wanted: Samples | None = None
    ) -> None:
        """`stored` is the type of the stored numbers. Images and masks are those of the samples
        `wanted`."""
        name, is_picture = column.name, column.picture is not None
        self.dtype = transforms.dtype_of(name, stored)
        self._transforms = transforms
        normalization = transforms.normalize.get(name)
        self._affine = (
            None if normalization is None else _Affine(normalization, np.dtype(stored), self.dtype)
        )
        self._views = (
            Views(transforms, wanted)
            if wanted is not None and is_picture and (transforms.crop or transforms.flip)
            else None
        )
        self._resizes = is_picture and transforms.resize is not None
        self._planes = transforms.puts_channels_first(column)
        self._limits = None if self._affine else _limits(np.dtype(stored), self.dtype)

    @property
    def one_by_one(self) -> bool:
        """Whether each sample is converted by itself: its view may be another than that of the
        next."""
        return self._views is not None or self._resizes or self._planes

    def look(self, size: Size, place: int) -> View:
        """Return what is seen of an image or mask of a stored size (width, height): resized, and no
        more of it than the crop.

        Raises DatasetError if it is too small, or too large.
        """
        look = self._transforms.resized_view(*size)
        if self._views is not None and self._transforms.crop:
            left, top, right, bottom = self._views.box(*look.size, place)
            look = look.cropped(left, top, right - left, bottom - top)
        return self._transforms.bounded(look)

    def whole_look(self, size: Size, place: int) -> View:
        """Return the same without the crop."""
        return self._transforms.bounded(self._transforms.resized_view(*size))

    def view(self, values: Array, place: int) -> Array:
        """Return what is seen of a stored image (height, width, 3) or mask (height, width): a copy
        only where it is resized.

        Raises DatasetError as `look` does.
        """
        if self._resizes:
            from shardctl.images.codecs.image import seen

            values = seen(values, self.look((values.shape[1], values.shape[0]), place))
        return self.cut(values, place)

    def cut(self, values: Array, place: int) -> Array:
        """Return the crop of a resized image or mask, mirrored where it shall be, without a copy.
        Raises DatasetError if it is too small; what has the size of the crop stays whole."""
        return self._views.of(values, place) if self._views else values

    def converted(self, values: Array, place: int) -> Array:
        """Return the crop of a resized image or mask, converted and normalised, as a copy."""
        view = self.cut(values, place)
        out = np.empty((view.shape[2], *view.shape[:2]) if self._planes else view.shape, self.dtype)
        self.write_one(view, place, out)
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
        if self._planes:
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


class Views:
    """The part of each image that is cut out, and whether it is mirrored: drawn from (seed, epoch,
    sample)."""

    def __init__(self, transforms: Transforms, wanted: Samples) -> None:
        self._crop, self._random = transforms.crop, transforms.crop_from == "random"
        crops, flips = (
            mix64(
                wanted.numbers.astype(np.uint64)
                + np.uint64(key_of(transforms.seed, wanted.epoch, purpose))
            )
            for purpose in (_CROP, _FLIP)
        )
        # Lists of all samples: each is looked up once, and what is done for one sample at a time
        # keeps other threads waiting.
        self._downwards: list[int] = (crops & np.uint64(0xFFFFFFFF)).tolist()
        self._rightwards: list[int] = (crops >> np.uint64(32)).tolist()
        # so that 0.5 asks for the lowest bit
        lowest_first = (flips & np.uint64(1)) << np.uint64(63) | flips >> np.uint64(1)
        least_flipped = round(2**64 * (1 - transforms.flip))
        self._mirrored = (
            (lowest_first >= np.uint64(least_flipped)).tolist()
            if least_flipped < 2**64
            else [False] * len(wanted)
        )

    def box(self, width: int, height: int, place: int) -> tuple[int, int, int, int]:
        """Return what is cut out of an image of this size: (left, top, right, bottom).

        Raises DatasetError if it is too small.
        """
        if self._crop is None:
            return 0, 0, width, height
        high, wide = self._crop
        free_y, free_x = height - high, width - wide
        if free_y < 0 or free_x < 0:
            size = f"{width}x{height} (width x height)"
            raise DatasetError(
                f"{size} is too small for a crop to {wide}x{high}; give resize= too, or a smaller "
                "crop"
            )
        if self._random:
            top, left = (
                self._downwards[place] * (free_y + 1) >> 32,
                self._rightwards[place] * (free_x + 1) >> 32,
            )
        else:
            # as the step `crop` of a recipe and torchvision's CenterCrop
            top, left = round(free_y / 2), round(free_x / 2)
        return left, top, left + wide, top + high

    def mirrored(self, place: int) -> bool:
        """Return whether an image is flipped left to right."""
        return self._mirrored[place]

    def of(self, image: Array, place: int) -> Array:
        """Return that part of an image, mirrored where it shall be, without a copy. Raises
        DatasetError if it is too small."""
        if self._crop is not None:
            height, width = image.shape[:2]
            left, top, right, bottom = self.box(width, height, place)
            image = image[top:bottom, left:right]
        return image[:, ::-1] if self._mirrored[place] else image
