"""Annotations follow the pixels of their image through a conversion."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotated_sources import HEIGHT, WIDTH, source_with
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from pictures import centroid, rectangle
from PIL import Image

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.format.manifest import Manifest
from shardctl.format.tables import read_rejects
from shardctl.making.convert import ConvertResult
from shardctl.system.folders import LocalFolder
from shardctl.transforms.pipeline import deferred_objects

CROP_AND_FLIP = [{"name": "crop", "size": "30x20"}, {"name": "hflip", "p": 1}]
"""From (15, 10) on, mirrored: x becomes 45 - x, y becomes y - 10."""


def converted(source: Path, steps: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Return the only sample of a conversion."""
    recipe = {"store": "png", "transform": steps, **options.pop("recipe", {})}
    convert(source, source.parent / "out", recipe=recipe, **options)
    (sample,) = shardctl.open(source.parent / "out")
    return sample


def test_boxes_of_a_metadata_file_follow_a_crop_and_a_flip(tmp_path):
    objects = {
        "bbox": [[20, 15, 10, 8], [0, 0, 5, 5], [40, 25, 10, 10]],
        "category": [0, 1, 2],
        "area": [80, 25, 100],
    }
    sample = converted(source_with(tmp_path, objects), CROP_AND_FLIP, recipe={"keep_objects": 0.2})
    assert np.asarray(sample["objects"]["bbox"]).tolist() == [[15, 5, 10, 8], [0, 15, 5, 5]]
    assert list(sample["objects"]["category"]) == [0, 2]
    assert list(sample["objects"]["area"]) == [80, 25], "of the last one a quarter is visible"
    white = np.asarray(sample["image"])[..., 0] > 127
    assert np.argwhere(white).min(axis=0).tolist() == [5, 15]
    assert np.argwhere(white).max(axis=0).tolist() == [12, 24]
    manifest = Manifest.load(LocalFolder(tmp_path / "out"))
    assert manifest.objects == {"kept": 2, "cut_off": 1}


@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
def test_a_mask_follows_with_its_numbers_and_its_palette(tmp_path, mode):
    values = np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % 251
    values = (values * (200 if mode == "I;16" else 1)).astype(
        np.uint16 if mode == "I;16" else np.uint8
    )
    mask = Image.fromarray(values)
    if mode == "P":
        mask.putpalette([number % 256 for number in range(768)])
    source = source_with(tmp_path, None, mask)
    sample = converted(source, CROP_AND_FLIP, labels=f"masks:{tmp_path / 'masks'}")
    assert np.array_equal(sample["mask"], values[10:30, 15:45][:, ::-1])
    stored = pa.ipc.open_file(tmp_path / "out" / "train-00000.arrow").read_all()["mask"][0].as_py()
    with Image.open(io.BytesIO(stored["bytes"])) as kept:
        assert kept.mode == mode or (mode == "I;16" and kept.mode.startswith("I"))
        if mode == "P":
            assert (kept.getpalette() or [])[:9] == list(range(9))


@pytest.mark.thorough
@examples(40)
@given(
    st.integers(1, 256),
    st.sampled_from([255, 254, 16, 1]),
    st.sampled_from([1, 3, 6]),
    st.sampled_from(["png", "jpeg:90", "webp:80", "raw", "source"]),
)
def test_each_number_of_a_mask_is_kept_whatever_its_palette_has(
    tmp_path_factory, colours, ignore, orientation, store
):
    """Those of the void that a move draws in too, which need no colour."""
    folder = tmp_path_factory.mktemp("palettes")
    values = (np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % colours).astype(np.uint8)
    mask = Image.fromarray(values)
    mask.putpalette([7 * number % 256 for number in range(3 * colours)])
    (folder / "photos").mkdir()
    (folder / "masks").mkdir()
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "photos" / "a.jpg", exif=exif)
    mask.save(folder / "masks" / "a.png")
    options = {"labels": f"masks+ignore={ignore}:{folder / 'masks'}", "annotation_frame": "stored"}
    size = f"{HEIGHT + 6}x{WIDTH + 6}" if orientation == 6 else f"{WIDTH + 6}x{HEIGHT + 6}"
    steps: list[dict[str, Any]] = (
        [{"name": "pad", "margin": 3}, {"name": "crop", "size": size}] if store != "source" else []
    )
    sample = converted(folder / "photos", steps, recipe={"store": store}, **options)
    upright = {1: values, 3: values[::-1, ::-1], 6: np.rot90(values, -1)}[orientation]
    expected = upright if store == "source" else np.pad(upright, 3, constant_values=ignore)
    assert np.array_equal(sample["mask"], expected)


