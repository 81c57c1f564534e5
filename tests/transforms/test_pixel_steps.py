"""The steps of a recipe that change the values of pixels: what they draw, what they do, and what
they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from pictures import centroid, picture, rectangle, values
from PIL import Image
from stepped_pictures import done, picture_of

from shardctl.format.roles import Objects
from shardctl.images import pixels
from shardctl.images.object_geometry import Motion, moved_objects
from shardctl.images.pixels import adjust
from shardctl.transforms.base import EVERYTHING, ImageTransform
from shardctl.transforms.settings import SettingError
from shardctl.transforms.table import parse_step

IMAGE = picture(1)

FIXED: list[tuple[str, dict[str, Any], Any, tuple[Any, ...]]] = [
    ("adjust_brightness", {"factor": 1.4}, pixels.brightness, (1.4,)),
    ("adjust_contrast", {"factor": 0.4}, pixels.contrast, (0.4,)),
    ("adjust_saturation", {"factor": 2}, pixels.saturation, (2,)),
    ("adjust_hue", {"factor": -0.2}, pixels.hue, (-0.2,)),
    ("adjust_hue", {"factor": -0.2, "backend": "pillow"}, pixels.hue_of_pillow, (-0.2,)),
    ("adjust_sharpness", {"factor": 3, "p": 1}, pixels.sharpness, (3,)),
    ("grayscale", {}, pixels.grayscale, ()),
    ("autocontrast", {"p": 1}, pixels.autocontrast, ()),
    ("equalize", {"p": 1}, pixels.equalize, ()),
    ("posterize", {"bits": 2, "p": 1}, pixels.posterize, (2,)),
    ("solarize", {"threshold": 90, "p": 1}, pixels.solarize, (90,)),
    ("invert", {"p": 1}, pixels.invert, ()),
    (
        "erase",
        {"left": 0.5, "top": 0, "width": 0.7, "height": 0.5, "value": [9, 8, 7]},
        pixels.erase,
        ((20, 0, 21, 14), (9, 8, 7)),
    ),
    ("erase", {"left": 0.5, "top": 0, "width": 0, "height": 0.5}, Image.Image.copy, ()),
    ("gaussian_blur", {"sigma": 1.5, "kernel_size": 7}, pixels.gaussian_blur, (1.5, 7)),
    (
        "color_jitter",
        {"brightness": [1.3, 1.3], "hue": [0.1, 0.1]},
        adjust,
        ([("brightness", 1.3), ("hue", 0.1)],),  # the order that seed 0 draws
    ),
    (
        "gaussian_noise",
        {"sigma": 0.2},
        lambda image: pixels.gaussian_noise(image, np.random.default_rng(0), 0, 0.2),
        (),
    ),
]


@pytest.mark.parametrize(("name", "settings", "function", "arguments"), FIXED)
def test_a_step_does_what_its_name_says(name, settings, function, arguments):
    wanted = values(function(IMAGE, *arguments))
    assert np.array_equal(done(IMAGE, {"name": name, **settings}), wanted)


RANDOM: list[dict[str, Any]] = [
    {"name": "color_jitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    {"name": "photometric_distort"},
    {"name": "grayscale", "p": 0.5},
    {"name": "channel_permutation"},
    {"name": "channel_dropout"},
    {"name": "autocontrast"},
    {"name": "equalize"},
    {"name": "invert"},
    {"name": "posterize", "bits": 2},
    {"name": "solarize", "threshold": 100},
    {"name": "adjust_sharpness", "factor": 3},
    {"name": "gaussian_blur"},
    {"name": "gaussian_noise"},
    {"name": "salt_and_pepper"},
    {"name": "jpeg", "quality": [5, 80]},
    {"name": "random_erasing"},
    {"name": "random_erasing", "value": "random"},
    {"name": "rand_augment"},
    {"name": "trivial_augment"},
    {"name": "auto_augment"},
    {"name": "aug_mix"},
]


@pytest.mark.parametrize("step", RANDOM, ids=[step["name"] for step in RANDOM])
def test_the_generator_alone_decides_what_a_random_step_does(step):
    parsed = parse_step(step)
    assert parsed.random
    assert parse_step({"name": step["name"], **parsed.settings()}) == parsed
    made = [done(IMAGE, step, seed=seed) for seed in range(12)]
    assert all(
        np.array_equal(pixels, done(IMAGE, step, seed=seed)) for seed, pixels in enumerate(made)
    )
    assert len({pixels.tobytes() for pixels in made}) > 1


@pytest.mark.parametrize(
    "step",
    [step for step in RANDOM if hasattr(parse_step(step), "p")],
    ids=lambda step: step["name"],
)
def test_what_has_no_probability_changes_nothing_and_draws_nothing(step):
    never = {**step, "p": 0}
    assert not parse_step(never).random
    assert np.array_equal(done(IMAGE, never), values(IMAGE))


@pytest.mark.parametrize(
    "step",
    [*RANDOM, *({"name": name, **settings} for name, settings, *_ in FIXED)],
    ids=lambda step: step["name"],
)
@given(
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    narrow=st.booleans(),
    seed=st.integers(0, 2**31),
)
@examples(15)
def test_images_of_any_shape_keep_it(step, width, height, narrow, seed):
    width = 1 if narrow else width
    made = done(picture(seed, width, height), step, seed=seed)
    assert made.shape == (height, width, 3)
    assert made.dtype == np.uint8


def test_a_step_that_is_left_out_leaves_the_resampling_one():
    """Two crops with a step between them that is not done are one crop: nothing is blurred
    twice."""
    views = [{"name": "resize", "size": "30x20"}, {"name": "resize", "size": "17x13"}]
    assert np.array_equal(
        done(IMAGE, views[0], {"name": "invert", "p": 0}, views[1]), done(IMAGE, *views)
    )
    assert not np.array_equal(
        done(IMAGE, views[0], {"name": "grayscale"}, views[1]),
        done(IMAGE, *views, {"name": "grayscale"}),
    )


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"name": "gaussian_blur", "kernel_size": 4}, "kernel_size must be odd"),
        ({"name": "gaussian_blur", "sigma": 0}, "sigma must be"),
        ({"name": "jpeg", "quality": 0}, "quality must be"),
        ({"name": "jpeg", "quality": [90, 10]}, r"\[90, 10\]"),
        ({"name": "jpeg", "quality": True}, "it is True"),
        ({"name": "color_jitter", "hue": 0.6}, "hue must be"),
        ({"name": "color_jitter", "brightness": -0.1}, "brightness must be"),
        ({"name": "color_jitter", "backend": "cv2"}, "numpy or pillow"),
        ({"name": "rand_augment", "magnitude": 31}, "0 to 30"),
        ({"name": "auto_augment", "policy": "mnist"}, "imagenet, cifar10 or svhn"),
        ({"name": "posterize"}, "needs bits"),
        ({"name": "random_erasing", "value": "noise"}, "'noise'"),
        ({"name": "gausian_blur"}, "did you mean gaussian_blur"),
    ],
)
def test_what_cannot_be_is_refused_by_name(step, message):
    with pytest.raises(SettingError, match=message):
        parse_step(step)


def test_boxes_follow_what_the_policies_move():
    """A white box on black, its values changed by no operation that would move its centre of
    gravity."""
    size, box = (131, 97), (45, 35, 20, 16)
    image = rectangle(size, box)
    moved_ones = 0
    for seed in range(40):
        made = picture_of(image, {"name": "rand_augment", "num_ops": 3, "magnitude": 6}, seed=seed)
        pixels = values(made.image)
        motion = Motion.of(size, made.stages)
        moved = moved_objects({"bbox": [list(box)], "category": [0]}, motion, Objects(), 0.0)
        corner = pixels[48, 0].sum(), pixels[43, 55].sum()
        if motion.is_still or corner[0] >= corner[1] or pixels[0, 0].sum():
            continue  # nothing has moved, or the values were inverted or are grey
        ((left, top, width, height),) = moved["bbox"]
        assert centroid(pixels) == pytest.approx((left + width / 2, top + height / 2), abs=0.7)
        moved_ones += 1
    assert moved_ones > 10


def test_what_each_step_can_move():
    def moves(step: dict[str, Any]) -> frozenset[str]:
        parsed = parse_step(step)
        assert isinstance(parsed, ImageTransform)
        return parsed.moves

    assert moves({"name": "aug_mix"}) == frozenset()
    for step in RANDOM:
        assert moves(step) == (frozenset() if step["name"] == "aug_mix" else EVERYTHING)


def test_a_mixture_lies_between_what_it_is_made_of():
    """Without operations that brighten, no value of a mix of black-filled images can exceed the
    largest of the image."""
    flat = Image.new("RGB", (20, 20), (100, 100, 100))
    for seed in range(10):
        made = done(flat, {"name": "aug_mix", "all_ops": False, "severity": 1}, seed=seed)
        assert made.max() <= 156  # solarised or posterised: at most 255 - 100 and its rounding
