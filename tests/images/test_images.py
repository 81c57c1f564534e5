"""The rules of docs/images.md."""

from __future__ import annotations

import io
import resource
import struct

import numpy as np
import pytest
from pictures import encoded, oriented, scene
from PIL import Image, ImageOps
from raw_png import png

from shardctl.errors import Rejection
from shardctl.images.codecs import image
from shardctl.images.codecs.image import (
    ImageEncoding,
    decode,
    decode_mask,
    open_image,
    render,
    to_rgb,
)
from shardctl.images.geometry import View
from shardctl.transforms.image.views import Crop, Resize


def test_grey_and_one_bit_become_rgb():
    assert decode(encoded(Image.new("L", (2, 2), 77)))[0, 0].tolist() == [77, 77, 77]
    assert decode(encoded(Image.new("1", (2, 2), 1)))[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 0.5, 1.0, 2.0], [0, 1, 1, 2]), ([0.0, 0.5, 1.0, 0.25], [0, 128, 255, 64])],
)
def test_floating_point_grey_is_scaled_by_its_range(values, expected):
    data = encoded(Image.fromarray(np.array([values], np.float32)), "TIFF")
    assert decode(data)[0, :, 0].tolist() == expected


def test_transparent_pixels_lie_on_white():
    clear = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    assert decode(encoded(clear))[0].tolist() == [[255, 255, 255], [10, 20, 30]]
    assert decode(encoded(Image.new("LA", (1, 1), (40, 0))))[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_a_transparent_colour_lies_on_white(mode):
    image = Image.new("RGB", (2, 1), (0, 100, 0))
    image.putpixel((0, 0), (255, 0, 0))
    given = image if mode == "RGB" else image.convert("P", palette=Image.Palette.ADAPTIVE)
    clear = (255, 0, 0) if mode == "RGB" else given.getpixel((0, 0))
    made = decode(encoded(given, transparency=clear))
    assert made[0].tolist() == [[255, 255, 255], [0, 100, 0]]


@pytest.mark.parametrize(
    ("bits", "values", "clear", "expected"),
    [
        (1, [0, 1, 0], 0, [255, 255, 255]),
        (2, [0, 1, 2, 3], 1, [0, 255, 170, 255]),
        (2, [0, 1, 2, 3], 2, [0, 85, 255, 255]),
        (4, [0, 1, 7, 14], 7, [0, 17, 255, 238]),
        (4, [0, 1, 7, 14], 17, [0, 255, 119, 238]),  # a decoder takes the bits that there are
        (8, [0, 1, 7, 200], 7, [0, 1, 255, 200]),
        (16, [0, 300, 301, 0x8000, 0xFFFF], 300, [0, 255, 1, 128, 255]),
        (16, [0, 1, 255, 256], 0, [255, 0, 0, 1]),
    ],
)
def test_the_transparent_grey_of_a_png_counts_in_its_own_bits(bits, values, clear, expected):
    data = png([values], bits, [clear])
    assert decode(data)[0].tolist() == [[value] * 3 for value in expected]


def test_the_transparent_colour_of_a_png_of_16_bits_counts_in_all_of_them():
    colours = [[0x1234, 0x5678, 0x9ABC], [0x1234, 0x5678, 0x9ABD], [0x1200, 0x5600, 0x9A00]]
    got = decode(png([colours], 16, colours[0]))
    assert got[0].tolist() == [[255, 255, 255], [0x12, 0x56, 0x9A], [0x12, 0x56, 0x9A]]


def test_a_picture_of_pillow_with_16_bits_and_a_transparent_grey_keeps_the_others():
    picture = Image.open(io.BytesIO(png([[0, 300, 0x8000]], 16, [300])))
    assert np.asarray(to_rgb(picture))[0, :, 0].tolist() == [0, 255, 128]


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("clear", [None, [1]])
def test_a_mask_has_the_numbers_that_are_stored_whatever_is_transparent(bits, clear):
    values = [[0, 1, 2**bits - 1]]
    assert decode_mask(png(values, bits, clear)).tolist() == values


def test_cmyk_and_lab_become_rgb():
    red = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF")
    assert decode(red)[0, 0].tolist() == [255, 0, 0]
    planes = [Image.new("L", (2, 2), value) for value in (255, 128, 128)]
    assert decode(encoded(Image.merge("LAB", planes), "TIFF")).min() > 240


def test_of_an_animation_the_first_picture_is_taken():
    frames = [Image.new("P", (4, 4), index) for index in (0, 1)]
    for frame in frames:
        frame.putpalette([250, 0, 0, 0, 0, 250])
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data)[0, 0].tolist() == [250, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {"quality": 95}),
        ("PNG", {}),
        ("TIFF", {"compression": "raw"}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_exif_orientation_is_applied(orientation, form, options):
    data = encoded(scene(60, 20), form, exif=oriented(orientation), **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    opened = open_image(data)
    assert opened.size == upright.size == ((20, 60) if orientation >= 5 else (60, 20))
    assert np.array_equal(decode(data), np.asarray(upright))
    half = (upright.width // 2, upright.height // 2)
    expected = np.asarray(upright.resize(half, Image.Resampling.BILINEAR)).astype(int)
    view = View.whole(opened.size).scaled(half)
    assert np.abs(render(opened, view) - expected).mean() < 2
    cut = render(opened, view.cropped(0, 0, 9, 9))
    assert np.abs(cut - expected[:9, :9]).mean() < 2


@pytest.mark.parametrize(
    "size", [(500, 375), (333, 500), (1200, 900), (1500, 1000), (224, 224), (100, 60)]
)
def test_the_fused_crop_is_the_plain_one(size):
    """Against resizing the whole picture and cutting the centre out of it, with no scaled
    decode."""
    data = encoded(scene(*size), "JPEG", quality=95)
    opened = open_image(data)
    view = Crop.parse(size=224).view(
        Resize.parse(size=256).view(View.whole(opened.size), None), None
    )
    full = Image.open(io.BytesIO(data))
    short = 256 / min(size)
    to = [max(256, int(side * short)) for side in size]
    resized = full.resize(to, Image.Resampling.BILINEAR)
    left, top = round((resized.size[0] - 224) / 2), round((resized.size[1] - 224) / 2)
    plain = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    difference = np.abs(render(opened, view).astype(int) - plain)
    assert difference.mean() < 1
    assert difference.max() < 30


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "empty"),
        (b"hello world, this is no image", "not-an-image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "format-not-allowed"),
        (b"8BPS" + bytes(40), "format-not-allowed"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "damaged"),
        (encoded(scene(64, 64), "JPEG")[:900], "truncated"),
        (encoded(scene(64, 64))[:-200], "truncated"),
    ],
)
def test_what_cannot_be_decoded_is_rejected_with_the_reason(data, error):
    with pytest.raises(Rejection) as caught:
        decode(data)
    assert (caught.value.stage, caught.value.error) == ("decode", error)
    with pytest.raises(Rejection):
        image.check(open_image(data))


@pytest.mark.parametrize("bitmap", ["bmp", "png"])
def test_an_icon_of_several_sizes_is_no_tga_whichever_comes_first(bitmap):
    """Of a first picture of 64 KiB to 128 KiB, the size makes the header look like one of TGA."""
    sizes = [(16, 16), (24, 24), (32, 32), (48, 48), (128, 128)]
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 4), np.uint8)
    data = encoded(Image.fromarray(noise, "RGBA"), "ICO", sizes=sizes, bitmap_format=bitmap)
    entries = [data[place : place + 16] for place in range(6, 6 + 16 * len(sizes), 16)]
    largest_first = data[:6] + b"".join(entries[::-1]) + data[6 + 16 * len(sizes) :]
    for each in (data, largest_first):
        assert (open_image(each).format, decode(each).shape) == ("ICO", (128, 128, 3))


