"""Files that look like annotations or labels and that nothing uses: a warning before the work begins says the option."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from object_server import ObjectServer
from PIL import Image

import shardctl
from shardctl.build.convert import convert  # as the command line has it: messages name options
from shardctl.system.stores import open_store

NAMES = ("a", "b", "c")
COCO = {
    "images": [{"id": number, "file_name": f"{name}.jpg", "width": 8, "height": 8} for number, name in enumerate(NAMES)],
    "annotations": [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 4, 4], "area": 16, "iscrowd": 0}],
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
    write(folder / "instances.json", json.dumps({"info": {"year": 2017}, "licenses": [{"id": 1}], **COCO}))


def large_coco(folder: Path) -> None:
    images = [{"id": number, "file_name": f"{number}.jpg", "width": 8, "height": 8} for number in range(9, 5000)]
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


def fifth_coco(folder: Path) -> None:
    for name in "abcd":
        write(folder / f"{name}.json", "{}")
    coco(folder)


def coco_after_licences(folder: Path) -> None:
    write(folder / "all.json", json.dumps({"licenses": [{"name": "x" * 70000}], **COCO}))


def coco_after_a_mask(folder: Path) -> None:
    annotation = {"segmentation": {"size": [8, 8], "counts": [32, 32]}, **COCO["annotations"][0]}  # type: ignore[dict-item]
    write(folder / "all.json", json.dumps({"annotations": [annotation], **without_annotations()}))


def coco_after_a_long_mask(folder: Path) -> None:
    mask = {"size": [200, 200], "counts": [0, *[1] * 40_000]}
    annotation = {"segmentation": mask, **COCO["annotations"][0], "image_id": 7, "iscrowd": 1}  # type: ignore[dict-item]
    rest = without_annotations()
    rest["images"] = [*rest["images"], {"id": 7, "file_name": "other.jpg", "width": 200, "height": 200}]
    write(folder / "all.json", json.dumps({"annotations": [annotation], **rest}))


def without_annotations() -> dict[str, Any]:
    return {name: value for name, value in COCO.items() if name != "annotations"}


def yolo_among_others(folder: Path) -> None:
    for name in ("README.dataset", "README.roboflow", "a.first", "a.second", "a.third"):
        write(folder / "images" / f"{name}.txt", "words")
    write(folder / "images" / "a.txt", "")
    write(folder / "images" / "c.txt", "0 0.5 0.5 0.25 0.25\n")


def beside(folder: Path) -> None:
    write(folder / "images" / "a.txt", "a photo of a cat, 2 years old")


def table(folder: Path) -> None:
    write(folder / "images" / "train.csv", "filename,label\na.jpg,cat\nb.jpg,dog\nc.jpg,dog\n")


def lines(folder: Path) -> None:
    write(folder / "notes.jsonl", "".join(f'{{"path": "images/{name}.jpg", "score": 1}}\n' for name in NAMES))


KINDS = [
    (coco, "coco:instances.json", "instances.json looks like COCO annotations, and nothing uses it: --labels", "objects"),
    (large_coco, "coco:instances.json", "instances.json looks like COCO annotations", "objects"),
    (fifth_coco, "coco:instances.json", "instances.json looks like COCO annotations", "objects"),
    (coco_after_licences, "coco:all.json", "all.json looks like COCO annotations", "objects"),
    (coco_after_a_mask, "coco:all.json", "all.json looks like COCO annotations", "objects"),
    (coco_after_a_long_mask, "coco:all.json", "all.json looks like COCO annotations", "objects"),
    (yolo_among_others, "yolo:images", "images has what looks like YOLO labels", "objects"),
    (yolo, "yolo:labels", "labels has what looks like YOLO labels, and nothing uses it: --labels", "objects"),
    (voc, "voc:Annotations", "Annotations has what looks like VOC annotations, and nothing uses it: --labels", "objects"),
    (masks, "masks:masks", "masks looks like masks of the images in", "mask"),
    (beside, "captions:", "a.txt looks like the caption of an image, and nothing uses it: --labels captions:", "caption"),
    (table, "images/train.csv", "train.csv names images in its column filename, and nothing uses it: --labels", "label"),
    (lines, "notes.jsonl", "notes.jsonl names images in its column path, and nothing uses it: --labels", "score"),
]


@pytest.mark.thorough(after=5)
@pytest.mark.parametrize(("make", "option", "said", "column"), KINDS, ids=[kind[0].__name__ for kind in KINDS])
def test_the_option_is_said_and_takes_the_file(
    cli: Any, photos: Path, tmp_path: Path, make: Any, option: str, said: str, column: str
) -> None:
    make(photos)
    form, colon, path = option.rpartition(":")
    typed = f"{form}{colon}{photos / path if path else ''}"
    for more in (["--dry-run"], [], ["-q", "--overwrite"]):
        ran = cli("convert", photos, tmp_path / "out", "--workers", 0, *more)
        assert ran.code == 0
        (warning,) = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
        assert said in warning
        assert warning.endswith(f"--labels {shlex.quote(typed)}")
    ran = cli("convert", photos, tmp_path / "with", "--workers", 0, "--json", "--labels", typed)
    assert (ran.code, ran.json["samples"], ran.json["warnings"]) == (0, 3, [])
    assert column in shardctl.open(tmp_path / "with")[0]


def test_several_are_said_in_json_too_and_a_data_yaml_comes_before_the_folder(cli: Any, photos: Path, tmp_path: Path) -> None:
    for make in (coco, yolo, masks):
        make(photos)
    write(photos / "data.yaml", "path: .\ntrain: images\nnames:\n  0: cat\n  1: dog\n")
    ran = cli("convert", photos, tmp_path / "out", "--workers", 0, "--json", "--dry-run")
    found = [shlex.split(warning.partition(": --labels ")[2]) for warning in ran.json["warnings"]]
    of_masks = f"masks:{photos}/masks"
    wanted = ([of_masks], [f"yolo:{photos}/data.yaml", "--labels", of_masks], [f"coco:{photos}/instances.json"])
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "rows.csv",
            "filename,xmin\na.jpg,1\na.jpg,2\n",
            "its column filename, .* as in images/NAME.jpg; give one row for each",
        ),
        ("rows.csv", "img,label\nimages/a.jpg,1\n", "its column img, .*: call this column file_name; then --labels"),
        ("rows.tsv", "id\tlabel\na\t1\nb\t2\n", "call this column file_name; give the paths of the images from its folder on"),
        (
            "rows.jsonl",
            '{"file_name": "a.jpg", "captions": ["x"]}\n',
            "give the paths .*, as in images/NAME.jpg; then --labels",
        ),
    ],
)
def test_what_must_be_changed_in_a_table_is_said(photos: Path, tmp_path: Path, name: str, text: str, said: str) -> None:
    write(photos / name, text)
    (warning,) = convert(photos, tmp_path / "out", workers=0).warnings
    assert warning.startswith(f"{photos / name} names images in")
    assert re.search(said, warning)


def test_other_files_are_no_annotations(photos: Path, tmp_path: Path) -> None:
    write(photos / "README.txt", "read me")
    write(photos / "images" / "LICENSE.txt", "free")
    write(photos / "package.json", '{"name": "x", "images": []}')
    write(photos / "list.csv", "town,people\nUlm,1\n")
    write(photos / "page.xml", "<html/>")
    write(photos / "broken.jsonl", "{")
    write(photos / "odd.jsonl", '{"path": "\\ud800.jpg", "\\ud800": "a"}\n')
    write(photos / "deep.json", '{"annotations": [' + "[" * 60_000)
    write(photos / "kitti" / "a.txt", "Car 0.00 0 -1.57 614.24 181.78 727.31 284.77 1.57 1.73 4.15 1.00 1.75 13.22 -1.62\n")
    (photos / "grey").mkdir()
    Image.new("L", (8, 8)).save(photos / "grey" / "other.png")
    assert shardctl.convert(photos, tmp_path / "out", workers=0).warnings == ()


def test_an_option_for_labels_that_was_given_is_all_that_is_wanted(photos: Path, tmp_path: Path) -> None:
    coco(photos)
    assert shardctl.convert(photos, tmp_path / "out", labels="none", workers=0).warnings == ()


def only_warning(folder: Path, out: Path) -> str:
    (warning,) = convert(folder, out, workers=0, dry_run=True).warnings
    return warning


def save(path: Path, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (8, 8)).save(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "images/a.json",
            '{"version": "5.0", "flags": {}, "shapes": [{"label": "cat", "points": [[1, 2]]}], "imagePath": "a.jpg"}',
            "images has what looks like LabelMe annotations, and nothing uses it: no --labels option reads this format; export",
        ),
        (
            "via.json",
            '{"a.jpg90": {"filename": "a.jpg", "regions": [{"shape_attributes": {"name": "rect"}}]}}',
            "via.json has what looks like VIA annotations, and nothing uses it: no --labels option",
        ),
        (
            "annotations.xml",
            '<annotations><image id="0" name="a.jpg"><box label="cat" xtl="1"/></image></annotations>',
            "annotations.xml has what looks like CVAT annotations, and nothing uses it: no --labels option",
        ),
        (
            "list.txt",
            "images/a.jpg 1\nimages/b.jpg 2\n",
            "list.txt names images, .* file_name and label; then --labels .*list.csv",
        ),
        ("all.json", '{"images/a.jpg": "cat"}', "all.json names images, .* file_name and label; then --labels .*all.csv"),
        (
            "all.json",
            '[{"image": "images/a.jpg", "caption": "x"}]',
            "all.json names images in its column image, .*: write it as JSON lines; then --labels .*all.jsonl",
        ),
    ],
)
def test_what_no_option_takes_as_it_is_is_said_too(photos: Path, tmp_path: Path, name: str, text: str, said: str) -> None:
    write(photos / name, text)
    assert re.search(said, only_warning(photos, tmp_path / "out"))


def test_a_packed_coco_file_must_be_unpacked(photos: Path, tmp_path: Path) -> None:
    (photos / "all.json.gz").write_bytes(gzip.compress(json.dumps(COCO).encode()))
    option = shlex.quote(f"coco:{photos / 'all.json'}")
    said = f"all.json.gz looks like COCO annotations, and nothing uses it: unpack it; then --labels {option}"
    assert only_warning(photos, tmp_path / "out").endswith(said)


@pytest.mark.parametrize(
    ("images", "masks", "said"),
    [
        (("images/{}.png", "L"), ("masks/{}.png", "L"), "their images: --labels .*/masks'?$"),
        (
            ("images/{}.jpg", "RGB"),
            ("labels/{}_mask.png", "P"),
            r"name each as its image \(a.png, not a_mask.png\); then --labels",
        ),
        (
            ("images/{}.jpg", "RGB"),
            ("masks/{}.png", "RGB"),
            "save them with one number for each pixel .*; then --labels .*/masks'?$",
        ),
        (
            ("{}.jpg", "RGB"),
            ("{}_mask.png", "L"),
            r"move them to a folder .* \(a.png, not a_mask.png\); then --labels masks:DIR",
        ),
        (("{}_sat.jpg", "RGB"), ("{}_mask.png", "L"), r"move them .* \(a_sat.png, not a_mask.png\); then --labels masks:DIR"),
        (
            ("leftImg8bit/x/{}_leftImg8bit.png", "RGB"),
            ("gtFine/x/{}_gtFine_labelIds.png", "L"),
            r"gtFine looks like masks of the images in .*leftImg8bit, .*\(a_leftImg8bit.png, not a_gtFine_labelIds.png\)",
        ),
    ],
)
def test_masks_of_other_names_and_of_grey_images(
    tmp_path: Path, images: tuple[str, str], masks: tuple[str, str], said: str
) -> None:
    for name in NAMES:
        for pattern, mode in (images, masks):
            save(tmp_path / "in" / pattern.format(name), mode)
    assert re.search(said, only_warning(tmp_path / "in", tmp_path / "out"))


def test_one_odd_image_among_masks_changes_nothing(photos: Path, tmp_path: Path) -> None:
    masks(photos)
    save(photos / "masks" / "readme.png")
    assert "masks looks like masks of the images in" in only_warning(photos, tmp_path / "out")


def test_numbers_and_classes_of_equal_names_are_no_annotations(tmp_path: Path) -> None:
    for number in range(4):
        for folder, mode in (("zebra", "L"), ("cat", "RGB"), ("mask", "RGB"), ("no mask", "RGB")):
            save(tmp_path / "in" / folder / f"{number}.png", mode)
    write(tmp_path / "in" / "log.csv", "step,epoch,loss\n0,0,1.0\n1,0,0.5\n2,1,0.2\n")
    write(tmp_path / "in" / "runs.csv", "id,loss\n3,1.0\n" + "".join(f"{step},0.1\n" for step in range(100, 200)))
    write(tmp_path / "in" / "questions.json", json.dumps({"annotations": [{"image_id": 1, "answers": []}], "images": [1]}))
    assert shardctl.convert(tmp_path / "in", tmp_path / "out", workers=0).warnings == ()


@pytest.mark.parametrize("images", ["rgb", "images", "input"])
@pytest.mark.parametrize(
    ("other", "mode"),
    [("depth", "I;16"), ("thermal", "L"), ("edges", "L"), ("edges", "1"), ("gt_depth", "I;16"), ("nir", "L"), ("other", "L")],
)
def test_other_pictures_beside_images_are_no_masks(tmp_path: Path, images: str, other: str, mode: str) -> None:
    for name in NAMES:
        save(tmp_path / "in" / images / f"{name}.png")
        save(tmp_path / "in" / other / f"{name}.png", mode)
    assert shardctl.convert(tmp_path / "in", tmp_path / "out", workers=0, dry_run=True).warnings == ()


@pytest.mark.parametrize(
    ("other", "mode"), [("depth_masks", "L"), ("labels", "I;16"), ("semantic", "L"), ("other", "P"), ("other", "1")]
)
def test_names_or_few_values_tell_masks(tmp_path: Path, other: str, mode: str) -> None:
    for name in NAMES:
        save(tmp_path / "in" / "images" / f"{name}.png")
        save(tmp_path / "in" / other / f"{name}.png", mode)
    assert f"{other} looks like masks of the images in" in only_warning(tmp_path / "in", tmp_path / "out")


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Six images of cats and six of dogs, in folders that give their classes."""
    for name in ANIMALS:
        save(tmp_path / "in" / name)
    return tmp_path / "in"


