"""Files that look like annotations or labels and that nothing uses: a warning before the work
begins says the option."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardctl
from shardctl.making.convert import convert  # as the command line has it: messages name options

NAMES = ("a", "b", "c")
COCO = {
    "images": [
        {"id": number, "file_name": f"{name}.jpg", "width": 8, "height": 8}
        for number, name in enumerate(NAMES)
    ],
    "annotations": [
        {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 4, 4], "area": 16, "iscrowd": 0}
    ],
    "categories": [{"id": 1, "name": "cat"}],
}
VOC = (
    "<annotation><filename>{}.jpg</filename><size><width>8</width><height>8</height><depth>3</depth></size><object><name>cat"
    "</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax></bndbox></object></annotation>"
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photos in a folder of a folder."""
    folder = tmp_path / "my photos" / "images"
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        Image.new("RGB", (8, 8), (number * 9, 0, 0)).save(folder / f"{name}.jpg")
    return folder.parent


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def coco(folder: Path) -> None:
    write(
        folder / "instances.json",
        json.dumps({"info": {"year": 2017}, "licenses": [{"id": 1}], **COCO}),
    )


def large_coco(folder: Path) -> None:
    images = [
        {"id": number, "file_name": f"{number}.jpg", "width": 8, "height": 8}
        for number in range(9, 5000)
    ]
    write(folder / "instances.json", json.dumps({**COCO, "images": COCO["images"] + images}))


def yolo(folder: Path) -> None:
    write(folder / "labels" / "a.txt", "")
    write(folder / "labels" / "b.txt", "0 0.5 0.5 0.25 0.25\n1 0.5 0.5 1.0 1\n")
    write(folder / "labels" / "classes.txt", "cat\ndog\n")


def voc(folder: Path) -> None:
    write(folder / "Annotations" / "a.xml", VOC.format("a"))


def masks(folder: Path) -> None:
    (folder / "masks").mkdir()
    for name in NAMES:
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "masks" / f"{name}.png")


def beside(folder: Path) -> None:
    write(folder / "images" / "a.txt", "a photo of a cat, 2 years old")


def table(folder: Path) -> None:
    write(folder / "images" / "train.csv", "filename,label\na.jpg,cat\nb.jpg,dog\nc.jpg,dog\n")


def lines(folder: Path) -> None:
    write(
        folder / "notes.jsonl",
        "".join(f'{{"path": "images/{name}.jpg", "score": 1}}\n' for name in NAMES),
    )


KINDS = [
    (
        coco,
        "coco:instances.json",
        "instances.json looks like COCO annotations, and nothing uses it: --labels",
        "objects",
    ),
    (large_coco, "coco:instances.json", "instances.json looks like COCO annotations", "objects"),
    (
        yolo,
        "yolo:labels",
        "labels has what looks like YOLO labels, and nothing uses it: --labels",
        "objects",
    ),
    (
        voc,
        "voc:Annotations",
        "Annotations has what looks like VOC annotations, and nothing uses it: --labels",
        "objects",
    ),
    (masks, "masks:masks", "masks looks like masks of other images", "mask"),
    (
        beside,
        "captions:images",
        "images has what looks like captions of images, and nothing uses it: --labels",
        "caption",
    ),
    (table, "images/train.csv", "train.csv names images, and nothing uses it: --labels", "label"),
    (lines, "notes.jsonl", "notes.jsonl names images, and nothing uses it: --labels", "score"),
]


@pytest.mark.thorough(after=4)
@pytest.mark.parametrize(
    ("make", "option", "said", "column"), KINDS, ids=[kind[0].__name__ for kind in KINDS]
)
def test_the_option_is_said_and_takes_the_file(cli, photos, tmp_path, make, option, said, column):
    make(photos)
    form, colon, path = option.rpartition(":")
    typed = f"{form}{colon}{photos / path}"
    for more in (["--dry-run"], [], ["-q", "--overwrite"]):
        ran = cli("convert", photos, tmp_path / "out", "--workers", 0, *more)
        assert ran.code == 0
        (warning,) = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
        assert said in warning
        assert warning.endswith(f"--labels {shlex.quote(typed)}")
    ran = cli("convert", photos, tmp_path / "with", "--workers", 0, "--json", "--labels", typed)
    assert (ran.code, ran.json["samples"], ran.json["warnings"]) == (0, 3, [])
    assert column in shardctl.open(tmp_path / "with")[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "images/a.json",
            '{"shapes": [{"label": "cat", "points": [[1, 2]]}], "imagePath": "a.jpg"}',
        ),
        (
            "annotations.xml",
            '<annotations><image id="0" name="a.jpg"><box label="cat" '
            'xtl="1"/></image></annotations>',
        ),
        ("list.txt", "images/a.jpg 1\nimages/b.jpg 2\n"),
        ("all.json", '[{"image": "images/a.jpg", "caption": "x"}]'),
        ("list.json", '[{"image_id": 1, "file_name": "images/a.jpg", "caption": "x"}]'),
        (
            "vqa.json",
            '{"annotations": [{"image_id": 1, "file_name": "images/a.jpg", "question": "x", '
            '"answer": "y"}]}',
        ),
    ],
)
def test_what_no_option_takes_as_it_is_is_said_too(photos, tmp_path, name, text):
    write(photos / name, text)
    warning = only_warning(photos, tmp_path / "out")
    assert f"{name} names images, and nothing uses it: write it as COCO, or CSV" in warning
    assert "--labels" not in warning


def test_other_files_are_no_annotations(photos, tmp_path):
    write(photos / "README.txt", "read me")
    write(photos / "images" / "LICENSE.txt", "free")
    write(photos / "package.json", '{"name": "x", "images": []}')
    write(photos / "list.csv", "town,people\nUlm,1\n")
    write(photos / "page.xml", "<html/>")
    write(photos / "broken.jsonl", "{")
    write(photos / "deep.json", '{"annotations": [' + "[" * 60_000)
    write(
        photos / "questions.json",
        json.dumps({"annotations": [{"image_id": 1, "answers": []}], "images": [1]}),
    )
    write(
        photos / "kitti" / "a.txt",
        "Car 0.00 0 -1.57 614.24 181.78 727.31 284.77 1.57 1.73 4.15 1.00 1.75 13.22 -1.62\n",
    )
    for folder in ("grey", "mask", "masks"):
        (photos / folder).mkdir()
        Image.new("L", (8, 8)).save(photos / folder / f"{folder}.png")
    assert shardctl.convert(photos, tmp_path / "out", workers=0).warnings == ()


def test_an_option_for_labels_that_was_given_is_all_that_is_wanted(photos, tmp_path):
    coco(photos)
    assert shardctl.convert(photos, tmp_path / "out", labels="none", workers=0).warnings == ()


def only_warning(folder: Path, out: Path) -> str:
    (warning,) = convert(folder, out, workers=0, dry_run=True).warnings
    return warning


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ("filename,md5\ncat/a.jpg,0123\n", False),
        ("filename,label\ncat/a.jpg,1\n", True),
        ("filename,Breed\ncat/a.jpg,1\n", True),
    ],
)
def test_beside_class_folders_only_labels_are_said(tmp_path, text, is_said):
    for name in ("cat/a.jpg", "dog/b.jpg"):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "in" / name)
    write(tmp_path / "in" / "all.csv", text)
    assert (
        bool(convert(tmp_path / "in", tmp_path / "out", workers=0, dry_run=True).warnings)
        == is_said
    )
