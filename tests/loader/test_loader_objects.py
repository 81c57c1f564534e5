"""What is marked in images, in batches: arrays of each sample, or filled up; moved with the images;
and in PyTorch."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from handmade import write_dataset
from hypothesis import example, given
from hypothesis import strategies as st
from objects_in_images import (
    CATEGORIES,
    FIELDS,
    FLOATS,
    NOISE,
    OBJECTS,
    ROLE,
    SAMPLES,
    png,
    struct,
    thing,
    write,
)
from PIL import Image as Pictures

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.format.layout import ENCODED_IMAGE, image_tensor
from shardctl.format.roles import Mask, Objects
from shardctl.images.codecs import rle
from shardctl.images.codecs.rle import object_masks
from shardctl.images.object_geometry import Motion, moved_objects


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_each_sample_has_its_objects_as_arrays(tmp_path, compression):
    ds = write(tmp_path / "out", SAMPLES, compression=compression)
    (batch,) = ds.loader(4)
    first, none, unknown, last = batch["objects"]
    assert unknown is None
    types = {
        "id": np.int64,
        "category": np.int64,
        "bbox": np.float32,
        "area": np.float32,
        "iscrowd": np.bool_,
        "keypoints": np.float32,
    }
    assert {name: first[name].dtype for name in types} == types
    assert first["bbox"].tolist() == [[1, 2, 3, 4], [0, 0, 16, 12]]
    assert (first["id"].tolist(), first["category"].tolist(), first["iscrowd"].tolist()) == (
        [10, 11],
        [2, 1],
        [True, False],
    )
    assert first["area"].tolist() == [12, 192]
    assert first["segmentation"] == [[], []]
    assert not first["keypoints"].any()
    assert none["bbox"].shape == (0, 4)
    assert none["keypoints"].shape == (0, 3, 3)
    assert last["keypoints"].tolist() == [[[5, 5, 2], [6, 7, 1], [0, 0, 0]]]
    assert [polygon.tolist() for polygon in last["segmentation"][0]] == [
        [4, 4, 12, 4, 12, 8],
        [4, 4, 8, 8, 4, 8],
    ]
    assert ds[3]["objects"]["bbox"].tolist() == [[4, 4, 8, 4]]
    assert ds[2]["objects"] is None
    assert ds.take([0, 3], columns=["objects"])["objects"][1]["category"].tolist() == [0]


def test_padded_objects_are_arrays_of_the_batch(tmp_path):
    ds = write(tmp_path / "out", SAMPLES)
    loader = ds.loader(4, pad={"objects": 0.5})
    (batch,) = loader
    assert batch["objects.bbox"].tolist() == [
        [[1, 2, 3, 4], [0, 0, 16, 12]],
        [[0.5] * 4] * 2,
        [[0.5] * 4] * 2,
        [[4, 4, 8, 4], [0.5] * 4],
    ]
    assert batch["objects.category"].tolist() == [[2, 1], [-1, -1], [-1, -1], [0, -1]]
    assert batch["objects.id"].tolist() == [[10, 11], [-1, -1], [-1, -1], [7, -1]]
    assert batch["objects.iscrowd"].tolist() == [
        [True, False],
        [False] * 2,
        [False] * 2,
        [False] * 2,
    ]
    assert batch["objects.keypoints"].shape == (4, 2, 3, 3)
    assert batch["objects_length"].tolist() == [2, 0, 0, 1]
    assert batch["objects_mask"].tolist() == [[True, True], [False] * 2, [False] * 2, [True, False]]
    assert batch["objects_annotated"].tolist() == [True, True, False, True]
    assert [len(each) for each in batch["objects.segmentation"]] == [2, 0, 0, 1]
    assert "objects" not in batch
    assert_specs(loader.stream.specs(), batch)


def assert_specs(specs: Any, batch: dict[str, Any]) -> None:
    """Compare a batch with what was said about it before it was read."""
    assert list(specs) == list(batch)
    for name, spec in specs.items():
        values = batch[name]
        assert isinstance(values, np.ndarray) == (spec.kind in ("fixed", "padded")), name
        if isinstance(values, np.ndarray):
            assert (values.dtype, values.ndim) == (spec.dtype, 1 + len(spec.shape)), name
            assert all(
                length in (-1, found)
                for length, found in zip(spec.shape, values.shape[1:], strict=True)
            ), name


def test_members_can_be_chosen(tmp_path):
    ds = write(tmp_path / "out", SAMPLES)
    (batch,) = ds.loader(4, columns=["objects.category", "key", "objects.id"])
    assert list(batch) == ["objects", "key"]
    assert {name: values.tolist() for name, values in batch["objects"][0].items()} == {
        "id": [10, 11],
        "category": [2, 1],
    }
    chosen = ds.loader(4, columns=["objects.category"], pad={"objects": 0}, crop=4)
    (batch,) = chosen
    assert list(batch) == [
        "objects.category",
        "objects_length",
        "objects_mask",
        "objects_annotated",
    ]
    assert batch["objects_length"].tolist() == [0, 0, 0, 1]
    (batch,) = ds.loader(4, columns=["objects.id", "objects"])
    assert len(batch["objects"][0]) == 8
    for wrong, meant in (("objects.box", "objects.bbox"), ("image.bytes", "image")):
        with pytest.raises(UsageError, match=f"no column '{wrong}'; did you mean {meant}"):
            ds.loader(4, columns=["objects.bbox", wrong])


def test_objects_are_cut_and_mirrored_with_their_image(tmp_path):
    """An image of 16 x 12; the centre of 8 x 8 begins at (4, 2). Mirrored, x becomes 8 - (x -
    4)."""
    objects = [
        thing([2, 3, 4, 4], 0, area=10.0),  # half of it is inside: x from 4 to 6, y from 3 to 7
        thing(
            [5, 4, 2, 2],
            1,
            keypoints=[[5.5, 4.5, 2], [12.0, 5.5, 1], [1.0, 1.0, 2]],
            segmentation=[[5, 4, 7, 4, 7, 6]],
        ),
        thing([0, 0, 4.5, 3], 2),  # 0.5 of 13.5 pixels are inside
        thing([12, 2, 4, 4], 2),  # begins where the crop ends
        thing(
            [2, 2, 4, 8],
            2,
            area=36.5,
            segmentation=[[2, 2, 6, 2, 6, 10, 2, 10], [0, 0, 3, 0, 3, 3]],
        ),
        thing([13, 2, 2, 4], 2, segmentation=[[5, 4, 7, 4, 7, 6]]),  # beside its polygon
    ]
    ds = write(tmp_path / "out", [objects])
    (batch,) = ds.loader(1, crop=8)
    cut = batch["objects"][0]
    assert cut["bbox"].tolist() == [[0, 1, 2, 4], [1, 2, 2, 2], [0, 0, 2, 8], [1, 2, 2, 2]]
    assert cut["area"].tolist() == [5, 4, 16, 8]
    assert cut["category"].tolist() == [0, 1, 2, 2]
    assert cut["keypoints"][1].tolist() == [[1.5, 2.5, 2], [8, 3.5, 1], [0, 0, 0]]
    assert [polygon.tolist() for polygon in cut["segmentation"][1]] == [[1, 2, 3, 2, 3, 4]]
    (corners,) = cut["segmentation"][2]
    assert sorted(map(tuple, corners.reshape(-1, 2).tolist())) == [(0, 0), (0, 8), (2, 0), (2, 8)]
    (mirrored,) = ds.loader(1, crop=8, flip=1.0)
    found = mirrored["objects"][0]
    assert found["bbox"].tolist() == [[6, 1, 2, 4], [5, 2, 2, 2], [6, 0, 2, 8], [5, 2, 2, 2]]
    assert found["keypoints"][1].tolist() == [[6.5, 2.5, 2], [0, 0, 0], [0, 3.5, 1]], (
        "left and right are exchanged"
    )
    assert [polygon.tolist() for polygon in found["segmentation"][1]] == [[7, 2, 5, 2, 5, 4]]
    assert np.array_equal(mirrored["image"], batch["image"][:, :, ::-1])


def test_what_is_kept_is_decided_by_the_area_inside_or_the_centre(tmp_path):
    """The centre of 8 x 8 of an image of 16 x 12 is from (4, 2) to (12, 10)."""
    boxes = [
        [0, 2, 8, 4],
        [0, 2, 10, 4],
        [0, 2, 4.5, 4],
        [4, 2, 8, 8],
        [6, 6, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 3, 2],
    ]
    ds = write(
        tmp_path / "out", [[thing(box, id=place) for place, box in enumerate(map(list, boxes))]]
    )

    def kept(**options: Any) -> list[int]:
        loader = ds.loader(1, crop=8, **options)
        (batch,) = loader
        assert loader.stats().objects_cut == len(boxes) - len(batch["objects"][0]["id"])
        found: list[int] = batch["objects"][0]["id"].tolist()
        return found

    assert kept() == [0, 1, 2, 3, 4], "0.11 of the third is inside, and 0.1 is enough"
    assert kept(keep_objects=0.5) == [0, 1, 3, 4]
    assert kept(keep_objects=1) == [3, 4]
    assert kept(keep_objects="center") == [0, 1, 3, 4]
    for wrong in (1.5, "middle"):
        with pytest.raises(UsageError, match="keep_objects"):
            ds.loader(1, keep_objects=wrong)  # type: ignore[arg-type]


numbers = st.integers(-8, 48).map(lambda number: number / 2)
lengths = st.integers(0, 40).map(lambda number: number / 2)
boxes = st.tuples(numbers, numbers, lengths, lengths).map(list)
points = st.lists(st.tuples(numbers, numbers, st.integers(0, 2)).map(list), min_size=3, max_size=3)
polygons = st.lists(
    st.lists(st.tuples(numbers, numbers), min_size=3, max_size=6).map(
        lambda part: list(sum(part, ()))
    ),
    max_size=2,
)
things = st.builds(
    thing,
    boxes,
    st.integers(0, 2),
    keypoints=st.one_of(st.just([]), points),
    iscrowd=st.booleans(),
    segmentation=polygons,
    area=numbers,
)
annotated = st.lists(st.one_of(st.none(), st.lists(things, max_size=4)), min_size=1, max_size=6)


@examples(25)
@given(
    samples=annotated,
    sizes=st.lists(st.tuples(st.integers(9, 24), st.integers(9, 24)), min_size=6, max_size=6),
    resize=st.sampled_from([None, 11, (10, 14)]),
    crop=st.sampled_from([None, (8, 9), 8]),
    random=st.booleans(),
    flip=st.sampled_from([0.0, 0.5, 1.0]),
    keep=st.sampled_from([0.1, 0.5, "center"]),
    seed=st.integers(0, 3),
)
def test_moved_objects_are_those_of_a_conversion(
    tmp_path_factory,
    samples,
    sizes,
    resize,
    crop,
    random,
    flip,
    keep,
    seed,
):
    """Where an image was put is found from the pixels of its mask."""
    ds = write(tmp_path_factory.mktemp("objects") / "out", samples, sizes[: len(samples)])
    options = {"resize": resize, "crop": crop, "flip": flip, "seed": seed, "keep_objects": keep}
    if random and crop:
        options["crop_from"] = "random"
    ways = ({}, {"pad": {"objects": 0}}, {"columns": ["key", "objects"]})
    loaders = [ds.loader(4, shuffle=True, **options, **way) for way in ways]
    for batch, filled, other in zip(*loaders, strict=True):
        assert [str(each) for each in other["objects"]] == [str(each) for each in batch["objects"]]
        for place, key in enumerate(batch["key"]):
            number = int(key[1:])
            objects = batch["objects"][place]
            assert filled["objects_annotated"][place] == (samples[number] is not None)
            if samples[number] is None:
                assert objects is None
                continue
            motion = motion_of(
                batch["mask"][place], sizes[number], resized_size(sizes[number], resize)
            )
            given = struct(samples[number])
            assert given is not None
            as_converted = moved_objects(given, motion, ROLE, keep)
            assert_same(objects, as_converted)
            count = len(as_converted["bbox"])
            assert filled["objects_length"][place] == count
            assert np.array_equal(filled["objects.bbox"][place, :count], objects["bbox"])
            assert not filled["objects.bbox"][place, count:].any()
            for name, values in objects.items():
                if isinstance(values, np.ndarray):
                    assert np.array_equal(filled[f"objects.{name}"][place, :count], values)


near = st.integers(0, 24).map(lambda number: number / 2)


@examples(30)
@given(
    objects=st.lists(
        st.builds(
            thing,
            st.tuples(near, near, st.integers(1, 20), st.integers(1, 20)),
            keypoints=st.lists(st.tuples(near, near, st.integers(0, 2)), min_size=3, max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
    size=st.tuples(st.integers(9, 24), st.integers(9, 24)),
    resize=st.sampled_from([None, 11, (10, 14)]),
    flip=st.sampled_from([0.0, 1.0]),
    keep=st.sampled_from([0.1, 0.5, "center"]),
    seed=st.integers(0, 9),
)
def test_boxes_and_keypoints_are_those_of_a_plain_computation(
    tmp_path_factory, objects, size, resize, flip, keep, seed
):
    """Of what has no mask: of others, it is that of tests/images/test_moved_masks.py."""
    ds = write(tmp_path_factory.mktemp("plain") / "out", [objects], [size])
    options = {"crop": (8, 9), "crop_from": "random", "seed": seed, "keep_objects": keep}
    (batch,) = ds.loader(1, resize=resize, flip=flip, **options)
    new, limits = resized_size(size, resize), (9, 8)
    mirrored, *corner = where_from(batch["mask"][0], size, new)

    def moved(places: Any) -> Any:
        x, y = (np.array(places) * np.divide(new, size) - corner).T
        return np.stack([9 - x if mirrored else x, y], axis=1)

    boxes, keypoints = [], []
    for each in objects:
        x, y, w, h = each["bbox"]
        ends = np.sort(moved([[x, y], [x + w, y + h]]), axis=0)
        (low, high), centre = ends.clip(0, limits), ends.mean(axis=0)
        share = (high - low).prod() / (ends[1] - ends[0]).prod()
        centred = ((centre >= 0) & (centre < limits)).all()
        if centred if keep == "center" else share >= keep - 1e-9:
            boxes.append([*low, *(high - low)])
            marked = np.array(each["keypoints"])
            marked[:, :2] = moved(marked[:, :2])
            hidden = ((marked[:, :2] < 0) | (marked[:, :2] > limits)).any(axis=1)
            marked[hidden | (marked[:, 2] == 0)] = 0
            keypoints.append(marked[[0, 2, 1]] if mirrored else marked)
    found = batch["objects"][0]
    assert np.allclose(found["bbox"], np.reshape(boxes, (-1, 4)), atol=1e-4)
    assert np.allclose(found["keypoints"], np.reshape(keypoints, (-1, 3, 3)), atol=1e-4)


@examples(15)
@given(
    size=st.tuples(st.integers(9, 24), st.integers(9, 24)),
    resize=st.sampled_from([None, 11, (10, 14), 30]),
    crop=st.sampled_from([None, (8, 9)]),
    flip=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 9),
)
# centres that lie just between two pixels
@example(size=(12, 12), resize=11, crop=(8, 9), flip=0.0, seed=0)
def test_masks_of_single_objects_move_like_masks_of_pixels(
    tmp_path_factory,
    size,
    resize,
    crop,
    flip,
    seed,
):
    runs = {"size": size[::-1], "counts": rle.encode(NOISE[: size[1], : size[0]] > 99)}
    objects = [thing([0, 0, 99, 99]), thing([0, 0, 99, 99], rle=runs, iscrowd=True)]
    ds = write(tmp_path_factory.mktemp("rle") / "out", [objects], [size])
    random = {"crop_from": "random"} if crop else {}
    (batch,) = ds.loader(
        1, resize=resize, crop=crop, flip=flip, seed=seed, keep_objects=0, **random
    )
    nothing, found = batch["objects"][0]["rle"]
    assert nothing is None
    assert np.array_equal(
        rle.decode(found["counts"], tuple(found["size"].tolist())), batch["mask"][0] > 99
    )


hundredths = st.integers(-800, 3200).map(lambda number: number / 100 + 0.00317)
"""Edges between such places hardly ever meet the centre of a pixel, where rounding would decide."""


@examples(12)
@given(
    corners=st.lists(st.tuples(hundredths, hundredths), min_size=3, max_size=7),
    size=st.tuples(st.integers(9, 24), st.integers(9, 24)),
    flip=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 9),
)
def test_polygons_cover_the_pixels_of_a_mask_that_is_cut_and_mirrored(
    tmp_path_factory, corners, size, flip, seed
):
    outline = [number for corner in corners for number in corner]
    ds = write(
        tmp_path_factory.mktemp("polygons") / "out",
        [[thing([0, 0, 24, 24], segmentation=[outline])]],
        [size],
    )
    (batch,) = ds.loader(1, crop=(8, 9), crop_from="random", flip=flip, seed=seed, keep_objects=0)
    mirrored, left, top = where_from(batch["mask"][0], size, size)
    stored = object_masks(ds[0]["objects"], size[::-1])
    part = stored[:, top : top + 8, left : left + 9]
    left_over = object_masks(batch["objects"][0], (8, 9))
    if len(left_over) or part.any():  # an object that is not in the image at all is left out
        assert np.array_equal(left_over, part[:, :, ::-1] if mirrored else part)


def resized_size(size: tuple[int, int], resize: Any) -> tuple[int, int]:
    """Return (width, height): one number is the short side, two are height and width."""
    width, height = size
    if resize is None:
        return size
    if isinstance(resize, tuple):
        return resize[1], resize[0]
    return (
        (resize, int(resize * height / width))
        if width <= height
        else (int(resize * width / height), resize)
    )


def motion_of(mask: Any, size: tuple[int, int], resized: tuple[int, int]) -> Motion:
    """Return what a conversion that does the same would do to the coordinates."""
    mirrored, left, top = where_from(mask, size, resized)
    height, width = mask.shape
    motion = Motion.still(size).then(
        np.diag([resized[0] / size[0], resized[1] / size[1], 1.0]), resized
    )
    motion = motion.then(np.array([[1.0, 0, -left], [0, 1, -top], [0, 0, 1]]), (width, height))
    return (
        motion.then(np.array([[-1.0, 0, width], [0, 1, 0], [0, 0, 1]]), (width, height))
        if mirrored
        else motion
    )


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare the arrays of a batch with the lists of a conversion."""
    for name in ("bbox", "area", "category", "iscrowd", "id"):
        assert np.allclose(
            found[name], np.array(expected[name]).reshape(found[name].shape), atol=1e-4
        ), name
    for points, others in zip(found["keypoints"], expected["keypoints"], strict=True):
        assert np.allclose(points, others or np.zeros((3, 3)), atol=1e-4)
    for parts, others in zip(found["segmentation"], expected["segmentation"], strict=True):
        assert len(parts) == len(others)
        assert all(
            np.allclose(part, other, atol=1e-4) for part, other in zip(parts, others, strict=True)
        )


