"""Images as OpenCV has them, and stages of geometry done by it: faster, and with slightly other pixels (docs/recipes.md).

It is used where a recipe names it, and needs the extra `opencv`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from shardctl.errors import InstallError
from shardctl.images.codecs import resampling
from shardctl.images.codecs.resampling import (
    WARP_DENSITY,
    Field,
    Raster,
    box_in_pixels,
    image_of,
    size_of,
    smoothing,
    warp_source,
)
from shardctl.images.geometry import Displacement, Matrix, Pad, Size, Stage, View, Warp, moving
from shardctl.system.packages import to_install

try:
    import cv2
except ImportError as error:
    raise InstallError(f"the backend opencv cannot be imported ({error}); pip install {to_install('opencv')}") from None

cv2.setNumThreads(0)  # there is a process for each core already

Pixels = Any
"""(height, width, 3) uint8, RGB: OpenCV's own types do not say more."""

VERSION: str = cv2.__version__

LONGEST = 32_766
"""Longest side, in pixels, of images that OpenCV warps: it counts them in 16 bits."""

_TO_CENTRES, _TO_CORNERS = moving(-0.5, -0.5), moving(0.5, 0.5)
"""OpenCV counts from the centre of the first pixel, we from its corner."""


def pixels_of(raster: Raster) -> Pixels:
    """Return an RGB image as an array that is its own, or the array that it is."""
    return raster if isinstance(raster, np.ndarray) else _without_fourth(_with_fourth(raster))


def resampled(raster: Raster, stage: Stage, size: Size | None = None) -> Raster:
    """Return what a stage makes of an RGB image, as `codecs.resampling.resampled` does. Other pixels come from

    - views that take whole pixels and have at most 1.5 of them for each of the output, on a side: four pixels are interpolated,
    - warps and displacements that interpolate: what lies beyond the edge of the image is mixed with `fill`, not cut hard.

    All else is Pillow's, which is as fast there.
    """
    have = size_of(raster)
    if isinstance(stage, View):
        return _viewed(raster, stage, size or have)
    if isinstance(stage, Pad):
        below, right = stage.size[1] - stage.top - have[1], stage.size[0] - stage.left - have[0]
        edges = (stage.top, below, stage.left, right)
        return _array(cv2.copyMakeBorder(pixels_of(raster), *edges, cv2.BORDER_CONSTANT, value=stage.fill))
    if stage.nearest or max(*have, *stage.size) > LONGEST:
        return resampling.resampled(image_of(raster), stage, size)
    if isinstance(stage, Warp):
        return _warped(raster, stage, size or have)
    return _displaced(pixels_of(raster), stage)


def smoothed(field: Field, sigma: float) -> Field:
    """Return a field blurred as `codecs.resampling.smoothed` does; sums are rounded otherwise."""
    weights = smoothing(sigma)
    blurred: Field = cv2.sepFilter2D(field, -1, weights, weights, borderType=cv2.BORDER_REFLECT_101)
    return blurred


def _viewed(raster: Raster, view: View, size: Size) -> Raster:
    have = size_of(raster)
    box = box_in_pixels(view.box, have, size)
    whole = left, top, right, bottom = round(box[0]), round(box[1]), round(box[2]), round(box[3])
    cut = (right - left, bottom - top)
    if box != whole or (cut != view.size and max(cut[0] / view.size[0], cut[1] / view.size[1]) > WARP_DENSITY):
        return _flipped(resampling.resampled(image_of(raster), View(view.box, view.size), size), view)
    if cut == view.size == have:
        return _flipped(raster, view)
    part = (raster if isinstance(raster, np.ndarray) else _with_fourth(raster))[top:bottom, left:right]
    if cut != view.size:
        part = cv2.resize(part, view.size, interpolation=cv2.INTER_LINEAR)
    return _flipped(_without_fourth(part), view)


def _flipped(raster: Raster, view: View) -> Raster:
    if not (view.flip or view.vflip):
        return raster
    axis = -1 if view.flip and view.vflip else int(view.flip)
    return _array(cv2.flip(pixels_of(raster), axis))


def _warped(raster: Raster, warp: Warp, size: Size) -> Raster:
    source = warp_source(warp, size_of(raster), size)
    if source is None:
        return _array(np.full((warp.size[1], warp.size[0], 3), warp.fill, np.uint8))
    view, to_view = source
    pixels = pixels_of(raster if view is None else _viewed(raster, view, size))
    matrix: Matrix = _TO_CENTRES @ to_view @ _TO_CORNERS
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    how: dict[str, Any] = {"flags": flags, "borderMode": cv2.BORDER_CONSTANT, "borderValue": warp.fill}
    if warp.is_affine:
        return _array(cv2.warpAffine(pixels, matrix[:2], warp.size, **how))
    return _array(cv2.warpPerspective(pixels, matrix, warp.size, **how))


def _displaced(pixels: Pixels, stage: Displacement) -> Raster:
    width, height = stage.size
    x, y = stage.x + np.arange(width, dtype=np.float32), stage.y + np.arange(height, dtype=np.float32)[:, None]
    return _array(cv2.remap(pixels, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=stage.fill))


def _with_fourth(image: Image.Image) -> Pixels:
    """Return the memory of an RGB image, (height, width, 4) uint8, whose fourth value means nothing. It must not be changed.

    Where Pillow cannot lend it (before version 11.2, or large images that lie in several parts): a copy, with three values.
    Its own way to an array takes 45 microseconds at 224 pixels, this one 5.
    """
    if not hasattr(image, "__arrow_c_array__"):
        return np.asarray(image)
    try:
        lent = pa.array(image)
    except ValueError:
        return np.asarray(image)
    return np.frombuffer(lent.values.buffers()[1], np.uint8).reshape(image.height, image.width, 4)


def _without_fourth(pixels: Pixels) -> npt.NDArray[np.uint8]:
    if pixels.shape[2] == 4:
        return _array(cv2.cvtColor(pixels, cv2.COLOR_RGBA2RGB))
    return np.ascontiguousarray(pixels)


def _array(pixels: Pixels) -> npt.NDArray[np.uint8]:
    made: npt.NDArray[np.uint8] = pixels
    return made
