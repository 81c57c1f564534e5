"""Annotations follow the pixels of their image through a conversion."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotated_sources import HEIGHT, WIDTH, source_with
from conftest import examples
from dataset_facts import rejects_of, stored, sums
from dataset_files import shard_in, tables_in
from hypothesis import given
from hypothesis import strategies as st
from image_files import images, saved
from in_this_process import convert
from json_lines import json_lines
from pictures import encoded, oriented, rectangle
from PIL import Image

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.manifest import Manifest
from shardctl.images import object_geometry
from shardctl.making.convert import ConvertResult

BOX = [20, 15, 10, 8]
"""That of what is white in the image of `source_with`."""

ONE: dict[str, Any] = {"bbox": [BOX], "category": [0]}
CROP_AND_FLIP = [{"name": "crop", "size": "30x20"}, {"name": "hflip", "p": 1}]
"""From (15, 10) on, mirrored: x becomes 45 - x, y becomes y - 10."""


def converted(source: Path, steps: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Return the only sample of a conversion."""
    recipe = {"store": "png", "transform": steps, **options.pop("recipe", {})}
    convert(source, source.parent / "out", recipe=recipe, **options)
    (sample,) = shardctl.open(source.parent / "out")
    return sample


def test_boxes_of_a_metadata_file_follow_a_crop_and_a_flip(tmp_path):
    boxes = [BOX, [0, 0, 5, 5], [40, 25, 10, 10]]
    objects = {"bbox": boxes, "category": [0, 1, 2], "area": [80, 25, 100]}
    sample = converted(source_with(tmp_path, objects), CROP_AND_FLIP, recipe={"keep_objects": 0.2})
    assert np.asarray(sample["objects"]["bbox"]).tolist() == [[15, 5, 10, 8], [0, 15, 5, 5]]
    assert list(sample["objects"]["category"]) == [0, 2]
    assert list(sample["objects"]["area"]) == [80, 25], "of the last one a quarter is visible"
    white = np.asarray(sample["image"])[..., 0] > 127
    assert np.argwhere(white).min(axis=0).tolist() == [5, 15]
    assert np.argwhere(white).max(axis=0).tolist() == [12, 24]
    manifest = Manifest.load(dataset_in(tmp_path / "out"))
    assert manifest.objects == {"kept": 2, "cut_off": 1}


@pytest.mark.parametrize(("mode", "type_"), [("L", np.uint8), ("P", np.uint8), ("I", np.uint16)])
def test_a_mask_follows_with_its_numbers_and_its_palette(tmp_path, mode, type_):
    values = np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % 251
    values = values.astype(type_) * (200 if mode == "I" else 1)
    mask = Image.fromarray(values)
    if mode == "P":
        mask.putpalette([number % 256 for number in range(768)])
    source = source_with(tmp_path, None, mask)
    sample = converted(source, CROP_AND_FLIP, labels=f"masks:{tmp_path / 'masks'}")
    assert np.array_equal(sample["mask"], values[10:30, 15:45][:, ::-1])
    (kept_mask,) = stored(tmp_path / "out", "mask")
    with Image.open(io.BytesIO(kept_mask["bytes"])) as kept:
        assert kept.mode.startswith(mode)
        assert mode != "P" or kept.getpalette()[:9] == list(range(9))


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
    saved(
        Image.new("RGB", (WIDTH, HEIGHT)), folder / "photos" / "a.jpg", exif=oriented(orientation)
    )
    saved(mask, folder / "masks" / "a.png")
    options = {"labels": f"masks+ignore={ignore}:{folder / 'masks'}", "annotation_frame": "stored"}
    size = f"{HEIGHT + 6}x{WIDTH + 6}" if orientation == 6 else f"{WIDTH + 6}x{HEIGHT + 6}"
    steps: list[dict[str, Any]] = [{"name": "pad", "margin": 3}, {"name": "crop", "size": size}]
    given_steps = steps if store != "source" else []
    sample = converted(folder / "photos", given_steps, recipe={"store": store}, **options)
    upright = {1: values, 3: values[::-1, ::-1], 6: np.rot90(values, -1)}[orientation]
    expected = upright if store == "source" else np.pad(upright, 3, constant_values=ignore)
    assert np.array_equal(sample["mask"], expected)