def where_from(mask: Any, size: tuple[int, int], resized: tuple[int, int]) -> tuple[bool, int, int]:
    """Find the part of the resized mask that a mask of a batch is: (mirrored, left, top)."""
    stored = NOISE[: size[1], : size[0]]
    rows, columns = (
        (np.arange(new) * 2 + 1) * old // (2 * new)
        for new, old in zip(resized[::-1], size[::-1], strict=True)
    )
    whole = stored[rows[:, None], columns]
    height, width = mask.shape
    for flipped in (False, True):
        for top in range(resized[1] - height + 1):
            for left in range(resized[0] - width + 1):
                part = whole[top : top + height, left : left + width]
                if np.array_equal(part[:, ::-1] if flipped else part, mask):
                    return flipped, left, top
    raise AssertionError("no part of the stored mask")


def test_a_flip_of_keypoints_needs_to_know_which_is_which(tmp_path):
    ds = write(tmp_path / "out", SAMPLES, role=Objects(CATEGORIES))
    with pytest.raises(UsageError, match="flip: nothing says which keypoints of objects"):
        ds.loader(4, flip=True)
    (batch,) = ds.loader(4, flip=1.0, columns=["objects.bbox", "objects.category"])
    assert batch["objects"][3]["bbox"].tolist() == [[4, 4, 8, 4]]
    (batch,) = ds.loader(4, crop=8, pad={"objects": 0})
    assert batch["objects.keypoints"].shape == (4, 1, 3, 3), (
        "as many points as the object with the most of them has"
    )


