"""What `inspect` tells of objects and masks: counts, sizes, places, and the pictures on which they
are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from annotated import CROWD, DOG, PERSON, png, together, write_annotated
from dataset_files import shard_in
from handmade import write_dataset
from PIL import Image
from places import place_of

from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.roles import Objects
from shardctl.inspection.content.differences import differences
from shardctl.inspection.content.statistics import mask_statistics, object_statistics


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_annotated(tmp_path_factory.mktemp("marked") / "out")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_objects_are_counted(tmp_path, compression):
    (found,) = object_statistics(place_of(write_annotated(tmp_path / "out", compression))).values()
    assert (found.samples, found.not_annotated, found.without_objects) == (16, 4, 4)
    assert (found.objects, found.crowds, found.difficult, found.truncated) == (12, 4, None, None)
    counted = [
        (each.name, each.objects, each.images, *(part["objects"] for part in each.splits.values()))
        for each in found.categories
    ]
    assert counted == [("person", 8, 8, 6, 2), ("dog", 4, 4, 3, 1), ("owl", 0, 0, 0, 0)]
    assert found.categories[0].splits["val"] == {"objects": 2, "images": 2}
    each = found.per_image
    assert (each.low, each.median, each.high) == (0, 1, 2)
    assert (each.edges, each.counts) == ((0, 1, 2, 3), (4, 4, 4))
    assert found.sizes == {"small": 8, "medium": 4, "large": 0}
    assert (found.degenerate, found.outside, found.sized_images, found.faults) == (0, 0, 16, ())


def test_sizes_and_places_are_shares_of_the_image(marked):
    found = object_statistics(place_of(marked))["objects"]
    assert (found.shares.low, found.shares.high) == (0.25, 1.0)
    assert found.shares.median == pytest.approx(0.3536, abs=0.001)
    assert np.flatnonzero(found.shares.counts).tolist() == [5, 7, 19]
    places = np.argwhere(found.centres).tolist()
    assert places == [[4, 3], [8, 8], [10, 11]], "rows from the top, columns from the left"


def test_keypoints_are_counted_one_by_one(marked):
    points = object_statistics(place_of(marked))["objects"].keypoints
    assert [(each.name, each.visible, each.hidden, each.absent) for each in points] == [
        ("nose", 4, 0, 0),
        ("left ear", 0, 4, 0),
        ("right ear", 0, 0, 4),
    ]


def test_some_blocks_and_some_images_are_said_to_be_some(marked):
    few = object_statistics(place_of(marked), blocks=4, images=2)["objects"]
    assert few.blocks == 4
    assert few.samples < 16
    assert few.sized_images == 4, "one of each block"
    assert object_statistics(place_of(marked), split="val")["objects"].samples == 4
    shard = shard_in(marked, "val-00000")
    assert object_statistics(place_of(shard))["objects"].samples == 4


def test_pixels_of_masks_are_counted_by_class(marked):
    (found,) = mask_statistics(place_of(marked), 100).values()
    assert (found.masks, found.missing, found.unreadable) == (12, 4, 0)
    assert (found.pixels, found.ignored) == (12 * 64 * 48, 12 * 64 * 4)
    counted = [(each.number, each.name, each.pixels, each.masks) for each in found.classes]
    assert counted == [(0, "background", 12 * 32 * 44, 12), (1, "grass", 12 * 32 * 44, 12)]
    assert mask_statistics(place_of(marked), 3)["mask"].masks <= 3


WRONG = (
    {**PERSON, "bbox": [float("nan"), 1, 5, 5]},
    {**DOG, "bbox": [1, 1, 0, 5]},
    {**DOG, "bbox": [60, 40, 24, 16]},
)


def with_objects(changed: dict[str, Any]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return what gives the samples of these keys other objects."""

    def change(sample: tuple[Any, ...]) -> tuple[Any, ...]:
        key, image, objects, mask = sample
        return key, image, changed.get(key, objects), mask

    return change


def with_wrong_boxes(sample: tuple[Any, ...]) -> tuple[Any, ...]:
    strange = {**together([PERSON, CROWD, DOG]), "category": [2, 99, -1]}
    key, image, objects, _ = with_objects({"k00.png": together(WRONG), "k01.png": strange})(sample)
    wrong = (b"no image", "x.png")
    return key, wrong if key == "k04.png" else image, objects, wrong


