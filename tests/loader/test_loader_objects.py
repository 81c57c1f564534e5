"""What is marked in images, in batches: arrays of each sample, or filled up; moved with the images;
and in PyTorch."""

from __future__ import annotations

import io
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from handmade import write_dataset
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
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
from remote_datasets import all_same

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.format.layout import ENCODED_IMAGE, image_tensor
from shardctl.format.roles import Mask, Objects
from shardctl.images.codecs import rle
from shardctl.images.object_geometry import Motion, moved_objects


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_each_sample_has_its_objects_as_arrays(tmp_path, compression):
    ds = write(tmp_path / "out", SAMPLES, compression=compression)
    (batch,) = ds.loader(4)
    first, none, unknown, last = batch["objects"]
    assert unknown is None
    wanted = {
        "id": ([10, 11], np.int64),
        "category": ([2, 1], np.int64),
        "bbox": ([[1, 2, 3, 4], [0, 0, 16, 12]], np.float32),
        "area": ([12, 192], np.float32),
        "iscrowd": ([True, False], np.bool_),
        "keypoints": (np.zeros((2, 3, 3)), np.float32),
    }
    for name, (values, dtype) in wanted.items():
        assert first[name].dtype == dtype
        assert np.array_equal(first[name], values)
    assert first["segmentation"] == [[], []]
    assert none["bbox"].shape == (0, 4)
    assert none["keypoints"].shape == (0, 3, 3)
    (marked,) = SAMPLES[3] or []
    assert last["keypoints"].tolist() == [marked["keypoints"]]
    assert [part.tolist() for part in last["segmentation"][0]] == marked["segmentation"]
    assert ds[3]["objects"]["bbox"].tolist() == [marked["bbox"]]
    assert ds[2]["objects"] is None
    assert ds.take([0, 3], columns=["objects"])["objects"][1]["category"].tolist() == [0]


def test_padded_objects_are_arrays_of_the_batch(tmp_path):
    ds = write(tmp_path / "out", SAMPLES)
    loader = ds.loader(4, pad={"objects": 0.5})
    (batch,) = loader
    nothing = [[0.5] * 4] * 2
    boxes = [[[1, 2, 3, 4], [0, 0, 16, 12]], nothing, nothing, [[4, 4, 8, 4], [0.5] * 4]]
    assert batch["objects.bbox"].tolist() == boxes
    assert batch["objects.category"].tolist() == [[2, 1], [-1, -1], [-1, -1], [0, -1]]
    assert batch["objects.id"][0].tolist() == [10, 11]
    assert batch["objects.iscrowd"].tolist() == [[True, False], *[[False, False]] * 3]
    assert batch["objects.keypoints"].shape == (4, 2, 3, 3)
    assert batch["objects_length"].tolist() == [2, 0, 0, 1]
    assert np.array_equal(batch["objects_mask"], batch["objects.category"] >= 0)
    assert batch["objects_annotated"].tolist() == [True, True, False, True]
    assert [len(each) for each in batch["objects.segmentation"]] == [2, 0, 0, 1]
    assert "objects" not in batch
    specs = loader.stream.specs()
    assert list(specs) == list(batch)
    for name, spec in specs.items():
        values = batch[name]
        assert isinstance(values, np.ndarray) == (spec.kind in ("fixed", "padded")), name
        if isinstance(values, np.ndarray):
            assert (values.dtype, values.ndim) == (spec.dtype, 1 + len(spec.shape)), name
            lengths = zip(spec.shape, values.shape[1:], strict=True)
            assert all(length in (-1, found) for length, found in lengths), name


