"""Encoded images to upright RGB pixels, and RGB pixels to encoded images. The rules are in
docs/images.md.

Speed (docs/dev/measurements.md): libjpeg decodes JPEG at the smallest scale that still has
twice the pixels that the output needs (`draft`), and the crop is resampled straight out of it
(images/codecs/resampling.py), each pixel touched once.
"""

from __future__ import annotations

import io
import math
import os
import struct
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, JpegImagePlugin, UnidentifiedImageError

from shardctl.errors import Rejection, UsageError, is_of_bytes
from shardctl.format.arrays import Bytes
from shardctl.images.codecs import backend
from shardctl.images.codecs.backend import (
    COMMON_FORMATS,
    FORMATS,
    guess_format,
    lacks_library,
    other_formats,
)
from shardctl.images.codecs.deep_gray import MODES, GrayRange, lost_extent, to_8_bits
from shardctl.images.codecs.jpeg import JpegHeader, decode_lossless, decodes_whole, jpeg_header
from shardctl.images.codecs.resampling import least_scale, resampled, resampled_mask
from shardctl.images.defaults import MAX_PIXELS
from shardctl.images.geometry import Look, Size, Values, View
from shardctl.system.text import did_you_mean

Pixels = Bytes
"""(height, width, 3) uint8, RGB."""

DRAFT_MARGIN = 2
"""Pixels per output pixel, on each side, that a scaled JPEG decode must leave for the resampling
filter."""

_PALETTE_WITH_ALPHA = frozenset(("RGBA", "LA", "PA", "La", "RGBa"))
_OUR_ERRORS = (Rejection, KeyboardInterrupt, SystemExit, MemoryError)

_JPEG = frozenset(("JPEG", "MPO"))

_ORIENTATION, _TIFF_WIDTH, _TIFF_HEIGHT = 0x0112, 0x0100, 0x0101
"""TIFF tags, which EXIF uses too."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image of an EXIF orientation upright."""