def test_boxes_that_are_wrong_are_counted_as_such(tmp_path, cli):
    root = write_annotated(tmp_path / "out", change=with_wrong_boxes)
    found = object_statistics(place_of(root))["objects"]
    assert (found.degenerate, found.outside, found.sized_images) == (2, 1, 15)
    unknown = {each.category: each.objects for each in found.categories if each.name is None}
    assert unknown == {-1: 1, 99: 1}
    assert sum(each.objects for each in found.categories) == found.objects == 16
    assert mask_statistics(place_of(root), 100) == {}
    assert cli("inspect", root, "--images", tmp_path / "sheet.png").code == 0


def test_lists_of_different_lengths_are_a_fault_and_the_rest_is_counted(tmp_path, cli):
    uneven = {**together([PERSON, DOG]), "category": [1]}
    root = write_annotated(tmp_path / "out", change=with_objects({"k00.png": uneven}))
    found = object_statistics(place_of(root))["objects"]
    (fault,) = found.faults
    assert (
        "train-00000-6409568f588485d4.arrow: block 0 cannot be read (the lists of a sample's"
        in fault
    )
    assert 0 < found.samples < 16
    shown = cli("inspect", root, "--stats")
    assert shown.code == 0
    assert "DAMAGED: 1 of the blocks; run shardctl verify." in shown.out
    assert cli("inspect", root, "--images", tmp_path / "sheet.png").code == 0
    assert cli("inspect", root, "--key", "k00.png").code == 0


def test_stats_are_printed(marked, cli):
    shown = cli("inspect", marked, "--stats").out
    for line in (
        "objects: 12 objects (of 16 samples)",
        "not annotated: 4 images; annotated and empty: 4",
        "crowds: 4",
        "boxes: 8 small (under 32x32 pixels), 4 medium",
        "mask: pixels of each class, of 12 masks; 3,072 pixels of no class",
    ):
        assert line in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["person", "8", "8", "6", "2"] in rows
    assert ["0", "nose", "4", "0", "0"] in rows
    assert ["grass", "16,896", "45.8%", "12"] in rows
    assert "objects (3 categories)" in shown, "not the long type of the column"
    assert "--stats reads all" in cli("inspect", marked).out


def test_a_mask_that_is_missing_is_no_unreadable_image(marked, cli):
    assert cli("inspect", marked, "--stats", "--json").json["statistics"]["formats"] == {"PNG": 28}
    assert "mask     missing" in cli("inspect", marked, "--key", "k02.png").out


def test_the_objects_of_a_sample_are_a_table(marked, cli):
    shown = cli("inspect", marked, "--key", "k00.png").out
    rows = [line.split() for line in shown.splitlines()]
    assert ["objects", "1", "person,", "1", "dog"] in rows
    assert "objects: 2 objects; places are pixels of the upright image" in shown
    assert ["0", "person", "4.0", "6.0", "16.0", "12.0", "2", "of", "3"] in rows
    assert ["1", "dog", "32.0", "24.0", "24.0", "16.0", "1", "(3", "points)"] in rows
    assert "objects  no objects" in cli("inspect", marked, "--key", "k01.png").out
    assert "objects  not annotated" in cli("inspect", marked, "--key", "k02.png").out
    where = "width > 60 and height == 48"
    assert "1 person" in cli("inspect", marked, "--where", where, "--head", 4).out
    assert cli("inspect", marked, "--where", "width > 64", "--json").json["matches"] == 0


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ("objects is None", 4),
        ("len(objects.bbox) == 0", 4),
        ("len(objects.bbox) > 0 and width > 60", 8),
        ("len(objects.category) == 2 and split == 'val'", 1),
    ],
)
def test_conditions_on_objects(marked, cli, condition, matches):
    assert cli("inspect", marked, "--where", condition, "--json").json["matches"] == matches


