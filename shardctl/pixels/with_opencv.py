"""Colours and blur by OpenCV: faster, and with other pixels. It is used where a recipe names it, and needs the extra `opencv`.

Against our own: hue differs by at most 12, saturation, contrast and blur by 1, and brightness not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from shardctl.errors import InstallError
from shardctl.pixels.blur import gaussian_weights
from shardctl.pixels.tables import blend_table

try:
    import cv2
except ImportError as error:
    raise InstallError(f"the backend opencv cannot be imported ({error}); pip install 'shardctl[opencv]'") from None

cv2.setNumThreads(0)  # there is a process for each core already


Pixels = Any
"""(height, width, 3) uint8, RGB: OpenCV's own types do not say more."""


def adjust(image: Image.Image, adjustments: Sequence[tuple[str, float]]) -> Image.Image:
    """Make adjustments in turn, each a name (brightness, contrast, saturation, hue) and its factor or turn."""
    pixels: Pixels = np.asarray(image)
    for name, factor in adjustments:
        pixels = _ADJUSTMENTS[name](pixels, factor)
    return Image.fromarray(pixels)


def gaussian_blur(image: Image.Image, sigma: float, kernel_size: int | None = None) -> Image.Image:
    """Blur with a Gaussian of standard deviation `sigma` in pixels, cut to `kernel_size` pixels; at the edges it mirrors."""
    size = 2 * len(gaussian_weights(sigma, kernel_size)) - 1  # OpenCV does not leave out the weights that do not count
    blurred: Pixels = cv2.GaussianBlur(np.asarray(image), (size, size), sigma, borderType=cv2.BORDER_REFLECT_101)
    return Image.fromarray(blurred)


def _brightness(pixels: Pixels, factor: float) -> Pixels:
    return cv2.LUT(pixels, np.frombuffer(blend_table(0, factor), np.uint8))


def _contrast(pixels: Pixels, factor: float) -> Pixels:
    mean = cv2.mean(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))[0]
    return cv2.LUT(pixels, np.frombuffer(blend_table(int(mean + 0.5), factor), np.uint8))


def _saturation(pixels: Pixels, factor: float) -> Pixels:
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