def test_options_that_do_not_fit_objects_are_refused(tmp_path):
    ds = write(tmp_path / "out", SAMPLES)
    for options, why in [
        ({"pad": {"objects": "a"}}, "pad: the value for objects must be a finite number"),
        ({"fill": {"objects": 0}}, "fill: objects holds no numbers"),
        ({"dtype": {"objects": "float32"}}, "objects holds no numbers"),
        (
            {"columns": ["objects"], "channels_first": True},
            "channels_first: only for decoded images",
        ),
        ({"columns": ["objects"], "crop": 8, "decode": False}, "crop: only for decoded images"),
        ({"bucket": {"objects": 2}}, "objects is not a ragged column"),
    ]:
        with pytest.raises(UsageError, match=why):
            next(iter(ds.loader(2, **options)))


def test_objects_move_with_the_main_image_or_not_at_all(tmp_path):
    fields = pa.schema(
        {
            "key": pa.string(),
            "left": ENCODED_IMAGE,
            "right": ENCODED_IMAGE,
            "objects": OBJECTS,
        }
    )
    write_dataset(
        tmp_path / "two",
        fields,
        [("k", png(16, 12), png(16, 12), struct([]))],
        3,
        roles={"objects": ROLE},
    )
    with pytest.raises(
        UsageError,
        match="objects moves with the main image, and none of 2 columns of images is called image",
    ):
        shardctl.open(tmp_path / "two").loader(1, crop=4)
    assert len(list(shardctl.open(tmp_path / "two").loader(1))) == 1
    raw = pa.schema({"key": pa.string(), "image": image_tensor((12, 16, 3)), "objects": OBJECTS})
    rows = [("k", np.zeros((12, 16, 3), np.uint8), struct([thing([5, 4, 2, 2])]))]
    write_dataset(tmp_path / "raw", raw, rows, 3, roles={"objects": ROLE})
    ds = shardctl.open(tmp_path / "raw")
    (batch,) = ds.loader(1, crop=8, columns=["objects"])
    assert batch["objects"][0]["bbox"].tolist() == [[1, 2, 2, 2]]
    with pytest.raises(UsageError, match="a crop to 13x13 is larger than the images, 16x12"):
        ds.loader(1, crop=13, columns=["objects"])


