"""The arguments of Dataset.loader, made into options."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shardctl.errors import UsageError
from shardctl.images.object_geometry import CENTRE
from shardctl.system.arguments import real_number, whole_number

if TYPE_CHECKING:
    from shardctl.transforms.image.resize import Resize


def cache_bytes(cache: Any) -> int:
    """Return a number of bytes."""
    size = int(real_number("cache", cache))
    if size < 0:
        raise UsageError(f"cache must be a number of bytes, 0 or more; it is {size}")
    return size


def crop_size(crop: Any) -> tuple[int, int] | None:
    """Return (height, width) from one number, from two, or from "WIDTHxHEIGHT"."""
    if crop is None:
        return None
    size = _size("crop", crop)
    return (size, size) if isinstance(size, int) else size


def _size(option: str, value: Any) -> int | tuple[int, int]:
    """Return one number, or (height, width)."""
    if isinstance(value, str):
        from shardctl.transforms.settings import Sides

        try:
            parsed = Sides().read(value)
        except ValueError as error:
            raise UsageError(f"{option} {error}; it is {value!r}") from None
        return parsed if isinstance(parsed, int) else parsed[::-1]
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise UsageError(f"{option} takes one number or (height, width); it is {value!r}")
        height, width = (whole_number(option, side) for side in value)
        return height, width
    return whole_number(option, value)


def resize_step(resize: Any) -> Resize | None:
    """Return the same transform as in a conversion, where width comes before height."""
    if resize is None:
        return None
    from shardctl.transforms.image.resize import Resize  # 20 ms, which most loaders never need

    size = _size("resize", resize)
    step: Resize = Resize.parse(size=size if isinstance(size, int) else size[::-1])
    return step


def kept_objects(keep: Any) -> float | str:
    """Return the share of an object that must be inside of a moved image, or "center"."""
    if isinstance(keep, str) and keep == CENTRE:
        return keep
    share = math.nan if isinstance(keep, str) else real_number("keep_objects", keep)
    if not 0 <= share <= 1:
        raise UsageError(f"keep_objects is a share of the area from 0 to 1, or 'center'; it is {keep!r}")
    return share


def probability(flip: Any) -> float:
    """Return the probability of mirroring an image."""
    if isinstance(flip, bool | np.bool_):
        return 0.5 if flip else 0.0
    share = real_number("flip", flip)
    if not 0 <= share <= 1:
        raise UsageError(f"flip is True (for half of the images), or a probability from 0 to 1; it is {flip!r}")
    return share