OTHER: dict[str, dict[str, Any]] = {
    "fewer": {"area": [80]},
    "without": {"area": None},
    "no_such": {"category": [0, 2]},
    "below": {"category": [-1, 0]},
    "three": {"bbox": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]},
    "beyond": {"bbox": [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 1e39]]},
    "endless": {"segmentation": [[], [[1.0, 2.0, 3.0, math.inf]]]},
    "nowhere": {"keypoints": [[[1.0, 2.0, 2.0]], [[math.nan, 2.0, 2.0]]]},
    "odd": {"segmentation": [[], [[1.0, 2.0, 3.0]]]},
    "same": {"bbox": [[1, 2, 3, 4], (5, 6, 7, 8)], "category": [1, 0]},
    "nothing": {name: [] for name in "area bbox category keypoints segmentation".split()},
    "score": {"score": [0.5, 0.25]},
}
"""What functions set in the objects of a.png."""


def __getattr__(name: str) -> Any:
    """Return the function that sets what OTHER has by this name."""
    if name not in OTHER:
        raise AttributeError(name)

    def step(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["key"] == "a.png":
            sample["objects"].update(OTHER[name])
        return sample

    return step


def all_named(sample: dict[str, Any]) -> dict[str, Any]:
    sample["objects"]["category"] = ["cat" for _ in sample["objects"]["category"]]
    return sample


def own(function: str) -> dict[str, Any]:
    return {"name": "custom", "target": f"test_annotated:{function}"}


def result_of_function(folder: Path, function: str) -> ConvertResult:
    """Convert two images with objects and a function."""
    objects = {
        "bbox": [BOX, [0, 0, 5, 5]],
        "category": ["cat", "dog"],
        "area": [80, 25],
        "segmentation": [[], [[0, 0, 5, 0, 5, 5]]],
        "keypoints": [[[1, 1, 2]], [[2, 2, 2]]],
    }
    source = source_with(folder, None)
    rectangle((WIDTH, HEIGHT), BOX).save(source / "b.png")
    lines = [{"file_name": name, "objects": objects} for name in ("a.png", "b.png")]
    json_lines(source / "metadata.jsonl", lines)
    recipe = {"store": "png", "transform": [own(function)]}
    return convert(source, folder / "out", recipe=recipe)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("fewer", "2 of bbox and 1 of area"),
        ("without", "without area"),
        ("no_such", "category[1] is 2"),
        ("below", "category[0] is -1"),
        ("beyond", "bbox[1]"),
        ("endless", "segmentation[1] has a polygon with a number that is not finite"),
        ("nowhere", "keypoints[1]"),
        ("three", "bbox[0] is a list of length 3"),
        ("odd", "segmentation[1] has a polygon of 3 numbers"),
    ],
)
def test_objects_of_a_function_that_could_not_be_read_reject_their_sample(
    tmp_path, out, function, says
):
    result = result_of_function(tmp_path, function)
    assert (result.samples, result.reasons) == (1, {"transform: bad-annotation": 1})
    (reject,) = rejects_of(out)
    assert reject.key == "a.png"
    assert reject.message.startswith(f"test_annotated:{function} set objects")
    assert says in reject.message


@pytest.mark.parametrize(("function", "categories"), [("same", [1, 0]), ("nothing", [])])
def test_objects_of_a_function_that_fit_stay_objects(tmp_path, out, function, categories):
    assert result_of_function(tmp_path, function).reasons == {}
    dataset = shardctl.open(out)
    found = {sample["key"]: list(sample["objects"]["category"]) for sample in dataset}
    assert found == {"a.png": categories, "b.png": [0, 1]}
    assert dataset.manifest.fields["objects"]["role"] == "objects"


@pytest.mark.parametrize("function", ["score", "all_named"])
def test_a_function_after_which_objects_are_a_field_like_any_other_is_named(
    tmp_path, out, function
):
    result = result_of_function(tmp_path, function)
    (notice,) = [each for each in result.notices if "no longer" in each]
    assert f"test_annotated:{function} " in notice
    assert "objects" not in Manifest.load(dataset_in(out)).fields