def test_samples_whose_objects_cannot_be_read_are_named_or_left_out(out):
    images = [png(16, 12), (b"no image", "x.png"), png(6, 6), png(16, 12), png(16, 12)]
    objects: list[Any] = [struct([thing([5, 4, 2, 2])]) for _ in images]
    objects[3]["id"] = [1, 2]
    objects[4]["segmentation"] = [[[1, 2, 3]]]
    for size, counts in (((12, 16), b"1"), (None, b"11"), ((12, 16), None)):
        runs = {"size": size, "counts": counts}
        objects.append(struct([thing([5, 4, 2, 2]), thing([5, 4, 2, 2], rle=runs)]))
        images.append(images[0])
    rows = [
        (f"k{n}", image, png(16, 12, grey=True), each)
        for n, (image, each) in enumerate(zip(images, objects, strict=True))
    ]
    write_dataset(out, FIELDS, rows, 2, roles={"mask": Mask("png"), "objects": ROLE})
    ds = shardctl.open(out)
    for number, why in enumerate(
        [
            "image: it does not decode",
            r"image: 6x6 .* is too small for a crop to 8x8",
            "objects: has 1 boxes and 2 of id",
            "objects: has a polygon of 3 numbers",
            "objects: has .*its runs",
            "objects: has .*without a size",
            "objects: has .*without counts",
        ],
        1,
    ):
        with pytest.raises(DatasetError, match=f"key 'k{number}': {why}"):
            list(ds[number : number + 1].loader(1, crop=8, columns=["objects"]))
    with pytest.raises(DatasetError, match="key 'k3': objects: has 1 boxes"):
        ds.take([3], columns=["objects"])
    for columns in (["key", "objects"], ["key", "image", "objects"]):
        loader = ds.loader(5, crop=8, columns=columns, on_error="skip")
        assert [batch["key"] for batch in loader] == [["k0"]]
        assert loader.stats().skipped == 7


