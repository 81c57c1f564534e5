"""Pixels and what is marked among them go the same way."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from pictures import centroid, rectangle, scene
from PIL import Image
from stepped_pictures import done, picture_of

from shardctl.format.roles import Objects
from shardctl.images.codecs.resampling import resampled_mask
from shardctl.images.defaults import CENTRE
from shardctl.images.geometry import Displacement, Pad, View, Warp, apply, inverted
from shardctl.images.object_geometry import Motion, moved_objects, moved_together
from shardctl.images.polygons import Polygons
from shardctl.system.options import declared_in
from shardctl.transforms.base import ImageTransform
from shardctl.transforms.image.warp import perspective, rotation
from shardctl.transforms.picture import Picture
from shardctl.transforms.table import TRANSFORMS, parse_step


def area(polygon: Any) -> float:
    """Return the area of a polygon of x, y, x, y, …"""
    return float(Polygons.of([[np.asarray(polygon, np.float64).ravel()]]).areas()[0])


def masked(before: Image.Image, after: Picture) -> Any:
    """Return the red values of an image, moved as a mask through the stages of a picture."""
    mask = np.asarray(before)[..., 0]
    for stage in after.stages:
        mask = resampled_mask(mask, stage, 0)
    return mask


def similarity(seed: int) -> tuple[float, float, float, float, bool]:
    """Draw degrees, scale, pixels to the right and down, and whether it is mirrored.

    The boxes below stay within the image. Drawn evenly: with round numbers, which hypothesis likes,
    pixels are as near to one pixel as to another.
    """
    rng = np.random.default_rng(seed)
    angle, scale, x, y = rng.uniform((-180, 0.9, -5, -5), (180, 1.35, 5, 5)).tolist()
    return angle, scale, x, y, bool(rng.random() < 0.5)


SIMILARITY = st.integers(0, 2**32).map(similarity)
BOX = st.tuples(st.integers(40, 60), st.integers(30, 45), st.integers(15, 24), st.integers(13, 20))


@examples(60)
@given(motion=SIMILARITY, box=BOX, interpolation=st.sampled_from(["bilinear", "nearest"]))
def test_boxes_points_polygons_and_masks_go_where_the_pixels_go(motion, box, interpolation):
    """Source of the tolerances: with half a pixel forgotten, the median error is 0.87 pixels."""
    angle, scale, x, y, mirrored = motion
    size = (131, 97)
    settings = {"angle": angle, "scale": scale, "translate": [x, y]}
    affine = {"name": "affine", **settings, "interpolation": interpolation}
    picture = picture_of(rectangle(size, box), {"name": "hflip", "p": int(mirrored)}, affine)
    image = picture.pixels
    expected = centroid(image)
    left, top, width, height = box
    outline = [left, top, left + width, top, left + width, top + height, left, top + height]
    objects = {
        "bbox": [list(box)],
        "category": [0],
        "segmentation": [[outline]],
        "keypoints": [[[left + width / 2, top + height / 2, 2.0]]],
    }
    moved = moved_objects(objects, Motion.of(size, picture.stages), Objects(), 0.0)
    near = 0.1 if interpolation == "bilinear" else 0.51
    (bx, by, bw, bh), (px, py, _) = moved["bbox"][0], moved["keypoints"][0][0]
    assert math.dist((bx + bw / 2, by + bh / 2), expected) < near
    assert math.dist((px, py), expected) < near
    polygon = np.asarray(moved["segmentation"][0][0], np.float64).reshape(-1, 2)
    assert math.dist(polygon.mean(axis=0), expected) < near
    assert area(polygon) == pytest.approx(width * height * scale**2, rel=1e-4)
    mask = masked(rectangle(size, box), picture)
    assert math.dist(centroid(mask), expected) < 0.51
    if interpolation == "nearest":
        assert (mask != image[..., 0]).mean() < 0.002, "Pillow counts in 65536ths of a pixel"


@pytest.mark.parametrize(
    ("rule", "kept"), [(0.0, 3), (0.25, 3), (0.26, 2), (0.5, 2), (0.51, 1), (1.0, 1), (CENTRE, 2)]
)
def test_which_objects_a_crop_keeps(rule, kept):
    """The first is all inside, of the second a half and of the third a quarter; the last one lies
    outside."""
    boxes = [[0, 0, 10, 10], [-5, 0, 10, 10], [45, 35, 10, 10], [50, 0, 9, 9]]
    motion = Motion.of((100, 80), [View.whole((100, 80)).cropped(0, 0, 50, 40)])
    moved = moved_objects({"bbox": boxes, "category": [0] * 4}, motion, Objects(), rule)
    assert len(moved["bbox"]) == kept


def test_what_is_on_a_larger_canvas_is_seen_only_where_the_image_is():
    motion = Motion.of((20, 10), [View.whole((20, 10)).cropped(5, 0, 10, 10), Pad(3, 4, (30, 30))])
    assert motion.seen == (3, 4, 13, 14)
    moved = moved_objects({"bbox": [[0, 0, 20, 10]], "category": [1]}, motion, Objects(), 0.1)
    assert moved["bbox"] == [[3, 4, 10, 10]]


def test_a_polygon_is_clipped_at_the_edge():
    star = np.array([-5, 5, 5, -5, 15, 5, 5, 15], np.float64)
    polygons = Polygons.of([[star, star + 100], [], [star / 10 + 4]])
    cut = polygons.cut(np.zeros(2), np.full(2, 10.0))
    assert cut.areas() == pytest.approx([100, 0, 2])
    assert cut.lengths.tolist() == [8, 0, 4]
    (whole, none, inside) = cut.without_slivers().lists()
    assert [len(whole), len(none), len(inside)] == [1, 0, 1]
    assert np.array_equal(inside[0], (star / 10 + 4).astype(np.float32))


@pytest.mark.parametrize("angle", [0, 17.5, 90, 180, 233, 270, -45])
@pytest.mark.parametrize("expand", [False, True])
def test_rotation_is_that_of_pillow(angle, expand):
    image = scene(61, 40)
    for name in ("nearest", "bilinear"):
        step = {"name": "rotate", "angle": angle, "expand": expand, "interpolation": name}
        filter_ = Image.Resampling[name.upper()]
        theirs = np.asarray(image.rotate(angle, filter_, expand, fillcolor=(9, 9, 9)))
        assert np.array_equal(done(image, {**step, "fill": 9}), theirs), name


def test_a_warp_and_the_crop_after_it_are_one_resampling():
    image = scene(90, 70)
    warp = {"name": "rotate", "angle": 20, "interpolation": "bilinear"}
    alone = done(image, warp)
    cropped = done(image, warp, {"name": "crop", "size": "40x30"})
    assert np.array_equal(cropped, alone[20:50, 25:65])
    mirrored = done(image, warp, {"name": "hflip", "p": 1}).astype(int)
    assert np.abs(mirrored - alone[:, ::-1]).max() <= 1


def test_a_warp_that_shrinks_is_better_than_reading_four_pixels():
    """Of noise, the mean of 4 x 4 pixels differs less than that of four pixels of them."""
    noise = Image.effect_noise((600, 400), 150).convert("RGB")
    turn = {"name": "rotate", "angle": 25, "interpolation": "bilinear"}
    made = done(noise, {"name": "resize", "size": "150x100"}, turn)
    assert made[30:70, 50:100].std() < np.asarray(noise).std() / 3


def test_a_mask_without_a_place_in_the_image_gets_the_fill():
    mask = np.arange(12, dtype=np.uint16).reshape(3, 4) + 1000
    assert resampled_mask(mask, Pad(1, 1, (6, 5)), 255)[0].tolist() == [255] * 6
    turned = resampled_mask(
        mask, Warp.of(View.whole((4, 3)), rotation((4, 3), 180, False)[0], (4, 3)), 255
    )
    assert np.array_equal(turned, mask[::-1, ::-1])
    shift = np.full((3, 4), 2, np.float32)
    moved = resampled_mask(mask, Displacement(shift, np.zeros_like(shift)), 7)
    assert moved.tolist() == [[1002, 1003, 7, 7], [1006, 1007, 7, 7], [1010, 1011, 7, 7]]


def test_a_displacement_moves_pixels_and_masks_alike():
    image = rectangle((60, 50), (20, 15, 15, 12))
    picture = picture_of(image, {"name": "elastic", "alpha": 40, "sigma": 4})
    mask = masked(image, picture)
    pixels = np.asarray(picture.image)[..., 0]
    assert not np.array_equal(mask, np.asarray(image)[..., 0])
    assert ((pixels > 127) != (mask > 127)).mean() < 0.01
    with pytest.raises(TypeError):
        Motion.of((60, 50), picture.stages)


def test_a_perspective_brings_the_corners_where_they_are_wanted():
    start = np.array([[0, 0], [10, 0], [10, 8], [0, 8]], np.float64)
    end = np.array([[1, 2], [9, 1], [8, 7], [0, 8]], np.float64)
    assert apply(inverted(perspective(start, end)), start) == pytest.approx(end)
    step = {"name": "perspective", "corners": [0.1, 0.1, 0.9, 0, 1, 0.9, 0, 1]}
    motion = Motion.of((60, 40), picture_of(scene(60, 40), step).stages)
    corners = np.array([[0.0, 0.0], [60.0, 40.0]])
    assert apply(motion.matrix, corners) == pytest.approx(np.array([[6, 4], [60, 36]]))


def test_five_and_ten_crops_are_where_torchvision_cuts_them():
    image = scene(50, 40)
    step = parse_step({"name": "ten_crop", "size": "30x20"})
    assert isinstance(step, ImageTransform)
    for part in range(10):
        picture = Picture(image.size, part)
        picture.begin(image)
        step.apply(picture, None)
        left, top = [(0, 0), (20, 0), (0, 20), (20, 20), (10, 10)][part % 5]
        whole = np.asarray(image)[:, :: 1 if part < 5 else -1]
        expected = whole[top : top + 20, left : left + 30]
        assert np.array_equal(np.asarray(picture.image), expected), part


def test_letterbox_and_pad_keep_the_shape():
    flat, image = Image.new("RGB", (100, 50), (255, 0, 0)), scene(20, 10)
    pixels = done(flat, {"name": "letterbox", "size": 64})
    assert pixels.shape == (64, 64, 3)
    assert (pixels[16:48] == [255, 0, 0]).all()
    assert (pixels[[*range(16), *range(48, 64)]] == 114).all()
    padded = done(image, {"name": "pad", "margin": 2, "fill": [1, 2, 3]})
    assert padded[0, 0].tolist() == padded[13, 23].tolist() == [1, 2, 3]
    assert np.array_equal(padded[2:-2, 2:-2], np.asarray(image))
    assert done(image, {"name": "pad", "size": "20x20"}).shape == (20, 20, 3)


def test_a_choice_takes_one_and_maybe_all_or_none():
    image = scene(30, 20)
    plain, mirrored, turned = np.asarray(image), np.asarray(image)[:, ::-1], np.asarray(image)[::-1]
    ways = {each.tobytes(): name for name, each in (("m", mirrored), ("t", turned), ("p", plain))}
    ways[mirrored[::-1].tobytes()] = "both"
    steps = [{"name": "hflip", "p": 1}, {"name": "vflip", "p": 1}]

    def counts(**step: Any) -> Counter[str]:
        made = (done(image, {**step, "steps": steps}, seed=seed) for seed in range(200))
        return Counter(ways[each.tobytes()] for each in made)

    seen = counts(name="choice", weights=[3, 1])
    assert seen.keys() == {"m", "t"}
    assert 130 < seen["m"] < 170
    seen = counts(name="maybe", p=0.3)
    assert seen.keys() == {"both", "p"}
    assert 40 < seen["both"] < 80
    assert counts(name="sequence") == {"both": 200}


@pytest.mark.parametrize(
    "name", sorted(name for name, step in TRANSFORMS.items() if issubclass(step, ImageTransform))
)
def test_a_step_says_what_size_comes_out(name):
    """For the size that it says, whatever it draws; a step that cannot know says nothing."""
    steps = [{"name": "hflip"}, {"name": "vflip"}]
    settings: dict[str, Any] = {
        "perspective": {"corners": [0.1, 0, 1, 0, 1, 1, 0, 0.8]},
        "rotate": {"angle": 30, "expand": True},
        "random_rotation": {"degrees": 30},
        "posterize": {"bits": 3},
        "solarize": {"threshold": 100},
        "jpeg": {"quality": [30, 60]},
        "erase": {"left": 0.5, "top": 0.1, "width": 0.7, "height": 0.2},
        "random_affine": {"degrees": 10, "translate": [0.1, 0.1]},
    }
    usual: dict[str, Any] = {"size": "24x18", "factor": 0.4, "steps": steps}
    needed = {key: usual[key] for key in usual if key in declared_in(TRANSFORMS[name])}
    if name == "pad":
        needed = {}
    given_step = {"name": name, **settings.get(name, needed)}
    step = parse_step(given_step)
    assert isinstance(step, ImageTransform)
    assert parse_step({"name": name, **step.settings()}) == step, "settings come back from a recipe"
    expected = step.output_size((50, 40))
    assert expected is not None
    for seed in range(3):
        assert done(scene(50, 40), given_step, seed=seed).shape == (*expected[::-1], 3)


def test_what_a_warp_makes_a_line_of_is_no_longer_marked():
    flat = Warp.of(View.whole((20, 10)), np.array([[1.0, 0, 0], [0, 0, 5], [0, 0, 1]]), (20, 10))
    motion = Motion.of((20, 10), [flat])
    objects = {"bbox": [[0, 0, 20, 10], [0, 0, 0, 0]], "category": [0, 1]}
    assert moved_objects(objects, motion, Objects(), 0.0) == {"bbox": [], "category": []}


def test_a_mask_is_there_where_the_horizon_lies_before_the_image():
    """Six of 100 samples with distortion_scale 0.8 are such; their masks were nothing but void."""
    image = rectangle((80, 70), (0, 0, 80, 70))
    step = {"name": "random_perspective", "p": 1, "distortion_scale": 0.9}
    picture = picture_of(image, step, seed=0)
    mask = masked(image, picture)
    white = np.asarray(picture.image)[..., 0] > 127
    assert white.sum() > 500
    assert ((mask > 0) != white).sum() <= 0.1 * white.sum(), "they agree up to the edge"


NUMBERS = st.integers(-20, 220).map(lambda number: number / 2)
OBJECT = st.fixed_dictionaries(
    {
        "bbox": st.tuples(NUMBERS, NUMBERS, st.integers(0, 60), st.integers(0, 60)).map(list),
        "area": st.none() | st.floats(0, 1000),
        "segmentation": st.lists(
            st.integers(3, 6).flatmap(lambda n: st.lists(NUMBERS, min_size=2 * n, max_size=2 * n)),
            max_size=2,
        ),
        "keypoints": st.just([])
        | st.lists(
            st.tuples(NUMBERS, NUMBERS, st.integers(0, 2)).map(list), min_size=3, max_size=3
        ),
        "category": st.integers(0, 3),
    }
)
MOTION = st.lists(
    st.sampled_from(
        [
            {"name": "hflip", "p": 1},
            {"name": "vflip", "p": 1},
            {"name": "random_crop", "size": "40x30"},
            {"name": "random_resized_crop", "size": 50},
            {"name": "resize", "size": "33x71"},
            {"name": "pad", "size": "150x120"},
            {"name": "rotate", "angle": 30},
        ]
    ),
    max_size=3,
)


@examples(30)
@given(
    st.lists(st.tuples(st.lists(OBJECT, max_size=4), MOTION, st.integers(0, 9)), max_size=5),
    st.sets(st.sampled_from(["area", "segmentation", "keypoints"])),
    st.sampled_from([0.0, 0.1, 0.5, CENTRE]),
)
def test_objects_of_many_images_are_moved_as_each_by_itself(samples, absent, keep):
    role = Objects(keypoints=("nose", "left", "right"), flip=(0, 2, 1))
    members = [
        name
        for name in ("bbox", "area", "segmentation", "keypoints", "category")
        if name not in absent
    ]
    given_ones = []
    for objects, steps, seed in samples:
        stages = picture_of(Image.new("RGB", (101, 83)), *steps, seed=seed).stages
        lists = {name: [each[name] for each in objects] for name in members}
        given_ones.append((lists, Motion.of((101, 83), stages)))
    together = moved_together(given_ones, role, keep)
    alone = [moved_objects(objects, motion, role, keep) for objects, motion in given_ones]
    assert repr(together) == repr(alone)
    for (objects, motion), moved in zip(given_ones, alone, strict=True):
        ones = [
            {name: [each] for name, each in zip(objects, values, strict=True)}
            for values in zip(*objects.values(), strict=True)
        ]
        single = [moved_objects(one, motion, role, keep) for one in ones]
        for name in members:
            assert repr([each for one in single for each in one[name]]) == repr(list(moved[name]))


def test_the_area_of_a_box_without_one_stays_as_it_was_given():
    mirrored = Motion.still((10, 8)).then(np.array([[-1.0, 0, 10], [0, 1, 0], [0, 0, 1]]), (10, 8))
    objects = {"bbox": [[3, 3, 0, 0], [1, 1, 2, 2], [1, 1, 2, 2]], "area": [0.5, 3.0, None]}
    moved = moved_objects(objects, mirrored, Objects(), 0.1)
    assert moved == {**objects, "bbox": [[7, 3, 0, 0], [7, 1, 2, 2], [7, 1, 2, 2]]}
