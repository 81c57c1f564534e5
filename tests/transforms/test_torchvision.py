"""Against torchvision's `transforms.v2`, where it is installed: `make setup` installs it where it
can.

It stands beside the imaging package that is in use (torchvision itself asks for Pillow): results
are compared within one of Pillow and Pillow-SIMD, whose resampling and grey values differ by up to
2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pictures import picture, values
from PIL import Image
from torchvision_v2 import two_sample
from torchvision_v2 import v2 as v2

from shardctl.images import pixels
from shardctl.transforms.image import automatic
from shardctl.transforms.image.automatic import do
from shardctl.transforms.picture import Picture
from shardctl.transforms.table import parse_step

torch = pytest.importorskip("torch")


SIZES = [(224, 160), (41, 29), (1, 1), (2, 7)]

EXACT: dict[str, tuple[Callable[..., Image.Image], str, tuple[Any, ...]]] = {
    "hue_of_pillow": (pixels.hue_of_pillow, "adjust_hue", (-0.5, -0.1, 0.0, 0.03, 0.25, 0.5)),
    "grayscale": (lambda image, _: pixels.grayscale(image), "rgb_to_grayscale", (3,)),
    "permute_channels": (pixels.permute_channels, "permute_channels", ([2, 0, 1], [1, 0, 2])),
    "jpeg": (pixels.jpeg, "jpeg", (1, 20, 75, 95, 100)),
}
"""What is not in the operations of policies, which are compared below."""


@pytest.mark.parametrize("name", EXACT)
def test_bit_for_bit_what_it_makes_of_a_pillow_image(name, v2):
    ours, theirs, settings = EXACT[name]
    for seed, size in enumerate(SIZES):
        for setting in settings:
            image = picture(seed, *size)
            assert np.array_equal(
                values(ours(image, setting)), values(getattr(v2.functional, theirs)(image, setting))
            ), setting


def tensor(image: Image.Image) -> Any:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def pixels_of(made: Any) -> Any:
    return made.permute(1, 2, 0).numpy().astype(int)


@pytest.mark.parametrize("turn", [-0.5, 0.02, 0.4])
def test_hue_is_within_1_of_that_of_a_tensor(turn, v2):
    for seed, size in enumerate(SIZES):
        image = picture(seed, *size)
        theirs = pixels_of(v2.functional.adjust_hue(tensor(image), turn))
        assert np.abs(values(pixels.hue(image, turn)) - theirs).max() <= 1


@pytest.mark.parametrize("kernel", [1, 3, 9, 23])
@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.0])
def test_blur_is_within_1(kernel, sigma, v2):
    for seed, size in enumerate(SIZES[:2]):
        image = picture(seed, *size)
        theirs = values(v2.functional.gaussian_blur(image, [kernel, kernel], [sigma, sigma]))
        assert np.abs(values(pixels.gaussian_blur(image, sigma, kernel)) - theirs).max() <= 1


NAMES = {
    "ShearX": "shear_x",
    "ShearY": "shear_y",
    "TranslateX": "translate_x",
    "TranslateY": "translate_y",
    "Color": "saturation",
    "AutoContrast": "autocontrast",
}


def named(theirs: str) -> str:
    return NAMES.get(theirs, theirs.lower())


@pytest.mark.parametrize(
    ("ours", "theirs", "bins"),
    [
        (automatic.RAND_AUGMENT, "RandAugment", 31),
        (automatic.RAND_AUGMENT, "RandAugment", 11),
        (automatic.TRIVIAL_AUGMENT, "TrivialAugmentWide", 31),
        (automatic.AUTO_AUGMENT, "AutoAugment", automatic.AUTO_AUGMENT_BINS),
        (automatic.AUG_MIX, "AugMix", automatic.AUG_MIX_BINS),
    ],
)
def test_the_operations_of_a_policy_and_their_magnitudes(ours, theirs, bins, v2):
    space = getattr(v2, theirs)._AUGMENTATION_SPACE
    assert set(ours) == {named(name) for name in space}
    for name, (magnitudes, signed) in space.items():
        strengths = ours[named(name)]
        for width, height in ((224, 224), (500, 333), (32, 331)):
            wanted = magnitudes(bins, height, width)
            assert (strengths is None) == (wanted is None)
            if strengths is not None:
                found = [strengths.magnitude(index, bins, (width, height)) for index in range(bins)]
                assert found == pytest.approx(wanted.tolist(), rel=1e-6, abs=1e-7)
                # its numbers of 32 bits may be a hair below a whole pixel: 15.999999 of 16
                assert [int(each) for each in found] == [
                    int(each + 1e-5) for each in wanted.tolist()
                ]
                assert strengths.signed == signed


def test_the_part_of_aug_mix_without_colours(v2):
    assert set(automatic.AUG_MIX_PART) == {
        named(name) for name in v2.AugMix._PARTIAL_AUGMENTATION_SPACE
    }


@pytest.mark.parametrize("policy", automatic.POLICIES)
def test_the_pairs_of_auto_augment(policy, v2):
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy(policy))._policies
    assert [tuple((named(name), p, index) for name, p, index in pair) for pair in theirs] == [
        *automatic.POLICIES[policy]
    ]


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("name", sorted({*automatic.TRIVIAL_AUGMENT, *automatic.AUTO_AUGMENT}))
def test_the_operations_of_policies_are_bit_for_bit_those_of_a_pillow_image(
    name, interpolation, v2
):
    """Each with weak, usual and the strongest magnitudes, of both signs."""
    theirs = {ours: name for name, ours in NAMES.items()}.get(name, name.capitalize())
    how = v2.InterpolationMode(interpolation)
    image = picture(1, 101, 77)
    for space in (automatic.RAND_AUGMENT, automatic.TRIVIAL_AUGMENT, automatic.AUTO_AUGMENT):
        strengths = space.get(name)
        signs = (1, -1) if strengths is not None and strengths.signed else (1,)
        for index in (0, 1, 9, 17, 30) if strengths is not None else (0,):
            for sign in signs:
                magnitude = (
                    0.0 if strengths is None else sign * strengths.magnitude(index, 31, image.size)
                )
                made = Picture.of(image)
                do([(name, magnitude)], made, interpolation, (1, 2, 3))
                wanted = v2.RandAugment()._apply_image_or_video_transform(
                    image, theirs, magnitude, interpolation=how, fill={Image.Image: [1, 2, 3]}
                )
                # Pillow rounds the numbers of its own rotation: of the mean of four pixels, a
                # rounding may differ.
                limit = 1 if (name, interpolation) == ("rotate", "bilinear") else 0
                assert np.abs(values(made.image) - values(wanted)).max() <= limit, magnitude


@pytest.mark.thorough
def test_a_photometric_distortion_changes_as_much(v2):
    """Both draw what is changed, and by how much: the mean change of an image has the same
    distribution."""
    image = picture(1, 16, 16)
    step, theirs = (
        parse_step({"name": "photometric_distort", "backend": "pillow"}),
        v2.RandomPhotometricDistort(),
    )
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    found = [
        np.array([made_by(image) for _ in range(1500)])
        for made_by in (lambda i: change(step.pixels(i, rng), i), lambda i: change(theirs(i), i))
    ]
    edges = np.linspace(0, 255, 512)
    assert two_sample(*(np.histogram(each, edges)[0] for each in found)) < 1


def change(after: Image.Image, before: Image.Image) -> float:
    return float(np.abs(values(after) - values(before)).mean())