def test_json_has_the_values_as_they_were(tmp_path, cli):
    fractions = together([{**PERSON, "bbox": [0.1, 0.2, 30.3, 1e9]}])
    root = write_annotated(tmp_path / "out", change=with_objects({"k00.png": fractions}))
    objects = cli("inspect", root, "--key", "k00.png", "--json").json["values"]["objects"]
    assert objects["bbox"] == [[0.1, 0.2, 30.3, 1000000000.0]], (
        "32-bit numbers in their shortest form"
    )
    crowd = cli("inspect", root, "--key", "k03.png", "--json").json["records"][0]
    assert crowd["values"]["objects"]["rle"] == [{"size": [48, 64], "counts": "P`1P`1"}]
    assert "roles" not in crowd
    cli("inspect", root, "--key", "k00.png", "--save", tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "k00.png.json").read_text())
    assert saved["objects"] == objects


WITH_GAPS = {
    "bbox": [None, [None, 1.0, 2.0, 3.0], [1.0, 2.0, 30.0, 20.0], [1.0, 2.0, 30.0, 20.0]],
    "segmentation": [None, [None], [[None, 1.0, 2.0, 3.0, 4.0, 5.0]], [[]]],
    "rle": [
        None,
        {"size": None, "counts": b"9"},
        {"size": [4, None], "counts": b"9"},
        {"size": [4, 4], "counts": None},
    ],
    "keypoints": [None, [None], [[None, 1.0, 2.0]], [[1.0, 2.0, None]]],
    "category": [None, 0, 1, 2],
    "iscrowd": [None, True, False, None],
}


def test_what_is_missing_in_objects_is_left_out(tmp_path, cli):
    root = write_annotated(
        tmp_path / "out", change=lambda sample: (*sample[:2], WITH_GAPS, sample[3])
    )
    found = object_statistics(place_of(root))["objects"]
    assert (found.objects, found.degenerate, found.crowds, found.faults) == (64, 32, 16, ())
    counted = {each.category: each.objects for each in found.categories}
    assert counted == dict.fromkeys((-1, 0, 1, 2), 16)
    assert cli("inspect", root, "--images", tmp_path / "sheet.png").code == 0
    shown = cli("inspect", root, "--key", "k00.png")
    assert (shown.code, "1 person, 1 dog, 1 owl" in shown.out) == (0, True)
    assert cli("inspect", root, "--stats").code == 0


def test_a_column_of_another_type_is_no_objects(tmp_path, cli):
    root, boxes = tmp_path / "out", pa.list_(pa.list_(pa.float64()))
    fields = pa.struct({"bbox": boxes, "category": pa.list_(pa.string())})
    marks = {"bbox": [[0.1, 1 / 3]], "category": ["cat"]}
    rows = [("k", (png(np.zeros((8, 8, 3), np.uint8)), "k.png"), marks)]
    schema = pa.schema([("key", pa.string()), ("image", ENCODED_IMAGE), ("marks", fields)])
    write_dataset(root, schema, rows, 5, roles={"marks": Objects()})
    assert object_statistics(place_of(root)) == {}
    assert cli("inspect", root, "--images", tmp_path / "sheet.png").code == 0
    values = cli("inspect", root, "--key", "k", "--json").json["values"]
    assert values["marks"] == marks, "doubles as they are"
    assert "cat" in cli("inspect", root, "--key", "k").out


def sheet(cli: Any, root: Path, path: Path, *options: Any) -> Any:
    assert cli("inspect", root, "--images", path, *options).code == 0
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


def test_a_contact_sheet_has_the_objects_and_the_mask_in_it(marked, tmp_path, cli):
    plain = sheet(cli, marked, tmp_path / "plain.png", "--head", 4, "--no-annotations")
    drawn = sheet(cli, marked, tmp_path / "drawn.png", "--head", 4)
    assert plain.shape[1] == 8 * 164
    assert drawn.shape[1] == 5 * 260, "larger pictures, fewer in a row"
    top = (256 - 48 * 4) // 2 + 2
    first = drawn[top : top + 192, 2 : 2 + 256]
    assert not (first == 90).all(axis=2)[20:180, 4:120].any(), "grass"
    assert (first[40:80, 140:250] == 90).all(), "background and no box"
    assert not (first[150, 224] == 90).all(), "the edge of the dog"
    assert (plain[58:106, 50:114] == 90).all()


def test_objects_that_differ_are_found(tmp_path):
    moved = with_objects({"k04.png": together([PERSON, PERSON])})
    after = place_of(write_annotated(tmp_path / "after", change=moved))
    found = differences(place_of(write_annotated(tmp_path / "before")), after)
    assert (found.in_both, found.changed, found.changed_fields) == (16, 1, {"objects": 1})
