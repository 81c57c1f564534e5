"""JPEG to RGB by libjpeg-turbo, straight into a buffer: 1.6 times as fast as Pillow-SIMD with the
same pixels.

Only for what both decode alike, and for losslessly coded JPEG, which most builds of Pillow cannot
read. Everything else, and every fault, is left to `shardctl.images.codecs.image` and its rules.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import simplejpeg

from shardctl.errors import Rejection
from shardctl.format.arrays import Bytes as Pixels

Shape = tuple[int, int, int]

_ALIKE = frozenset(("YCbCr", "RGB", "Gray"))
"""Colour spaces of files whose pixels are the same either way."""

_MOST_PIXELS = 100_000_000
"""Larger images are left to Pillow, which takes memory as it decodes: the size in a damaged header
means nothing."""

_START_OF_IMAGE, _END_OF_IMAGE, _START_OF_SCAN, _LOSSLESS = 0xD8, 0xD9, 0xDA, 0xC3
_HUFFMAN = (0xC0, 0xC1, 0xC2)
"""Frames of almost all files: baseline, extended and progressive."""

_PROGRESSIVE = (0xC2, 0xCA)
"""Frames whose coefficients come in several scans, each more exact than the one before."""

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers whose segment says how the pixels are coded and how many there are."""

_SEGMENTS = _FRAMES | {0xC4, 0xCC, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}
"""Markers of all segments that may be before the first scan: also tables, comments and what
applications add."""

_ALONE = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers without a length that decoders pass over. Two more have none: the start and the end of an
image."""

_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""What ends the data of a scan: in it, 0 or a restart marker (0xD0 to 0xD7) is behind each 0xFF."""

_EVERY_COEFFICIENT = 2**64 - 1

_APP0, _APP1, _APP2, _APP13, _APP14, _COMMENT = 0xE0, 0xE1, 0xE2, 0xED, 0xEE, 0xFE
_FRAME = struct.Struct(">BHHB")
"""Bits of a value, height, width, components."""

_SHORTEST = {_APP0: 16, _APP2: 16, _APP14: 14}
"""Bytes of the shortest sound segments (JFIF, ICC profile, Adobe): Pillow refuses some shorter
ones."""


@dataclass(frozen=True)
class JpegHeader:
    """What is before the first scan. `frame` is the marker that says how the pixels are coded;
    `bits` are of one value.

    `size` is (width, height), `components` are 3 with colours. A `plain` one has nothing for which
    Pillow would turn the image (EXIF) or refuse it. A `bare` one has no comment, and no segment
    that may hold a colour profile or XMP: Pillow copies these into an image that it encodes.
    """

    frame: int
    bits: int
    size: tuple[int, int]
    components: int
    plain: bool
    bare: bool

    @property
    def is_lossless(self) -> bool:
        """Whether it is losslessly coded (SOF3; not JPEG-LS, which is another format).

        No decoder is safe to be asked for a losslessly coded one at a smaller size.
        """
        return self.frame == _LOSSLESS

    @property
    def is_usual(self) -> bool:
        """Whether Pillow's decoder takes all of the image as its header says, so that nobody needs
        to look at more of it."""
        usual = self.plain and self.bits == 8 and self.components in (1, 3) and min(self.size) > 0
        return usual and self.frame in _HUFFMAN


@dataclass(frozen=True)
class JpegFacts:
    """What decoding a JPEG costs, and whether that needs a look at it first.

    A `plain` one is decoded by libjpeg-turbo and Pillow to the same pixels, and needs no turning:
    docs/format.md has the definition. `progressive` ones take 3.3 times as long as others to
    decode, those with `full_colour` (4:4:4, colours that have as many pixels as brightness) 1.3
    times.
    """

    plain: bool
    progressive: bool
    full_colour: bool


def jpeg_facts(data: bytes | memoryview) -> JpegFacts | None:
    """Return the facts of a JPEG; None for anything else, and for a JPEG that libjpeg-turbo cannot
    read."""
    view = memoryview(data)
    with _leaving_faults():
        if (header := jpeg_header(view)) is not None:
            _, _, colours, sampling = simplejpeg.decode_jpeg_header(view)
            alike = colours in _ALIKE
            full_colour = alike and sampling == "444" and not header.is_lossless
            plain = alike and _decodes_alike(header, view)
            return _shared(plain, header.frame in _PROGRESSIVE, full_colour)
    return None