def test_variants_have_annotations_of_their_own(tmp_path, out):
    recipe = {"variants": 8, "transform": [{"name": "random_crop", "size": "50x30"}]}
    convert(source_with(tmp_path, ONE), out, recipe={"store": "png", **recipe})
    boxes = []
    for sample in shardctl.open(out):
        white = np.argwhere(np.asarray(sample["image"])[..., 0] > 127)
        (top, left), (bottom, right) = white.min(axis=0).tolist(), (white.max(axis=0) + 1).tolist()
        boxes.append((left, top, right - left, bottom - top))
        assert np.asarray(sample["objects"]["bbox"]).tolist() == [list(boxes[-1])]
    assert len(set(boxes)) > 3


ELASTIC: dict[str, Any] = {"name": "elastic"}


@pytest.mark.parametrize(
    ("objects", "step", "message"),
    [
        ({}, ELASTIC, "elastic cannot move boxes"),
        (
            {"segmentation": [[[0, 0, 5, 0, 5, 5]]]},
            {"name": "maybe", "steps": [ELASTIC]},
            "elastic in maybe cannot move boxes and polygons",
        ),
        ({"keypoints": [[[1, 1, 2]]]}, {"name": "hflip"}, "which keypoints"),
    ],
)
def test_a_step_that_cannot_move_an_annotation_is_refused_by_name(
    tmp_path, out, objects, step, message
):
    with pytest.raises(UsageError, match=message):
        converted(source_with(tmp_path, {**ONE, **objects}), [step])
    assert not out.exists()


def table_of(path: Path, *rows: dict[str, Any], objects: pa.DataType = None) -> Path:
    """Write a table of the same image with these columns."""
    data = encoded(rectangle((WIDTH, HEIGHT), BOX))
    images = [{"bytes": data, "path": f"{number}.png"} for number in range(len(rows))]
    table = pa.Table.from_pylist(rows).append_column("image", pa.array(images))
    if objects is not None:
        table = table.set_column(0, "objects", pa.array([row["objects"] for row in rows], objects))
    pq.write_table(table, path)
    return path