ANIMALS = [f"{folder}/{number}.jpg" for folder in ("cat", "dog") for number in range(6)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("checksums.csv", "filename,md5\n" + "".join(f"{name},{at:032x}\n" for at, name in enumerate(ANIMALS))),
        ("sizes.jsonl", "".join(json.dumps({"path": name, "width": 8, "height": 8}) + "\n" for name in ANIMALS)),
        ("cat/files.csv", "file\n0.jpg\n1.jpg\n"),
        ("filelist.txt", "".join(f"{name} {600 + at}\n" for at, name in enumerate(ANIMALS))),
        ("filelist.txt", "".join(f"{name} {at:032x} 600\n" for at, name in enumerate(ANIMALS))),
        ("pairs.txt", "".join(f"{name} {600 + at % 6}\n" for at, name in enumerate(ANIMALS))),
        ("same.txt", "".join(f"{name} 600\n" for name in ANIMALS)),
        ("sizes.json", '{"cat/0.jpg": {"w": 3}}'),
        ("sizes.json", json.dumps({name: [at, 8] for at, name in enumerate(ANIMALS)})),
        ("sums.json", json.dumps({name: f"{at:032x}" for at, name in enumerate(ANIMALS)})),
    ],
)
def test_lists_without_labels_beside_class_folders_are_none(classes: Path, tmp_path: Path, name: str, text: str) -> None:
    write(classes / name, text)
    assert shardctl.convert(classes, tmp_path / "out", workers=0, dry_run=True).warnings == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("all.csv", "filename,label\n" + "".join(f"{name},{at % 3}\n" for at, name in enumerate(ANIMALS))),
        ("all.csv", "filename,Breed\n" + "".join(f"{name},a\n" for name in ANIMALS)),
        ("all.jsonl", "".join(json.dumps({"file_name": name, "caption": "a photo"}) + "\n" for name in ANIMALS)),
        ("all.txt", "".join(f"{name} {at % 3}\n" for at, name in enumerate(ANIMALS))),
        ("all.txt", "".join(f"{name} a photo of number {at}\n" for at, name in enumerate(ANIMALS))),
        ("all.json", json.dumps({name: {"class": "a"} for name in ANIMALS})),
        ("all.json", json.dumps({name: [f"a photo of {name}"] for name in ANIMALS})),
    ],
)
def test_lists_with_labels_beside_class_folders_are_said(classes: Path, tmp_path: Path, name: str, text: str) -> None:
    write(classes / name, text)
    warning = only_warning(classes, tmp_path / "out")
    assert f"{name} names images" in warning
    assert warning.endswith((".csv", ".csv'", ".jsonl", ".jsonl'"))


