"""Which image an annotation belongs to, for all forms of annotations: one rule
(docs/annotations.md)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from making import box, coco_file, converted, mask, photos, samples

import shardctl
from shardctl.errors import InputError
from shardctl.sources.annotations.inputs import PathTable
from shardctl.sources.files import SourceRoot

NFC, NFD = "b\u00e4r", "ba\u0308r"

VOC = (
    "<annotation><size><width>8</width><height>6</height></size><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
    "<xmax>4</xmax><ymax>4</ymax></bndbox></object></annotation>"
)


def each(folder: Path, ending: str, text: str, names: list[str]) -> Path:
    """Write a file for each name."""
    for name in names:
        file = folder / f"{name}.{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def one(file: Path, line: str, names: list[str], head: str = "") -> Path:
    """Write a file with a line for each name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(head + "".join(f"{line.format(name)}\n" for name in names))
    return file


def coco(path: Path, names: list[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [(number, f"{name}.png") for number, name in enumerate(names)]
    objects = [box(number) for number, _ in images]
    return f"coco:{coco_file(path.with_suffix('.json'), images, objects)}"


def masks(path: Path, names: list[str]) -> str:
    for name in names:
        mask(path.with_name("masks") / f"{name}.png", np.ones((6, 8)))
    return f"masks:{path.with_name('masks')}"


BOX, HEAD, LINE = "0 0.5 0.5 0.5 0.5", "file_name,label\n", "{}.png#0\ta cat"
FORMS: dict[str, Callable[[Path, list[str]], str]] = {
    "coco": coco,
    "lines": lambda path, names: f"captions:{one(path.with_suffix('.txt'), LINE, names)}",
    "table": lambda path, names: str(one(path.with_suffix(".csv"), "{}.png,cat", names, HEAD)),
    "yolo": lambda path, names: f"yolo:{each(path.with_name('labels'), 'txt', BOX, names)}",
    "voc": lambda path, names: f"voc:{each(path.with_name('Annotations'), 'xml', VOC, names)}",
    "captions": lambda path, names: (
        f"captions:{each(path.with_name('captions'), 'txt', 'a cat', names)}"
    ),
    "masks": masks,
}
"""What writes the annotations of images of these names into one file, or into a folder beside
it."""

forms = pytest.mark.parametrize("form", [form for form in FORMS if form != "lines"])
files = pytest.mark.parametrize("form", ["coco", "lines", "table"])

NOT_THERE = "of another split|no image of it is among the inputs"


def annotated(source: Path, out: Path, labels: str) -> set[str]:
    """Return the keys of the images that have annotations."""
    lenient = {"lenient_labels": True} if labels.endswith(".csv") else {}
    converted(source, out, labels, split="none", **lenient)
    return {
        key
        for key, sample in samples(out).items()
        for name in ("objects", "caption", "captions", "mask", "label")
        if sample.get(name) is not None and (name != "objects" or sample[name]["bbox"])
    }


@forms
@pytest.mark.parametrize("names", [["val/1", "train/1", "val/3"], ["val/3", "val/1"]])
def test_an_image_of_another_folder_does_not_get_the_annotations_of_a_missing_one(
    tmp_path, form, names
):
    source = photos(
        tmp_path / "in", "train/1.png", "train/2.png", "train/3.png", "val/1.png", "val/2.png"
    )
    there = annotated(source, tmp_path / "out", FORMS[form](tmp_path / "all", names))
    assert there == {f"{name}.png" for name in names} - {"val/3.png"}


@forms
@pytest.mark.parametrize("where", ["in/train", "in"])
def test_names_may_start_above_the_source(tmp_path, form, where):
    photos(tmp_path / "in", "train/1.png", "train/3.png")
    labels = FORMS[form](tmp_path / "all", ["train/1", "val/3"])
    there = annotated(tmp_path / where, tmp_path / "out", labels)
    assert there == {"1.png" if where == "in/train" else "train/1.png"}


@forms
def test_an_image_may_lie_deeper_than_its_annotations_say(tmp_path, form):
    source = photos(tmp_path / "in", "deep/train/1.png", "deep/train/x/2.png")
    labels = FORMS[form](tmp_path / "all", ["train/1", "train/2"])
    there = annotated(source, tmp_path / "out", labels)
    assert there == {"deep/train/1.png", "deep/train/x/2.png"}


@forms
@pytest.mark.parametrize(("image", "name"), [(NFC, NFD), (NFD, NFC)])
def test_names_are_compared_in_one_form_of_unicode(tmp_path, form, image, name):
    source = photos(tmp_path / "in", f"{image}.png", "x.png")
    there = annotated(source, tmp_path / "out", FORMS[form](tmp_path / "all", [name, "x"]))
    assert there == {f"{image}.png", "x.png"}


@forms
def test_two_images_that_are_equal_in_that_form_are_both_named(tmp_path, form):
    source = photos(tmp_path / "in", f"{NFC}.png", f"{NFD}.png")
    with pytest.raises(InputError) as caught:
        converted(source, tmp_path / "out", FORMS[form](tmp_path / "all", [NFC]))
    assert r"b\xe4r.png" in str(caught.value)
    assert r"ba\u0308r.png" in str(caught.value)


def test_the_folder_of_a_data_yaml_tells_which_images_its_labels_are_of(tmp_path, out):
    source = photos(tmp_path / "in", "images/train/1.png", "images/train/3.png")
    each(source / "labels", "txt", BOX, ["val/3", "train/1"])
    (source / "images" / "val").mkdir()
    (source / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [cat]\n")
    assert annotated(source, out, f"yolo:{source}/data.yaml") == {"images/train/1.png"}


def test_a_coco_file_of_one_folder_does_not_annotate_another_one(tmp_path, out):
    source = photos(tmp_path / "in", "train/1.png", "train/3.png", "valid/1.png")
    assert annotated(source, out, coco(source / "valid" / "all", ["1", "3"])) == {"valid/1.png"}


def test_the_name_that_an_xml_file_says_has_the_folder_of_the_file(tmp_path, out):
    source = photos(tmp_path / "in", "train/3.png", "val/1.png")
    for name in ("3", "1"):
        text = VOC.replace("<size>", f"<filename>{name}.png</filename><size>")
        each(tmp_path / "xml", "xml", text, [f"val/000{name}"])
    assert annotated(source, out, f"voc:{tmp_path}/xml") == {"val/1.png"}


def test_a_table_beside_the_source_may_name_its_folder(tmp_path, out):
    source = photos(tmp_path / "in", "1.png", "2.png")
    labels = one(tmp_path / "labels.csv", "{}.png,a", ["in/1", "in\\2"], HEAD)
    assert annotated(source, out, str(labels)) == {"1.png", "2.png"}


def test_a_backslash_in_the_name_of_an_input_is_a_part_of_it(tmp_path, out):
    source = photos(tmp_path / "in", "a\\1.png", "2.png")
    one(source / "labels.csv", "{}.png,a", ["a\\1", "2"], HEAD)
    assert annotated(source, out, "auto") == {"a\\1.png", "2.png"}


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
    inputs = PathTable(
        (SourceRoot(str(tmp_path)),),
        pa.table({"path": pa.array(paths), "root": pa.array([0] * len(paths))}),
    )
    names = [f"x/{rng.choice(folders)}/{number}.png" for number in range(310)]
    assert inputs.by_path.find(pa.array(names), "x", [("x/", len(names))]).tolist() == slow(
        names, paths
    )


def test_a_folder_far_above_does_not_count(tmp_path, out):
    source = photos(tmp_path / "labels" / "project", "img/a.png", "img/b.png")
    assert annotated(source / "img", out, f"yolo:{each(source / 'txt', 'txt', BOX, ['a'])}") == {
        "a.png"
    }


def test_captions_beside_images_that_are_sources_themselves(tmp_path, out):
    source = photos(tmp_path / "in", "a.png", "b.png")
    each(source, "txt", "a cat", ["a", "b"])
    shardctl.convert([source / "a.png", source / "b.png"], out, workers=0, labels=["captions:"])
    assert [sample["caption"] for sample in samples(out).values()] == ["a cat", "a cat"]


"""Forms of which one file has the annotations of all images."""


@forms
@pytest.mark.parametrize("name", ["train/1", "train/a/1", "a/train2017/1"])
def test_names_of_another_split_than_the_source_are_of_no_input(tmp_path, form, name):
    source = photos(tmp_path / "in" / "val", "1.png")
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source, tmp_path / "out", FORMS[form](tmp_path / "all", [name]))


@forms
def test_annotations_in_the_folder_of_a_split_are_not_of_another_one(tmp_path, form):
    source = photos(tmp_path / "in", "val/1.png", "train/2.png")
    labels = FORMS[form](photos(tmp_path / "train", "x/3.png") / "all", ["1", "2"])
    assert annotated(source, tmp_path / "out", labels) == {"train/2.png"}
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source / "val", tmp_path / "val", labels)


@files
@pytest.mark.parametrize("file", ["train", "labels_train2017"])
def test_the_name_of_a_file_says_of_which_split_its_bare_names_are(tmp_path, form, file):
    source = photos(tmp_path / "in", "val/1.png", "val/2.png", "train/2.png", "x/3.png")
    labels = FORMS[form](tmp_path / file, ["1", "2", "3"])
    assert annotated(source, tmp_path / "out", labels) == {"train/2.png", "x/3.png"}
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source / "val", tmp_path / "val", labels)
    with pytest.raises(InputError, match="which may be"):
        converted(source, tmp_path / "all", FORMS[form](tmp_path / "all", ["2"]))


