"""Fuzzing of image headers: whatever they say, nothing is read or written beyond its memory.

    python scripts/torture/fuzz_headers.py [--seconds 60] [--seed 7] [--case 12]

Markers, lengths and sizes of JPEG, PNG, WebP, BMP, TIFF and GIF are changed: fill bytes, frames
that come twice, comments that hold frames, sizes that contradict each other. Each image goes
through all ways in which shardctl decodes one. Two parsers look at it there, the one that sizes
memory and the one that fills it; they must agree.

A child does it under valgrind, which sees each byte that is read or written beyond its memory.
Where valgrind is not installed, the C library looks (MALLOC_CHECK_): it sees what was written
there, and no reading. `--case` tries one image again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
from checked_memory import environment
from lossless import lossless_jpeg
from PIL import Image

from shardctl.errors import Rejection
from shardctl.images.codecs import image
from shardctl.images.codecs.jpeg import (
    JpegDecoder,
    decode_plain,
    decode_plain_alone,
    decodes_whole,
    jpeg_facts,
    plain_size,
)
from shardctl.images.geometry import View

VALGRIND = [
    "valgrind",
    "-q",
    "--error-exitcode=99",
    "--exit-on-first-error=yes",
    "--undef-value-errors=no",
    "--num-callers=30",
]
"""Bytes that were never set are not looked for: the libraries for images copy some, and use none of
them."""

KNOWN = Path(__file__).with_name("valgrind.supp")

MOST_PIXELS = 1_000_000
SIZES = [0, 1, 2, 7, 8, 9, 16, 31, 47, 48, 64, 100, 255, 256, 1000, 65535]
WIDTH, HEIGHT = 48, 31


# --- images, as they should be ---


def _scene() -> np.ndarray:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([x * 5, y * 8, (x * y) % 256], axis=-1).astype(np.uint8)


def _saved(form: str, mode: str = "RGB", **options: object) -> bytes:
    target = io.BytesIO()
    Image.fromarray(_scene()).convert(mode).save(target, form, **options)
    return target.getvalue()


def seeds() -> list[bytes]:
    """Return one image of each kind."""
    more = {"save_all": True, "append_images": [Image.fromarray(_scene()[::-1])]}
    jpegs = [
        _saved("JPEG"),
        _saved("JPEG", subsampling=0),
        _saved("JPEG", progressive=True),
        _saved("JPEG", "L"),
    ]
    jpegs += [
        _saved("JPEG", "CMYK"),
        lossless_jpeg(_scene()),
        lossless_jpeg(_scene()[..., :1]),
        _saved("MPO", **more),
    ]
    others = [
        _saved("PNG"),
        _saved("PNG", "P"),
        _saved("PNG", "LA"),
        _saved("WEBP"),
        _saved("WEBP", lossless=True),
    ]
    others += [
        _saved("WEBP", **more),
        _saved("BMP"),
        _saved("BMP", "P"),
        _saved("TIFF"),
        _saved("TIFF", compression="tiff_lzw"),
    ]
    return (
        2 * jpegs
        + others
        + [
            _saved("GIF", "P"),
            _saved("GIF", "P", **more),
            _saved("PPM"),
            _saved("TGA"),
            _saved("ICO"),
        ]
    )


# --- and as they should not ---


def changed(data: bytes, draw: random.Random) -> bytes:
    """Return an image with some faults in its header."""
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        if data[:2] == b"\xff\xd8" and draw.random() < 0.9:
            data = _changed_jpeg(data, draw)
        elif data[:4] == b"\x89PNG" and draw.random() < 0.7:
            data = _changed_png(data, draw)
        else:
            data = _changed_numbers(data, draw)
    return data


def _frame(draw: random.Random) -> bytes:
    height, width = draw.choice(SIZES), draw.choice(SIZES)
    components = draw.choice((1, 1, 3, 3, 4))
    of_each = b"".join(
        bytes([number + 1, draw.choice((0x11, 0x11, 0x22, 0x21, 0x14)), 0])
        for number in range(components)
    )
    kind = draw.choice((0xC0, 0xC0, 0xC1, 0xC2, 0xC3, 0xC3, 0xC9, 0xCA, 0xCB))
    return (
        struct.pack(
            ">BBHBHHB",
            0xFF,
            kind,
            8 + 3 * components,
            draw.choice((8, 8, 8, 12, 2)),
            height,
            width,
            components,
        )
        + of_each
    )


def _hide(comment: bytearray, place: int, draw: random.Random) -> None:
    """Write a frame and the start of a scan into a comment, where they have room."""
    hidden = _frame(draw) + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    if 0 <= place <= len(comment) - len(hidden):
        comment[place : place + len(hidden)] = hidden


def _comment(content: bytes | bytearray) -> bytes:
    return struct.pack(">BBH", 0xFF, 0xFE, len(content) + 2) + content


def _changed_jpeg(data: bytes, draw: random.Random) -> bytes:
    places, place = [2], 2  # of the markers before the first scan
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] not in (0xDA, 0xFF):
        place += 2 + (data[place + 2] << 8 | data[place + 3])
        places.append(place)
    at = draw.choice(places)
    head, rest = data[:at], data[at:]
    way = draw.randrange(11)
    if way == 0:
        return head + b"\xff" * draw.randrange(1, 6) + rest
    if way == 1:  # frames anywhere in a comment
        comment = bytearray(draw.choice((100, 40_000, 0xFFFF - 2)))
        for _ in range(draw.randrange(1, 4)):
            _hide(comment, draw.randrange(len(comment)), draw)
        return head + _comment(comment) + rest
    # a frame where one lands who reads a length that is none
    if way == 10 and len(rest) > 4 and at < places[-1]:
        odd = draw.choice((b"\xff", b"\xff\xff", b"\xff\x01", b"\xff\xd0", b"\xff\xd7"))
        begin = len(odd) + 2 + (rest[2] << 8 | rest[3])  # behind the segment that comes next
        length = int.from_bytes((odd + rest)[2:4], "big")
        comment = bytearray(0xFFFF - 2)
        _hide(comment, 2 + length - begin - 4, draw)
        return head + (odd + rest)[:begin] + _comment(comment) + (odd + rest)[begin:]
    if way == 2:
        return head + _frame(draw) + rest
    if way == 3:
        return (
            head
            + bytes([0xFF, draw.choice((0x00, 0x01, 0xD0, 0xD3, 0xD7, 0xD8, 0xD9, 0xDC, 0xF0))])
            + rest
        )
    if way == 4 and len(rest) > 4:
        return (
            head
            + rest[:2]
            + struct.pack(">H", draw.choice((0, 1, 2, 3, 8, 17, 0xFFFF, draw.randrange(0x10000))))
            + rest[4:]
        )
    if way == 5 and len(rest) > 2:
        return (
            head
            + bytes([0xFF, draw.choice((0xC0, 0xC1, 0xC2, 0xC3, 0xC9, 0xCB, 0xE1, 0xFE))])
            + rest[2:]
        )
    if way == 6:
        return head + draw.randbytes(draw.randrange(1, 5)) + rest
    if way == 7:  # another frame in the place of the one that is there
        return b"".join(
            _frame(draw) if data[begin + 1] in (0xC0, 0xC2, 0xC3) else data[begin:end]
            for begin, end in zip([0, *places], [*places, len(data)], strict=True)
            if begin < end and begin + 1 < len(data)
        )
    if way == 8 and len(places) > 2:
        one, other = sorted(draw.sample(range(len(places) - 1), 2))
        parts = [data[begin:end] for begin, end in pairwise(places)]
        parts[one], parts[other] = parts[other], parts[one]
        return data[:2] + b"".join(parts) + data[places[-1] :]
    return _changed_numbers(data, draw)


def _changed_png(data: bytes, draw: random.Random) -> bytes:
    """Change, double or move chunks; their checksums are right."""
    chunks, place = [], 8
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    if not chunks:
        return data
    at = draw.randrange(len(chunks))
    kind, content = chunks[at]
    if draw.random() < 0.3:
        chunks.insert(draw.randrange(len(chunks)), (kind, content))
    if kind == b"IHDR" and len(content) == 13:
        sizes = struct.pack(">II", draw.choice(SIZES), draw.choice(SIZES))
        content = (
            sizes + content[8:]
            if draw.random() < 0.7
            else content[:8] + bytes(draw.choice((0, 1, 2, 3, 4, 6, 8, 16)) for _ in range(5))
        )
    elif content and draw.random() < 0.5:
        content = _changed_numbers(content, draw)
    chunks[at] = (kind, content)
    made = (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return data[:8] + b"".join(made)


def _changed_numbers(data: bytes, draw: random.Random) -> bytes:
    """Put another number somewhere among the first bytes, or near the end."""
    found = bytearray(data)
    form = draw.choice(("B", "<H", ">H", "<I", ">I"))
    most = len(found) - struct.calcsize(form)
    if most <= 0:
        return data
    place = min(most, draw.randrange(200)) if draw.random() < 0.9 else draw.randrange(most)
    value = draw.choice((draw.choice(SIZES), draw.getrandbits(32), 2**31 - 1, 2**31, 2**32 - 1))
    struct.pack_into(form, found, place, value % (1 << 8 * struct.calcsize(form)))
    return bytes(found)


# --- all ways in which shardctl decodes ---


def read(data: bytes) -> None:
    """Decode an image in every way. Nothing but a rejection may come out."""
    view, encoded = memoryview(data), np.frombuffer(data, np.uint8)
    jpeg_facts(data)
    plain_size(encoded)
    decodes_whole(data)
    for height, width in ((HEIGHT, WIDTH), (8, 8)):
        decode_plain(view, np.empty((height, width, 3), np.uint8))
    if _pixels(data) <= MOST_PIXELS:
        decode_plain_alone(view)
        JpegDecoder().decode(encoded, np.empty((HEIGHT, WIDTH, 3), np.uint8))
    for keep in (False, True):
        for way in (
            lambda opened: image.check(opened),
            lambda opened: image.render(opened, View.whole(opened.size)),
            lambda opened: image.render(opened, View.whole(opened.size).scaled((3, 2))),
        ):
            with contextlib.suppress(Rejection):
                way(image.open_image(data, MOST_PIXELS, keep))
    with contextlib.suppress(Rejection):
        image.decode_mask(data, MOST_PIXELS)


def _pixels(data: bytes) -> int:
    """Return how many pixels a JPEG has: libjpeg-turbo would take its time for many."""
    size = plain_size(np.frombuffer(data, np.uint8))
    return size[0] * size[1] if size else 0


def _work(given: argparse.Namespace, folder: Path) -> None:
    warnings.simplefilter("ignore")
    images, number = seeds(), given.case or 0
    end = time.monotonic() + given.seconds
    while number == (given.case or 0) or (given.case is None and time.monotonic() < end):
        draw = random.Random(f"{given.seed} {number}")
        data = changed(draw.choice(images), draw)
        (folder / "case").write_bytes(data)
        (folder / "number").write_text(str(number))
        read(data)
        number += 1
    print(f"{number} images, nothing found", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--case", type=int)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        _work(given, given.here)
        return
    looking = shutil.which("valgrind") is not None
    if not looking:
        print(
            "valgrind is not installed: the C library looks for what is written beyond its memory, "
            "and for no reading",
            flush=True,
        )
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-headers-"))
    command = (
        [*VALGRIND, f"--suppressions={KNOWN}", f"--log-file={scratch / 'found'}"] if looking else []
    )
    command += [
        sys.executable,
        __file__,
        "--seconds",
        str(given.seconds),
        "--seed",
        str(given.seed),
        "--here",
        str(scratch),
    ]
    command += [] if given.case is None else ["--case", str(given.case)]
    with open(scratch / "said", "w") as said:  # libtiff says much of its own
        ended = subprocess.run(
            command,
            env={**os.environ, "PYTHONMALLOC": "malloc"} if looking else environment(),
            stderr=said,
        )
    if ended.returncode:
        for name in ("said", "found", "number"):
            lines = (
                (scratch / name).read_text(errors="replace").splitlines()
                if (scratch / name).exists()
                else []
            )
            print("\n".join(lines[-60:]), file=sys.stderr)
        again = f"{__file__} --seed {given.seed} --case NUMBER, which is the last line above"
        sys.exit(f"exit code {ended.returncode}; the image is {scratch / 'case'}; again: {again}")
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