def test_a_mask_is_void_where_there_is_no_image(tmp_path):
    source = source_with(tmp_path, None, Image.fromarray(np.ones((HEIGHT, WIDTH), np.uint8)))
    steps = [{"name": "pad", "margin": 3}]
    sample = converted(source, steps, labels=f"masks+ignore=9:{tmp_path / 'masks'}")
    assert (sample["mask"][3:-3, 3:-3] == 1).all()
    assert (sample["mask"][:3] == 9).all()


@examples(15)
@given(
    st.floats(-180, 180),
    st.floats(0.9, 1.3),
    st.booleans(),
    st.tuples(st.integers(20, 26), st.integers(12, 16), st.integers(11, 15), st.integers(9, 12)),
)
def test_boxes_masks_and_pixels_stay_together_through_a_recipe(
    tmp_path_factory, angle, scale, mirrored, box
):
    """Against the centre of a mask that was moved as pixels."""
    folder = tmp_path_factory.mktemp("together")
    marked = np.asarray(rectangle((WIDTH, HEIGHT), box))[..., 0]
    left, top, width, height = box
    polygon = [left, top, left + width, top, left + width, top + height, left, top + height]
    objects = {"bbox": [list(box)], "category": [0], "segmentation": [[polygon]]}
    source = source_with(folder, objects, Image.fromarray(marked))
    Image.fromarray(np.stack([marked] * 3, axis=-1)).save(source / "a.png")
    steps = [
        {"name": "hflip", "p": 1 if mirrored else 0},
        {"name": "affine", "angle": angle, "scale": scale, "interpolation": "bilinear"},
    ]
    sample = converted(source, steps, labels=["auto", f"masks:{folder / 'masks'}"])
    expected = centroid(sample["image"])
    x, y, w, h = np.asarray(sample["objects"]["bbox"])[0]
    assert math.dist((x + w / 2, y + h / 2), expected) < 0.15
    assert math.dist(centroid(sample["mask"]), expected) < 0.51


OWN_FUNCTIONS = """
def setting(make):
    def step(sample):
        objects = sample["objects"]
        if sample["key"] == "a.png":
            objects.update(make(objects))
        return sample
    return step

fewer = setting(lambda objects: {"area": objects["area"][:1]})
without = setting(lambda objects: {"area": None})
no_such = setting(lambda objects: {"category": [0, 2]})
below = setting(lambda objects: {"category": [-1, 0]})
nan = setting(lambda objects: {"bbox": [[1.0, 2.0, 3.0, 4.0], [float("nan"), 2.0, 3.0, 4.0]]})
three = setting(lambda objects: {"bbox": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]})
beyond = setting(lambda objects: {"bbox": [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 1e39]]})
endless = setting(lambda objects: {"segmentation": [[], [[1.0, 2.0, 3.0, float("inf")]]]})
nowhere = setting(lambda objects: {"keypoints": [[[1.0, 2.0, 2.0]], [[float("nan"), 2.0, 2.0]]]})
odd = setting(lambda objects: {"segmentation": [[], [[1.0, 2.0, 3.0]]]})
same = setting(lambda objects: {"bbox": [[1, 2, 3, 4], (5, 6, 7, 8)], "category": [1, 0]})
nothing = setting(lambda objects: {name: [] for name in objects})
score = setting(lambda objects: {"score": [0.5, 0.25]})

def all_named(sample):
    sample["objects"]["category"] = ["cat" for _ in sample["objects"]["category"]]
    return sample
"""