def test_a_column_that_is_not_one_of_objects_is_refused(tmp_path):
    wrong = [
        (pa.list_(pa.float32()), "it is not a struct of lists", [1.0]),
        (
            pa.struct({"bbox": FLOATS, "category": pa.list_(pa.int64())}),
            "it needs a bbox",
            {"bbox": [], "category": []},
        ),
    ]
    for number, (type_, why, value) in enumerate(wrong):
        fields = pa.schema({"key": pa.string(), "objects": type_})
        write_dataset(tmp_path / str(number), fields, [("k", value)], 3, roles={"objects": ROLE})
        with pytest.raises(DatasetError, match=f"objects is not a column of objects: {why}"):
            shardctl.open(tmp_path / str(number)).loader(1)


def test_values_that_are_missing_in_a_list_of_objects(out):
    whole = struct([thing([1, 2, 3, 4]), thing([1, 2, 3, 4])])
    assert whole is not None
    holes = {**whole, "id": [None, 3], "area": [None, 2.0], "iscrowd": [True, None]}
    write_dataset(
        out,
        FIELDS,
        [("k", png(16, 12), png(16, 12, grey=True), holes)],
        3,
        roles={"objects": ROLE},
    )
    objects = shardctl.open(out)[0]["objects"]
    assert objects["id"].tolist() == [-1, 3]
    assert np.array_equal(objects["area"], [np.nan, 2], equal_nan=True)
    assert objects["iscrowd"].tolist() == [True, False]


