"""How values are handed over: cropped, flipped, converted, normalised, padded. One pass over each, while it is in cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.errors import DatasetError, UsageError
from shardctl.order import key_of, mix64
from shardctl.reader.column import Column
from shardctl.shard import Layout

Shape = tuple[int, ...]
IMAGE = "image"
_CROP, _FLIP = 11, 12
"""What a key is for: each draws from a stream of its own."""

Normalization = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation, a number each or one per channel (the last axis)."""


@dataclass(frozen=True)
class Finish:
    """What is done to values on their way into a batch.

    `decode` False gives images as they are stored. `crop` (height, width) cuts images, from the middle or (`crop_from`
    "random") from anywhere; `flip` mirrors every other one. Both draw from (seed, epoch, sample) alone. `dtypes` converts
    columns, `normalize` gives (x - mean) / std of columns as float32 or the dtype asked for. `pad` names ragged columns of
    numbers and what to fill them up with; a column NAME_length then says how long each was.
    """

    decode: bool = True
    crop: tuple[int, int] | None = None
    crop_from: str = "center"
    flip: bool = False
    pad: Mapping[str, float] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    normalize: Mapping[str, Normalization] = field(default_factory=dict)
    seed: int = 0

    def check(self, columns: Sequence[Column], layout: Layout) -> None:
        """Raise UsageError for what cannot be done to these columns."""
        by_name = {column.name: column for column in columns}
        for option, names in (("pad", self.pad), ("dtype", self.dtypes), ("normalize", self.normalize)):
            for name in names:
                if name not in by_name:
                    raise UsageError(f"{option}: no column {name} is read; there are {', '.join(by_name)}")
        for name in self.pad:
            if by_name[name].kind != "variable" or by_name[name].dtype is None:
                raise UsageError(f"pad: {name} is not a ragged column of numbers")
        for name in (*self.dtypes, *self.normalize):
            column = by_name[name]
            if column.dtype is None and not (column.is_encoded_image and self.decode):
                raise UsageError(f"{name} holds no numbers to convert or normalise")
            if column.kind == "variable" and not column.is_encoded_image and name not in self.pad:
                raise UsageError(f"{name} is ragged; pad it to convert or normalise it")
        for name, kind in self.dtypes.items():
            try:
                known = np.dtype(kind).kind in "fiu"
            except TypeError:
                known = False
            if not known:
                raise UsageError(f"dtype {kind!r} of {name} is not a numpy type of numbers")
        for name, normalization in self.normalize.items():
            _check_normalization(name, normalization, by_name[name])
        if self.crop_from not in ("center", "random"):
            raise UsageError(f"a crop is taken from the center or from random places, not from {self.crop_from!r}")
        if self.crop or self.flip:
            self._check_image(by_name.get(IMAGE), layout)

    def _check_image(self, column: Column | None, layout: Layout) -> None:
        if column is None or not self.decode or not (column.is_encoded_image or len(column.shape) == 3):
            raise UsageError("crop and flip are for decoded images, and there are none among the columns")
        if self.crop and min(self.crop) < 1:
            raise UsageError(f"a crop to {self.crop[0]}x{self.crop[1]} is impossible")
        if self.crop and layout.shape and (self.crop[0] > layout.shape[0] or self.crop[1] > layout.shape[1]):
            raise UsageError(
                f"a crop to {self.crop[0]}x{self.crop[1]} is larger than the images, {layout.shape[0]}x{layout.shape[1]}"
            )

    def changes(self, column: Column) -> bool:
        """Tell whether values of this column are not handed over just as they are stored."""
        view = column.name == IMAGE and (self.crop is not None or self.flip)
        return view or column.name in self.dtypes or column.name in self.normalize

    def dtype(self, name: str, stored: Any) -> np.dtype[Any]:
        """Return the type that a column's numbers get."""
        return np.dtype(self.dtypes.get(name, "float32" if name in self.normalize else stored))

    def image_shape(self, stored: Shape | None) -> Shape | None:
        """Return the shape that images get; None where it is not the same for all."""
        return (*self.crop, 3) if self.crop else stored


