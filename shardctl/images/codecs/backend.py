"""Which imaging package is in effect, and whether it works.

Pillow and Pillow-SIMD install the same folder, `PIL`. Where both are installed, the later one has
overwritten the files of the earlier, and is what is there: whole, and named by its own version. So
what is there is asked and tried, and not the list of installed packages.
"""

from __future__ import annotations

import io
import warnings
from functools import cache

from shardctl.errors import InstallError

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what it then raises
        from PIL import Image, JpegImagePlugin, __version__
except (ImportError, AttributeError) as error:
    # missing, incomplete, or its compiled half is of another version
    _reason = " ".join(str(error).split())
    raise InstallError(
        f"the imaging package is missing or broken ({_reason}); repair it with:"
        " pip install --force-reinstall --no-deps --no-cache-dir pillow (or pillow-simd)"
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
    name = f"{'Pillow-SIMD' if '.post' in __version__ else 'Pillow'} {__version__}"
    try:
        works = _works()
    except Exception as error:
        raise InstallError(_broken(name, str(error) or type(error).__name__)) from error
    if not works:
        raise InstallError(_broken(name, "it decodes to wrong pixels"))
    return name


def _works() -> bool:
    """Return whether a small JPEG is decoded and resized well. Only this format's plugin is loaded:
    half a millisecond."""
    with JpegImagePlugin.JpegImageFile(io.BytesIO(_GREY_JPEG)) as picture:
        resized = picture.resize((4, 4), Image.Resampling.BILINEAR)
    return resized.tobytes() == bytes([128]) * 16


def _broken(name: str, reason: str) -> str:
    package = name.split()[0].lower()
    return (
        f"{name} does not work ({reason}); repair it with: pip install --force-reinstall "
        f"--no-deps --no-cache-dir {package}"
    )


def libraries() -> list[str]:
    """Return what the imaging package was built with: libjpeg-turbo 2.1.5, libwebp 1.2.4, …"""
    from PIL import features

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
