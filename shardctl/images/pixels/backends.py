"""Which code adjusts colours and blurs, by the name that a recipe gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image

from shardctl.images.pixels.colour import hue, hue_of_pillow, saturation
from shardctl.images.pixels.tables import brightness, contrast

Adjustment = tuple[str, float]
"""brightness, contrast, saturation or hue, and the factor; for the hue the part of the circle."""

BACKENDS = ("numpy", "pillow")


def adjust(
    image: Image.Image, adjustments: Sequence[Adjustment], backend: str = "numpy"
) -> Image.Image:
    """Make adjustments in turn; by `pillow` the hue in its HSV: what torchvision makes of a Pillow
    image, bit for bit."""
    for name, factor in adjustments:
        by_pillow = name == "hue" and backend == "pillow"
        image = (hue_of_pillow if by_pillow else _ADJUSTMENTS[name])(image, factor)
    return image


_ADJUSTMENTS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "brightness": brightness,
    "contrast": contrast,
    "saturation": saturation,
    "hue": hue,
}
