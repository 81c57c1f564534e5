"""The image formats that may be opened, and those of them that the installed Pillow reads. No
pixels, and no numpy."""

from __future__ import annotations

import contextlib
import importlib
from functools import cache
from importlib.machinery import PathFinder

import PIL
from PIL import Image

COMMON_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM")
"""Formats that Pillow reads from the start. An MPO is opened as a JPEG."""

_PLUGINS = {
    "WEBP": "WebPImagePlugin",
    "TIFF": "TiffImagePlugin",
    "JPEG2000": "Jpeg2KImagePlugin",
    "AVIF": "AvifImagePlugin",
    "ICO": "IcoImagePlugin",
    "QOI": "QoiImagePlugin",
    # the last: nothing marks a TGA, and Pillow takes an ICO for one whose first picture has 70 kB
    "TGA": "TgaImagePlugin",
}
FORMATS = (*COMMON_FORMATS, *_PLUGINS)
"""Formats that may be opened. Never EPS, for which Pillow starts Ghostscript."""

_FEATURES = {
    "JPEG": "jpg",
    "PNG": "zlib",
    "TIFF": "libtiff",
    "WEBP": "webp",
    "JPEG2000": "jpg_2000",
    "AVIF": "avif",
}
"""Formats that Pillow reads whole only if it was built with a library (TIFF: any compression), and
what Pillow calls that."""


def readable_formats() -> tuple[list[str], list[str]]:
    """Return the formats of FORMATS that this build of Pillow can read, and those that it cannot.

    Plugins are only looked for: to import them takes 8 ms, a tenth of `shardctl --version`
    (measured 2026-11-27).
    """
    there = [
        name
        for name, plugin in _PLUGINS.items()
        if PathFinder.find_spec(f"PIL.{plugin}", PIL.__path__)
    ]
    readable = [name for name in (*COMMON_FORMATS, *there) if not lacks_library(name)]
    return readable, [name for name in FORMATS if name not in readable]


@cache
def other_formats() -> tuple[str, ...]:
    """Return the rarer formats that this build reads.

    Their plugins are loaded only where one is met, and not those of formats that are never opened:
    all take 40 ms.
    """
    for plugin in _PLUGINS.values():
        with contextlib.suppress(ImportError):  # an older Pillow
            importlib.import_module(f"PIL.{plugin}")
    return tuple(name for name in _PLUGINS if name in Image.OPEN)


def lacks_library(name: str) -> bool:
    """Return whether this build of Pillow cannot read a format because it was built without the
    library for it."""
    from PIL import features

    return name in _FEATURES and not features.check(_FEATURES[name])
