"""Images on their way out: what they are by their first bytes, and raw pixels that are encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from shardctl.errors import InputError, Rejection, UsageError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Mask, Role
from shardctl.interop.exports.arrays import pixels_of

_SUFFIXES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"\0\0\0\x0cjP  ", "jp2"),
    (b"qoif", "qoi"),
    (b"\0\0\1\0", "ico"),
    *((b"P%d" % number, suffix) for number, suffix in enumerate(("pbm", "pgm", "ppm") * 2, 1)),
)
OTHER = "img"
"""The suffix of an image of a format that its first bytes do not tell."""


def suffix_of(data: bytes | memoryview) -> str:
    """Return the suffix of an encoded image by its first bytes, without a dot: jpg, png, webp, …;
    `img` if they do not tell."""
    start = bytes(data[:12])
    for magic, suffix in _SUFFIXES:
        if start.startswith(magic):
            return suffix
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    return "avif" if start[4:12] in (b"ftypavif", b"ftypavis") else OTHER


def suffixes_in(array: pa.Array) -> set[str]:
    """Return the suffixes of the images in a column of encoded images."""
    return {suffix_of(memoryview(data.as_buffer())) for data in array.field(0) if data.is_valid}


@dataclass(frozen=True)
class Recoding:
    """How raw images are stored: `keep` as arrays, `png`, or `jpeg:Q`. Masks are never JPEG, which
    changes numbers."""

    name: str

    @classmethod
    def parse(cls, text: str | None) -> Recoding | None:
        """Read a choice, None for none. Raises UsageError."""
        if text is None:
            return None
        name, _, quality = text.partition(":")
        if text in ("keep", "png"):
            return cls(text)
        if name == "jpeg" and (
            text == "jpeg"
            or (quality.isascii() and quality.isdecimal() and 1 <= int(quality) <= 100)
        ):
            return cls(f"jpeg:{int(quality or 90)}")
        raise UsageError(
            f"--store {text!r} is not known; use keep, png or jpeg:QUALITY, with a quality of 1 to "
            "100"
        )

    def form_of(self, type_: pa.DataType, role: Role | None) -> str:
        """Return the form in which a column of raw images is written: `png`, `jpeg:Q`, or `value`
        for arrays as they are."""
        if self.name == "keep" or type_.value_type not in (pa.uint8(), pa.uint16()):
            return "value"
        return "png" if isinstance(role, Mask) else self.name


def upright(array: pa.Array, is_mask: bool) -> tuple[pa.Array, int]:
    """Return a column of encoded images without those that EXIF turns, and how many these were:
    their pixels are turned.

    Not every reader looks at EXIF, and what is marked in an image fits it upright. Raises
    InputError for a broken image.
    """
    from shardctl.images.codecs.image import decode_mask, mask_png, without_turn

    made = dict[int, bytes]()
    for row, data in enumerate(array.field("bytes")):
        if (given := data.as_py()) is None:
            continue
        try:
            if (turned := without_turn(given)) is not None:
                made[row] = mask_png(decode_mask(given), given) if is_mask else turned
        except Rejection as fault:
            raise InputError(f"an image {fault.message}") from fault
    if not made:
        return array, 0
    rows = array.to_pylist()
    for row, found in made.items():
        rows[row]["bytes"] = found
    return pa.array(rows, array.type), len(made)


def encoder(form: str) -> Callable[[pa.Array], pa.Array]:
    """Return what encodes a column of raw images: as `png` or `jpeg:Q`."""
    # Pillow, which datasets without images do not need
    from shardctl.images.codecs.image import ImageEncoding

    store = ImageEncoding.parse(form)

    def encode(array: pa.Array) -> pa.Array:
        """Encode every image: struct<bytes, path>, the path missing. Raises InputError for one that
        cannot be."""
        try:
            encoded = [
                None if pixels is None else store.encode(pixels) for pixels in pixels_of(array)
            ]
        except Rejection as fault:
            raise InputError(f"an image {fault.message}") from fault
        children = [pa.array(encoded, pa.binary()), pa.nulls(len(encoded), pa.string())]
        missing = (
            pa.array([each is None for each in encoded], pa.bool_()) if None in encoded else None
        )
        return pa.StructArray.from_arrays(children, fields=list(ENCODED_IMAGE), mask=missing)

    return encode