@pytest.mark.parametrize("rows", [ANIMALS[:6], [*ANIMALS, "none.jpg"]])
def test_the_option_takes_a_table_that_has_not_all_images(cli: Any, classes: Path, tmp_path: Path, rows: list[str]) -> None:
    write(classes / "all.csv", "filename,label\n" + "".join(f"{name},{at % 3}\n" for at, name in enumerate(rows)))
    _, _, option = only_warning(classes, tmp_path / "out").partition(": ")
    assert option.endswith("all.csv --lenient-labels")
    ran = cli("convert", classes, tmp_path / "out", "--workers", 0, "--json", *shlex.split(option))
    assert (ran.code, ran.json["samples"], ran.json["warnings"]) == (0, 12, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [("all.json", '{"images/a.jpg": "cat"}'), ("all.txt", "images/a.jpg cat\n"), ("all.csv", "path,score\nimages/a.jpg,1\n")],
)
def test_lists_that_have_not_all_images(photos: Path, tmp_path: Path, name: str, text: str) -> None:
    write(photos / name, text)
    assert only_warning(photos, tmp_path / "out").endswith("all.csv' --lenient-labels")


def png_coco(folder: Path) -> None:
    images = [{**image, "file_name": f"{name}.png"} for image, name in zip(COCO["images"], NAMES, strict=True)]  # type: ignore[dict-item]
    write(folder / "all.json", json.dumps({**COCO, "images": images}))