def test_a_bomb_is_rejected_by_its_header():
    header = encoded(Image.new("1", (2000, 2000)))
    with pytest.raises(Rejection) as caught:
        open_image(header, max_pixels=1_000_000)
    assert caught.value.error == "too-many-pixels"


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("first", [b"\x89PNG\r\n\x1a\n", b""])
@pytest.mark.parametrize("keep", [False, True])
def test_an_icon_whose_picture_is_larger_than_it_says_is_rejected_without_decoding(first, keep):
    bitmap = struct.pack("<IiiHH24x", 40, 20000, 2 * 20000, 1, 32) + bytes(1000)
    picture = encoded(Image.new("1", (20000, 20000))) if first else bitmap
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(picture), 22)
    data = struct.pack("<HHH", 0, 1, 1) + entry + picture
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Rejection) as caught:
        open_image(data, max_pixels=1_000_000, keep_truncated=keep)
    assert caught.value.error == "too-many-pixels"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, (
        "kB: it has been decoded"
    )


@pytest.mark.parametrize("store", ["jpeg:95", "png", "webp:90"])
def test_what_is_encoded_decodes_to_nearly_the_same(store):
    pixels = np.asarray(scene(60, 40))
    assert np.abs(decode(ImageEncoding.parse(store).encode(pixels)).astype(int) - pixels).mean() < (
        0.01 if store == "png" else 4
    )


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_truncated_image_can_be_kept_with_what_there_is_of_it(form):
    whole = encoded(scene(64, 64), form)
    cut = whole[: len(whole) * 3 // 4]
    with pytest.raises(Rejection, match="--truncated keep"):
        decode(cut)
    kept = decode(cut, keep_truncated=True)
    assert kept.shape == (64, 64, 3)
    assert np.array_equal(kept[:8], decode(whole)[:8])
    assert len(np.unique(kept[-8:].reshape(-1, 3), axis=0)) == 1, "what is missing has one colour"
    with pytest.raises(Rejection):
        decode(cut)
