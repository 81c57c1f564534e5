"""Which code adjusts colours and blurs, by the name that a recipe gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image

from shardctl.images.codecs.resampling import Raster, image_of
from shardctl.images.pixels import blur
from shardctl.images.pixels.colour import hue, hue_of_pillow, saturation
from shardctl.images.pixels.tables import brightness, contrast

Adjustment = tuple[str, float]
"""brightness, contrast, saturation or hue, and the factor; for the hue the part of the circle."""

Adjust = Callable[[Raster, Sequence[Adjustment]], Raster]
Blur = Callable[[Raster, float, "int | None"], Raster]

ADJUSTERS = ("numpy", "pillow", "opencv")
BLURS = ("numpy", "opencv")


def adjust(raster: Raster, adjustments: Sequence[Adjustment]) -> Image.Image:
    """Make adjustments in turn."""
    image = image_of(raster)
    for name, factor in adjustments:
        image = _ADJUSTMENTS[name](image, factor)
    return image


def adjust_as_pillow(raster: Raster, adjustments: Sequence[Adjustment]) -> Image.Image:
    """Make adjustments in turn, the hue in Pillow's HSV: what torchvision makes of a Pillow image, bit for bit."""
    image = image_of(raster)
    for name, factor in adjustments:
        image = hue_of_pillow(image, factor) if name == "hue" else _ADJUSTMENTS[name](image, factor)
    return image


def adjuster(backend: str) -> Adjust:
    """Return what adjusts colours. Raises InstallError where OpenCV is wanted and is not there."""
    if backend == "opencv":
        from shardctl.images.pixels import with_opencv

        return with_opencv.adjust
    return adjust_as_pillow if backend == "pillow" else adjust


def blurrer(backend: str) -> Blur:
    """Return what blurs. Raises InstallError where OpenCV is wanted and is not there."""
    if backend == "opencv":
        from shardctl.images.pixels import with_opencv

        return with_opencv.gaussian_blur
    return _blur


def _blur(raster: Raster, sigma: float, kernel_size: int | None) -> Raster:
    return blur.gaussian_blur(image_of(raster), sigma, kernel_size)


_ADJUSTMENTS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "brightness": brightness,
    "contrast": contrast,
    "saturation": saturation,
    "hue": hue,
}