def result_of_function(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> ConvertResult:
    """Convert two images with objects and a function of OWN_FUNCTIONS."""
    objects = {
        "bbox": [[20, 15, 10, 8], [0, 0, 5, 5]],
        "category": ["cat", "dog"],
        "area": [80, 25],
    }
    objects["segmentation"] = [[], [[0, 0, 5, 0, 5, 5]]]
    objects["keypoints"] = [[[1, 1, 2]], [[2, 2, 2]]]
    source = source_with(folder, None)
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(source / "b.png")
    lines = [
        json.dumps({"file_name": name, "objects": objects}) + "\n" for name in ("a.png", "b.png")
    ]
    (source / "metadata.jsonl").write_text("".join(lines))
    (folder / "own_objects.py").write_text(OWN_FUNCTIONS)
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("own_objects", None)
    recipe = {
        "store": "png",
        "transform": [{"name": "custom", "target": f"own_objects:{function}"}],
    }
    return convert(source, folder / "out", recipe=recipe)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("fewer", "with 2 of bbox and 1 of area"),
        (
            "without",
            "without area; it must have the lists area, bbox, category, keypoints, segmentation",
        ),
        ("no_such", "whose category[1] is 2 (int); categories are whole numbers from 0 to 1"),
        ("below", "whose category[0] is -1 (int)"),
        ("beyond", "whose bbox[1] is a list of length 4; it must be four finite numbers"),
        (
            "endless",
            "whose segmentation[1] has a polygon with a number that is not finite, or beyond "
            "float32",
        ),
        ("nowhere", "whose keypoints[1] have a number that is not finite, or beyond float32"),
        ("three", "whose bbox[0] is a list of length 3; it must be four finite numbers"),
        ("odd", "whose segmentation[1] has a polygon of 3 numbers"),
    ],
)
def test_objects_of_a_function_that_could_not_be_read_reject_their_sample(
    tmp_path, out, monkeypatch, function, says
):
    result = result_of_function(tmp_path, monkeypatch, function)
    assert (result.samples, result.reasons) == (1, {"transform: bad-annotation": 1})
    (reject,) = read_rejects(LocalFolder(out))
    assert reject.key == "a.png"
    assert reject.message.startswith(f"own_objects:{function} set objects to a dict {says}")
    assert shardctl.verify(out).ok


@pytest.mark.parametrize(("function", "categories"), [("same", [1, 0]), ("nothing", [])])
def test_objects_of_a_function_that_fit_stay_objects(tmp_path, monkeypatch, function, categories):
    assert result_of_function(tmp_path, monkeypatch, function).reasons == {}
    dataset = shardctl.open(tmp_path / "out")
    assert {sample["key"]: list(sample["objects"]["category"]) for sample in dataset} == {
        "a.png": categories,
        "b.png": [0, 1],
    }
    assert dataset.manifest.fields["objects"]["role"] == "objects"


@pytest.mark.parametrize("function", ["score", "all_named"])
def test_a_function_after_which_objects_are_a_field_like_any_other_is_named(
    tmp_path, monkeypatch, function
):
    result = result_of_function(tmp_path, monkeypatch, function)
    (notice,) = [each for each in result.notices if "no longer" in each]
    assert notice.startswith(
        f"objects is no longer a column of objects, because own_objects:{function} "
    )
    assert "objects" not in Manifest.load(LocalFolder(tmp_path / "out")).fields