@files
@pytest.mark.parametrize(
    "name", ["/data/x/train/1", "/data/train/a/1", "C:/data/train/1", "s3://b/train/1"]
)
def test_paths_of_another_machine_and_another_split_are_of_no_input(tmp_path, form, name):
    source = photos(tmp_path / "in" / "val", "a/1.png" if "/a/" in name else "1.png")
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source, tmp_path / "out", FORMS[form](tmp_path / "all", [name]))


@pytest.mark.parametrize("said", ["1.png", "JPEGImages/1.png"])
@pytest.mark.parametrize("labels", ["xml", "xml/train"])
def test_the_folder_of_an_xml_file_says_its_split(tmp_path, labels, said):
    source = photos(tmp_path / "images", "val/1.png")
    text = VOC.replace("<size>", f"<filename>{said}</filename><size>")
    each(tmp_path / "xml", "xml", text, ["train/0"])
    with pytest.raises(InputError, match=NOT_THERE):
        converted(source / "val", tmp_path / "out", f"voc:{tmp_path}/{labels}")


@pytest.mark.parametrize("form", ["coco", "lines"])
def test_a_file_beside_its_own_images_is_not_of_those_of_another_folder(tmp_path, form):
    photos(tmp_path, "a/1.png", "b/1.png")
    with pytest.raises(InputError, match=NOT_THERE):
        converted(tmp_path / "b", tmp_path / "out", FORMS[form](tmp_path / "a" / "all", ["1"]))


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
    labels = FORMS[form](tmp_path / file, [name])
    assert annotated(tmp_path / source, tmp_path / "out", labels) == {f"{path}.png"}
