"""Annotations follow the pixels of their image through a conversion."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_geometry import centroid, rectangle

import shardctl
from shardctl.errors import UsageError
from shardctl.manifest import Manifest
from shardctl.tables import read_rejects

WIDTH, HEIGHT = 60, 40
CROP_AND_FLIP = [{"name": "crop", "size": "30x20"}, {"name": "hflip", "p": 1}]
"""From (15, 10) on, mirrored: x becomes 45 - x, y becomes y - 10."""


def source_with(folder: Path, objects: dict[str, Any] | None, mask: Image.Image | None = None) -> Path:
    """Make a folder with one image, its metadata.jsonl, and in `masks` its mask."""
    source = folder / "in"
    source.mkdir(parents=True)
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(source / "a.png")
    if objects is not None:
        (source / "metadata.jsonl").write_text(json.dumps({"file_name": "a.png", "objects": objects}) + "\n")
    if mask is not None:
        (folder / "masks").mkdir()
        mask.save(folder / "masks" / "a.png")
    return source


def converted(source: Path, steps: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Return the only sample of a conversion."""
    recipe = {"store": "png", "transform": steps, **options.pop("recipe", {})}
    shardctl.convert(source, source.parent / "out", recipe=recipe, workers=0, **options)
    (sample,) = shardctl.open(source.parent / "out")
    return sample


def test_boxes_of_a_metadata_file_follow_a_crop_and_a_flip(tmp_path: Path) -> None:
    objects = {"bbox": [[20, 15, 10, 8], [0, 0, 5, 5], [40, 25, 10, 10]], "category": [0, 1, 2], "area": [80, 25, 100]}
    sample = converted(source_with(tmp_path, objects), CROP_AND_FLIP, recipe={"keep_objects": 0.2})
    assert np.asarray(sample["objects"]["bbox"]).tolist() == [[15, 5, 10, 8], [0, 15, 5, 5]]
    assert list(sample["objects"]["category"]) == [0, 2]
    assert list(sample["objects"]["area"]) == [80, 25], "of the last one a quarter is visible"
    white = np.asarray(sample["image"])[..., 0] > 127
    assert np.argwhere(white).min(axis=0).tolist() == [5, 15]
    assert np.argwhere(white).max(axis=0).tolist() == [12, 24]
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.objects == {"kept": 2, "cut_off": 1}


def test_what_a_crop_cut_off_is_said(tmp_path: Path) -> None:
    source = source_with(tmp_path, {"bbox": [[20, 15, 10, 8], [0, 0, 5, 5]], "category": [0, 1]})
    result = shardctl.convert(source, tmp_path / "out", recipe={"transform": CROP_AND_FLIP}, workers=0)
    assert "1 of 2 objects were cut off (keep_objects: 0.1)" in result.notices


@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
def test_a_mask_follows_with_its_numbers_and_its_palette(tmp_path: Path, mode: str) -> None:
    values = np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % 251
    values = (values * (200 if mode == "I;16" else 1)).astype(np.uint16 if mode == "I;16" else np.uint8)
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


def test_a_mask_is_void_where_there_is_no_image(tmp_path: Path) -> None:
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
    tmp_path_factory: pytest.TempPathFactory, angle: float, scale: float, mirrored: bool, box: Any
) -> None:
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


def test_variants_have_annotations_of_their_own(tmp_path: Path) -> None:
    source = source_with(tmp_path, {"bbox": [[20, 15, 10, 8]], "category": [0]})
    recipe = {"store": "png", "variants": 8, "transform": [{"name": "random_crop", "size": "50x30"}]}
    shardctl.convert(source, tmp_path / "out", recipe=recipe, workers=0)
    boxes = []
    for sample in shardctl.open(tmp_path / "out"):
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
        ({"keypoints": [[[1, 1, 2]]]}, {"name": "hflip"}, "hflip mirrors the images, and it is not known which keypoints"),
    ],
)
def test_a_step_that_cannot_move_an_annotation_is_refused_by_name(
    tmp_path: Path, objects: dict[str, Any], step: dict[str, Any], message: str
) -> None:
    source = source_with(tmp_path, {"bbox": [[20, 15, 10, 8]], "category": [0], **objects})
    with pytest.raises(UsageError) as refused:
        converted(source, [step])
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_objects_of_a_table_follow_too(tmp_path: Path) -> None:
    encoded = io.BytesIO()
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(encoded, "PNG")
    good = {"bbox": [[20.0, 15.0, 10.0, 8.0]], "category": ["cat"]}
    rows = [{"image": {"bytes": encoded.getvalue(), "path": f"{n}.png"}, "objects": good} for n in range(3)]
    rows[1] = {**rows[1], "objects": {"bbox": [[20.0, 15.0, 10.0]], "category": ["cat"]}}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    shardctl.convert(tmp_path / "in.parquet", tmp_path / "out", recipe={"transform": CROP_AND_FLIP}, workers=0)
    boxes = [np.asarray(sample["objects"]["bbox"]).tolist() for sample in shardctl.open(tmp_path / "out")]
    assert boxes == [[[15, 5, 10, 8]]] * 2
    (reject,) = read_rejects(tmp_path / "out" / "rejects.jsonl")
    assert (reject.key, reject.error) == ("in.parquet#2", "bad-annotation")


def test_columns_that_only_look_like_boxes_are_refused_beside_steps(tmp_path: Path) -> None:
    encoded = io.BytesIO()
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(encoded, "PNG")
    rows = [{"image": {"bytes": encoded.getvalue(), "path": "a.png"}, "bbox": [1.0, 2.0, 3.0, 4.0]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    with pytest.raises(UsageError, match="crop moves what is in the images, but not the places in bbox"):
        shardctl.convert(tmp_path / "in.parquet", tmp_path / "out", recipe={"transform": CROP_AND_FLIP}, workers=0)


def test_a_missing_mask_is_none_and_is_filled_in_batches(tmp_path: Path) -> None:
    """In COCO and others some images have no mask."""
    source = source_with(tmp_path, None, Image.fromarray(np.ones((HEIGHT, WIDTH), np.uint8)))
    rectangle((WIDTH, HEIGHT), (1, 1, 2, 2)).save(source / "b.png")
    for name, ignore in (("void", "+ignore=255"), ("plain", "")):
        labels = f"masks{ignore}:{tmp_path / 'masks'}"
        shardctl.convert(source, tmp_path / name, recipe={"store": "png"}, labels=labels, workers=0)
    dataset = shardctl.open(tmp_path / "void")
    assert [sample["mask"] is None for sample in dataset] == [False, True]
    assert [value is None for value in dataset.take([1, 0])["mask"]] == [True, False]
    (batch,) = dataset.loader(batch_size=2, crop=(8, 9))
    assert batch["mask"].shape == (2, 8, 9)
    assert [np.unique(mask).tolist() for mask in batch["mask"]] == [[1], [255]]
    (batch,) = dataset.loader(batch_size=2, flip=1.0)
    assert [mask.shape for mask in batch["mask"]] in ([(HEIGHT, WIDTH)] * 2, [(HEIGHT, WIDTH), (0, 0)])
    plain = shardctl.open(tmp_path / "plain")
    with pytest.raises(UsageError, match=r"key 'b.png': mask is missing; give fill={'mask': 0} to the loader"):
        next(iter(plain.loader(batch_size=2, crop=8)))
    (batch,) = plain.loader(batch_size=2, crop=8, fill={"mask": 7})
    assert np.unique(batch["mask"][1]).tolist() == [7]
