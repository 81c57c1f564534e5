"""Operations on the values of pixels, against Pillow's own and against what they are defined to
be."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Callable

import numpy as np
import PIL
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from pictures import encoded, picture, values
from PIL import Image, ImageEnhance, ImageOps

from shardctl.images import pixels
from shardctl.images.codecs.resampling import pixels_of

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 60)
factors = st.floats(0, 3)

PILLOW: dict[str, tuple[Callable[..., Image.Image], Callable[..., Image.Image]]] = {
    "brightness": (
        pixels.brightness,
        lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    ),
    "contrast": (
        pixels.contrast,
        lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    ),
    "saturation": (
        pixels.saturation,
        lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    ),
    "sharpness": (
        pixels.sharpness,
        lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    ),
    "autocontrast": (
        lambda image, _: pixels.autocontrast(image),
        lambda image, _: ImageOps.autocontrast(image),
    ),
    "equalize": (
        lambda image, _: pixels.equalize(image),
        lambda image, _: ImageOps.equalize(image),
    ),
    "invert": (lambda image, _: pixels.invert(image), lambda image, _: ImageOps.invert(image)),
    "posterize": (
        lambda image, factor: pixels.posterize(image, 1 + int(factor * 2)),
        lambda image, factor: ImageOps.posterize(image, 1 + int(factor * 2)),
    ),
    "solarize": (
        lambda image, factor: pixels.solarize(image, factor * 85),
        lambda image, factor: ImageOps.solarize(image, factor * 85),
    ),
    "grayscale": (
        lambda image, _: pixels.grayscale(image),
        lambda image, _: ImageOps.grayscale(image).convert("RGB"),
    ),
}


@pytest.mark.parametrize("name", PILLOW)
@given(seed=seeds, width=sizes, height=sizes, factor=factors)
@examples(30)
def test_bit_for_bit_what_pillow_makes(name, seed, width, height, factor):
    ours, theirs = PILLOW[name]
    image = picture(seed, width, height)
    before = values(image)
    assert np.array_equal(values(ours(image, factor)), values(theirs(image, factor)))
    assert np.array_equal(values(image), before), "the image that was given has changed"


@pytest.mark.parametrize("function", [pixels.saturation, pixels.sharpness])
def test_metadata_end_where_recorded_datasets_have_none(function):
    image = Image.new("RGB", (4, 4))
    image.info["icc_profile"] = b"profile"
    assert bool(function(image, 2.0).info) == (".post" not in PIL.__version__)


def test_no_bits_are_black():
    """Pillow 13 refuses it; the strongest AugMix asks for it."""
    assert not values(pixels.posterize(picture(1), 0)).any()


@given(seed=seeds, width=sizes, height=sizes, turn=st.floats(-0.5, 0.5))
@examples(30)
def test_hue_is_exact_to_a_rounded_value(seed, width, height, turn):
    image = picture(seed, width, height)
    made = values(pixels.hue(image, turn)).reshape(-1, 3)
    for (red, green, blue), found in list(zip(values(image).reshape(-1, 3), made, strict=True))[
        :: max(1, len(made) // 50)
    ]:
        hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
        wanted = np.array(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)) * 255
        assert np.abs(found - wanted).max() <= 0.76, (red, green, blue)


def test_hue_in_several_strips_is_that_of_one(monkeypatch):
    whole = values(pixels.hue(picture(1), 0.3))
    monkeypatch.setattr(pixels, "_HUE_STRIP", 100)
    assert np.array_equal(values(pixels.hue(picture(1), 0.3)), whole)


@given(
    seed=seeds,
    width=sizes,
    height=sizes,
    sigma=st.floats(0.1, 4),
    kernel=st.none() | st.integers(0, 12),
)
@examples(40)
def test_blur_is_the_sum_over_the_mirrored_image(seed, width, height, sigma, kernel):
    image = picture(seed, width, height)
    size = None if kernel is None else 2 * kernel + 1
    radius = math.ceil(6 * sigma) if kernel is None else kernel
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    wanted = values(image).astype(float)
    for axis, length in ((0, height), (1, width)):
        if radius:
            padding = [(radius, radius) if axis == each else (0, 0) for each in range(3)]
            padded = np.pad(wanted, padding, "reflect" if length > 1 else "edge")
            wanted = sum(
                weight * padded.take(range(at, at + length), axis)
                for at, weight in enumerate(weights)
            )
    assert np.abs(values(pixels.gaussian_blur(image, sigma, size)) - wanted).max() < 0.6


@given(seed=seeds, count=st.integers(1, 4))
@examples(20)
def test_a_mix_is_the_weighted_sum(seed, count):
    images = [picture(seed + n) for n in range(count)]
    weights = np.random.default_rng(seed).dirichlet([1.0] * count)
    wanted = sum(weight * values(image) for weight, image in zip(weights, images, strict=True))
    found = values(pixels.mix(images, list(weights)))
    assert ((found <= wanted + 1e-3) & (found > wanted - 1.001)).all()


def test_channels_are_reordered_and_dropped():
    image = picture(1)
    assert np.array_equal(
        values(pixels.permute_channels(image, (2, 0, 1))), values(image)[..., [2, 0, 1]]
    )
    dropped = values(pixels.drop_channels(image, (0, 2), 7))
    assert (dropped[..., [0, 2]] == 7).all()
    assert np.array_equal(dropped[..., 1], values(image)[..., 1])


@given(seed=seeds, data=st.data())
@examples(30)
def test_erasing_changes_the_rectangle_alone(seed, data):
    image = picture(seed)
    left, top = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 20))
    width, height = data.draw(st.integers(1, 41 - left)), data.draw(st.integers(1, 29 - top))
    wanted = values(image)
    wanted[top : top + height, left : left + width] = (1, 2, 3)
    box = (left, top, width, height)
    assert np.array_equal(values(pixels.erase(image, box, (1, 2, 3))), wanted)
    noisy = values(pixels.erase_with_noise(image, box, np.random.default_rng(seed)))
    noisy[top : top + height, left : left + width] = (1, 2, 3)
    assert np.array_equal(noisy, wanted)


def test_a_jpeg_is_that_of_pillow():
    image = picture(3, 64, 48)
    theirs = Image.open(io.BytesIO(encoded(image, "JPEG", quality=30)))
    assert np.array_equal(values(pixels.jpeg(image, 30)), values(theirs))


def test_gaussian_noise_has_its_mean_and_deviation():
    grey = Image.new("RGB", (300, 200), (128, 128, 128))
    made = values(pixels.gaussian_noise(grey, np.random.default_rng(3), mean=0.05, sigma=0.1)) - 128
    assert abs(made.mean() - 0.05 * 255) < 0.6  # the noise is cut towards 0
    assert abs(made.std() - 0.1 * 255) < 0.4
    dark = values(
        pixels.gaussian_noise(Image.new("RGB", (300, 200)), np.random.default_rng(3), sigma=0.1)
    )
    assert 0.45 < (dark == 0).mean() < 0.56, "half of the noise is below black, and is cut"


def test_salt_and_pepper_touch_their_share_of_whole_pixels():
    grey = Image.new("RGB", (300, 200), (128, 128, 128))
    made = values(pixels.salt_and_pepper(grey, np.random.default_rng(4), amount=0.1, salt=0.25))
    assert (made == made[..., :1]).all()
    counts = [(made[..., 0] == value).sum() / 60_000 for value in (255, 0, 128)]
    assert np.abs(np.array(counts) - (0.025, 0.075, 0.9)).max() < 0.006


@pytest.mark.parametrize("size", [(1, 1), (32, 32), (7, 5), (1, 300), (500, 333)])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_the_pixels_of_an_image_are_those_that_numpy_makes_of_it(size, mode):
    image = Image.effect_noise(size, 90).convert(mode)
    pixels = pixels_of(image)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, np.asarray(image))