def test_categories_of_a_mixture_are_matched_by_name(tmp_path):
    one = write(tmp_path / "one", [[thing([1, 2, 3, 4], 0)], [thing([1, 2, 3, 4], 2)]])
    two = write(
        tmp_path / "two",
        [[thing([1, 2, 3, 4], 0)], None],
        role=Objects(("owl", "cow"), keypoints=ROLE.keypoints),
    )
    mix = shardctl.mix([one, two], [1, 1])
    assert mix.class_names == {"objects": ("cat", "dog", "owl", "cow")}
    loose = mix.loader(3, columns=["objects"])
    padded = mix.loader(3, columns=["objects"], pad={"objects": 0.0})
    for categories in (
        [each["category"] for batch in loose for each in batch["objects"] if each],
        [each for batch in padded for each in batch["objects.category"]],
    ):
        assert {int(number) for each in categories for number in each} - {-1} == {0, 2}
    other = write(tmp_path / "other", [[]], role=Objects(CATEGORIES, keypoints=("tail",)))
    with pytest.raises(
        UsageError, match="objects: keypoint 0 is 'nose' in one dataset and 'tail' in another"
    ):
        shardctl.mix([one, other], [1, 1]).loader(3)
    with pytest.raises(UsageError, match=r"the values of objects in .* have no names"):
        shardctl.mix([one, write(tmp_path / "bare", [[]], role=Objects())], [1, 1]).loader(3)