def _leaving_faults() -> suppress:
    """Leave what is wrong to the slow way, which finds it too, and has words for it: ValueError for
    faults, KeyError for a subsampling that libjpeg-turbo's reader does not know, …"""
    return suppress(Exception)


@cache
def _shared(plain: bool, progressive: bool, full_colour: bool) -> JpegFacts:
    """Return one object for all images that are alike: there may be millions."""
    return JpegFacts(plain, progressive, full_colour)


class JpegDecoder:
    """Decodes one image at a time into memory that it keeps. Each thread has its own."""

    def __init__(self) -> None:
        self.scratch = np.empty(0, np.uint8)
        """Memory that the next image may be decoded into, (n,) uint8."""

    def decode(
        self, data: Pixels, out: Pixels | None = None, most: int = _MOST_PIXELS
    ) -> Pixels | None:
        """Return upright RGB pixels (height, width, 3), or None for data that this is not for, and
        for more pixels than `most`.

        `data` is (n,) uint8. The pixels are in `out` where that has just their shape and lies in
        one piece; else in `scratch`, which the next call uses again.
        """
        header, before = jpeg_header(data.data), self.scratch
        if header is None or not _decodes_alike(header, data.data):
            return None

        def memory(shape: Shape) -> Pixels:
            if out is not None and out.shape == shape and out.flags.c_contiguous:
                return out
            return self.memory(shape)

        pixels = decode_plain_alone(data, most, memory)
        if pixels is None:
            self.scratch = before  # the size may have been that of a damaged header
        return pixels

    def memory(self, shape: Sequence[int]) -> Pixels:
        """Return `scratch` with room for pixels of this shape."""
        size = math.prod(shape)
        if len(self.scratch) < size:
            self.scratch = np.empty(size, np.uint8)
        return self.scratch


def decode_plain(data: memoryview, memory: Pixels) -> Pixels | None:
    """Return the RGB pixels (height, width, 3) of a JPEG that is known to be plain, in `memory`,
    which is in one piece.

    None if it does not decode, or not without a warning, and if it needs more memory. Nothing is
    asked of it before.
    """
    with _leaving_faults():
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", buffer=memory)
        return pixels
    return None


def decodes_whole(data: bytes) -> bool:
    """Return whether all of a JPEG decodes without a warning: then Pillow decodes it too. False
    says nothing.

    It is decoded at an eighth of its size, and without colours: all of its data is read, and hardly
    any pixel is computed. Not a losslessly coded one: libjpeg-turbo cannot make it smaller, and
    writes all of it where an eighth is expected. The memory is for all pixels, in case that
    `jpeg_header` takes the image for another kind: what is not written to costs nothing.
    """
    view = memoryview(data)
    with _leaving_faults():
        header = jpeg_header(view)
        if header is None or header.is_lossless or not _decodes_alike(header, view):
            return False
        height, width, colours, _ = simplejpeg.decode_jpeg_header(view)
        if colours not in _ALIKE or height * width > _MOST_PIXELS:
            return False
        room, small = np.empty(height * width, np.uint8), {"min_height": 1, "min_width": 1}
        quick = {"fastdct": True, "fastupsample": True}
        simplejpeg.decode_jpeg(view, "GRAY", **quick, **small, buffer=room)
        return True
    return False


def decode_plain_alone(
    data: Pixels | memoryview,
    most: int = _MOST_PIXELS,
    memory: Callable[[Shape], Any] = lambda shape: np.empty(shape, np.uint8),
) -> Pixels | None:
    """Return the RGB pixels (height, width, 3) of a JPEG that is known to be plain, as above: in
    what `memory` returns for a shape, so many values or more; memory of their own by default.

    None too for more pixels than `most`.
    """
    with _leaving_faults():
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours in _ALIKE and height * width <= min(most, _MOST_PIXELS):
            pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", buffer=memory((height, width, 3)))
            return pixels
    return None


def _decodes_alike(header: JpegHeader, view: memoryview) -> bool:
    """Return whether nothing before the pixels is a reason that Pillow could decode this to others,
    or not at all."""
    if not header.plain or header.bits != 8:
        return False
    # Versions of libjpeg-turbo estimate scans that are missing differently, by up to 62 of 255.
    return header.frame not in _PROGRESSIVE or _has_every_scan(view)


def plain_size(data: Pixels) -> tuple[int, int] | None:
    """Return (width, height) of a JPEG (n,) uint8 that needs no turning; None for data that this is
    not for."""
    with _leaving_faults():
        header = jpeg_header(data.data)
        if header is not None and header.plain:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            return width, height
    return None


