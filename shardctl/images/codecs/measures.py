"""What can be measured of an image: how sharp it is, how uniform, when it was taken, and hashes of
what it looks like.

The pictures that are given are upright RGB. They may be larger than what is measured needs, and
come from a JPEG that was decoded at a smaller scale: `SHARPNESS_SIDE` and `HASH_SIDE` say from
which size on that is no difference to speak of.
"""

from __future__ import annotations

import io
import math
from contextlib import suppress
from datetime import datetime

import numpy as np
from PIL import Image

from shardctl.format.arrays import Bytes
from shardctl.images.codecs.image import Opened, png_metadata
from shardctl.images.geometry import Values

MEASURED_SIDE = 256
"""Short side, in pixels, at which sharpness and contrast are measured: they depend on the size of
what is looked at."""

SHARPNESS_SIDE = 2 * MEASURED_SIDE
"""Least side of the picture that `blur_score` and `uniformity` are to be given, where the image is
that large."""

HASH_SIDE = 64
"""Least side of the picture that hashes are to be given, where the image is that large."""

LEAST_CONTRAST = 4.0
"""Standard deviation of grey below which `phash` gives nothing: what it compares would be the noise
of an empty surface."""

_GRID = 32
_LOW = 8
_SCALE = 1 << 14

_EXIF_BLOCK, _DATE_TIME, _DATE_TIME_ORIGINAL = 0x8769, 0x0132, 0x9003
"""EXIF tags: where the block of the camera's own tags is, when the file was changed, and when the
picture was taken."""


_ROW, _COLUMN = np.arange(_LOW)[:, None], np.arange(_GRID)[None, :]
_COSINES = np.rint(np.cos(np.pi * (2 * _COLUMN + 1) * _ROW / (2 * _GRID)) * _SCALE).astype(np.int64)
"""The first rows of the matrix of a discrete cosine transform, in whole numbers: (8, 32)."""


def blur_score(picture: Image.Image) -> float:
    """Return the variance of the Laplacian of the grey values: low where an image is blurred. It
    has no unit.

    The image is first brought to a short side of 256 pixels, unless it is smaller. Photos that are
    sharp have some 100 and more, of the smooth ones among them some have less.
    """
    grey = _measured_grey(picture).astype(np.int16)
    if min(grey.shape) < 3:
        return 0.0
    inner = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * inner
    return _variance(laplacian)


def uniformity(picture: Image.Image) -> float:
    """Return the standard deviation of the grey values, 0 to 127.5: low where an image shows hardly
    anything.

    The image is first brought to a short side of 256 pixels, unless it is smaller.
    """
    return math.sqrt(_variance(_measured_grey(picture)))


def phash(picture: Image.Image) -> int | None:
    """Return a 64-bit hash of what an image looks like: of the same picture in another size,
    encoding, shape or brightness most bits are the same. None for an image without contrast.

    Each bit says whether one of the 64 lowest frequencies (discrete cosine transform of 32 x 32
    grey values) is above their median. All of it is done in whole numbers: other libraries for
    matrices round in other ways.
    """
    grey = _grey(picture, (_GRID, _GRID))
    if grey.std() < LEAST_CONTRAST:
        return None
    frequencies = _COSINES @ grey.astype(np.int64) @ _COSINES.T
    bits = np.packbits(frequencies > np.median(frequencies))
    return int.from_bytes(bits.tobytes(), "big")  # the first one is its highest bit


def taken_at(opened: Opened) -> datetime | None:
    """Return when an image was taken, as its EXIF block says (DateTimeOriginal, else DateTime),
    without a time zone.

    None where there is no such date, or one that is none, such as 0000:00:00 00:00:00.
    """
    try:
        data = png_metadata(opened.data) if opened.format == "PNG" else opened.data
        if data is None:
            return None
        exif = Image.Image.getexif(Image.open(io.BytesIO(data), formats=(opened.format,)))
        dates = exif.get_ifd(_EXIF_BLOCK).get(_DATE_TIME_ORIGINAL), exif.get(_DATE_TIME)
    except Exception:  # noqa: BLE001 - a damaged EXIF block says nothing, whatever it makes its reader raise
        return None
    for date in dates:
        text = date.decode("ascii", "replace") if isinstance(date, bytes) else str(date)
        with suppress(ValueError):
            return datetime.strptime(text.strip("\0 "), "%Y:%m:%d %H:%M:%S")
    return None


def _variance(values: Values) -> float:
    """Return the variance of whole numbers up to 2^15: from exact sums, in a quarter of the time of
    numpy's own."""
    total = int(values.sum(dtype=np.int64))
    squares = int(np.square(values, dtype=np.int32).sum(dtype=np.int64))
    return (squares - total * total / values.size) / values.size


def _measured_grey(picture: Image.Image) -> Bytes:
    width, height = picture.size
    scale = MEASURED_SIDE / min(width, height)
    return _grey(
        picture, picture.size if scale >= 1 else (round(width * scale), round(height * scale))
    )


def _grey(picture: Image.Image, size: tuple[int, int]) -> Bytes:
    """Return grey values at a size (width, height): (height, width) uint8."""
    grey = picture.convert("L")
    return np.asarray(grey if grey.size == size else grey.resize(size, Image.Resampling.BILINEAR))