MOVED: dict[str, Any] = {"shuffle": True, "crop_from": "random", "flip": True}


def test_the_order_and_the_state_do_not_depend_on_objects(tmp_path):
    ds = write(tmp_path / "out", SAMPLES * 4)
    options = MOVED | {"crop": 8, "pad": {"objects": 0}}
    whole = list(ds.loader(5, **options))
    loader = ds.loader(5, **options)
    first = next(iter(loader))
    resumed = ds.loader(5, **options, threads=3, cache=1 << 20)
    resumed.load_state_dict(loader.state_dict())
    for found, expected in zip([first, *resumed], whole, strict=True):
        assert found["key"] == expected["key"]
        assert np.array_equal(found["objects.bbox"], expected["objects.bbox"])
    assert whole[0]["key"] == next(iter(ds.loader(5, shuffle=True, columns=["key"])))["key"]


@pytest.mark.parametrize("pad", [{}, {"objects": 0}])
def test_objects_made_by_a_worker_process_are_those_of_threads_and_are_counted_alike(tmp_path, pad):
    ds = write(tmp_path / "out", SAMPLES * 4)
    options = MOVED | {"crop": 6, "pad": pad, "keep_objects": 0.9}
    threads, loader = (ds.loader(5, **options, processes=processes) for processes in (None, 1))
    for found, expected in zip(loader, threads, strict=True):
        assert list(found) == list(expected)
        assert_equal([found[name] for name in expected], [expected[name] for name in expected])
    assert loader.stats().objects_cut == threads.stats().objects_cut > 0
    loader.close()