class _TruncationSwitch:
    """Pillow's switch for truncated images: one for the whole process, with no way to set it for
    one image.

    Threads that want the same setting decode at the same time, the others wait. It is set back when
    none decodes, so that the program around shardctl keeps its own setting.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._setting = self._before = False

    @contextmanager
    def set_to(self, setting: bool) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._users or self._setting == setting)
            if not self._users:
                self._before = ImageFile.LOAD_TRUNCATED_IMAGES
                ImageFile.LOAD_TRUNCATED_IMAGES = self._setting = setting
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                if not self._users:
                    ImageFile.LOAD_TRUNCATED_IMAGES = self._before
                    self._changed.notify_all()

    def renew(self) -> None:
        """Forget the threads that decode: in a forked child they are not there, and may have held
        the lock."""
        if self._users:
            ImageFile.LOAD_TRUNCATED_IMAGES = self._before
        self._changed, self._users = threading.Condition(), 0


_TRUNCATED = _TruncationSwitch()
os.register_at_fork(after_in_child=_TRUNCATED.renew)


@dataclass
class Opened:
    """An image whose header has been read and whose pixels have not. `size` is that of the upright
    image.

    `format` and `mode` are Pillow's names. `orientation` says how decoded pixels must be turned, as
    EXIF counts it. `keep_truncated` says that pixels which are missing at the end of the data shall
    be grey, and no fault. `jpeg` is the header of a JPEG, None where it is broken. One that
    `is_usual` is decoded without Pillow's look at it. `gray16` is that of `open_image`.
    """

    data: bytes
    format: str
    mode: str
    size: Size
    orientation: int
    keep_truncated: bool
    jpeg: JpegHeader | None
    is_usual: bool
    _unread: Image.Image | None
    gray16: GrayRange | None = None

    @property
    def has_frames(self) -> bool:
        """Whether it is one of several frames or pages. To be asked before `load`."""
        try:
            # a GIF goes on to its second frame
            image = _open(self.data) if self.format == "GIF" else self._unread
            return self.format not in _JPEG and bool(getattr(image, "is_animated", False))
        except Exception:  # noqa: BLE001 - what is wrong with it, `load` says
            return False

    def load(self, least: Size | None = None) -> Image.Image:
        """Decode the pixels and return them as they are stored, not turned. Raises what Pillow
        raises, and Rejection.

        A JPEG may come at 1/2, 1/4 or 1/8 of its size, no smaller than `least` (width, height).
        Every call decodes an image that has never been loaded: after an error, a second `load` of
        the same one gives the damaged pixels without a word.
        """
        jpeg = self.jpeg
        if self.is_usual:
            # Without Pillow's own look at the header, and with all data at once: 19 instead of 50
            # microseconds for 32 x 32 pixels. The decoder is the same.
            (width, height), scale = self.size, _reduction(self.size, least or self.size)
            usual = Image.new(self.mode, (-(-width // scale), -(-height // scale)), None)
            try:
                usual.frombytes(self.data, "jpeg", (self.mode, "", scale, 0))
            except (ValueError, OSError):
                pass  # what is below has words for it
            else:
                return usual
        image, self._unread = self._unread, None
        # the libjpeg of most builds of Pillow cannot read it
        if jpeg is not None and jpeg.is_lossless:
            return Image.fromarray(decode_lossless(self.data, math.prod(self.size)))
        with _TRUNCATED.set_to(self.keep_truncated):
            image = image or _open_or_reject(self.data)
            if least is not None and jpeg is not None:
                image.draft(None, least)
            image.load()
        return image


class TooManyPixels(Rejection):
    """The header of an image says, or a step makes of it, a `size` (width, height) of more pixels
    than are accepted."""

    def __init__(self, size: Size, most: int, stage: str = "decode") -> None:
        message = (
            f"{size[0]} x {size[1]} pixels are over the limit of {most}; raise --max-pixels "
            "to accept it"
        )
        super().__init__(stage, "too-many-pixels", message)
        self.size = size


def open_image(
    data: bytes,
    max_pixels: int = MAX_PIXELS,
    keep_truncated: bool = False,
    pixels_only: bool = False,
    gray16: GrayRange | None = None,
) -> Opened:
    """Read the header of an encoded image. Raises Rejection (stage `decode`): TooManyPixels for
    more than `max_pixels`.

    With `pixels_only`, the image need not bring what an encoder copies: its comment, colour profile
    and XMP. `gray16` is the range of gray of more than 8 bits, None: that of its type.
    """
    _prepare()
    if not data:
        raise Rejection("decode", "empty", "the file is empty")
    if data.startswith(_ICO):
        _refuse_large_icon(data, max_pixels)
    jpeg = jpeg_header(memoryview(data))
    if jpeg is not None and jpeg.is_usual and (jpeg.bare or pixels_only):
        if math.prod(jpeg.size) > max_pixels:
            raise TooManyPixels(jpeg.size, max_pixels)
        mode = "L" if jpeg.components == 1 else "RGB"
        return Opened(data, "JPEG", mode, jpeg.size, 1, keep_truncated, jpeg, True, None)
    with _decoding(""), _TRUNCATED.set_to(keep_truncated):
        image = _open_or_reject(data)
    width, height = image.size
    if width * height > max_pixels:
        raise TooManyPixels((width, height), max_pixels)
    if width < 1 or height < 1:
        raise Rejection("decode", "no-pixels", f"the header says {width} x {height} pixels")
    orientation, form = _orientation(image, data), image.format or ""
    # Pillow turns it while it decodes, and some versions say the upright size before
    if form == "TIFF":
        tags: Any = getattr(image, "tag_v2")  # noqa: B009 - declared in a plugin that takes long to import
        width, height = tags[_TIFF_WIDTH], tags[_TIFF_HEIGHT]
    size = (height, width) if orientation >= 5 else (width, height)
    jpeg = jpeg if form in _JPEG else None
    turn = 1 if form == "TIFF" else orientation
    return Opened(data, form, image.mode, size, turn, keep_truncated, jpeg, False, image, gray16)


def _open_or_reject(data: bytes) -> Image.Image:
    try:
        return _open(data)
    except UnidentifiedImageError:
        raise _not_opened(data) from None


def _open(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=COMMON_FORMATS)
    except UnidentifiedImageError:
        others = other_formats()
        formats = [name for name in others if name != "TGA"] if data.startswith(_ICO) else others
        return Image.open(io.BytesIO(data), formats=formats)


_ICO = b"\0\0\1\0"
"""What an ICO begins with, and no TGA that is right: it would have colours of a table, and no
table."""

_PNG = b"\x89PNG\r\n\x1a\n"


def _refuse_large_icon(data: bytes, max_pixels: int) -> None:
    """Raise TooManyPixels for an ICO whose picture has more pixels than this, whatever size its
    directory says.

    Of all formats, Pillow decodes this one alone where it reads no more than the header of the
    others. It takes the picture that is the largest by the directory.
    """
    (count,) = struct.unpack_from("<H", data, 4) if len(data) >= 6 else (0,)
    places = range(6, min(6 + 16 * count, len(data) - 15), 16)
    areas = [(data[place] or 256) * (data[place + 1] or 256) for place in places]
    for place, area in zip(places, areas, strict=True):
        if area == max(areas):
            (offset,) = struct.unpack_from("<I", data, place + 12)
            head = data[offset : offset + 24].ljust(24, b"\0")
            if head.startswith(_PNG):
                width, height = struct.unpack_from(">II", head, 16)
            else:  # a bitmap and its mask
                form = "<HH" if head.startswith(_OLD_BITMAP) else "<Ii"
                width, height = struct.unpack_from(form, head, 4)
                height = abs(height) // 2
            if width * height > max_pixels:
                raise TooManyPixels((width, height), max_pixels)


_OLD_BITMAP = b"\x0c\0\0\0"
"""The length of the header of bitmaps of OS/2, which have sizes of 16 bits."""


def decoded(opened: Opened, look: Look) -> Image.Image:
    """Decode, turn upright and make RGB, with pixels enough for a look. Raises Rejection (stage
    `decode`).

    The image may be smaller than `opened.size`: a JPEG is decoded no larger than it is needed.
    """
    need = _needed(opened.size, look)
    return upright(opened, need[::-1] if need and opened.orientation >= 5 else need)


def _needed(size: Size, look: Look) -> Size | None:
    """Return the (width, height) that the pixels of an image of this size need for a look; None:
    all of them."""
    if isinstance(look, View) and look.is_whole(size):
        return None
    across, down = least_scale(look, DRAFT_MARGIN)
    return math.ceil(across * size[0]), math.ceil(down * size[1])


def reduction(opened: Opened, look: Look) -> int:
    """Return by how much smaller `decoded` gives an image for a look: 1, and for a JPEG up to 8."""
    need = None if opened.jpeg is None else _needed(opened.size, look)
    return 1 if need is None else _reduction(opened.size, need)


def _reduction(size: Size, need: Size) -> int:
    """Return by how much smaller a JPEG of this size is decoded, as Pillow's draft does it."""
    times = min(size[0] // need[0], size[1] // need[1])
    return 8 if times >= 8 else 4 if times >= 4 else 2 if times >= 2 else 1


def upright(opened: Opened, least: Size | None) -> Image.Image:
    """Decode, turn upright and make RGB. A JPEG may come smaller: `least` is that of `Opened.load`.

    Raises Rejection (stage `decode`).
    """
    with _decoding(opened.format):
        return to_rgb(turned(_keyed(opened.load(least), opened), opened.orientation), opened.gray16)


def look_at_gray(opened: Opened, found: list[tuple[float, float] | None]) -> None:
    """Look at an image of gray of more than 8 bits, where the range of its type decides. What is
    damaged shows nothing."""
    if opened.gray16 is None and opened.mode.startswith(MODES):
        with suppress(Exception):
            found.append(lost_extent(np.asarray(opened.load())))


def render(opened: Opened, look: Look) -> Pixels:
    """Decode, turn upright, make RGB and resample. Raises Rejection (stage `decode`)."""
    return np.asarray(resampled(decoded(opened, look), look, opened.size))


def check(opened: Opened) -> None:
    """Make sure that all of an image decodes, without making its pixels where that is dearer.
    Raises Rejection.

    A JPEG is decoded at an eighth of its size: all of its data is read, and hardly any pixel is
    computed.
    """
    if opened.format in _JPEG and decodes_whole(opened.data):
        return
    with _decoding(opened.format):
        opened.load(least=(1, 1))


def decode(data: bytes, max_pixels: int = MAX_PIXELS, keep_truncated: bool = False) -> Pixels:
    """Decode an encoded image to upright RGB pixels, (height, width, 3) uint8. Raises Rejection."""
    opened = open_image(data, max_pixels, keep_truncated, pixels_only=True)
    return render(opened, View.whole(opened.size))


def decode_mask(
    data: bytes, max_pixels: int = MAX_PIXELS, keep_truncated: bool = False
) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Decode an encoded mask to upright numbers as they are stored, (height, width): no palette, no
    colours.

    They are uint8, or uint16 where the mask has 16 bits for each pixel. Raises Rejection (stage
    `decode`), also for an image that has not one number of up to 16 bits for each pixel.
    """
    opened = open_image(data, max_pixels, keep_truncated)
    with _decoding(opened.format):
        stored = opened.load(None)
        values: Values = np.asarray(turned(stored, opened.orientation))
    # Some versions of Pillow give 16 bits as 32, and say so by the mode alone.
    if stored.mode == "I;16" or (
        stored.mode == "I" and values.size and values.min() >= 0 and values.max() <= 0xFFFF
    ):
        return values.astype(np.uint16, copy=False)
    if stored.mode not in ("1", "L", "P"):
        message = (
            "a mask has one number of up to 16 bits for each pixel; this is an image of "
            f"mode {stored.mode}"
        )
        raise Rejection("decode", "not-a-mask", message)
    step = _grey_step(opened)
    return (values // step if step > 1 else values).astype(np.uint8, copy=False)


def frame_count(data: bytes) -> int:
    """Return how many frames or pages an image file has. Raises Rejection."""
    opened = open_image(data, sys.maxsize)
    with _decoding(opened.format):
        return int(getattr(_open(data), "n_frames", 1)) if opened.has_frames else 1


def frames_of(data: bytes, wanted: Sequence[int], max_pixels: int) -> Iterator[bytes | Rejection]:
    """Yield some frames of an image file, counted from 0 and in order, upright: PNG, or TIFF for
    what PNG does not hold.

    A file of one frame stays as it is. Raises Rejection where none can be read.
    """
    opened = open_image(data, max_pixels)
    image = _open(data) if opened.has_frames else None
    for number in wanted:
        made: bytes | Rejection = data
        try:
            with _decoding(opened.format):
                if image is not None:
                    image.seek(number)
                    if math.prod(image.size) > max_pixels:
                        raise TooManyPixels(image.size, max_pixels)
                    frame = turned(image.copy(), opened.orientation)
                    frame.info = {name: image.info[name] for name in _KEPT if name in image.info}
                    made = encoded(frame, "PNG" if frame.mode in _MODES_OF_PNG else "TIFF")
        except Rejection as rejection:
            made = rejection
        yield made


_KEPT = ("transparency",)
_MODES_OF_PNG = frozenset(("1", "L", "LA", "P", "RGB", "RGBA", "I;16"))


def without_turn(data: bytes) -> bytes | None:
    """Return an image whose pixels are upright as they are stored, in the same format; None for one
    that EXIF does not turn.

    The pixels of a JPEG are rounded once more, with its own tables and as many colours. Raises
    Rejection.
    """
    opened = open_image(data, sys.maxsize, pixels_only=True)
    if opened.is_usual or (orientation := _orientation(image := _open(data), data)) == 1:
        return None
    with _decoding(opened.format):
        pixels = opened.load()  # a TIFF is upright then
        form = "JPEG" if opened.format in _JPEG else opened.format
        kept: dict[str, Any] = {
            name: image.info[name] for name in ("icc_profile", *_KEPT) if name in image.info
        }
        if form == "JPEG":
            exif: Any = image.getexif()
            exif.pop(_ORIENTATION, None)
            tables = getattr(image, "quantization")  # noqa: B009 - of a JPEG alone
            if orientation >= 5:  # steps across and down change places
                tables = {
                    number: np.reshape(table, (8, 8)).T.ravel().tolist()
                    for number, table in tables.items()
                }
            sampling = JpegImagePlugin.get_sampling(image)
            sampling = sampling if sampling in (0, 2) else 0
            kept |= {"exif": exif, "qtables": tables, "subsampling": sampling}
            kept["progressive"] = "progressive" in image.info
        elif form == "WEBP":
            kept |= {"lossless": data[12:16] != b"VP8 " and b"VP8L" in data[:4096], "quality": 95}
        upright = turned(pixels.copy(), opened.orientation)
        upright.info = {}
        return encoded(upright, form, **kept)


def mask_png(values: Values, like: bytes) -> bytes:
    """Return the numbers of a mask, (height, width), as a PNG, with the palette of another mask if
    that has one.

    Pillow gives a pixel as many bits as the palette's length asks for, and cuts numbers beyond
    them: so it has all of them.
    """
    image = Image.fromarray(values)
    with _open(like) as before:
        palette = before.getpalette() if before.mode == "P" and values.dtype == np.uint8 else None
    if palette:
        beyond = values.max() >= len(palette) // 3
        image.putpalette(palette + [0] * (3 * 256 - len(palette)) if beyond else palette)
    return encoded(image, "PNG")


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """Return an image as a file of a format, by its name at Pillow."""
    target = io.BytesIO()
    image.save(target, form, **options)
    return target.getvalue()


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Return an image of an EXIF orientation, 1 to 8, upright: the same one where it is so
    already."""
    return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def nearest(values: Values, size: Size) -> Values:
    """Resize a mask (height, width) of any type to (width, height), by the pixel that is nearest to
    each new one."""
    return resampled_mask(values, View.whole((values.shape[1], values.shape[0])).scaled(size), 0)


def to_rgb(image: Image.Image, gray16: GrayRange | None = None) -> Image.Image:
    """Make any image that Pillow decodes 8-bit RGB, by the rules of docs/images.md."""
    mode = image.mode
    if mode == "RGB" and "transparency" not in image.info:
        return image
    # before any transparency: Pillow cuts these numbers at 255 to make RGBA of them
    if mode.startswith(MODES):
        values = np.asarray(image)
        grey = to_8_bits(values) if gray16 is None else gray16.to_8_bits(values)
        clear = image.info.get("transparency")
        if isinstance(clear, int):
            grey[values == clear] = 255
        return Image.fromarray(grey).convert("RGB")
    if mode in _PALETTE_WITH_ALPHA or "transparency" in image.info:
        rgba = image.convert("RGBA")
        background = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(background, rgba).convert("RGB")
    if mode == "LAB":
        from PIL import ImageCms  # rare, and it loads another library

        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(lab, srgb, "LAB", "RGB")
        converted = ImageCms.applyTransform(image, transform)
        if converted is None:
            raise ValueError("LittleCMS returned no image")
        return converted
    return image.convert("RGB")


_PNG_DEPTH = 24
"""Where a PNG says how many bits a number of it has."""


def _grey_step(opened: Opened) -> int:
    """Return by how much Pillow multiplies the numbers of a grey image: PNG of 2 and 4 bits become
    8, 1 for all others."""
    bits = opened.data[_PNG_DEPTH] if opened.format == "PNG" and opened.mode == "L" else 8
    return 255 // ((1 << bits) - 1)


def _keyed(image: Image.Image, opened: Opened) -> Image.Image:
    """Return a loaded image with its transparent colour in the scale of its pixels.

    A PNG names that colour in its own bits. Pillow makes 8 bits of the pixels, but not of the
    colour. Grey of 2 and 4 bits is multiplied. Colours of 16 bits lose their lower half: an alpha
    channel then says which ones are meant.
    """
    clear = image.info.get("transparency")
    if clear is None or opened.format != "PNG":
        return image
    step = _grey_step(opened)
    if step > 1:
        # bits beyond those of the image do not count
        image.info["transparency"] = (clear & 255 // step) * step
    elif image.mode == "RGB" and opened.data[_PNG_DEPTH] == 16:
        lower: Any = _open(opened.data)  # its lower 8 bits are read as if they came first
        lower.tile = [(*tile[:3], "RGB;16L") for tile in lower.tile]
        upper, lower = np.asarray(image), np.asarray(lower)
        seen = ((upper != np.array(clear) >> 8) | (lower != np.array(clear) & 0xFF)).any(axis=-1)
        return Image.fromarray(np.dstack([upper, seen * np.uint8(255)]))
    return image


def _orientation(image: Image.Image, data: bytes) -> int:
    """Return the EXIF orientation, 1 to 8, from the header alone: `image` is not loaded, as some
    formats' `getexif` would.

    Most images have no EXIF block at all, and parsing an absent one is slow.
    """
    if image.format == "JPEG" and "exif" not in image.info:
        return 1
    try:
        if image.format == "PNG":
            metadata = png_metadata(data)
            if metadata is None:
                return 1
            image = Image.open(io.BytesIO(metadata), formats=("PNG",))
        value = Image.Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - a damaged EXIF block says nothing about the pixels
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


_PNG_METADATA = frozenset((b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
"""PNG chunks that may say an orientation. They may come after the pixels."""


def png_metadata(data: bytes) -> bytes | None:
    """Return a PNG that has no more than the size and the metadata of another; None if that one has
    no metadata."""
    parts, place, found = [data[:8]], 8, False
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        found = found or kind in _PNG_METADATA
        if kind in _PNG_METADATA or kind in (b"IHDR", b"IEND"):
            parts.append(data[place : place + length + 12])
        place += length + 12
    return b"".join(parts) if found else None


@dataclass(frozen=True)
class ImageEncoding:
    """How an image is kept in a shard: `source`, `jpeg:Q`, `png`, `webp:Q` or `raw`; `none`: it is
    not, its sample is."""

    name: str
    quality: int | None = None

    @classmethod
    def parse(cls, text: str) -> ImageEncoding:
        """Read the name of a storage choice. Raises UsageError."""
        name, _, quality = text.partition(":")
        usual = {"jpeg": 90, "webp": 80}
        alone = ("source", "png", "raw", "none", *usual)
        if text in alone:
            return cls(text, usual.get(text))
        if name in usual and quality.isdecimal() and 1 <= int(quality) <= 100:
            return cls(name, int(quality))
        near = "" if name in alone else did_you_mean(name, alone)
        raise UsageError(
            f"store {text!r} is not known{near or ';'} use "
            "source, jpeg:QUALITY, png, webp:QUALITY, raw or none, with a quality of 1 to 100"
        )

    def __str__(self) -> str:
        return f"{self.name}:{self.quality}" if self.quality else self.name

    @property
    def suffix(self) -> str:
        """The file name ending of what `encode` makes."""
        return {"jpeg": ".jpg", "png": ".png", "webp": ".webp"}[self.name]

    def encode(self, pixels: Pixels | Image.Image) -> bytes:
        """Encode pixels. Raises Rejection (stage `encode`)."""
        image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
        options = {"quality": self.quality} if self.quality else {}
        try:
            return encoded(image, self.name.upper(), **options)
        except (OSError, ValueError, KeyError) as error:
            raise Rejection(
                "encode", "not-encoded", f"cannot be stored as {self}: {error}"
            ) from error


@cache
def _prepare() -> None:
    """Set Pillow up once per process: exactly one backend, our own limits instead of its
    warnings."""
    backend.require_one()
    # our own limit is checked on the header, before any pixel is decoded
    Image.MAX_IMAGE_PIXELS = None
    # oddities of a file; what matters becomes a Rejection
    warnings.filterwarnings("ignore", module="PIL")


def _broken(error: Exception) -> Rejection:
    if not is_of_bytes(error):
        raise error
    text = str(error).strip() or type(error).__name__
    kind, advice = "damaged", "see whether another program opens it"
    if "truncated" in text.lower() or "premature" in text.lower():
        kind, advice = "truncated", "fetch it again, or accept it with --truncated keep"
    return Rejection("decode", kind, f"the image data is {kind} ({text}); {advice}")


@contextmanager
def _decoding(form: str) -> Iterator[None]:
    """Turn what goes wrong while an image of a format is decoded into a Rejection."""
    try:
        yield
    except _OUR_ERRORS:
        raise
    except Exception as error:
        raise (_not_built(form) if lacks_library(form) else _broken(error)) from error


def _not_built(name: str) -> Rejection:
    message = (
        f"this build of {backend.require_one()} cannot read {name}; `shardctl help install` "
        "says how to add it"
    )
    return Rejection("decode", "format-not-built", message)


_SAVED_INSTEAD = (
    (b"version https://git-lfs", "a pointer of Git LFS, not an image; get it with git lfs pull"),
    (b"<!doctype html", "a web page, not an image; download it again"),
    (b"<html", "a web page, not an image; download it again"),
)
"""What files that are called images begin with, in lower case, and what they are."""


def _not_opened(data: bytes) -> Rejection:
    name = guess_format(data)
    if name is not None and lacks_library(name):
        return _not_built(name)
    if name is None:
        begins = (
            saved for start, saved in _SAVED_INSTEAD if data[:64].lstrip().lower().startswith(start)
        )
        why = next(begins, "not an image of a format that shardctl opens")
        error = "not-an-image"
    elif name in FORMATS:
        error = "damaged"
        why = f"it begins like {name}, but is damaged or of a variant that cannot be read"
    else:
        error, why = "format-not-allowed", f"{name} is not among the formats that shardctl opens"
    return Rejection("decode", error, why)