def test_members_can_be_chosen(tmp_path):
    ds = write(tmp_path / "out", SAMPLES)
    (batch,) = ds.loader(4, columns=["objects.category", "key", "objects.id"])
    assert list(batch) == ["objects", "key"]
    assert {name: values.tolist() for name, values in batch["objects"][0].items()} == {
        "id": [10, 11],
        "category": [2, 1],
    }
    (batch,) = ds.loader(4, columns=["objects.category"], pad={"objects": 0}, crop=4)
    beside = [f"objects_{fact}" for fact in ("length", "mask", "annotated")]
    assert list(batch) == ["objects.category", *beside]
    assert batch["objects_length"].tolist() == [0, 0, 0, 1]
    (batch,) = ds.loader(4, columns=["objects.id", "objects"])
    assert len(batch["objects"][0]) == 8
    for wrong, meant in (("objects.box", "objects.bbox"), ("image.bytes", "image")):
        with pytest.raises(UsageError, match=f"'{wrong}'; did you mean {meant}"):
            ds.loader(4, columns=["objects.bbox", wrong])


def test_objects_are_cut_and_mirrored_with_their_image(tmp_path):
    """An image of 16 x 12; the centre of 8 x 8 begins at (4, 2). Mirrored, x becomes 8 - (x -
    4)."""
    points, outline = [[5.5, 4.5, 2], [12.0, 5.5, 1], [1.0, 1.0, 2]], [5, 4, 7, 4, 7, 6]
    corner = [[2, 2, 6, 2, 6, 10, 2, 10], [0, 0, 3, 0, 3, 3]]
    objects = [
        thing([2, 3, 4, 4], 0, area=10.0),  # half of it is inside: x from 4 to 6, y from 3 to 7
        thing([5, 4, 2, 2], 1, keypoints=points, segmentation=[outline]),
        thing([0, 0, 4.5, 3], 2),  # 0.5 of 13.5 pixels are inside
        thing([12, 2, 4, 4], 2),  # begins where the crop ends
        thing([2, 2, 4, 8], 2, area=36.5, segmentation=corner),
        thing([13, 2, 2, 4], 2, segmentation=[outline]),  # beside its polygon
    ]
    ds = write(tmp_path / "out", [objects])
    (batch,) = ds.loader(1, crop=8)
    cut = batch["objects"][0]
    assert cut["bbox"].tolist() == [[0, 1, 2, 4], [1, 2, 2, 2], [0, 0, 2, 8], [1, 2, 2, 2]]
    assert cut["area"].tolist() == [5, 4, 16, 8]
    assert cut["category"].tolist() == [0, 1, 2, 2]
    assert cut["keypoints"][1].tolist() == [[1.5, 2.5, 2], [8, 3.5, 1], [0, 0, 0]]
    assert cut["segmentation"][1][0].tolist() == [1, 2, 3, 2, 3, 4]
    (corners,) = cut["segmentation"][2]
    assert sorted(map(tuple, corners.reshape(-1, 2).tolist())) == [(0, 0), (0, 8), (2, 0), (2, 8)]
    (mirrored,) = ds.loader(1, crop=8, flip=1.0)
    found = mirrored["objects"][0]
    assert found["bbox"].tolist() == [[6, 1, 2, 4], [5, 2, 2, 2], [6, 0, 2, 8], [5, 2, 2, 2]]
    # left and right are exchanged
    assert found["keypoints"][1].tolist() == [[6.5, 2.5, 2], [0, 0, 0], [0, 3.5, 1]]
    assert found["segmentation"][1][0].tolist() == [7, 2, 5, 2, 5, 4]
    assert np.array_equal(mirrored["image"], batch["image"][:, :, ::-1])