def test_variants_have_annotations_of_their_own(tmp_path, out):
    source = source_with(tmp_path, {"bbox": [[20, 15, 10, 8]], "category": [0]})
    recipe = {
        "store": "png",
        "variants": 8,
        "transform": [{"name": "random_crop", "size": "50x30"}],
    }
    convert(source, out, recipe=recipe)
    boxes = []
    for sample in shardctl.open(out):
        white = np.argwhere(np.asarray(sample["image"])[..., 0] > 127)
        (top, left), (bottom, right) = white.min(axis=0).tolist(), (white.max(axis=0) + 1).tolist()
        boxes.append((left, top, right - left, bottom - top))
        assert np.asarray(sample["objects"]["bbox"]).tolist() == [list(boxes[-1])]
    assert len(set(boxes)) > 3


@pytest.mark.parametrize(
    ("objects", "step", "message"),
    [
        ({}, {"name": "elastic"}, "elastic cannot move boxes, which the images have (objects)"),
        (
            {"segmentation": [[[0, 0, 5, 0, 5, 5]]]},
            {"name": "maybe", "steps": [{"name": "elastic"}]},
            "elastic in maybe cannot move boxes and polygons",
        ),
        (
            {"keypoints": [[[1, 1, 2]]]},
            {"name": "hflip"},
            "hflip mirrors the images, and nothing says which keypoints change places",
        ),
    ],
)
def test_a_step_that_cannot_move_an_annotation_is_refused_by_name(tmp_path, objects, step, message):
    source = source_with(tmp_path, {"bbox": [[20, 15, 10, 8]], "category": [0], **objects})
    with pytest.raises(UsageError) as refused:
        converted(source, [step])
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_objects_of_a_table_follow_too(tmp_path, out):
    encoded = io.BytesIO()
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(encoded, "PNG")
    good = {"bbox": [[20.0, 15.0, 10.0, 8.0]], "category": ["cat"]}
    rows = [
        {"image": {"bytes": encoded.getvalue(), "path": f"{n}.png"}, "objects": good}
        for n in range(3)
    ]
    rows[1] = {**rows[1], "objects": {"bbox": [[20.0, 15.0, 10.0]], "category": ["cat"]}}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    convert(tmp_path / "in.parquet", out, recipe={"transform": CROP_AND_FLIP})
    boxes = [np.asarray(sample["objects"]["bbox"]).tolist() for sample in shardctl.open(out)]
    assert boxes == [[[15, 5, 10, 8]]] * 2
    (reject,) = read_rejects(LocalFolder(out))
    assert (reject.key, reject.error) == ("in.parquet#2", "bad-annotation")