def decode_lossless(data: bytes, pixels: int) -> Pixels:
    """Return the values of a losslessly coded JPEG, (height, width, 3) RGB or (height, width) grey,
    not turned.

    Raises Rejection (stage `decode`) for damaged data, for other than 8 bits for a value, and for
    other colours. Raises it too where libjpeg-turbo finds more than `pixels` pixels.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > pixels:
            raise ValueError(f"{width} x {height} pixels, not {pixels}")
        if colours == "Gray":  # libjpeg-turbo converts no colours here, not even from grey
            grey: Pixels = simplejpeg.decode_jpeg(data, "GRAY")[..., 0]
            return grey
        values: Pixels = simplejpeg.decode_jpeg(data, "RGB")
    except Exception as error:
        message = (
            f"a losslessly coded JPEG that is damaged, or neither RGB nor grey ({error}); "
            "see whether another program opens it"
        )
        raise Rejection("decode", "damaged", message) from error
    return values


def jpeg_header(view: memoryview) -> JpegHeader | None:
    """Return what a JPEG says before its first scan. None for anything else, and for what libjpeg
    would not decode.

    It looks for markers as libjpeg does, so that both find the same frame. What the standard does
    not have there, and libjpeg passes over, makes it not `plain`.
    """
    if bytes(view[:2]) != b"\xff\xd8":
        return None
    place, size, plain, bare = 2, len(view) - 10, True, True
    frame = bits = components = 0
    shape = (0, 0)
    while place < size:
        marker = view[place + 1]
        if view[place] == 0xFF and marker in _SEGMENTS:
            length = view[place + 2] << 8 | view[place + 3]
            if marker in _FRAMES:
                if frame:  # a second one
                    return None
                frame, (bits, height, width, components) = (
                    marker,
                    _FRAME.unpack_from(view, place + 4),
                )
                shape = (width, height)
            elif _APP0 <= marker <= _APP14:
                plain = plain and _is_plain(marker, bytes(view[place + 4 : place + 2 + length]))
                bare = bare and marker not in (_APP1, _APP2)
            elif marker == _COMMENT:
                bare = False
            if length < 2:
                return None
            place += 2 + length
        elif view[place] != 0xFF or marker == 0:  # no marker
            found = _MARKER.search(view, place)
            if found is None:
                return None
            place, plain = found.start(), False
        elif marker == _START_OF_SCAN:
            return JpegHeader(frame, bits, shape, components, plain, bare) if frame else None
        elif marker == 0xFF:  # a fill byte
            place += 1
        elif marker in _ALONE:
            place, plain = place + 2, False
        else:
            return None
    return None


def _segments(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the marker and the content of every segment up to the end of the image. The data of
    scans is skipped."""
    place = 2
    while found := _MARKER.search(view, place):
        marker, place = view[found.end() - 1], found.end()
        if marker in _ALONE:
            continue
        if marker in (_START_OF_IMAGE, _END_OF_IMAGE) or place + 2 > len(view):
            return
        length = view[place] << 8 | view[place + 1]
        yield marker, view[place + 2 : place + length]
        place += max(length, 2)


def _has_every_scan(view: memoryview) -> bool:
    """Return whether a progressive JPEG has every coefficient of every component, to the last
    bit."""
    components, exact = 0, dict[int, int]()
    for marker, content in _segments(view):
        if marker in _FRAMES and len(content) > 5:
            components = content[5]
        elif marker == _START_OF_SCAN:
            if not content or len(content) != 4 + 2 * content[0]:
                return False
            first, last, bits = content[-3:]
            if bits & 15 == 0 and first <= last < 64:
                for component in content[1:-3:2]:
                    exact[component] = exact.get(component, 0) | (1 << last + 1) - (1 << first)
    return len(exact) == components and all(found == _EVERY_COEFFICIENT for found in exact.values())


def _is_plain(marker: int, content: bytes) -> bool:
    """Return whether an application's segment has nothing that Pillow would turn the image or
    refuse it for."""
    if marker == _APP1:
        return not content.startswith(b"Exif\0\0")
    if marker == _APP2 and content.startswith(b"MPF\0"):
        return False  # several pictures, in a table that may be damaged
    if marker == _APP13:
        # Pillow reads past the end of a Photoshop block that is cut there
        return content[-6:-2] != b"8BIM"
    return len(content) + 2 >= _SHORTEST.get(marker, 0)