def test_what_is_kept_is_decided_by_the_area_inside_or_the_centre(tmp_path):
    """The centre of 8 x 8 of an image of 16 x 12 is from (4, 2) to (12, 10)."""
    boxes = [[0, 2, 8, 4], [0, 2, 10, 4], [0, 2, 4.5, 4], [4, 2, 8, 8], [6, 6, 0, 0], [0, 0, 3, 2]]
    ds = write(tmp_path / "out", [[thing(box, id=place) for place, box in enumerate(boxes)]])
    for options, kept in (
        ({}, [0, 1, 2, 3, 4]),  # 0.11 of the third is inside, and 0.1 is enough
        ({"keep_objects": 0.5}, [0, 1, 3, 4]),
        ({"keep_objects": 1}, [3, 4]),
        ({"keep_objects": "center"}, [0, 1, 3, 4]),
    ):
        loader = ds.loader(1, crop=8, **options)
        (batch,) = loader
        assert batch["objects"][0]["id"].tolist() == kept
        assert loader.stats().objects_cut == len(boxes) - len(kept)
    for wrong in (1.5, "middle"):
        with pytest.raises(UsageError, match="keep_objects"):
            ds.loader(1, keep_objects=wrong)


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
    crop=st.sampled_from(
        [{}, *({"crop": (8, 9), "crop_from": way} for way in ("center", "random"))]
    ),
    flip=st.sampled_from([0.0, 0.5, 1.0]),
    keep=st.sampled_from([0.1, 0.5, "center"]),
    seed=st.integers(0, 3),
)
def test_moved_objects_are_those_of_a_conversion(
    tmp_path_factory, samples, sizes, resize, crop, flip, keep, seed
):
    """Where an image was put is found from the pixels of its mask."""
    ds = write(tmp_path_factory.mktemp("objects") / "out", samples, sizes[: len(samples)])
    options = {"resize": resize, "flip": flip, "seed": seed, "keep_objects": keep, **crop}
    ways = ({}, {"pad": {"objects": 0}}, {"columns": ["key", "objects"]})
    loaders = [ds.loader(4, shuffle=True, **options, **way) for way in ways]
    for batch, filled, other in zip(*loaders, strict=True):
        assert [str(each) for each in other["objects"]] == [str(each) for each in batch["objects"]]
        for place, key in enumerate(batch["key"]):
            number = int(key[1:])
            objects, stored = batch["objects"][place], struct(samples[number])
            assert filled["objects_annotated"][place] == (stored is not None)
            if stored is None:
                assert objects is None
                continue
            motion = motion_of(batch["mask"][place], sizes[number], resize)
            expected = moved_objects(stored, motion, ROLE, keep)
            count = len(expected["bbox"])
            assert filled["objects_length"][place] == count
            assert not filled["objects.bbox"][place, count:].any()
            for name, values in objects.items():
                if isinstance(values, np.ndarray):
                    assert np.array_equal(filled[f"objects.{name}"][place, :count], values)
                    lists = (
                        [each or np.zeros((3, 3)) for each in expected[name]]
                        if name == "keypoints"
                        else expected[name]
                    )
                    assert np.allclose(values, np.reshape(lists, values.shape), atol=1e-4), name
            for parts, others in zip(
                objects["segmentation"], expected["segmentation"], strict=True
            ):
                assert list(map(len, parts)) == list(map(len, others))
                assert np.allclose([*chain(*parts)], [*chain(*others)], atol=1e-4)


@examples(15)
@given(
    size=st.tuples(st.integers(9, 24), st.integers(9, 24)),
    resize=st.sampled_from([None, 11, (10, 14), 30]),
    crop=st.sampled_from([{}, {"crop": (8, 9), "crop_from": "random"}]),
    flip=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 9),
)
# centres that lie just between two pixels
@example(size=(12, 12), resize=11, crop={"crop": (8, 9), "crop_from": "random"}, flip=0.0, seed=0)
def test_masks_of_single_objects_move_like_masks_of_pixels(
    tmp_path_factory, size, resize, crop, flip, seed
):
    runs = {"size": size[::-1], "counts": rle.encode(NOISE[: size[1], : size[0]] > 99)}
    objects = [thing([0, 0, 99, 99]), thing([0, 0, 99, 99], rle=runs, iscrowd=True)]
    ds = write(tmp_path_factory.mktemp("rle") / "out", [objects], [size])
    (batch,) = ds.loader(1, resize=resize, flip=flip, seed=seed, keep_objects=0, **crop)
    nothing, found = batch["objects"][0]["rle"]
    assert nothing is None
    mask = rle.decode(found["counts"], tuple(found["size"].tolist()))
    assert np.array_equal(mask, batch["mask"][0] > 99)


