"""The images of `shardctl demo` can be learned from, and its annotations are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_this_process import convert
from PIL import Image

import shardctl
from shardctl.sources.demo import CLASSES, make_demo


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    make_demo(folder, images=2, texts=1, seed=3, scenes=40)
    return folder


@pytest.fixture(scope="module")
def described(made: Path) -> Any:
    return json.loads((made / "scenes" / "instances.json").read_text(encoding="utf-8"))


def test_boxes_areas_and_polygons_of_scenes_agree(described):
    sizes = {image["id"]: (image["width"], image["height"]) for image in described["images"]}
    shares = {"ball": np.pi / 4, "box": 1, "tent": 0.5}
    for each in described["annotations"]:
        points = np.reshape(each["segmentation"], (-1, 2))
        start, size = np.split(np.array(each["bbox"]), 2)
        assert np.array_equal(start, points.min(axis=0))
        assert np.array_equal(start + size, points.max(axis=0))
        assert all(start >= 0)
        assert all(start + size <= sizes[each["image_id"]])
        share = each["area"] / size.prod()
        assert share == pytest.approx(shares[kind_of(described, each)], abs=0.03)


def test_the_pixels_change_at_the_edges_of_boxes(made, described):
    boxes = [each for each in described["annotations"] if kind_of(described, each) == "box"]
    assert len(boxes) > 10
    for each in boxes:
        name = described["images"][each["image_id"]]["file_name"]
        pixels = np.asarray(Image.open(made / "scenes" / name)).astype(int)
        x, y, width, height = (round(value) for value in each["bbox"])
        rows = pixels[:, x + 3 : x + width - 3].mean(axis=1)
        for inside, outside in ((y + 1, y - 2), (y + height - 2, y + height + 1)):
            assert np.abs(rows[inside] - rows[outside]).max() > 25, each


def test_a_conversion_finds_all_objects_of_the_scenes(made, described, out):
    source = made / "scenes"
    convert(source, out, labels=f"coco:{source / 'instances.json'}")
    ds = shardctl.open(out)
    assert sum(len(sample["objects"]["bbox"]) for sample in ds) == len(described["annotations"])
    assert list(ds.class_names["objects"]) == ["ball", "box", "tent"]


def test_the_same_seed_gives_the_same_files(made, tmp_path):
    for seed, same in ((3, True), (4, False)):
        folder = tmp_path / str(seed)
        make_demo(folder, images=2, texts=1, seed=seed, scenes=40)
        files = [path.relative_to(made) for path in made.rglob("*.*")]
        assert (
            all((folder / path).read_bytes() == (made / path).read_bytes() for path in files)
            == same
        )


def test_photos_of_a_class_look_alike(photos):
    looks = {name: [look(path) for path in sorted((photos / name).iterdir())] for name in CLASSES}
    middles = {name: np.mean(seen[::2], axis=0) for name, seen in looks.items()}
    guesses = [
        min(middles, key=lambda other: float(np.abs(middles[other] - each).sum())) == name
        for name, seen in looks.items()
        for each in seen[1::2]
    ]
    assert np.mean(guesses) > 0.6, "a guess at random is right in 17 %"


def kind_of(described: Any, annotation: Any) -> str:
    (name,) = (
        each["name"] for each in described["categories"] if each["id"] == annotation["category_id"]
    )
    return str(name)


def look(path: Path) -> Any:
    """The mean colors of the upper and the lower part of an image."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((1, 4))).astype(float)[[0, 3]].ravel()