def test_columns_that_only_look_like_boxes_are_refused_beside_steps(tmp_path, out):
    source = table_of(tmp_path / "in.parquet", {"bbox": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(UsageError, match="crop moves the content of the images, but not bbox"):
        convert(source, out, recipe={"transform": CROP_AND_FLIP})


def test_a_missing_mask_is_none_and_is_filled_in_batches(tmp_path):
    """In COCO and others some images have no mask."""
    source = source_with(tmp_path, None, Image.fromarray(np.ones((HEIGHT, WIDTH), np.uint8)))
    rectangle((WIDTH, HEIGHT), (1, 1, 2, 2)).save(source / "b.png")
    for name, ignore in (("void", "+ignore=255"), ("plain", "")):
        labels = f"masks{ignore}:{tmp_path / 'masks'}"
        convert(source, tmp_path / name, recipe={"store": "png"}, labels=labels)
    dataset = shardctl.open(tmp_path / "void")
    assert [sample["mask"] is None for sample in dataset] == [False, True]
    (batch,) = dataset.loader(batch_size=2, crop=(8, 9))
    assert batch["mask"].shape == (2, 8, 9)
    assert [np.unique(mask).tolist() for mask in batch["mask"]] == [[1], [255]]
    plain = shardctl.open(tmp_path / "plain")
    with pytest.raises(UsageError, match=r"'b.png': mask is missing"):
        next(iter(plain.loader(batch_size=2, crop=8)))
    (batch,) = plain.loader(batch_size=2, crop=8, fill={"mask": 7})
    assert np.unique(batch["mask"][1]).tolist() == [7]


def adds_a_box(sample: dict[str, Any]) -> dict[str, Any]:
    sample["objects"]["bbox"][0][0] += 1
    sample["objects"]["bbox"].append([1.0, 1.0, 1.0, 1.0])
    sample["objects"]["category"].append(1)
    return sample


def test_a_function_gets_objects_that_no_other_variant_has_changed(tmp_path, out):
    """Mirrored, inverted and mirrored again: nothing has moved in the end, but there are stages."""
    flip = {"name": "hflip", "p": 1}
    steps = [flip, {"name": "random_erasing", "p": 1}, flip, own("adds_a_box")]
    convert(source_with(tmp_path, ONE), out, recipe={"transform": steps, "variants": 3})
    for sample in shardctl.open(out):
        assert np.asarray(sample["objects"]["bbox"]).tolist() == [[21, 15, 10, 8], [1, 1, 1, 1]]


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"segmentation": [[[1.0, 2, None, 4, 5, 6]]]}, "a polygon of objects"),
        ({"bbox": None}, "objects has 0 of bbox"),
        ({"bbox": [BOX[:3]]}, "a bbox of objects"),
        ({"bbox": [[math.nan, 1.0, 2, 3]]}, "a bbox of objects"),
        ({"keypoints": [[[1.0, 2]]]}, "a keypoint of objects"),
        ({"rle": [{"size": [4, 5], "counts": b"d0"}]}, "an RLE of objects is of 5x4"),
        ({"rle": [{"size": [4], "counts": b"d0"}]}, "an RLE of objects is not one"),
    ],
)
def test_objects_of_tables_that_cannot_be_moved_are_rejects(tmp_path, out, changed, why):
    polygon = [20.0, 15, 30, 15, 30, 23]
    good = {**ONE, "segmentation": [[polygon]], "keypoints": [None], "rle": [None]}
    boxes = pa.list_(pa.list_(pa.float64()))
    rle = pa.struct([("size", pa.list_(pa.int32())), ("counts", pa.binary())])
    type_ = pa.struct(
        {
            "bbox": boxes,
            "category": pa.list_(pa.int64()),
            "segmentation": pa.list_(boxes),
            "keypoints": pa.list_(boxes),
            "rle": pa.list_(rle),
        }
    )
    rows = [{"objects": each} for each in (good, {**good, **changed})]
    source = table_of(tmp_path / "t.parquet", *rows, objects=type_)
    convert(source, out, recipe={"kind": "image", "transform": CROP_AND_FLIP[:1]})
    (sample,) = shardctl.open(out)
    assert np.asarray(sample["objects"]["bbox"]).tolist() == [[5, 5, 10, 8]]
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("t.parquet#2", "bad-annotation")
    assert reject.message.startswith(why)


def test_where_there_is_no_image_a_mask_of_8_bits_is_filled_with_a_number_that_only_those_of_16_have(
    tmp_path, out
):
    source = source_with(tmp_path, None, Image.fromarray(np.full((HEIGHT, WIDTH), 7, np.uint8)))
    rectangle((WIDTH, HEIGHT), BOX).save(source / "b.png")
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
    steps = [{"name": "five_crop", "size": "30x20"}, {"name": "hflip"}]
    recipe = {"transform": steps, "variants": variants}
    convert(images(tmp_path / "in", "a.png", "b.png"), out, recipe=recipe, shard_size=6000)
    assert shardctl.verify(out, level="deep").findings == ()
    before = (tables_in(out) / "SHA256SUMS").read_text()
    (shard_in(out, "train-00000")).unlink()
    assert shardctl.repair(out).status == "repaired"
    assert (tables_in(out) / "SHA256SUMS").read_text() == before
    assert shardctl.verify(out, level="deep").ok


def test_a_step_that_leaves_pixels_in_their_places_is_not_refused_beside_coordinates(tmp_path):
    source = source_with(tmp_path, None)
    json_lines(source / "metadata.jsonl", [{"file_name": "a.png", "bbox": [1, 2, 3, 4]}])
    within = [{"name": "invert", "p": 1}, {"name": "grayscale"}]
    steps = [{"name": "maybe", "p": 1, "steps": within}]
    sample = converted(source, steps)
    assert list(sample["bbox"]) == [1, 2, 3, 4]