def assert_equal(found: Any, expected: Any) -> None:
    """Compare arrays in lists and dicts."""
    if isinstance(expected, dict | list):
        places = list(expected) if isinstance(expected, dict) else range(len(expected))
        assert len(found) == len(expected)
        for place in places:
            assert_equal(found[place], expected[place])
    else:
        np.testing.assert_array_equal(found, expected)
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)


@pytest.mark.parametrize("orientation", [None, 3, 6])
@pytest.mark.parametrize("read", [["objects"], ["image", "objects"]])
def test_the_size_of_an_image_is_that_of_the_upright_one(out, orientation, read):
    """The centre of 8 x 8 of a photo of 16 x 12 begins at (4, 2), of one of 12 x 16 at (2, 4)."""
    exif = Pictures.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    target = io.BytesIO()
    Pictures.fromarray(NOISE[:12, :16]).save(target, "JPEG", exif=exif)
    image = (target.getvalue(), "x.jpg")
    rows = [("a", image, png(16, 12, grey=True), struct([thing([5, 5, 2, 2])]))]
    write_dataset(out, FIELDS, rows, 3, roles={"mask": Mask("png"), "objects": ROLE})
    (batch,) = shardctl.open(out).loader(1, crop=8, columns=read)
    assert batch["objects"][0]["bbox"].tolist() == [
        [3, 1, 2, 2] if orientation == 6 else [1, 3, 2, 2]
    ]


def test_differences_of_objects_between_datasets_are_found(tmp_path, cli):
    changed = [SAMPLES[0], [thing([1, 1, 1, 1])], None, [thing([4, 4, 8, 4], area=float("nan"))]]
    for name, samples in (("a", SAMPLES), ("b", changed), ("c", changed)):
        write(tmp_path / name, samples)
    done = cli("inspect", tmp_path / "a", "--diff", tmp_path / "b")
    assert "objects" in done.out
    assert cli("inspect", tmp_path / "b", "--diff", tmp_path / "c").code == 0


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("bbox", [1.0, 2.0, 3.0, 4.0], "bbox"),
        ("objects", {"bbox": [[1, 2, 3, 4]], "category": [0]}, "objects.bbox"),
        ("marks", [{"polygon": [1.0, 2.0]}], "marks.polygon"),
    ],
)
@pytest.mark.parametrize("option", [{"resize": 8}, {"flip": 0.5}])
def test_columns_that_look_like_places_and_cannot_be_moved_are_refused(
    out, field, value, named, option
):
    image = np.zeros((12, 16, 3), np.uint8)
    shardctl.write(out, [{"image": image, field: value, "numbers": [1.0, 2.0, 3.0]}])
    ds = shardctl.open(out)
    (name,) = option
    with pytest.raises(
        UsageError,
        match=f"{name} moves the content of the images, but not {named}: .*columns=",
    ):
        ds.loader(1, **option)
    (batch,) = ds.loader(1, **option, columns=["key", "image", "numbers"])
    assert batch["numbers"][0].tolist() == [1, 2, 3]
    (batch,) = ds.loader(1, channels_first=True)
    assert field in batch
