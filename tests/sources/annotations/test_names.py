"""Which image an annotation belongs to, for all forms of annotations: one rule
(docs/annotations.md)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from making import box, coco_file, converted, mask, photos, samples

import shardctl
from shardctl.errors import InputError
from shardctl.sources.annotations.inputs import Inputs
from shardctl.sources.files import SourceRoot

NFC, NFD = "b\u00e4r", "ba\u0308r"

VOC = (
    "<annotation><size><width>8</width><height>6</height></size><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
    "<xmax>4</xmax><ymax>4</ymax></bndbox></object></annotation>"
)


def coco(root: Path, names: list[str]) -> str:
    images = [(number, f"{name}.png") for number, name in enumerate(names)]
    return f"coco:{coco_file(root / 'all.json', images, [box(number) for number, _ in images])}"


def each(root: Path, folder: str, ending: str, text: str, names: list[str]) -> Path:
    for name in names:
        file = root / folder / f"{name}.{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root / folder


def yolo(root: Path, names: list[str]) -> str:
    return f"yolo:{each(root, 'labels', 'txt', '0 0.5 0.5 0.5 0.5', names)}"


def voc(root: Path, names: list[str]) -> str:
    return f"voc:{each(root, 'Annotations', 'xml', VOC, names)}"


def captions(root: Path, names: list[str]) -> str:
    return f"captions:{each(root, 'captions', 'txt', 'a cat', names)}"


def masks(root: Path, names: list[str]) -> str:
    for name in names:
        mask(root / "masks" / f"{name}.png", np.ones((6, 8)))
    return f"masks:{root / 'masks'}"


def table(root: Path, names: list[str]) -> str:
    rows = "".join(f"{name}.png,cat\n" for name in names)
    (root / "all.csv").write_text(f"file_name,label\n{rows}")
    return str(root / "all.csv")


FORMS: dict[str, tuple[Callable[[Path, list[str]], str], str]] = {
    "coco": (coco, "objects"),
    "yolo": (yolo, "objects"),
    "voc": (voc, "objects"),
    "captions": (captions, "caption"),
    "masks": (masks, "mask"),
    "table": (table, "label"),
}

forms = pytest.mark.parametrize("form", FORMS)


def annotated(source: Path, out: Path, form: str, names: list[str]) -> tuple[set[str], str]:
    """Return the keys of the images that have annotations, and all notices."""
    make, column = FORMS[form]
    options = {"lenient_labels": True} if form == "table" else {}
    said = converted(source, out, make(out.parent, names), **options).notices
    found = samples(out)
    there = {
        key
        for key, sample in found.items()
        if sample[column] and (column != "objects" or sample[column]["bbox"])
    }
    there |= {
        key for key, sample in found.items() if column == "label" and sample[column] is not None
    }
    return there, "\n".join(said)


@forms
@pytest.mark.parametrize("names", [["val/1", "train/1", "val/3"], ["val/3", "val/1"]])
def test_an_image_of_another_folder_does_not_get_the_annotations_of_a_missing_one(
    tmp_path, form, names
):
    source = photos(
        tmp_path / "in", "train/1.png", "train/2.png", "train/3.png", "val/1.png", "val/2.png"
    )
    there, said = annotated(source, tmp_path / "out", form, names)
    assert there == {f"{name}.png" for name in names} - {"val/3.png"}
    assert "val/3" in said


@forms
@pytest.mark.parametrize("where", ["in/train", "in"])
def test_names_may_start_above_the_source(tmp_path, form, where):
    photos(tmp_path / "in", "train/1.png", "train/3.png")
    there, said = annotated(tmp_path / where, tmp_path / "out", form, ["train/1", "val/3"])
    assert there == {"1.png" if where == "in/train" else "train/1.png"}
    assert "val/3" in said


@forms
def test_an_image_may_lie_deeper_than_its_annotations_say(tmp_path, form):
    source = photos(tmp_path / "in", "deep/train/1.png", "deep/train/x/2.png")
    there, _ = annotated(source, tmp_path / "out", form, ["train/1", "train/2"])
    assert there == {"deep/train/1.png", "deep/train/x/2.png"}


@forms
@pytest.mark.parametrize(("image", "name"), [(NFC, NFD), (NFD, NFC)])
def test_names_are_compared_in_one_form_of_unicode(tmp_path, form, image, name):
    source = photos(tmp_path / "in", f"{image}.png", "x.png")
    there, _ = annotated(source, tmp_path / "out", form, [name, "x"])
    assert there == {f"{image}.png", "x.png"}


@forms
def test_two_images_that_are_equal_in_that_form_are_both_named(tmp_path, form):
    source = photos(tmp_path / "in", f"{NFC}.png", f"{NFD}.png")
    with pytest.raises(InputError) as caught:
        converted(source, tmp_path / "out", FORMS[form][0](tmp_path, [NFC]))
    assert r"b\xe4r.png" in str(caught.value)
    assert r"ba\u0308r.png" in str(caught.value)


def test_the_folder_of_a_data_yaml_tells_which_images_its_labels_are_of(tmp_path, out):
    source = photos(tmp_path / "in", "images/train/1.png", "images/train/3.png")
    each(source, "labels/val", "txt", "0 0.5 0.5 0.5 0.5", ["3"])
    each(source, "labels/train", "txt", "0 0.5 0.5 0.5 0.5", ["1"])
    (source / "images" / "val").mkdir()
    (source / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [cat]\n")
    said = converted(source, out, f"yolo:{source}/data.yaml").notices
    assert not samples(out)["images/train/3.png"]["objects"]["bbox"]
    assert any("1 label file without an image among the inputs" in notice for notice in said)


def test_a_coco_file_of_one_folder_does_not_annotate_another_one(tmp_path, out):
    source = photos(tmp_path / "in", "train/1.png", "train/3.png", "valid/1.png")
    file = coco_file(source / "valid" / "all.json", [(1, "1.png"), (3, "3.png")], [box(1), box(3)])
    said = converted(source, out, f"coco:{file}").notices
    assert {key for key, sample in samples(out).items() if sample["objects"]} == {"valid/1.png"}
    assert any(
        "1 of 2 images are not among the inputs, or are of another split (3.png)" in notice
        for notice in said
    )


def test_the_name_that_an_xml_file_says_has_the_folder_of_the_file(tmp_path, out):
    source = photos(tmp_path / "in", "train/3.png", "val/1.png")
    each(
        tmp_path,
        "xml/val",
        "xml",
        VOC.replace("<size>", "<filename>3.png</filename><size>"),
        ["0003"],
    )
    each(
        tmp_path,
        "xml/val",
        "xml",
        VOC.replace("<size>", "<filename>1.png</filename><size>"),
        ["0001"],
    )
    said = converted(source, out, f"voc:{tmp_path}/xml").notices
    assert {key for key, sample in samples(out).items() if sample["objects"]} == {"val/1.png"}
    assert any(
        "1 XML file without an image among the inputs (val/0003.xml)" in notice for notice in said
    )


def test_a_table_beside_the_source_may_name_its_folder(tmp_path, out):
    source = photos(tmp_path / "in", "1.png", "2.png")
    (tmp_path / "labels.csv").write_text("file_name,label\nin/1.png,a\nin\\2.png,b\n")
    converted(source, out, str(tmp_path / "labels.csv"))
    assert {key: sample["label"] for key, sample in samples(out).items()} == {
        "1.png": 0,
        "2.png": 1,
    }


def test_a_backslash_in_the_name_of_an_input_is_a_part_of_it(tmp_path, out):
    source = photos(tmp_path / "in", "a\\1.png", "2.png")
    (source / "labels.csv").write_text("file_name,label\na\\1.png,a\n2.png,b\n")
    converted(source, out)
    assert shardctl.open(out).classes == ("a", "b")


def slow(names: list[str], paths: list[str]) -> list[int]:
    """The rule for names of unknown start, written anew: the only input of the same last part and
    folders in the same order."""

    def fits(few: list[str], many: list[str]) -> bool:
        return not few or (bool(many) and fits(few[1:] if few[0] == many[0] else few, many[1:]))

    found = []
    for name in names:
        folders, last = name.split("/")[:-1], name.split("/")[-1]
        those = [
            row
            for row, path in enumerate(paths)
            if path.split("/")[-1] == last
            and (fits(folders, path.split("/")[:-1]) or fits(path.split("/")[:-1], folders))
        ]
        found.append(those[0] if len(those) == 1 else -1)
    return found


def test_many_names_as_a_slow_rule_finds_them(tmp_path):
    rng = random.Random(0)
    folders = ["a", "b", "a/b", "c/a", "c"]
    paths = [f"{rng.choice(folders)}/{number}.png" for number in range(300)]
    inputs = Inputs(
        (SourceRoot(str(tmp_path)),),
        pa.table({"path": pa.array(paths), "root": pa.array([0] * len(paths))}),
    )
    names = [f"x/{rng.choice(folders)}/{number}.png" for number in range(310)]
    assert inputs.by_path.find(pa.array(names), "x", [("x/", len(names))]).tolist() == slow(
        names, paths
    )


def test_all_that_a_json_file_names_is_found_or_counted(tmp_path, out):
    rng = random.Random(1)
    paths = [
        f"{split}/{number}.png"
        for split in ("train", "val")
        for number in range(20)
        if rng.random() < 0.7
    ]
    source = photos(tmp_path / "in", *paths)
    names = [
        f"{split}/{number}.png"
        for split in ("train", "val")
        for number in range(20)
        if rng.random() < 0.7
    ]
    file = coco_file(
        tmp_path / "all.json",
        enumerate(names),
        [box(n, (n % 5, 0, 2, 2), id=n) for n in range(len(names))],
    )
    converted(source, out, f"coco:{file}")
    truth: dict[str, Any] = {
        image["file_name"]: image["id"] for image in json.loads(file.read_text())["images"]
    }
    for key, sample in samples(out).items():
        assert (sample["objects"] and sample["objects"]["id"]) == (
            [truth[key]] if key in truth else None
        )


def test_a_folder_far_above_does_not_count(tmp_path, out):
    source = photos(tmp_path / "labels" / "project", "img/a.png", "img/b.png")
    folder = each(source, "txt", "txt", "0 0.5 0.5 0.5 0.5", ["a"])
    converted(source / "img", out, f"yolo:{folder}")
    assert len(samples(out)["a.png"]["objects"]["bbox"]) == 1


def test_labels_of_one_split_are_not_of_the_images_of_another_one(tmp_path):
    source = photos(tmp_path / "in", "images/train/1.png", "images/train/3.png")
    each(source, "labels/val", "txt", "0 0.5 0.5 0.5 0.5", ["3"])
    with pytest.raises(InputError, match="none of the 1 labels is called as an input"):
        converted(source, tmp_path / "out", f"yolo:{source}/labels/val")


def test_captions_beside_images_that_are_sources_themselves(tmp_path, out):
    source = photos(tmp_path / "in", "a.png", "b.png")
    each(source, ".", "txt", "a cat", ["a", "b"])
    shardctl.convert([source / "a.png", source / "b.png"], out, workers=0, labels=["captions:"])
    assert {key: sample["caption"] for key, sample in samples(out).items()} == {
        "a.png": "a cat",
        "b.png": "a cat",
    }


def instances(path: Path, names: list[str]) -> str:
    images = [(number, f"{name}.png") for number, name in enumerate(names)]
    return f"coco:{coco_file(path.with_suffix('.json'), images, [box(number) for number, _ in images])}"


def lines(path: Path, names: list[str]) -> str:
    path.with_suffix(".txt").write_text("".join(f"{name}.png#0\ta cat\n" for name in names))
    return f"captions:{path.with_suffix('.txt')}"


def rows(path: Path, names: list[str]) -> str:
    path.with_suffix(".csv").write_text(
        "file_name,label\n" + "".join(f"{name}.png,cat\n" for name in names)
    )
    return str(path.with_suffix(".csv"))


FILES: dict[str, tuple[Callable[[Path, list[str]], str], str]] = {
    "coco": (instances, "objects"),
    "captions": (lines, "caption"),
    "table": (rows, "label"),
}
"""Forms of which one file has the annotations of all images."""

files = pytest.mark.parametrize("form", FILES)

NOT_THERE = "of another split|no image of it is among the inputs"


def labelled(source: Path, out: Path, labels: str, column: str) -> set[str]:
    """Return the keys of the images that have annotations."""
    converted(
        source,
        out,
        labels,
        split="none",
        **({"lenient_labels": True} if labels.endswith(".csv") else {}),
    )
    found = {key: sample[column] for key, sample in samples(out).items()}
    return {
        key
        for key, value in found.items()
        if value is not None and (column != "objects" or value["bbox"])
    }


@forms
@pytest.mark.parametrize("name", ["train/1", "train/a/1", "a/train2017/1"])
def test_names_of_another_split_than_the_source_are_of_no_input(tmp_path, form, name):
    source = photos(tmp_path / "in" / "val", "1.png")
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source, tmp_path / "out", FORMS[form][0](tmp_path, [name]))


@forms
def test_annotations_in_the_folder_of_a_split_are_not_of_another_one(tmp_path, form):
    source = photos(tmp_path / "in", "val/1.png", "train/2.png")
    make, column = FORMS[form]
    labels = make(photos(tmp_path / "train", "x/3.png"), ["1", "2"])
    assert labelled(source, tmp_path / "out", labels, column) == {"train/2.png"}
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source / "val", tmp_path / "val", labels)


@files
@pytest.mark.parametrize("file", ["train", "labels_train2017"])
def test_the_name_of_a_file_says_of_which_split_its_bare_names_are(tmp_path, form, file):
    source = photos(tmp_path / "in", "val/1.png", "train/2.png", "x/3.png")
    make, column = FILES[form]
    labels = make(tmp_path / file, ["1", "2", "3"])
    assert labelled(source, tmp_path / "out", labels, column) == {"train/2.png", "x/3.png"}
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source / "val", tmp_path / "val", labels)


@files
def test_of_images_of_one_name_the_one_of_the_split_of_the_file_is_meant(tmp_path, form):
    source = photos(tmp_path / "in", "val/1.png", "train/1.png", "x/3.png")
    make, column = FILES[form]
    assert labelled(source, tmp_path / "out", make(tmp_path / "train", ["1", "3"]), column) == {
        "train/1.png",
        "x/3.png",
    }
    with pytest.raises(InputError, match="which may be"):
        converted(source, tmp_path / "all", make(tmp_path / "all", ["1"]))


@files
@pytest.mark.parametrize(
    "name", ["/data/x/train/1", "/data/train/a/1", "C:/data/train/1", "s3://b/train/1"]
)
def test_paths_of_another_machine_and_another_split_are_of_no_input(tmp_path, form, name):
    source = photos(tmp_path / "in" / "val", "a/1.png" if "/a/" in name else "1.png")
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source, tmp_path / "out", FILES[form][0](tmp_path / "all", [name]))


@pytest.mark.parametrize("said", ["1.png", "JPEGImages/1.png"])
@pytest.mark.parametrize("labels", ["xml", "xml/train"])
def test_the_folder_of_an_xml_file_says_its_split(tmp_path, labels, said):
    source = photos(tmp_path / "images", "val/1.png")
    each(
        tmp_path,
        "xml/train",
        "xml",
        VOC.replace("<size>", f"<filename>{said}</filename><size>"),
        ["0"],
    )
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source / "val", tmp_path / "out", f"voc:{tmp_path}/{labels}")


@pytest.mark.parametrize("form", ["coco", "captions"])
def test_a_file_beside_its_own_images_is_not_of_those_of_another_folder(tmp_path, form):
    photos(tmp_path, "a/1.png", "b/1.png")
    with pytest.raises(InputError, match=NOT_THERE):
        converted(tmp_path / "b", tmp_path / "out", FILES[form][0](tmp_path / "a" / "all", ["1"]))


@files
@pytest.mark.parametrize(
    ("file", "name", "source", "path"),
    [
        ("trainval", "1", "val", "1"),
        ("val", "1", "eval", "1"),
        ("train", "1", "any", "1"),
        ("test/all", "1", "test", "train/1"),
        ("test/train", "val/1", "test", "val/1"),
        ("dev/x/all", "1", "train", "1"),
        ("all", "/home/dev/x/1", "images/train", "1"),
        ("in/train/test", "1", "in", "train/1"),
        ("all", "images/1/1", "in", "images/1"),
        ("val", "1", "train/a", "bullet_train/1"),
        ("train", "1", "dev/images", "1"),
    ],
)
def test_words_that_tell_no_other_split_are_no_obstacle(tmp_path, form, file, name, source, path):
    photos(tmp_path / source, f"{path}.png")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    make, column = FILES[form]
    assert labelled(tmp_path / source, tmp_path / "out", make(tmp_path / file, [name]), column) == {
        f"{path}.png"
    }