def motion_of(mask: Any, size: tuple[int, int], resize: Any) -> Motion:
    """Return what a conversion that does the same would do to the coordinates: the mask of a batch
    is found in the resized one."""
    width, height = size
    short = min(size)
    new = (
        resize[::-1]
        if isinstance(resize, tuple)
        else (width * (resize or short) // short, height * (resize or short) // short)
    )
    rows, columns = (
        (np.arange(after) * 2 + 1) * before // (2 * after)
        for after, before in zip(new[::-1], size[::-1], strict=True)
    )
    parts = sliding_window_view(NOISE[rows[:, None], columns], mask.shape)
    for mirrored in (False, True):
        found = np.argwhere((parts == (mask[:, ::-1] if mirrored else mask)).all(axis=(2, 3)))
        if len(found):
            break
    top, left = found[0].tolist()
    height, width = mask.shape
    motion = Motion.still(size).then(np.diag([new[0] / size[0], new[1] / size[1], 1.0]), new)
    motion = motion.then(np.array([[1.0, 0, -left], [0, 1, -top], [0, 0, 1]]), (width, height))
    turned = np.array([[-1.0, 0, width], [0, 1, 0], [0, 0, 1]])
    return motion.then(turned, (width, height)) if mirrored else motion


def test_a_flip_of_keypoints_needs_to_know_which_is_which(tmp_path):
    ds = write(tmp_path / "out", SAMPLES, role=Objects(CATEGORIES))
    with pytest.raises(UsageError, match=r"hflip mirrors .* keypoints"):
        ds.loader(4, flip=True)
    (batch,) = ds.loader(4, flip=1.0, columns=["objects.bbox", "objects.category"])
    assert batch["objects"][3]["bbox"].tolist() == [[4, 4, 8, 4]]
    (batch,) = ds.loader(4, crop=8, pad={"objects": 0})
    # as many points as the object with the most of them has
    assert batch["objects.keypoints"].shape == (4, 1, 3, 3)


def test_options_that_do_not_fit_objects_are_refused(tmp_path):
    ds = write(tmp_path / "out", SAMPLES)
    for options in (
        {"pad": {"objects": "a"}},
        {"fill": {"objects": 0}},
        {"dtype": {"objects": "float32"}},
        {"channels_first": True, "columns": ["objects"]},
        {"crop": 8, "columns": ["objects"], "decode": False},
        {"bucket": {"objects": 2}},
    ):
        with pytest.raises(UsageError, match=r"objects|decoded images"):
            next(iter(ds.loader(2, **options)))


def test_objects_move_with_the_main_image_or_not_at_all(tmp_path):
    names = {"key": pa.string(), "left": ENCODED_IMAGE, "right": ENCODED_IMAGE, "objects": OBJECTS}
    rows: list[Any] = [("k", png(16, 12), png(16, 12), struct([]))]
    write_dataset(tmp_path / "two", pa.schema(names), rows, 3, roles={"objects": ROLE})
    two = shardctl.open(tmp_path / "two")
    with pytest.raises(UsageError, match="none of 2 columns of images is called image"):
        two.loader(1, crop=4)
    assert len(list(two.loader(1))) == 1
    raw = pa.schema({"key": pa.string(), "image": image_tensor((12, 16, 3)), "objects": OBJECTS})
    rows = [("k", np.zeros((12, 16, 3), np.uint8), struct([thing([5, 4, 2, 2])]))]
    write_dataset(tmp_path / "raw", raw, rows, 3, roles={"objects": ROLE})
    ds = shardctl.open(tmp_path / "raw")
    (batch,) = ds.loader(1, crop=8, columns=["objects"])
    assert batch["objects"][0]["bbox"].tolist() == [[1, 2, 2, 2]]


def one_row(image: Any, objects: Any, key: str = "k") -> tuple[Any, ...]:
    return (key, image, png(16, 12, grey=True), objects)


def test_samples_whose_objects_cannot_be_read_are_named_or_left_out(out):
    box, whole = thing([5, 4, 2, 2]), png(16, 12)
    runs: list[dict[str, Any]] = [
        {"size": (12, 16), "counts": b"1"},
        {"size": None, "counts": b"11"},
        {"size": (12, 16), "counts": None},
    ]
    cases: list[tuple[Any, Any, str]] = [
        (whole, {}, ""),
        ((b"no image", "x.png"), {}, "image: it does not decode"),
        (whole, {"id": [1, 2]}, "objects: has 1 boxes and 2 of id"),
        (whole, {"segmentation": [[[1, 2, 3]]]}, "objects: has a polygon of 3 numbers"),
        *((whole, {"rle": [each]}, "objects: an RLE of objects is not one") for each in runs),
    ]
    rows = [
        one_row(image, (struct([box]) or {}) | changed, f"k{n}")
        for n, (image, changed, _) in enumerate(cases)
    ]
    write_dataset(out, FIELDS, rows, 2, roles={"mask": Mask("png"), "objects": ROLE})
    ds = shardctl.open(out)
    for number, (_, _, why) in enumerate(cases[1:], 1):
        with pytest.raises(DatasetError, match=f"key 'k{number}': {why}"):
            list(ds[number : number + 1].loader(1, crop=8, columns=["objects"]))
    with pytest.raises(DatasetError, match="key 'k2': objects: has 1 boxes"):
        ds.take([2], columns=["objects"])
    for columns in (["key", "objects"], ["key", "image", "objects"]):
        loader = ds.loader(5, crop=8, columns=columns, on_error="skip")
        assert [batch["key"] for batch in loader] == [["k0"]]
        assert loader.stats().skipped == 6


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        (FLOATS, [1.0], "not a struct of lists"),
        (
            pa.struct({"bbox": FLOATS, "category": pa.list_(pa.int64())}),
            {"bbox": [], "category": []},
            "needs a bbox",
        ),
    ],
)
def test_a_column_that_is_not_one_of_objects_is_refused(out, type_, value, why):
    fields = pa.schema({"key": pa.string(), "objects": type_})
    write_dataset(out, fields, [("k", value)], 3, roles={"objects": ROLE})
    with pytest.raises(DatasetError, match=why):
        shardctl.open(out).loader(1)