def _check_normalization(name: str, normalization: Normalization, column: Column) -> None:
    mean, std = (np.asarray(part, np.float64) for part in normalization)
    channels = 3 if column.is_encoded_image else column.shape[-1] if column.shape else 1
    for part in (mean, std):
        if part.ndim > 1 or part.size not in (1, channels):
            raise UsageError(f"normalize: {name} takes one number or one for each of {channels} channels, not {part.tolist()}")
    if not (std != 0).all():
        raise UsageError(f"normalize: {name} has a standard deviation of 0")


class Finisher:
    """Writes the finished values of one column into a batch."""

    def __init__(self, finish: Finish, name: str, stored: Any, samples: npt.NDArray[np.int64], epoch: int) -> None:
        self.dtype = finish.dtype(name, stored)
        self._affine = _Affine(finish.normalize[name], np.dtype(stored), self.dtype) if name in finish.normalize else None
        self._views = _Views(finish, samples, epoch) if name == IMAGE and (finish.crop or finish.flip) else None

    @property
    def cuts(self) -> bool:
        """Whether a sample's view may be another than the whole of it."""
        return self._views is not None

    def view(self, values: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
        """Return the part of an image (height, width, 3) that is wanted, as it lies. Raises DatasetError for one too small."""
        return self._views.of(values, place) if self._views else values

    def finished(self, values: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
        """Return the wanted part of an image, converted and normalised, in memory of its own."""
        view = self.view(values, place)
        out = np.empty(view.shape, self.dtype)
        self.write(view, out)
        return out

    def write(self, values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Convert and normalise `values` into `out`, of the same shape and in one piece."""
        if self._affine is None:
            _copy(values, out)
        else:
            self._affine.write(values, out)


class _Affine:
    """(x - mean) / std, as x * scale + shift."""

    def __init__(self, normalization: Normalization, stored: np.dtype[Any], wanted: np.dtype[Any]) -> None:
        mean, std = (np.asarray(part, np.float64) for part in normalization)
        exact = wanted if wanted.kind == "f" else np.float32
        self._work = np.result_type(stored, exact, np.float32)
        self._scale, self._shift = (part.astype(self._work) for part in np.broadcast_arrays(1 / std, -mean / std))
        self._rows: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}

    def write(self, values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        work = out if out.dtype == self._work else np.empty(out.shape, self._work)
        _copy(values, work)
        # A row of an image at a time: numpy is ten times as slow where it takes up a few channels at a time.
        in_rows = self._scale.size > 1 and work.ndim > 1
        rows = work.reshape(*work.shape[:-2], work.shape[-2] * work.shape[-1]) if in_rows else work
        scale, shift = self._repeated(rows.shape[-1])
        np.multiply(rows, scale, out=rows)
        np.add(rows, shift, out=rows)
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
    """Which part of each image is wanted: drawn from (seed, epoch, sample)."""

    def __init__(self, finish: Finish, samples: npt.NDArray[np.int64], epoch: int) -> None:
        self._crop, self._random = finish.crop, finish.crop_from == "random"
        self._draws = [self._draw(finish.seed, epoch, purpose, samples) for purpose in (_CROP, _FLIP)]
        self._flip = finish.flip

    def _draw(self, seed: int, epoch: int, purpose: int, samples: npt.NDArray[np.int64]) -> list[int]:
        drawn: list[int] = mix64(samples.astype(np.uint64) + np.uint64(key_of(seed, epoch, purpose))).tolist()
        return drawn

    def of(self, image: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
        if self._crop:
            free_y, free_x = image.shape[0] - self._crop[0], image.shape[1] - self._crop[1]
            if free_y < 0 or free_x < 0:
                raise DatasetError(
                    f"an image of {image.shape[0]}x{image.shape[1]} is too small for a crop to {self._crop[0]}x{self._crop[1]}"
                )
            top, left = free_y // 2, free_x // 2
            if self._random:
                draw = self._draws[0][place]
                top, left = (draw & 0xFFFFFFFF) * (free_y + 1) >> 32, (draw >> 32) * (free_x + 1) >> 32
            image = image[top : top + self._crop[0], left : left + self._crop[1]]
        return image[:, ::-1] if self._flip and self._draws[1][place] & 1 else image