def test_columns_that_only_look_like_boxes_are_refused_beside_steps(tmp_path):
    encoded = io.BytesIO()
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(encoded, "PNG")
    rows = [{"image": {"bytes": encoded.getvalue(), "path": "a.png"}, "bbox": [1.0, 2.0, 3.0, 4.0]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    with pytest.raises(UsageError, match="crop moves the content of the images, but not bbox: "):
        convert(
            tmp_path / "in.parquet",
            tmp_path / "out",
            recipe={"transform": CROP_AND_FLIP},
        )


def test_a_missing_mask_is_none_and_is_filled_in_batches(tmp_path):
    """In COCO and others some images have no mask."""
    source = source_with(tmp_path, None, Image.fromarray(np.ones((HEIGHT, WIDTH), np.uint8)))
    rectangle((WIDTH, HEIGHT), (1, 1, 2, 2)).save(source / "b.png")
    for name, ignore in (("void", "+ignore=255"), ("plain", "")):
        labels = f"masks{ignore}:{tmp_path / 'masks'}"
        convert(source, tmp_path / name, recipe={"store": "png"}, labels=labels)
    dataset = shardctl.open(tmp_path / "void")
    assert [sample["mask"] is None for sample in dataset] == [False, True]
    assert [value is None for value in dataset.take([1, 0])["mask"]] == [True, False]
    (batch,) = dataset.loader(batch_size=2, crop=(8, 9))
    assert batch["mask"].shape == (2, 8, 9)
    assert [np.unique(mask).tolist() for mask in batch["mask"]] == [[1], [255]]
    (batch,) = dataset.loader(batch_size=2, flip=1.0)
    assert [mask.shape for mask in batch["mask"]] in (
        [(HEIGHT, WIDTH)] * 2,
        [(HEIGHT, WIDTH), (0, 0)],
    )
    plain = shardctl.open(tmp_path / "plain")
    with pytest.raises(
        UsageError, match=r"key 'b.png': mask is missing; give fill={'mask': 0} to the loader"
    ):
        next(iter(plain.loader(batch_size=2, crop=8)))
    (batch,) = plain.loader(batch_size=2, crop=8, fill={"mask": 7})
    assert np.unique(batch["mask"][1]).tolist() == [7]


def test_what_a_crop_cut_off_does_not_come_back_when_the_rest_is_turned(tmp_path):
    """The left box lies just beside the crop: turned, its place is in a corner of the canvas, where
    there is only the fill."""
    source = tmp_path / "in"
    source.mkdir()
    rectangle((300, 100), (88, 44, 8, 12)).save(source / "a.png")
    boxes = [[88, 44, 8, 12], [140, 40, 20, 20]]
    (source / "metadata.jsonl").write_text(
        json.dumps({"file_name": "a.png", "objects": {"bbox": boxes, "category": [0, 1]}}) + "\n"
    )
    sample = converted(
        source, [{"name": "crop", "size": "100x100"}, {"name": "rotate", "angle": 45}]
    )
    assert not (np.asarray(sample["image"]) > 127).any(), "nothing of the left box is to be seen"
    assert list(sample["objects"]["category"]) == [1]
    assert np.asarray(sample["objects"]["bbox"])[0] == pytest.approx(
        [35.858, 35.858, 28.284, 28.284], abs=1e-3
    )


@pytest.mark.parametrize("others", [0, 1])
def test_whether_an_object_is_kept_does_not_depend_on_the_others(tmp_path, others):
    small, whole = [[[20, 15, 25, 15, 25, 20]]], [[[0, 0, 60, 0, 60, 40, 0, 40]]]
    number = 1 + others
    objects = {
        "bbox": [[0, 0, 40, 40]] + [[0, 0, 60, 40]] * others,
        "category": list(range(number)),
        "segmentation": small + whole * others,
    }
    sample = converted(
        source_with(tmp_path, objects),
        [{"name": "crop", "size": "30x20"}],
        recipe={"keep_objects": 0.5},
    )
    assert list(sample["objects"]["category"]) == [0], "its polygon is visible as a whole"


def test_an_area_that_is_not_known_stays_so(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    for name in "ab":
        rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(source / f"{name}.png")
    lines = [
        {
            "file_name": f"{name}.png",
            "objects": {"bbox": [[20, 15, 10, 8]], "category": [0], "area": [area]},
        }
        for name, area in (("a", None), ("b", 80.0))
    ]
    (source / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    convert(source, out, recipe={"transform": CROP_AND_FLIP})
    stored = pa.ipc.open_file(out / "train-00000.arrow").read_all()["objects"].to_pylist()
    assert sorted((each["area"] for each in stored), key=str) == [[80.0], [None]]


def adds_a_box(sample: dict[str, Any]) -> dict[str, Any]:
    sample["objects"]["bbox"][0][0] += 1
    sample["objects"]["bbox"].append([1.0, 1.0, 1.0, 1.0])
    sample["objects"]["category"].append(1)
    return sample


def test_a_function_gets_objects_that_no_other_variant_has_changed(tmp_path, out):
    """Mirrored, inverted and mirrored again: nothing has moved in the end, but there are stages."""
    source = source_with(tmp_path, {"bbox": [[20, 15, 10, 8]], "category": [0]})
    flip = {"name": "hflip", "p": 1}
    steps = [
        flip,
        {"name": "random_erasing", "p": 1},
        flip,
        {"name": "custom", "target": "test_annotated:adds_a_box"},
    ]
    convert(source, out, recipe={"transform": steps, "variants": 3})
    for sample in shardctl.open(out):
        assert np.asarray(sample["objects"]["bbox"]).tolist() == [[21, 15, 10, 8], [1, 1, 1, 1]]


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"segmentation": [[[1.0, 2, None, 4, 5, 6]]]}, "a polygon of objects is not a list"),
        ({"bbox": None}, "objects has 0 of bbox and 1 of category"),
        ({"bbox": [[math.nan, 1.0, 2, 3]]}, "a bbox of objects is not four numbers"),
        ({"keypoints": [[[1.0, 2]]]}, "a keypoint of objects is not three numbers"),
        (
            {"rle": [{"size": [4, 5], "counts": b"d0"}]},
            "an RLE of objects is of 5x4, and the image has 60x40",
        ),
        ({"rle": [{"size": [4], "counts": b"d0"}]}, "an RLE of objects is not one"),
    ],
)
def test_objects_of_tables_that_cannot_be_moved_are_rejects(tmp_path, out, changed, why):
    good = {
        "bbox": [[20.0, 15, 10, 8]],
        "category": [0],
        "segmentation": [[[20.0, 15, 30, 15, 30, 23]]],
        "keypoints": [None],
        "rle": [None],
    }
    data = io.BytesIO()
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(data, "PNG")
    image = {"bytes": data.getvalue(), "path": "a.png"}
    keypoints, rle = (
        pa.list_(pa.list_(pa.list_(pa.float64()))),
        pa.struct([("size", pa.list_(pa.int32())), ("counts", pa.binary())]),
    )
    of_boxes, of_polygons = (
        pa.list_(pa.list_(pa.float64())),
        pa.list_(pa.list_(pa.list_(pa.float64()))),
    )
    members = [
        ("bbox", of_boxes),
        ("category", pa.list_(pa.int64())),
        ("segmentation", of_polygons),
    ]
    type_ = pa.struct([*members, ("keypoints", keypoints), ("rle", pa.list_(rle))])
    (tmp_path / "in").mkdir()
    table = {
        "image": pa.array([image, image]),
        "objects": pa.array([good, {**good, **changed}], type_),
    }
    pq.write_table(pa.table(table), tmp_path / "in" / "t.parquet")
    convert(
        tmp_path / "in",
        out,
        recipe={"kind": "image", "transform": CROP_AND_FLIP[:1]},
    )
    assert len(shardctl.open(out)) == 1
    (reject,) = read_rejects(LocalFolder(out))
    assert reject.message.startswith(why)