def many_marked(folder: Path, counts: list[int]) -> list[dict[str, Any]]:
    """Make images in folder/in with as many objects each, and return the lines of their metadata."""
    lines = []
    for number, count in enumerate(counts):
        name = f"{number:02}.png"
        saved(rectangle((WIDTH, HEIGHT), BOX), folder / "in" / name)
        corners = [(3 * place, 2 * number) for place in range(count)]
        objects = {
            "bbox": [[x, y, 9, 8] for x, y in corners],
            "category": [0] * count,
            "segmentation": [[[x, y, x + 9, y, x + 9, y + 8, x, y + 8]] for x, y in corners],
        }
        lines.append({"file_name": name, "objects": objects})
    json_lines(folder / "in" / "metadata.jsonl", lines)
    return lines


@pytest.mark.thorough
def test_shards_do_not_depend_on_how_many_objects_are_moved_together(tmp_path, monkeypatch):
    many_marked(tmp_path, [number % 5 for number in range(12)])
    recipe = {"variants": 2, "transform": [{"name": "random_crop", "size": 20}, {"name": "hflip"}]}
    made = []
    limits = ("making.shards.rows.SETTLED_ROWS", "making.shards.rows.SETTLED_BYTES")
    limits += ("transforms.pipeline.deferred_objects.WAITING_BYTES",)
    much = 1 << 20
    for given_limits in (
        (1, much, much),
        (5, much, much),
        (64, 900, much),
        (64, much, 400),
        (64, much, 0),
    ):
        for name, value in zip(limits, given_limits, strict=True):
            monkeypatch.setattr(f"shardctl.{name}", value)
        out = tmp_path / "-".join(map(str, given_limits))
        result = convert(tmp_path / "in", out, recipe=recipe)
        made.append((sums(out), result.notices))
        assert made[-1] == made[0]
    assert "objects were cut off" in str(made[0][1])


@pytest.mark.thorough
def test_memory_for_objects_of_many_points_is_that_of_their_record(tmp_path, out, monkeypatch):
    lines = many_marked(tmp_path, [1] * 6)
    lines[3]["objects"]["segmentation"][0][0] *= 500
    json_lines(tmp_path / "in" / "metadata.jsonl", lines)

    read = object_geometry._all_polygons

    def refusing(given: Any) -> Any:
        polygons = read(given)
        if polygons.lengths.max() > 1000:
            raise MemoryError
        return polygons

    monkeypatch.setattr(object_geometry, "_all_polygons", refusing)
    result = convert(tmp_path / "in", out, recipe={"transform": CROP_AND_FLIP})
    assert (result.samples, result.reasons) == (5, {"transform: out-of-memory": 1})
    assert [reject.key for reject in rejects_of(out)] == ["03.png"]
    assert shardctl.verify(out, level="deep").ok


def halves(sample: dict[str, Any]) -> dict[str, Any]:
    """Half of the image, and nothing of what is marked in it."""
    return {**sample, "image": sample["image"][::2, ::2]}


def halves_all(sample: dict[str, Any]) -> dict[str, Any]:
    with Image.open(io.BytesIO(sample["mask"]["bytes"])) as mask:
        half = mask.resize((WIDTH // 2, HEIGHT // 2), Image.Resampling.NEAREST)
    boxes = [[number / 2 for number in box] for box in sample["objects"]["bbox"]]
    return {
        **halves(sample),
        "objects": {**sample["objects"], "bbox": boxes},
        "mask": {**sample["mask"], "bytes": encoded(half)},
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
    steps, labels = [own(function)], ["auto", f"masks:{tmp_path / 'masks'}"]
    if left is None:
        sample = converted(source, steps, labels=labels)
        assert (sample["image"].shape, sample["mask"].shape) == ((20, 30, 3), (20, 30))
        assert sample["objects"]["bbox"].tolist() == [[10, 8, 5, 4]]
        return
    with pytest.raises(InputError, match=f"{function} changed the image from .* and not {left}$"):
        converted(source, steps, labels=labels)


def test_a_function_that_changes_pixels_alone_is_named(tmp_path):
    """Whether it moves them, nothing shows."""
    source = source_with(tmp_path, ONE)
    for function, is_named in (("mirrors", True), ("adds_a_box", False)):
        recipe = {"store": "png", "transform": [own(function)]}
        result = convert(source, tmp_path / function, recipe=recipe)
        assert (f"{function} changes pixels and not objects" in str(result.notices)) == is_named
