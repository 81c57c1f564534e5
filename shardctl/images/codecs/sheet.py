"""Small pictures of images, and many of them on one sheet."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, features
from PIL.PngImagePlugin import PngInfo

from shardctl.images.codecs.image import Pixels, open_image, render
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.geometry import Size, View
from shardctl.system.files import OutputFileType

SHEET = OutputFileType(
    "sheet", lambda begin: begin.startswith(b"\x89PNG") and b"tEXtSoftware\0shardctl" in begin[:200]
)
"""A contact sheet, as a file."""

_LINE = 14
"""Height of a line below a picture, in pixels."""

_PAPER, _INK, _MISSING = (255, 255, 255), (40, 40, 40), (200, 60, 60)


def shrink(image: bytes | npt.NDArray[Any], side: int) -> Pixels:
    """Return an image no larger than `side` on either side: an encoded one, pixels (height, width,
    3) uint8, or a raw mask.

    Raises Rejection (stage `decode`) where it does not decode.
    """
    if isinstance(image, bytes):
        opened = open_image(image, MAX_PIXELS)
        return render(opened, View.whole(opened.size).scaled(within(opened.size, side)))
    picture = Image.fromarray(np.ascontiguousarray(image if image.ndim == 3 else _as_grey(image)))
    return np.asarray(picture.resize(within(picture.size, side), Image.Resampling.BILINEAR))


def size_of(image: bytes | npt.NDArray[Any]) -> Size:
    """Return the width and height of an upright image, or of pixels. Raises Rejection where the
    header cannot be read."""
    return (
        open_image(image, MAX_PIXELS).size
        if isinstance(image, bytes)
        else (image.shape[1], image.shape[0])
    )


def enlarge(pixels: Pixels, side: int) -> Pixels:
    """Return a small picture in its size times a whole number, no larger than `side`, to draw on.
    Others stay."""
    factor = side // max(pixels.shape[:2])
    return pixels if factor < 2 else np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1)


def _as_grey(mask: npt.NDArray[Any]) -> Pixels:
    """Return a raw mask (height, width) of any integer type as grey: its smallest number black, its
    largest white."""
    least, most = int(mask.min()), int(mask.max())
    grey: Pixels = ((mask - float(least)) * (255 / max(1, most - least))).astype(np.uint8)
    return grey


def within(size: Size, side: int) -> Size:
    """Return a size no larger than `side` on either side, of the same shape."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def jpeg(pixels: Pixels, quality: int = 80, fine_colours: bool = False) -> bytes:
    """Return pixels as JPEG; `fine_colours` keeps thin lines of a colour sharp, and makes it
    larger."""
    target = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(
        target, "JPEG", quality=quality, subsampling=0 if fine_colours else 2
    )
    return target.getvalue()


def small_file(pixels: Pixels, quality: int, exact: bool = False) -> tuple[str, bytes]:
    """Return pixels as a small file for a page, and its type: WebP, or what Pillow has if it was
    built without.

    Of four channels the last says how much they hide. `exact` keeps every pixel as it is, and so do
    four channels.
    """
    picture, target = Image.fromarray(np.ascontiguousarray(pixels)), io.BytesIO()
    exact = exact or picture.mode != "RGB"
    if features.check("webp"):
        picture.save(target, "WEBP", lossless=exact, quality=quality, method=4)
        return "webp", target.getvalue()
    if exact:
        picture.save(target, "PNG")
        return "png", target.getvalue()
    return "jpeg", jpeg(pixels, quality)


def contact_sheet(
    pictures: Iterable[tuple[Pixels | None, Sequence[str]]], columns: int, side: int
) -> bytes:
    """Return pictures, no larger than `side`, in rows of `columns` with lines below each, as PNG.
    None is drawn as a cross."""
    cells = list(pictures)
    rows, lines = (
        max(1, -(-len(cells) // columns)),
        max((len(caption) for _, caption in cells), default=0),
    )
    height = side + 6 + lines * _LINE
    sheet = Image.new("RGB", (columns * (side + 4), rows * height), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for number, (pixels, caption) in enumerate(cells):
        left, top = number % columns * (side + 4) + 2, number // columns * height + 2
        if pixels is None:
            draw.line((left, top, left + side, top + side), fill=_MISSING)
            draw.line((left, top + side, left + side, top), fill=_MISSING)
        else:
            picture = Image.fromarray(np.ascontiguousarray(pixels))
            sheet.paste(
                picture, (left + (side - picture.width) // 2, top + (side - picture.height) // 2)
            )
        for line, text in enumerate(caption):
            shown = _fitting(text, side, font, keep_end=line == len(caption) - 1)
            draw.text((left, top + side + 2 + line * _LINE), shown, fill=_INK, font=font)
    target = io.BytesIO()
    made_by = PngInfo()
    made_by.add_text("Software", "shardctl")
    sheet.save(target, "PNG", pnginfo=made_by)
    return target.getvalue()


def _fitting(
    caption: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, keep_end: bool
) -> str:
    """Return as much of a line as fits. Of a key that is the end: keys begin alike. The font knows
    only Latin."""
    shown = caption.encode("latin-1", "replace").decode("latin-1")
    while shown and font.getlength(shown) > width:
        shown = shown[1:] if keep_end else shown[:-1]
    return shown