def test_a_mask_of_8_bits_is_filled_with_a_number_that_only_those_of_16_have(tmp_path, out):
    source = source_with(tmp_path, None, Image.fromarray(np.full((HEIGHT, WIDTH), 7, np.uint8)))
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(source / "b.png")
    Image.fromarray(np.full((HEIGHT, WIDTH), 300, np.uint16)).save(tmp_path / "masks" / "b.png")
    labels = f"masks+ignore=65535:{tmp_path / 'masks'}"
    recipe = {"transform": [{"name": "pad", "margin": 1}]}
    convert(source, out, recipe=recipe, labels=labels)
    found = {sample["key"]: np.asarray(sample["mask"]) for sample in shardctl.open(out)}
    assert {key: (mask[0, 0], mask[1, 1]) for key, mask in found.items()} == {
        "a.png": (65535, 7),
        "b.png": (65535, 300),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("variants", [1, 2])
def test_the_parts_of_images_are_verified_and_repaired(tmp_path, out, variants):
    source = tmp_path / "in"
    source.mkdir()
    for name in "abcd":
        rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(source / f"{name}.png")
    steps = [{"name": "five_crop", "size": "30x20"}, {"name": "hflip"}]
    recipe = {"transform": steps, "variants": variants}
    convert(source, out, recipe=recipe, shard_size=10000)
    assert shardctl.verify(out, level="deep").findings == ()
    before = (out / "SHA256SUMS").read_text()
    (out / "train-00000.arrow").unlink()
    assert shardctl.repair(out).status == "repaired"
    assert (out / "SHA256SUMS").read_text() == before
    assert shardctl.verify(out, level="deep").ok


def test_a_step_that_leaves_pixels_in_their_places_is_not_refused_beside_coordinates(tmp_path):
    source = source_with(tmp_path, None)
    (source / "metadata.jsonl").write_text(
        json.dumps({"file_name": "a.png", "bbox": [1, 2, 3, 4]}) + "\n"
    )
    steps = [
        {"name": "maybe", "p": 1, "steps": [{"name": "invert", "p": 1}, {"name": "grayscale"}]}
    ]
    sample = converted(source, steps)
    assert list(sample["bbox"]) == [1, 2, 3, 4]
    with pytest.raises(UsageError, match="hflip moves the content of the images"):
        convert(source, tmp_path / "other", recipe={"transform": [*steps, {"name": "hflip"}]})


def many_marked(
    folder: Path, counts: list[int], points: dict[int, int] | None = None
) -> tuple[Path, str]:
    """Make images with as many objects each, and polygons of so many points in some; return them,
    and their labels."""
    source = folder / "in"
    source.mkdir(parents=True)
    marked: list[dict[str, Any]] = []
    for number, count in enumerate(counts):
        rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(source / f"{number:02}.png")
        for place in range(count):
            x, y, corners = 3 * place, 2 * number, (points or {}).get(number, 4)
            polygon = [x, y, x + 9, y, *[x + 9, y + 8] * (corners - 3), x, y + 8]
            each = {
                "image_id": number,
                "category_id": 1,
                "bbox": [x, y, 9, 8],
                "area": 72,
                "segmentation": [polygon],
            }
            marked.append({"id": len(marked), "iscrowd": 0, **each})
    names = [
        {"id": number, "file_name": f"{number:02}.png", "width": WIDTH, "height": HEIGHT}
        for number in range(len(counts))
    ]
    labels = {"images": names, "annotations": marked, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "labels.json").write_text(json.dumps(labels))
    return source, f"coco:{folder / 'labels.json'}"


@pytest.mark.thorough
def test_shards_do_not_depend_on_how_many_objects_are_moved_together(tmp_path, monkeypatch):
    source, labels = many_marked(tmp_path, [number % 5 for number in range(12)])
    recipe = {"variants": 2, "transform": [{"name": "random_crop", "size": 20}, {"name": "hflip"}]}
    made = []
    for rows, size, waiting in (
        (1, 1 << 20, 1 << 20),
        (5, 1 << 20, 1 << 20),
        (64, 900, 1 << 20),
        (64, 1 << 20, 400),
        (64, 1 << 20, 0),
    ):
        monkeypatch.setattr("shardctl.making.shards.rows.SETTLED_ROWS", rows)
        monkeypatch.setattr("shardctl.making.shards.rows.SETTLED_BYTES", size)
        monkeypatch.setattr("shardctl.transforms.pipeline.deferred_objects.WAITING_BYTES", waiting)
        out = tmp_path / f"{rows}-{size}-{waiting}"
        result = convert(source, out, labels=labels, recipe=recipe)
        made.append(
            (
                [(path.name, path.read_bytes()) for path in sorted(out.glob("train-*.arrow"))],
                result.notices,
            )
        )
        assert made[-1] == made[0]
    assert made[0][0]
    assert "objects were cut off" in str(made[0][1])


@pytest.mark.thorough
def test_memory_for_objects_of_many_points_is_that_of_their_record(tmp_path, out, monkeypatch):
    source, labels = many_marked(tmp_path, [1] * 6, {3: 2000})
    move_one, move_many = deferred_objects.moved_objects, deferred_objects.moved_together

    def one(objects: Any, *rest: Any) -> Any:
        if len(objects["segmentation"][0][0]) == 4000:
            raise MemoryError
        return move_one(objects, *rest)

    def many(given: Any, *rest: Any) -> Any:
        if any(len(objects["segmentation"][0][0]) == 4000 for objects, _ in given):
            raise MemoryError
        return move_many(given, *rest)

    monkeypatch.setattr(deferred_objects, "moved_objects", one)
    monkeypatch.setattr(deferred_objects, "moved_together", many)
    result = convert(source, out, labels=labels, recipe={"transform": CROP_AND_FLIP})
    assert (result.samples, result.reasons) == (5, {"transform: out-of-memory": 1})
    assert [reject.key for reject in read_rejects(LocalFolder(out))] == ["03.png"]
    assert shardctl.verify(out, level="deep").ok


def halves(sample: dict[str, Any]) -> dict[str, Any]:
    """Half of the image, and nothing of what is marked in it."""
    return {**sample, "image": sample["image"][::2, ::2]}


def halves_all(sample: dict[str, Any]) -> dict[str, Any]:
    with Image.open(io.BytesIO(sample["mask"]["bytes"])) as mask:
        target = io.BytesIO()
        mask.resize((WIDTH // 2, HEIGHT // 2), Image.Resampling.NEAREST).save(target, "PNG")
    boxes = [[number / 2 for number in box] for box in sample["objects"]["bbox"]]
    return {
        **halves(sample),
        "objects": {**sample["objects"], "bbox": boxes},
        "mask": {**sample["mask"], "bytes": target.getvalue()},
    }


def halves_without_mask(sample: dict[str, Any]) -> dict[str, Any]:
    return {**halves_all(sample), "mask": sample["mask"]}


def mirrors(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": np.ascontiguousarray(sample["image"][:, ::-1])}


class Halving:
    """A model that does the same."""

    def __call__(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return list(map(halves, samples))


@pytest.mark.parametrize(
    ("function", "left"),
    [
        ("halves", "objects, mask"),
        ("halves_without_mask", "mask"),
        ("Halving", "objects, mask"),
        ("halves_all", None),
    ],
)
def test_a_function_moves_what_is_marked_when_it_changes_the_size(tmp_path, function, left):
    mask = Image.fromarray(np.ones((HEIGHT, WIDTH), np.uint8))
    source = source_with(tmp_path, {"bbox": [[20, 16, 10, 8]], "category": [0]}, mask)
    steps = [{"name": "custom", "target": f"test_annotated:{function}"}]
    options: dict[str, Any] = {"labels": ["auto", f"masks:{tmp_path / 'masks'}"]}
    if left is None:
        sample = converted(source, steps, **options)
        assert (sample["image"].shape, sample["mask"].shape) == ((20, 30, 3), (20, 30))
        assert sample["objects"]["bbox"].tolist() == [[10, 8, 5, 4]]
        return
    with pytest.raises(
        InputError,
        match=rf"test_annotated:{function} changed the image from 60x40 to 30x20, and not {left}$",
    ):
        converted(source, steps, **options)


def test_a_function_that_changes_pixels_alone_is_named(tmp_path):
    """Whether it moves them, nothing shows."""
    source = source_with(tmp_path, {"bbox": [[20, 15, 10, 8]], "category": [0]})
    for function, is_named in (("mirrors", True), ("adds_a_box", False)):
        recipe = {
            "store": "png",
            "transform": [{"name": "custom", "target": f"test_annotated:{function}"}],
        }
        result = convert(source, tmp_path / function, recipe=recipe)
        named = f"test_annotated:{function} changes pixels and not objects"
        assert any(named in said for said in result.notices) == is_named
