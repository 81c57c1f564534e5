"""--classes: names and numbers of classes that a person pins; and the order of classes that nobody
has pinned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dataset_files import shard_in
from followed_sources import write, write_lines
from image_files import image, images
from in_this_process import convert

import shardctl
from shardctl.errors import InputError


def labels(out: Path) -> dict[str, Any]:
    return {sample["key"]: sample["label"] for sample in shardctl.open(out)}


@pytest.fixture
def pins(tmp_path: Path) -> list[Path]:
    """A file and a dataset with the classes a, b and c."""
    source = images(tmp_path / "train", *(f"{name}/1.png" for name in "abc"))
    convert(source, tmp_path / "trained")
    return [write(tmp_path / "classes.txt", "a\nb\nc\n"), tmp_path / "trained"]


def test_folders_rows_and_records_get_pinned_numbers(tmp_path, pins):
    folders = images(tmp_path / "val", "b/1.png", "c/1.png")
    rows = write(tmp_path / "rows.csv", "file_name,label\nb/1.png,c\nc/1.png,\n")
    records = write_lines(
        tmp_path / "in.jsonl", [{"text": "x", "label": "c"}, {"text": "y", "label": "b"}]
    )
    for number, pin in enumerate(pins):
        for name, source, options, expected in (
            ("folders", folders, {}, [1, 2]),
            ("rows", folders, {"labels": rows}, [2, None]),
            ("records", records, {}, [2, 1]),
        ):
            out = tmp_path / f"{name}{number}"
            convert(source, out, classes=pin, **options)
            assert list(labels(out).values()) == expected
            assert shardctl.open(out).classes == ("a", "b", "c")
    out = tmp_path / "folders0"
    assert convert(folders, out, classes=pins[0]).status == "up-to-date"
    image(folders / "a" / "1.png")
    assert convert(folders, out, classes=pins[1], update=True).status == "updated"
    assert list(labels(out).values()) == [1, 2, 0]
    shard_in(out).unlink()
    shardctl.repair(out)
    assert sorted(labels(out).values()) == [0, 1, 2]


def coco_of(path: Path, image: int, categories: list[Any], *boxes: int) -> str:
    """Write labels with boxes of these categories, whose numbers they have, for an image."""
    box = {"image_id": image, "bbox": [1, 1, 5, 5]}
    record = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 30, "height": 20} for n in (1, 2)],
        "annotations": [{**box, "id": n, "category_id": n} for n in boxes],
        "categories": categories,
    }
    return f"coco:{write_lines(path, [record])}"


def test_objects_get_pinned_numbers(tmp_path, out, pins):
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    source = images(tmp_path / "in", "1.png", "2.png")
    objects = "".join(f"<object><name>{name}</name>{box}</object>" for name in "cb")
    write(tmp_path / "xml" / "2.xml", f"<annotation>{objects}</annotation>")
    categories = [{"id": 4, "name": "b"}, {"id": 9, "name": "c"}]
    coco = coco_of(tmp_path / "coco.json", 2, categories, 9, 4)
    for given in (f"voc:{tmp_path / 'xml'}", coco):
        convert(source, out, labels=given, classes=pins[1], overwrite=True)
        ds = shardctl.open(out)
        found = [list(sample["objects"]["category"]) if sample["objects"] else [] for sample in ds]
        assert found == [[], [2, 1]]
        assert ds.manifest.roles.by_name["objects"].names == ("a", "b", "c")


@pytest.mark.parametrize("pinned", ["dog cat", "cat dog", "bird dog ant cat"])
def test_ids_and_supercategories_of_coco_follow_their_names(tmp_path, out, pinned):
    source = images(tmp_path / "in", "1.png", "2.png")
    truth = {
        name: {"id": number, "name": name, "supercategory": above}
        for name, number, above in (
            ("cat", 17, "animal"),
            ("dog", 90, "pet"),
            ("bird", 91, ""),
            ("ant", 92, ""),
        )
    }
    given = coco_of(tmp_path / "coco.json", 1, [truth["cat"], truth["dog"]], 90, 17)
    classes = write(tmp_path / "classes.txt", pinned.replace(" ", "\n"))
    convert(source, out, labels=given, classes=classes)
    shardctl.export(out, tmp_path / "coco", "coco", workers=0)
    written = json.loads((tmp_path / "coco" / "annotations" / "instances_train.json").read_text())
    assert written["categories"] == [truth[name] for name in pinned.split()]
    assert {each["id"]: each["category_id"] for each in written["annotations"]} == {90: 90, 17: 17}


def test_what_is_not_pinned_is_refused_by_name(tmp_path, out, pins, cli):
    source = images(tmp_path / "val", "b/1.png", "zebra/1.png")
    ran = cli("convert", source, out, "--classes", pins[0], "--workers", "0")
    assert (ran.code, "--classes: zebra not among the 3 classes" in ran.err) == (3, True)
    records = write_lines(tmp_path / "in.jsonl", [{"text": "x", "label": 1}])
    with pytest.raises(InputError, match="the inputs have no names of classes"):
        convert(records, out, classes=pins[0])
    for text in ("", "a\n\nb\n", "a\na\n"):
        write(pins[0], text)
        with pytest.raises(InputError, match="a text file with each class on one line"):
            convert(source, out, classes=pins[0])


def test_classes_that_are_numbers_are_in_the_order_of_their_values(tmp_path, out):
    source = images(tmp_path / "in", *(f"{number}/1.png" for number in range(12)))
    convert(source, out)
    assert labels(out) == {f"{number}/1.png": number for number in range(12)}
    lines = ({"text": "x", "label": str(n)} for n in (10, 9, 2))
    convert(write_lines(tmp_path / "in.jsonl", lines), tmp_path / "records")
    assert shardctl.open(tmp_path / "records").classes == ("2", "9", "10")
    image(source / "b" / "1.png")
    convert(source, tmp_path / "mixed")
    assert shardctl.open(tmp_path / "mixed").classes == (*sorted(map(str, range(12))), "b")
