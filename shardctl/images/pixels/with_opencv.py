"""Colours and blur by OpenCV: faster, and with other pixels. It is used where a recipe names it, and needs the extra `opencv`.

Against our own: hue differs by at most 12, saturation, contrast and blur by 1, and brightness not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from shardctl.images.codecs.opencv import Pixels, pixels_of  # it says what to do where OpenCV is missing
from shardctl.images.codecs.resampling import Raster
from shardctl.images.pixels.blur import gaussian_weights
from shardctl.images.pixels.tables import blend_table

import cv2  # isort: skip

CUT = 0.4998
"""What is taken away from a value so that rounding it cuts its fraction off."""

LUMA = np.array([0.299, 0.587, 0.114])
"""Shares of red, green and blue in the grey value: ITU-R 601-2."""

MOST_BY_MATRIX = 2.0
"""Largest factor of the saturation that is done by a matrix, in half of the time: its grey is not rounded, 1 apart at most."""

_RAMP = np.arange(256, dtype=np.uint8)


def adjust(raster: Raster, adjustments: Sequence[tuple[str, float]]) -> Raster:
    """Make adjustments in turn, each a name (brightness, contrast, saturation, hue) and its factor or turn."""
    pixels = pixels_of(raster)
    for name, factor in adjustments:
        pixels = _ADJUSTMENTS[name](pixels, factor)
    return _made(pixels)


def gaussian_blur(raster: Raster, sigma: float, kernel_size: int | None = None) -> Raster:
    """Blur with a Gaussian of standard deviation `sigma` in pixels, cut to `kernel_size` pixels; at the edges it mirrors."""
    size = 2 * len(gaussian_weights(sigma, kernel_size)) - 1  # OpenCV does not leave out the weights that do not count
    return _made(cv2.GaussianBlur(pixels_of(raster), (size, size), sigma, borderType=cv2.BORDER_REFLECT_101))


def _made(pixels: Pixels) -> npt.NDArray[np.uint8]:
    array: npt.NDArray[np.uint8] = pixels
    return array


def _brightness(pixels: Pixels, factor: float) -> Pixels:
    return _blended(pixels, 0, factor)


def _contrast(pixels: Pixels, factor: float) -> Pixels:
    mean = cv2.mean(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))[0]
    return _blended(pixels, int(mean + 0.5), factor)


def _blended(pixels: Pixels, grey: int, factor: float) -> Pixels:
    """Map pixels by the table of a blend with one value; by a sum where that does the same to all 256: in half of the time."""
    table, shift = blend_table(grey, factor), (1 - factor) * grey - CUT
    if cv2.addWeighted(_RAMP, factor, _RAMP, 0, shift).tobytes() == table:
        return cv2.addWeighted(pixels, factor, pixels, 0, shift)
    return cv2.LUT(pixels, np.frombuffer(table, np.uint8))


def _saturation(pixels: Pixels, factor: float) -> Pixels:
    if factor <= MOST_BY_MATRIX:
        return cv2.transform(pixels, factor * np.eye(3) + (1 - factor) * LUMA)
    grey = cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(pixels, factor, grey, 1 - factor, 0)


def _hue(pixels: Pixels, turn: float) -> Pixels:
    turned = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV_FULL)
    height, width = turned.shape[:2]
    row = np.tile(np.array([round(turn * 256) % 256, 0, 0], np.uint8), width)
    turned.reshape(height, width * 3)[:] += row  # whole rows: a quarter of the time of every third value; overflow is wanted
    return cv2.cvtColor(turned, cv2.COLOR_HSV2RGB_FULL)


_ADJUSTMENTS: dict[str, Callable[[Pixels, float], Pixels]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "saturation": _saturation,
    "hue": _hue,
}
