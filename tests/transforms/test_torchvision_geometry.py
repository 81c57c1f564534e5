"""Crops, resizes, flips and warps against torchvision's `transforms.v2`, where it is installed."""

from __future__ import annotations

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
@pytest.mark.parametrize("to", [50, 33, 130])
def test_resize_of_the_short_side(size, to, v2):
    image = picture(1, *size)
    assert np.array_equal(
        done(image, {"name": "resize", "size": to}), values(v2.functional.resize(image, to))
    )


@pytest.mark.parametrize("to", [(50, 20), (33, 70), (101, 77)])
def test_resize_to_a_size(to, v2):
    image = picture(1, 101, 77)
    made = done(image, {"name": "resize", "size": f"{to[0]}x{to[1]}"})
    assert np.array_equal(made, values(v2.functional.resize(image, [to[1], to[0]])))


@pytest.mark.parametrize("size", SIZES)
def test_crops_flips_and_margins(size, v2):
    image, F = picture(1, *size), v2.functional
    assert np.array_equal(
        done(image, {"name": "crop", "size": "31x20"}), values(F.center_crop(image, [20, 31]))
    )
    assert np.array_equal(done(image, {"name": "hflip", "p": 1}), values(F.horizontal_flip(image)))
    assert np.array_equal(done(image, {"name": "vflip", "p": 1}), values(F.vertical_flip(image)))
    assert np.array_equal(
        done(image, {"name": "pad", "margin": 7, "fill": [1, 2, 3]}),
        values(F.pad(image, 7, (1, 2, 3))),
    )


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


@pytest.mark.thorough
def test_random_resized_crops_have_the_same_distribution(v2):
    """In an image whose shape and size make many tries fail, so that the tries and the last resort
    count."""
    import torch

    torch.manual_seed(1)
    theirs_step = v2.RandomResizedCrop(10, scale=(0.3, 1.0), ratio=(0.5, 2.0))
    image = torch.zeros(3, 20, 60, dtype=torch.uint8)
    theirs = np.array(
        [
            [each[key] for key in ("left", "top", "width", "height")]
            for each in (theirs_step.make_params([image]) for _ in range(4000))
        ]
    )
    boxes = []
    blank = Image.new("RGB", (60, 20))
    step = {"name": "random_resized_crop", "size": 10, "scale": [0.3, 1.0], "ratio": [0.5, 2.0]}
    for seed in range(4000):
        left, top, right, bottom = picture_of(blank, step, seed=seed).look.box
        boxes.append([left, top, right - left, bottom - top])
    ours = np.round(np.array(boxes)).astype(int)
    for column in range(4):
        assert (
            two_sample(*(np.bincount(each[:, column], minlength=61) for each in (ours, theirs))) < 1
        )


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
    found: list[list[list[int]]] = [[], []]
    for seed in range(1500):
        for at, made in enumerate(
            (
                done(image, {**step, "interpolation": "nearest"}, seed=seed),
                values(theirs_step(image)),
            )
        ):
            quarters = (made[:9, :12], made[:9, 12:], made[9:, :12], made[9:, 12:])
            found[at].append(
                [
                    int((quarter[..., 0] == level).sum())
                    for quarter in quarters
                    for level in (255, 40)
                ]
            )
    ours_counts, their_counts = (np.array(each) for each in found)
    for column in range(8):
        assert (
            two_sample(
                *(
                    np.bincount(each[:, column], minlength=109)
                    for each in (ours_counts, their_counts)
                )
            )
            < 1
        )


@pytest.mark.thorough(after=1)
def test_an_elastic_field_is_as_strong_and_as_smooth(v2):
    """Its mean square, and that of the difference of neighbours, over many pixels."""
    import torch

    from shardctl.images.geometry import Displacement

    torch.manual_seed(3)
    theirs = (
        v2.ElasticTransform(60.0, 3.0)
        .make_params([torch.zeros(3, 400, 400)])["displacement"][0]
        .numpy()
        * 200
    )
    made = picture_of(
        Image.new("RGB", (400, 400)), {"name": "elastic", "alpha": 60, "sigma": 3}, seed=3
    ).stages[-1]
    assert isinstance(made, Displacement)
    for ours, wanted in ((made.x, theirs[..., 0]), (made.y, theirs[..., 1])):
        assert (ours**2).mean() == pytest.approx((wanted**2).mean(), rel=0.1)
        for axis in (0, 1):
            assert (np.diff(ours, axis=axis) ** 2).mean() == pytest.approx(
                (np.diff(wanted, axis=axis) ** 2).mean(), rel=0.1
            )