def test_values_that_are_missing_in_a_list_of_objects(out):
    whole = struct([thing([1, 2, 3, 4]), thing([1, 2, 3, 4])]) or {}
    holes = {**whole, "id": [None, 3], "area": [None, 2.0], "iscrowd": [True, None]}
    write_dataset(out, FIELDS, [one_row(png(16, 12), holes)], 3, roles={"objects": ROLE})
    objects = shardctl.open(out)[0]["objects"]
    assert objects["id"].tolist() == [-1, 3]
    assert np.array_equal(objects["area"], [np.nan, 2], equal_nan=True)
    assert objects["iscrowd"].tolist() == [True, False]


def test_categories_of_a_mixture_are_matched_by_name(tmp_path):
    box = [1, 2, 3, 4]
    one = write(tmp_path / "one", [[thing(box, 0)], [thing(box, 2)]])
    owls = Objects(("owl", "cow"), keypoints=ROLE.keypoints)
    mix = shardctl.mix([one, write(tmp_path / "two", [[thing(box, 0)], None], role=owls)], [1, 1])
    assert mix.class_names == {"objects": ("cat", "dog", "owl", "cow")}
    loose = mix.loader(3, columns=["objects"])
    padded = mix.loader(3, columns=["objects"], pad={"objects": 0.0})
    for categories in (
        [each["category"] for batch in loose for each in batch["objects"] if each],
        [each for batch in padded for each in batch["objects.category"]],
    ):
        assert {int(number) for each in categories for number in each} - {-1} == {0, 2}
    for name, role, said in (
        ("other", Objects(CATEGORIES, keypoints=("tail",)), "keypoint 0 is 'nose'.*'tail'"),
        ("bare", Objects(), "names in one dataset, and not"),
    ):
        with pytest.raises(UsageError, match=said):
            shardctl.mix([one, write(tmp_path / name, [[]], role=role)], [1, 1]).loader(3)


