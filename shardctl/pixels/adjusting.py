"""The adjustments of colours by their names, several of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image

from shardctl.pixels.colour import hue, saturation
from shardctl.pixels.tables import brightness, contrast

ADJUSTMENTS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "brightness": brightness,
    "contrast": contrast,
    "saturation": saturation,
    "hue": hue,
}


def adjust(image: Image.Image, adjustments: Sequence[tuple[str, float]]) -> Image.Image:
    """Make adjustments in turn, each a name and its factor (a turn for the hue)."""
    for name, factor in adjustments:
        image = ADJUSTMENTS[name](image, factor)
    return image
