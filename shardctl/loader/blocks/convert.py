"""The values of one column, transformed on their way into a batch: one pass over each value, while
it is in cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardctl.format.arrays import Array, DType
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.transforms import Normalization, Transforms, range_of


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