@pytest.mark.parametrize(
    ("make", "what", "suffix"), [(yolo, "YOLO", "jpg"), (voc, "VOC", "jpg"), (yolo, "YOLO", "png"), (png_coco, "COCO", "png")]
)
@pytest.mark.parametrize(("folders", "mode"), [(("masks",), "L"), (("masks", "labels_seg"), "L"), (("masks",), "RGB")])
def test_the_option_is_taken_beside_masks_of_the_same_names(
    cli: Any, tmp_path: Path, make: Any, what: str, suffix: str, folders: tuple[str, ...], mode: str
) -> None:
    source = tmp_path / "in"
    for name in NAMES:
        save(source / "images" / f"{name}.{suffix}")
        for folder in folders:
            save(source / folder / f"{name}.png", mode)
    make(source)
    warnings = convert(source, tmp_path / "out", workers=0, dry_run=True).warnings
    (option,) = [each.partition(": ")[2] for each in warnings if f"looks like {what}" in each]
    option, _, images = option.partition(" with ")
    options = shlex.split(option)
    assert options[2:] == (["--labels", f"masks:{source}/masks"] if (folders, mode) == (("masks",), "L") else [])
    source = Path(images.partition(" as the source")[0]) if images else source
    ran = cli("convert", source, tmp_path / "out", "--workers", 0, "--json", *options)
    assert (ran.code, ran.json["samples"]) == (0, 3)
    assert {"objects", *(["mask"] if options[2:] else [])} <= set(shardctl.open(tmp_path / "out")[0])


def test_few_requests_to_a_store(bucket: str, object_server: ObjectServer, tmp_path: Path) -> None:
    store = open_store(bucket)
    for folder, mode in (("classes/cat", "RGB"), ("classes/dog", "L"), ("pairs/images", "RGB"), ("pairs/masks", "L")):
        save(tmp_path / "one.png", mode)
        for number in range(20):
            store.put(f"{folder}/{number}.png", (tmp_path / "one.png").read_bytes())
    looked = []
    for folder, count in (("classes", 0), ("pairs", 1)):
        object_server.clear()
        assert len(shardctl.convert(f"{bucket}/{folder}", tmp_path / "out", workers=0, dry_run=True).warnings) == count
        looked.append([request["key"] for request in object_server.log() if request["range"] == "bytes=0-25"])
    assert looked[0] == []
    assert [key.rpartition("/")[0] for key in looked[1]] == ["pairs/masks"] * 4