MOVED: dict[str, Any] = {"shuffle": True, "crop_from": "random", "flip": True}


def test_the_order_and_the_state_do_not_depend_on_objects(tmp_path):
    ds = write(tmp_path / "out", SAMPLES * 4)
    options = MOVED | {"crop": 8, "pad": {"objects": 0}}
    whole = list(ds.loader(5, **options))
    loader = ds.loader(5, **options)
    first = next(iter(loader))
    resumed = ds.loader(5, **options, threads=3, cache=1 << 20)
    resumed.load_state_dict(loader.state_dict())
    assert all_same([first, *resumed], whole)
    assert first["key"] == next(iter(ds.loader(5, shuffle=True, columns=["key"])))["key"]


@pytest.mark.parametrize("pad", [{}, {"objects": 0}])
def test_objects_made_by_a_worker_process_are_those_of_threads_and_are_counted_alike(tmp_path, pad):
    ds = write(tmp_path / "out", SAMPLES * 4)
    options = MOVED | {"crop": 6, "pad": pad, "keep_objects": 0.9}
    threads, loader = (ds.loader(5, **options, processes=processes) for processes in (None, 1))
    assert all_same(loader, threads)
    assert loader.stats().objects_cut == threads.stats().objects_cut > 0
    loader.close()


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("read", [["objects"], ["image", "objects"]])
def test_the_size_of_an_image_is_that_of_the_upright_one(out, orientation, read):
    """The centre of 8 x 8 of a photo of 16 x 12 begins at (4, 2), of one of 12 x 16 at (2, 4)."""
    exif = Pictures.Exif()
    exif[0x0112] = orientation
    target = io.BytesIO()
    Pictures.fromarray(NOISE[:12, :16]).save(target, "JPEG", exif=exif)
    rows = [one_row((target.getvalue(), "x.jpg"), struct([thing([5, 5, 2, 2])]))]
    write_dataset(out, FIELDS, rows, 3, roles={"mask": Mask("png"), "objects": ROLE})
    (batch,) = shardctl.open(out).loader(1, crop=8, columns=read)
    place = [3, 1] if orientation == 6 else [1, 3]
    assert batch["objects"][0]["bbox"].tolist() == [[*place, 2, 2]]


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("bbox", [1.0, 2.0, 3.0, 4.0], "bbox"),
        ("objects", {"bbox": [[1, 2, 3, 4]], "category": [0]}, "objects.bbox"),
        ("marks", [{"polygon": [1.0, 2.0]}], "marks.polygon"),
    ],
)
def test_columns_that_look_like_places_and_cannot_be_moved_are_refused(out, field, value, named):
    image = np.zeros((12, 16, 3), np.uint8)
    shardctl.write(out, [{"image": image, field: value, "numbers": [1.0, 2.0, 3.0]}])
    ds = shardctl.open(out)
    for options in ({"resize": 8}, {"flip": 0.5}):
        with pytest.raises(
            UsageError, match=f"{next(iter(options))} moves .* not {named}: .*columns="
        ):
            ds.loader(1, **options)
        (batch,) = ds.loader(1, **options, columns=["key", "image", "numbers"])
        assert batch["numbers"][0].tolist() == [1, 2, 3]
    (batch,) = ds.loader(1, channels_first=True)
    assert field in batch
