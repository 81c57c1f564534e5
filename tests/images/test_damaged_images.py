"""What Pillow refuses when it opens and loads an image afresh is refused everywhere, and nothing
else is."""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from dataset_facts import rejects_of
from guarded_memory import run_checked
from in_this_process import convert
from lossless import lossless_jpeg
from pictures import Pixels, oriented, scene_pixels
from pictures import encoded as file_of
from PIL import Image, ImageFile

import shardctl
from shardctl.errors import DatasetError, Rejection
from shardctl.images.codecs import backend, image
from shardctl.images.codecs.jpeg import JpegDecoder, decodes_whole
from shardctl.images.geometry import View

RGB = Image.fromarray(scene_pixels(41, 37))


def encoded(form: str, picture: Image.Image = RGB, **options: Any) -> bytes:
    return file_of(picture, form, **options)


def other_frames(picture: Image.Image = RGB) -> dict[str, Any]:
    return {"save_all": True, "append_images": [picture.transpose(Image.Transpose.ROTATE_180)]}


def as_441(height: int, width: int) -> bytes:
    """A JPEG whose colours have a quarter of the lines: a 4:2:0 one with as many blocks, whose
    header says so."""
    data = bytearray(
        encoded("JPEG", Image.fromarray(scene_pixels(width * 2, height // 2)), subsampling=2)
    )
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    data[frame + 11] = 0x14  # the first component: one block wide, four high
    return bytes(data)


def with_fill_bytes(data: bytes, count: int) -> bytes:
    """A JPEG with `count` bytes 0xFF before its first marker: the standard has them, and decoders
    pass over them."""
    return data[:2] + b"\xff" * count + data[2:]


def with_another_frame(data: bytes, place: int) -> bytes:
    """A grey JPEG with a comment, of which the bytes at `place` of the file are a frame that is
    none, and a start of scan."""
    height_width = data[data.index(b"\xff\xc3") + 5 :][:4]
    first = 2 + data[2:].index(b"\xff\xc4")
    comment = bytearray(0xFFFF - 2)
    frame = b"\xff\xc0\x00\x0b\x08" + height_width + b"\x01\x01\x11\x00"
    inside = place - first - 4
    comment[inside : inside + 23] = frame + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    return data[:first] + b"\xff\xfe\xff\xff" + bytes(comment) + data[first:]


CRAFTED = {
    "fill byte": lambda data: with_another_frame(with_fill_bytes(data, 1), 4 + 0xC300),
    "fill bytes": lambda data: with_fill_bytes(data, 5),
    "marker without a length": lambda data: with_another_frame(
        data.replace(b"\xff\xd8", b"\xff\xd8\xff\xd0", 1), 4 + 0xFFC3
    ),
}
"""Losslessly coded JPEG in which another frame, or none, is found by who looks for markers in
another way than libjpeg."""


MADE: dict[str, Callable[[], bytes]] = {
    "JPEG 4:4:4": lambda: encoded("JPEG", subsampling=0),
    "JPEG 4:2:0": lambda: encoded("JPEG", subsampling=2),
    "JPEG 4:4:1": lambda: as_441(96, 24),
    "JPEG progressive": lambda: encoded("JPEG", progressive=True),
    "JPEG grey": lambda: encoded("JPEG", RGB.convert("L")),
    "JPEG CMYK": lambda: encoded("JPEG", RGB.convert("CMYK")),
    "MPO": lambda: encoded("MPO", **other_frames()),
    "PNG": lambda: encoded("PNG"),
    "PNG palette": lambda: encoded("PNG", RGB.quantize(16)),
    "PNG 16 bits": lambda: encoded(
        "PNG", Image.fromarray(scene_pixels(20, 20)[..., 0].astype(np.uint16) * 257)
    ),
    "PNG animated": lambda: encoded("PNG", **other_frames()),
    "GIF": lambda: encoded("GIF", RGB.quantize(16)),
    "GIF animated": lambda: encoded("GIF", RGB.quantize(16), **other_frames(RGB.quantize(16))),
    "TIFF": lambda: encoded("TIFF"),
    "TIFF lzw": lambda: encoded("TIFF", compression="tiff_lzw"),
    "TIFF deflate": lambda: encoded("TIFF", compression="tiff_adobe_deflate"),
    "TIFF jpeg": lambda: encoded("TIFF", compression="jpeg"),
    "TIFF pages": lambda: encoded("TIFF", **other_frames()),
    "WEBP": lambda: encoded("WEBP"),
    "WEBP lossless": lambda: encoded("WEBP", lossless=True),
    "WEBP animated": lambda: encoded("WEBP", **other_frames()),
    "JPEG2000": lambda: encoded("JPEG2000"),
    "AVIF": lambda: encoded("AVIF"),
    "ICO": lambda: encoded("ICO", RGB.resize((32, 32)), sizes=[(32, 32)]),
    "ICO bmp": lambda: encoded("ICO", RGB.resize((32, 32)), sizes=[(32, 32)], bitmap_format="bmp"),
    "BMP": lambda: encoded("BMP"),
    "PPM": lambda: encoded("PPM"),
    "TGA": lambda: encoded("TGA"),
    "TGA rle": lambda: encoded("TGA", compression="tga_rle"),
    "QOI": lambda: encoded("QOI"),
}


def accepted(read: Callable[[], object]) -> bool:
    try:
        read()
    except Rejection:
        return False
    return True


def stored(folder: Path, data: bytes) -> Any:
    """Convert one image to folder/out."""
    (folder / "in").mkdir()
    (folder / "in" / "a.jpg").write_bytes(data)
    return convert(folder / "in", folder / "out")


def fresh_load(data: bytes) -> bool:
    """Ask Pillow itself, strictly."""
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with Image.open(
            io.BytesIO(data), formats=[form for form in image.FORMATS if form in Image.OPEN]
        ) as opened:
            opened.load()
    except Exception:  # noqa: BLE001 - Pillow raises anything at all for damaged data
        return False
    return True


def small(data: bytes) -> Pixels:
    opened = image.open_image(data)
    return image.render(opened, View.whole(opened.size).scaled((3, 3)))


def flipped(data: bytes, times: int) -> list[bytes]:
    """Copies with one wrong byte each, and some that end too early; the places are spread over all
    of the data."""
    copies = [data[: len(data) * part // 5] for part in range(1, 5)]
    copies += [data[:-cut] for cut in (1, 2, 3, 12)]
    for number in range(times):
        copy = bytearray(data)
        copy[len(data) * number // times] ^= 1 + 37 * number % 255
        copies.append(bytes(copy))
    return copies


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what is odd in them
@pytest.mark.parametrize("name", MADE)
def test_damaged_images_are_refused_where_pillow_refuses_them(name):
    readable, _ = backend.readable_formats()
    if name.split()[0] not in (*readable, "MPO"):
        pytest.skip(f"this build has no {name}")
    try:
        data = MADE[name]()
    except (OSError, KeyError) as error:
        pytest.skip(f"this build cannot write {name}: {error}")
    assert fresh_load(data)
    wrong = []
    for number, copy in enumerate([data, *flipped(data, 48)]):
        expected = fresh_load(copy)
        ways = (image.decode, lambda data: image.check(image.open_image(data)), small)
        found = [accepted(partial(way, copy)) for way in ways]
        if found != [expected] * 3:
            wrong.append((number, "decode, check, small", found))
        if JpegDecoder().decode(np.frombuffer(copy, np.uint8)) is not None and not expected:
            wrong.append((number, "simplejpeg", True))
    assert not wrong


def damaged_png() -> bytes:
    """One wrong byte in the middle of the pixels."""
    data = bytearray(encoded("PNG"))
    data[data.index(b"IDAT") + 400] ^= 0xFF
    assert not fresh_load(bytes(data))
    return bytes(data)


@pytest.mark.parametrize("options", [[], ["--crop", "16"]], ids=["source", "pixels"])
def test_a_png_with_one_wrong_byte_becomes_a_reject(cli, tmp_path, out, options):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.png").write_bytes(damaged_png())
    (tmp_path / "in" / "good.png").write_bytes(encoded("PNG"))
    assert cli("convert", tmp_path / "in", out, "--workers", "0", *options).code == 0
    assert [reject.source for reject in rejects_of(out)] == ["bad.png"]


def test_a_stored_png_with_one_wrong_byte_is_found_and_not_handed_out(
    cli, tmp_path, out, monkeypatch
):
    with monkeypatch.context() as unchecked:
        unchecked.setattr("shardctl.images.codecs.image.check", lambda opened: None)
        stored(tmp_path, damaged_png())
    found = shardctl.verify(out, level="deep").findings
    assert [finding.kind for finding in found] == ["does-not-decode"]
    with pytest.raises(DatasetError, match="does not decode"):
        shardctl.open(out)[0]
    drawn = cli("inspect", out, "--images", tmp_path / "sheet.png")
    assert drawn.code == 0
    sheet = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB"))
    assert (sheet == (200, 60, 60)).all(axis=-1).any(), "a damaged image is drawn as a cross"


READ = """
import sys
from pathlib import Path
from shardctl.images.codecs import image
from shardctl.images.codecs.jpeg import decodes_whole
from shardctl.images.geometry import View
data = Path(sys.argv[1]).read_bytes()
for _ in range(5):
    assert not decodes_whole(data)
    image.check(image.open_image(data))
    assert image.render(image.open_image(data), View.whole((400, 300)).scaled((4, 3))).shape == (3, 4, 3)
"""


@pytest.mark.parametrize("name", CRAFTED)
def test_a_losslessly_coded_jpeg_is_known_whatever_its_header_has(name, tmp_path):
    grey = scene_pixels(400, 300)[..., :1]
    data = CRAFTED[name](lossless_jpeg(grey))
    (tmp_path / "a.jpg").write_bytes(data)
    ended = run_checked(READ, [str(tmp_path / "a.jpg")])
    assert ended.returncode == 0, ended.stderr
    assert np.array_equal(image.decode(data), np.broadcast_to(grey, (300, 400, 3)))


def test_libjpeg_turbo_gets_memory_for_all_pixels_of_a_jpeg_that_it_makes_smaller(monkeypatch):
    """It writes no more, also where it does not make it smaller."""
    sizes = []
    decode = simplejpeg.decode_jpeg

    def measured(*given: Any, buffer: Any, **options: Any) -> Any:
        sizes.append(len(buffer))
        return decode(*given, buffer=buffer, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", measured)
    assert decodes_whole(encoded("JPEG", Image.fromarray(scene_pixels(900, 700))))
    assert decodes_whole(encoded("JPEG"))
    assert sizes[0] >= 900 * 700
    assert sizes[1] >= 41 * 37


@pytest.mark.parametrize("channels", [1, 3])
def test_losslessly_coded_jpeg_is_read_and_not_at_a_smaller_size(channels, tmp_path, out):
    """libjpeg-turbo would write all of its pixels into the memory for fewer: other memory is spoilt,
    and something crashes later."""
    pixels = scene_pixels(23, 17)[..., :channels]
    data, expected = lossless_jpeg(pixels), np.broadcast_to(pixels, (17, 23, 3))
    assert not decodes_whole(data)
    assert np.array_equal(image.decode(data), expected)
    assert accepted(lambda: image.check(image.open_image(data)))
    assert small(data).shape == (3, 3, 3)
    assert stored(tmp_path, data).rejected == 0
    assert np.array_equal(shardctl.open(out)[0]["image"], expected)


def with_fewer_scans(data: bytes) -> list[bytes]:
    """A progressive JPEG without its last scan, without its last two, and so on."""
    places = [place for place in range(len(data)) if data.startswith(b"\xff\xda", place)]
    return [data[: data.rindex(b"\xff\xc4", 0, place)] + b"\xff\xd9" for place in places[1:]]


@pytest.mark.parametrize("picture", [RGB, RGB.convert("L")], ids=["RGB", "grey"])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_a_progressive_jpeg_that_lacks_scans_has_the_pixels_that_pillow_gives(picture, subsampling):
    data = encoded("JPEG", picture, progressive=True, subsampling=subsampling)
    cut = with_fewer_scans(data)
    assert len(cut) >= 5
    for copy in cut:
        assert fresh_load(copy)
        assert JpegDecoder().decode(np.frombuffer(copy, np.uint8)) is None, "Pillow decodes it"
    whole = JpegDecoder().decode(np.frombuffer(data, np.uint8))
    assert whole is not None
    assert np.array_equal(whole, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize("keep", [False, True])
def test_a_losslessly_coded_jpeg_that_ends_too_early_is_refused(keep):
    data = lossless_jpeg(scene_pixels(23, 17))
    for cut in (len(data) // 2, len(data) - 40):
        with pytest.raises(Rejection):
            image.decode(data[:cut], keep_truncated=keep)


def test_a_losslessly_coded_jpeg_is_turned_as_its_exif_says():
    block = oriented(6).tobytes()
    data = lossless_jpeg(scene_pixels(23, 17))
    turned = data[:2] + struct.pack(">BBH", 0xFF, 0xE1, len(block) + 2) + block + data[2:]
    assert np.array_equal(image.decode(turned), np.rot90(scene_pixels(23, 17), -1))


def test_a_jpeg_that_simplejpeg_does_not_know_is_decoded_by_pillow(tmp_path, out):
    data = as_441(96, 24)
    stored(tmp_path, data)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    ds = shardctl.open(out)
    assert np.array_equal(ds[0]["image"], expected)
    batch = next(iter(ds.loader(batch_size=1, threads=1)))
    assert np.array_equal(batch["image"][0], expected)


def chunk(kind: bytes, content: bytes) -> bytes:
    size, check = (struct.pack(">I", each) for each in (len(content), zlib.crc32(kind + content)))
    return size + kind + content + check


@pytest.mark.parametrize("behind", [False, True])
def test_an_orientation_before_or_behind_the_pixels_of_a_png_is_applied(behind):
    data = encoded("PNG")
    place = data.index(b"IEND" if behind else b"IDAT") - 4
    turned = data[:place] + chunk(b"eXIf", oriented(6).tobytes()[6:]) + data[place:]
    assert image.open_image(turned).size == (37, 41)
    assert np.array_equal(image.decode(turned), np.rot90(scene_pixels(41, 37), -1))


@pytest.mark.parametrize("theirs", [False, True])
def test_the_setting_of_the_program_around_it_neither_matters_nor_changes(theirs, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", theirs)
    cut = encoded("JPEG")[:-200]
    assert not accepted(lambda: image.decode(cut))
    assert accepted(lambda: image.decode(cut, keep_truncated=True))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is theirs


def test_threads_that_keep_truncated_images_do_not_make_others_accept_them():
    cut = encoded("PNG", Image.fromarray(scene_pixels(200, 200)))[:-2000]
    found: dict[bool, list[bool]] = {False: [], True: []}

    def read(keep: bool) -> None:
        found[keep] = [accepted(lambda: image.decode(cut, keep_truncated=keep)) for _ in range(100)]

    threads = [threading.Thread(target=read, args=(keep,)) for keep in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {False: [False] * 100, True: [True] * 100}
