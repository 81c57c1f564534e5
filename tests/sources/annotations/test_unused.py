"""Files that look like annotations or labels and that nothing uses: a warning before the work
begins says the option."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from image_files import images, saved
from PIL import Image

import shardctl
from shardctl.making.convert import convert

NAMES = ("a", "b", "c")
COCO = {
    "images": [
        {"id": number, "file_name": f"{name}.jpg", "width": 30, "height": 20}
        for number, name in enumerate(NAMES)
    ],
    "annotations": [
        {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 4, 4], "area": 16, "iscrowd": 0}
    ],
    "categories": [{"id": 1, "name": "cat"}],
}
VOC = (
    "<annotation><filename>{}.jpg</filename><size><width>30</width><height>20</height><depth>3</depth></size><object><name>cat"
    "</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax></bndbox></object></annotation>"
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photos in a folder of a folder."""
    return images(tmp_path / "my photos", *(f"images/{name}.jpg" for name in NAMES))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def with_images(count: int) -> str:
    images = [
        {"id": n, "file_name": f"{n}.jpg", "width": 30, "height": 20} for n in range(9, count)
    ]
    return json.dumps({"info": {"year": 2017}, **COCO, "images": COCO["images"] + images})


NOTHING = "looks like {}, and nothing uses it: --labels".format
KINDS: dict[str, tuple[dict[str, str], str, str, str]] = {
    # files, the option, what is said, a column
    "coco": (
        {"instances.json": with_images(0)},
        "coco:instances.json",
        f"instances.json {NOTHING('COCO annotations')}",
        "objects",
    ),
    "large coco": (
        {"instances.json": with_images(5000)},
        "coco:instances.json",
        "instances.json looks like COCO annotations",
        "objects",
    ),
    "yolo": (
        {
            "labels/a.txt": "",
            "labels/b.txt": "0 0.5 0.5 0.25 0.25\n1 0.5 0.5 1.0 1\n",
            "labels/classes.txt": "cat\ndog\n",
        },
        "yolo:labels",
        f"labels has what {NOTHING('YOLO labels')}",
        "objects",
    ),
    "voc": (
        {"Annotations/a.xml": VOC.format("a")},
        "voc:Annotations",
        f"Annotations has what {NOTHING('VOC annotations')}",
        "objects",
    ),
    "masks": ({}, "masks:masks", "masks looks like masks of other images", "mask"),
    "beside": (
        {"images/a.txt": "a photo of a cat, 2 years old"},
        "captions:images",
        f"images has what {NOTHING('captions of images')}",
        "caption",
    ),
    "table": (
        {"images/train.csv": "filename,label\na.jpg,cat\nb.jpg,dog\nc.jpg,dog\n"},
        "images/train.csv",
        "train.csv names images, and nothing uses it: --labels",
        "label",
    ),
    "lines": (
        {"notes.jsonl": "".join(f'{{"path": "images/{n}.jpg", "score": 1}}\n' for n in NAMES)},
        "notes.jsonl",
        "notes.jsonl names images, and nothing uses it: --labels",
        "score",
    ),
}


@pytest.mark.thorough(after=4)
@pytest.mark.parametrize("kind", KINDS)
def test_the_option_is_said_and_takes_the_file(cli, photos, tmp_path, kind):
    files, option, said, column = KINDS[kind]
    for name, text in files.items():
        write(photos / name, text)
    for name in NAMES if kind == "masks" else ():
        saved(Image.new("L", (30, 20)), photos / "masks" / f"{name}.png")
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
    for name, text in {
        "README.txt": "read me",
        "images/LICENSE.txt": "free",
        "package.json": '{"name": "x", "images": []}',
        "list.csv": "town,people\nUlm,1\n",
        "page.xml": "<html/>",
        "broken.jsonl": "{",
        "deep.json": '{"annotations": [' + "[" * 60_000,
        "questions.json": '{"annotations": [{"image_id": 1, "answers": []}], "images": [1]}',
        "kitti/a.txt": "Car 0.00 0 -1.57 614.24 181.78 727.31 284.77 1.57 1.73 4.15 1.00 1.75\n",
    }.items():
        write(photos / name, text)
    for folder in ("grey", "mask", "masks"):
        saved(Image.new("L", (30, 20)), photos / folder / f"{folder}.png")
    assert convert(photos, tmp_path / "out", workers=0).warnings == ()


def test_an_option_for_labels_that_was_given_is_all_that_is_wanted(photos, tmp_path):
    write(photos / "instances.json", with_images(0))
    assert convert(photos, tmp_path / "out", labels="none", workers=0).warnings == ()


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
    source = images(tmp_path / "in", "cat/a.jpg", "dog/b.jpg")
    write(source / "all.csv", text)
    said = convert(source, tmp_path / "out", workers=0, dry_run=True).warnings
    assert bool(said) == is_said
