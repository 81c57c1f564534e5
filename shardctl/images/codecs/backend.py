"""Which imaging package is in effect, whether it works, and which formats it reads.

Pillow and Pillow-SIMD install the same folder, `PIL`. Where both are installed, the later one has
overwritten the files of the earlier, and is what is there: whole, and named by its own version. So
what is there is asked and tried, and not the list of installed packages.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import struct
import warnings
from functools import cache
from importlib.machinery import PathFinder

from shardctl.errors import InstallError

_REPAIR = "repair it with: pip install --force-reinstall --no-deps --no-cache-dir"

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what it then raises
        import PIL
        from PIL import Image, JpegImagePlugin, features
except (ImportError, AttributeError) as error:
    # missing, incomplete, or its compiled half is of another version
    _reason = " ".join(str(error).split())
    raise InstallError(
        f"the imaging package is missing or broken ({_reason}); {_REPAIR} pillow (or pillow-simd)"
    ) from error

_GREY_JPEG = bytes.fromhex(
    "ffd8" + "ffdb004300" + "01" * 64  # quantisation
    + "ffc0000b08000800080101 1100"  # 8 x 8, one component of 8 bits
    # two codes of one bit: no difference, end of block
    + "ffc400140001" + "00" * 16 + "ffc400141001" + "00" * 16
    + "ffda0008010100003f00" + "3f" + "ffd9"
)  # fmt: skip
"""A grey JPEG, 8 x 8 pixels of 128."""


@cache
def require_one() -> str:
    """Return the name and version of the imaging package that is in effect, having tried it. Raises
    InstallError."""
    # only Pillow-SIMD counts its releases so
    package = "Pillow-SIMD" if ".post" in PIL.__version__ else "Pillow"
    name, reason = f"{package} {PIL.__version__}", "it decodes to wrong pixels"
    try:
        # only this format's plugin is loaded: half a millisecond
        with JpegImagePlugin.JpegImageFile(io.BytesIO(_GREY_JPEG)) as picture:
            resized = picture.resize((4, 4), Image.Resampling.BILINEAR)
        if resized.tobytes() == bytes([128]) * 16:
            return name
    except Exception as error:  # noqa: BLE001 - whatever it is, it does not work
        reason = str(error) or type(error).__name__
    raise InstallError(f"{name} does not work ({reason}); {_REPAIR} {package.lower()}")


def libraries() -> list[str]:
    """Return what the imaging package was built with: libjpeg-turbo 2.1.5, libwebp 1.2.4, …"""
    names = {
        "jpg": "libjpeg-turbo",
        "zlib": "zlib",
        "webp": "libwebp",
        "libtiff": "libtiff",
        "jpg_2000": "OpenJPEG",
        "littlecms2": "LittleCMS",
        "avif": "libavif",
    }
    versions = {name: features.version(name) or "" for name in names if features.check(name)}
    if features.check("libjpeg_turbo"):
        # "jpg" has the version of the old library's interface
        versions["jpg"] = features.version("libjpeg_turbo") or ""
    return [f"{names[name]} {version}".strip() for name, version in versions.items()]


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
    return name in _FEATURES and not features.check(_FEATURES[name])


def guess_format(data: bytes) -> str | None:
    """Name a format by its first bytes, for the reason of a reject and for files without a telling
    name."""
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "AVIF"
    if data[4:12] in (b"ftypheic", b"ftypheix", b"ftypmif1"):
        return "HEIF"
    return None


_MAGIC = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG2000"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
    (b"qoif", "QOI"),
    (b"%!PS", "EPS"),
    (struct.pack("<I", 0xC6D3D0C5), "EPS"),
    (b"8BPS", "PSD"),
    (b"DDS ", "DDS"),
)
_PORTABLE_ANYMAP = re.compile(rb"P[1-6Ff]\s")
SNIFF_BYTES = 16
"""How much of a file `is_image` wants to see."""


def is_image(head: bytes) -> bool:
    """Return whether a file with these first bytes is of a format that may be opened."""
    return guess_format(head) in FORMATS or bool(_PORTABLE_ANYMAP.match(head))
