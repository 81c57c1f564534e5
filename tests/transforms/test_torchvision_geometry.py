"""Crops, resizes, flips and warps against torchvision's `transforms.v2`, where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pictures import picture, values
from PIL import Image
from stepped_pictures import done, picture_of
from torchvision_v2 import two_sample
from torchvision_v2 import v2 as v2

pytest.importorskip("torch")

SIZES = [(101, 77), (64, 64), (40, 90)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("to", [50, 33, 130, "50x20", "33x70"])
def test_resize(size, to, v2):
    image = picture(1, *size)
    theirs = to if isinstance(to, int) else [int(side) for side in to.split("x")][::-1]
    made = done(image, {"name": "resize", "size": to})
    assert np.array_equal(made, values(v2.functional.resize(image, theirs)))


@pytest.mark.parametrize("size", SIZES)
def test_crops_flips_and_margins(size, v2):
    image, F = picture(1, *size), v2.functional
    for step, theirs in (
        ({"name": "crop", "size": "31x20"}, F.center_crop(image, [20, 31])),
        ({"name": "hflip", "p": 1}, F.horizontal_flip(image)),
        ({"name": "vflip", "p": 1}, F.vertical_flip(image)),
        ({"name": "pad", "margin": 7, "fill": [1, 2, 3]}, F.pad(image, 7, (1, 2, 3))),
    ):
        assert np.array_equal(done(image, step), values(theirs)), step


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("angle", "translate", "scale", "shear"),
    [
        (0, [5, -3], 1, [0, 0]),
        (30, [0, 0], 1.2, [0, 0]),
        (-100, [3, 4], 0.9, [20, 0]),
        (10, [0, 7], 1.4, [-15, 25]),
    ],
)
def test_affine(angle, translate, scale, shear, interpolation, v2):
    image = picture(1, 101, 77)
    how = v2.InterpolationMode(interpolation)
    wanted = values(
        v2.functional.affine(image, angle, translate, scale, shear, how, fill=[9, 9, 9])
    )
    settings = {"angle": angle, "translate": translate, "scale": scale, "shear": shear}
    made = done(image, {"name": "affine", **settings, "interpolation": interpolation, "fill": 9})
    assert np.abs(made.astype(int) - wanted).max() <= (1 if interpolation == "bilinear" else 0)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_perspective(interpolation, v2):
    image = picture(1, 100, 80)
    start = [[0, 0], [100, 0], [100, 80], [0, 80]]
    end = [[10, 4], [95, 0], [88, 72], [2, 80]]
    how = v2.InterpolationMode(interpolation)
    wanted = values(v2.functional.perspective(image, start, end, how, fill=[9, 9, 9]))
    shares = [part for x, y in end for part in (x / 100, y / 80)]
    step = {"name": "perspective", "corners": shares, "interpolation": interpolation, "fill": 9}
    difference = np.abs(done(image, step).astype(int) - wanted)
    # torchvision solves for the matrix in single precision by default: a pixel at an edge may be
    # the next one.
    assert (difference > (1 if interpolation == "bilinear" else 0)).mean() < 0.002


def assert_alike(ours: Any, theirs: Any) -> None:
    """Compare the distributions of each column of whole numbers."""
    for columns in zip(ours.T, theirs.T, strict=True):
        assert two_sample(*(np.bincount(each, minlength=109) for each in columns)) < 1


@pytest.mark.thorough
def test_random_resized_crops_have_the_same_distribution(v2):
    """In an image whose shape and size make many tries fail, so that the tries and the last resort
    count."""
    import torch

    torch.manual_seed(1)
    theirs_step = v2.RandomResizedCrop(10, scale=(0.3, 1.0), ratio=(0.5, 2.0))
    image = torch.zeros(3, 20, 60, dtype=torch.uint8)
    drawn = (theirs_step.make_params([image]) for _ in range(4000))
    sides = ("left", "top", "width", "height")
    theirs = np.array([[each[key] for key in sides] for each in drawn])
    boxes = []
    blank = Image.new("RGB", (60, 20))
    step = {"name": "random_resized_crop", "size": 10, "scale": [0.3, 1.0], "ratio": [0.5, 2.0]}
    for seed in range(4000):
        left, top, right, bottom = picture_of(blank, step, seed=seed).look.box
        boxes.append([left, top, right - left, bottom - top])
    ours = np.round(np.array(boxes)).astype(int)
    assert_alike(ours, theirs)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("step", "theirs"),
    [
        (
            {
                "name": "random_affine",
                "degrees": 25,
                "translate": [0.2, 0.1],
                "scale": [0.8, 1.3],
                "shear": 12,
            },
            "RandomAffine",
        ),
        ({"name": "random_rotation", "degrees": [-40, 70]}, "RandomRotation"),
        ({"name": "random_perspective", "distortion_scale": 0.6, "p": 1.0}, "RandomPerspective"),
    ],
)
def test_random_warps_have_the_same_distribution(step, theirs, v2):
    """Where the white of an image goes: how much of it is in each quarter of the output."""
    import torch

    torch.manual_seed(2)
    how = v2.InterpolationMode("nearest")
    settings = {key: value for key, value in step.items() if key != "name"}
    theirs_step = getattr(v2, theirs)(**settings, interpolation=how)
    image = Image.new("RGB", (24, 18), (255, 255, 255))
    image.paste((40, 40, 40), (3, 2, 11, 8))

    def counts(made: Any) -> list[int]:
        quarters = (made[:9, :12], made[:9, 12:], made[9:, :12], made[9:, 12:])
        return [(part[..., 0] == level).sum() for part in quarters for level in (255, 40)]

    near = {**step, "interpolation": "nearest"}
    ours = [counts(done(image, near, seed=seed)) for seed in range(1500)]
    assert_alike(np.array(ours), np.array([counts(values(theirs_step(image))) for _ in ours]))


@pytest.mark.thorough(after=1)
def test_an_elastic_field_is_as_strong_and_as_smooth(v2):
    """Its mean square, and that of the difference of neighbours, over many pixels."""
    import torch

    from shardctl.images.geometry import Displacement

    torch.manual_seed(3)
    drawn = v2.ElasticTransform(60.0, 3.0).make_params([torch.zeros(3, 400, 400)])
    theirs = drawn["displacement"][0].numpy() * 200
    step = {"name": "elastic", "alpha": 60, "sigma": 3}
    made = picture_of(Image.new("RGB", (400, 400)), step, seed=3).stages[-1]
    assert isinstance(made, Displacement)
    for ours, wanted in ((made.x, theirs[..., 0]), (made.y, theirs[..., 1])):
        assert ours.std() == pytest.approx(wanted.std(), rel=0.05)
        for axis in (0, 1):
            steps = (np.diff(each, axis=axis).std() for each in (ours, wanted))
            assert next(steps) == pytest.approx(next(steps), rel=0.05)
