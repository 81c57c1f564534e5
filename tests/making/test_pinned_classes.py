"""--classes: names and numbers of classes that a person pins; and the order of classes that nobody
has pinned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from in_this_process import convert
from PIL import Image

import shardctl
from shardctl.errors import InputError


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30)).save(path)


def labels(out: Path) -> dict[str, Any]:
    return {sample["key"]: sample["label"] for sample in shardctl.open(out)}


@pytest.fixture
def pins(tmp_path: Path) -> list[Path]:
    """A file and a dataset with the classes a, b and c."""
    for name in "abc":
        image(tmp_path / "train" / name / "1.png")
    convert(tmp_path / "train", tmp_path / "trained")
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    return [tmp_path / "classes.txt", tmp_path / "trained"]


def test_folders_rows_and_records_get_pinned_numbers(tmp_path, pins):
    for name in "bc":
        image(tmp_path / "val" / name / "1.png")
    (tmp_path / "rows.csv").write_text("file_name,label\nb/1.png,c\nc/1.png,\n")
    (tmp_path / "in.jsonl").write_text('{"text": "x", "label": "c"}\n{"text": "y", "label": "b"}\n')
    for number, pin in enumerate(pins):
        out = [tmp_path / f"{name}{number}" for name in ("folders", "rows", "records")]
        convert(tmp_path / "val", out[0], classes=pin)
        convert(tmp_path / "val", out[1], labels=tmp_path / "rows.csv", classes=pin)
        convert(tmp_path / "in.jsonl", out[2], classes=pin)
        assert [list(labels(each).values()) for each in out] == [[1, 2], [2, None], [2, 1]]
        assert [shardctl.open(each).classes for each in out] == [("a", "b", "c")] * 3
    assert convert(tmp_path / "val", out[0], classes=pins[0]).status == "up-to-date"
    image(tmp_path / "val" / "a" / "1.png")
    assert convert(tmp_path / "val", out[0], classes=pins[1], update=True).status == "updated"
    assert list(labels(out[0]).values()) == [1, 2, 0]
    next(out[0].glob("*.arrow")).unlink()
    shardctl.repair(out[0])
    assert sorted(labels(out[0]).values()) == [0, 1, 2]


def test_objects_get_pinned_numbers(tmp_path, out, pins):
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    for name in ("1", "2"):
        image(tmp_path / "in" / f"{name}.png")
    (tmp_path / "xml").mkdir()
    objects = "".join(f"<object><name>{name}</name>{box}</object>" for name in "cb")
    (tmp_path / "xml" / "2.xml").write_text(f"<annotation>{objects}</annotation>")
    found = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 40, "height": 30} for n in (1, 2)],
        "annotations": [
            {"id": n, "image_id": 2, "category_id": n, "bbox": [1, 1, 5, 5]} for n in (9, 4)
        ],
        "categories": [{"id": 4, "name": "b"}, {"id": 9, "name": "c"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(found))
    for given in (f"voc:{tmp_path / 'xml'}", f"coco:{tmp_path / 'coco.json'}"):
        convert(
            tmp_path / "in",
            out,
            labels=given,
            classes=pins[1],
            overwrite=True,
        )
        ds = shardctl.open(out)
        assert [list((sample["objects"] or {"category": []})["category"]) for sample in ds] == [
            [],
            [2, 1],
        ]
        assert ds.manifest.roles.by_name["objects"].names == ("a", "b", "c")


@pytest.mark.parametrize("pinned", ["dog cat", "cat dog", "bird dog ant cat"])
def test_ids_and_supercategories_of_coco_follow_their_names(tmp_path, out, pinned):
    image(tmp_path / "in" / "1.png")
    categories = [
        {"id": 17, "name": "cat", "supercategory": "animal"},
        {"id": 90, "name": "dog", "supercategory": "pet"},
    ]
    found = {
        "images": [{"id": 1, "file_name": "1.png", "width": 40, "height": 30}],
        "annotations": [
            {"id": n, "image_id": 1, "category_id": n, "bbox": [1, 1, 5, 5]} for n in (90, 17)
        ],
        "categories": categories,
    }
    (tmp_path / "coco.json").write_text(json.dumps(found))
    (tmp_path / "classes.txt").write_text("\n".join(pinned.split()))
    given = f"coco:{tmp_path / 'coco.json'}"
    convert(tmp_path / "in", out, labels=given, classes=tmp_path / "classes.txt")
    shardctl.export(out, tmp_path / "coco", "coco", workers=0)
    written = json.loads((tmp_path / "coco" / "annotations" / "instances_train.json").read_text())
    new = [
        {"id": 91, "name": "bird", "supercategory": ""},
        {"id": 92, "name": "ant", "supercategory": ""},
    ]
    truth = {each["name"]: each for each in (*categories, *new)}
    assert written["categories"] == [truth[name] for name in pinned.split()]
    assert {each["id"]: each["category_id"] for each in written["annotations"]} == {90: 90, 17: 17}


def test_what_is_not_pinned_is_refused_by_name(tmp_path, out, pins, cli):
    for name in ("b", "zebra"):
        image(tmp_path / "val" / name / "1.png")
    ran = cli("convert", tmp_path / "val", out, "--classes", pins[0], "--workers", "0")
    assert (ran.code, "--classes: zebra not among the 3 classes" in ran.err) == (3, True)
    (tmp_path / "in.jsonl").write_text('{"text": "x", "label": 1}\n')
    with pytest.raises(InputError, match="the inputs have no names of classes"):
        convert(tmp_path / "in.jsonl", out, classes=pins[0])
    for text in ("", "a\n\nb\n", "a\na\n"):
        pins[0].write_text(text)
        with pytest.raises(InputError, match="a text file with each class on one line"):
            convert(tmp_path / "val", out, classes=pins[0])


def test_classes_that_are_numbers_are_in_the_order_of_their_values(tmp_path, out):
    for number in range(12):
        image(tmp_path / "in" / str(number) / "1.png")
    convert(tmp_path / "in", out)
    assert labels(out) == {f"{number}/1.png": number for number in range(12)}
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"text": "x", "label": "{n}"}}\n' for n in (10, 9, 2))
    )
    convert(tmp_path / "in.jsonl", tmp_path / "records")
    assert shardctl.open(tmp_path / "records").classes == ("2", "9", "10")
    image(tmp_path / "in" / "b" / "1.png")
    convert(tmp_path / "in", tmp_path / "mixed")
    assert shardctl.open(tmp_path / "mixed").classes == (*sorted(map(str, range(12))), "b")
