"""One class in two forms of Unicode, as a Mac and other systems write é, is one class, wherever its
name stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import shards_in
from followed_sources import write, write_lines
from image_files import image
from in_this_process import convert
from tars import tar

import shardctl
from shardctl.errors import InputError

NFC, NFD = "b\u00e4r", "ba\u0308r"
OF = {"1": NFC, "2": NFD, "3": "zebra"}
"""The class of each image."""

VOC = (
    "<annotation><object><name>{}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
    "</annotation>"
)


def images(root: Path) -> Path:
    for name in OF:
        image(root / "in" / f"{name}.png")
    return root / "in"


def folders(root: Path) -> tuple[list[Path], Any]:
    for name, folder in OF.items():
        image(root / "in" / ("val" if folder == NFD else "train") / folder / f"{name}.png")
    return [root / "in"], "auto"


def folders_of_sources(root: Path) -> tuple[list[Path], Any]:
    for name, folder in OF.items():
        image(root / f"in{name}" / "x" / folder / f"{name}.png")
    return [root / f"in{name}" for name in OF], "folder"


def rows(root: Path) -> tuple[list[Path], Any]:
    text = "".join(f"{name}.png,{label}\n" for name, label in OF.items())
    return [images(root)], str(write(root / "rows.csv", f"file_name,label\n{text}"))


def records(root: Path) -> tuple[list[Path], Any]:
    return [write_lines(root / "in.jsonl", ({"label": label} for label in OF.values()))], "auto"


def table(root: Path, *, coded: bool) -> tuple[list[Path], Any]:
    labels = pa.array(OF.values())
    labels = labels.dictionary_encode() if coded else labels
    pq.write_table(pa.table({"label": labels}), root / "in.parquet")
    return [root / "in.parquet"], "auto"


def members(root: Path) -> tuple[list[Path], Any]:
    data = image(root / "1.png").read_bytes()
    files = [(f"{folder}/{name}.png", data) for name, folder in OF.items()]
    return [write(root / "in.tar", tar(files))], "auto"


def voc(root: Path) -> tuple[list[Path], Any]:
    for name, label in OF.items():
        write(root / "xml" / f"{name}.xml", VOC.format(label))
    return [images(root)], f"voc:{root / 'xml'}"


def metadata(root: Path) -> tuple[list[Path], Any]:
    lines = (
        {"file_name": f"{name}.png", "objects": {"bbox": [[1, 1, 2, 2]], "category": [label]}}
        for name, label in OF.items()
    )
    write_lines(images(root) / "metadata.jsonl", lines)
    return [root / "in"], "auto"


def coco(root: Path) -> tuple[list[Path], Any]:
    found = []
    for name, label in OF.items():
        number = int(label == "zebra")
        record = {
            "images": [{"id": 1, "file_name": f"{name}.png"}],
            "annotations": [{"image_id": 1, "category_id": number, "bbox": [1, 1, 2, 2]}],
            "categories": [{"id": number, "name": label}],
        }
        found.append(f"coco:{write_lines(root / f'{name}.json', [record])}")
    return [images(root)], found


FORMS: dict[str, Callable[[Path], tuple[list[Path], Any]]] = {
    "folders": folders,
    "folders of sources": folders_of_sources,
    "rows": rows,
    "records": records,
    "table": lambda root: table(root, coded=False),
    "table of codes": lambda root: table(root, coded=True),
    "members": members,
    "voc": voc,
    "metadata": metadata,
    "coco": coco,
}


def classes_in(out: Path) -> list[str]:
    """Return the name of the class of each sample, in the order of the names."""
    names, found = names_in(out), list[int]()
    for split in shardctl.open(out).manifest.splits:
        for sample in shardctl.open(out, split=split.name):
            found.extend(
                sample["objects"]["category"] if "objects" in sample else [sample["label"]]
            )
    return sorted(names[number] for number in found)


def names_in(out: Path) -> list[str]:
    dataset = shardctl.open(out)
    return list(dataset.classes or dataset.manifest.fields["objects"]["names"])


@pytest.mark.parametrize("form", FORMS)
def test_a_class_in_two_forms_is_one(tmp_path, out, form):
    sources, labels = FORMS[form](tmp_path)
    convert(sources, out, labels=labels)
    assert (classes_in(out), names_in(out)) == ([NFC, NFC, "zebra"], [NFC, "zebra"])
    pins, pinned = write(tmp_path / "classes.txt", f"zebra\n{NFD}\n"), tmp_path / "pinned"
    convert(sources, pinned, labels=labels, classes=pins)
    assert (classes_in(pinned), names_in(pinned)) == ([NFC, NFC, "zebra"], ["zebra", NFC])


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["records", "members"])
def test_records_that_come_later_may_have_the_other_form(tmp_path, out, form):
    all_of_them = tmp_path / "all"
    all_of_them.mkdir()
    for number in range(2):
        (source,), labels = FORMS[form](tmp_path)
        source.rename(all_of_them / f"{number}{source.suffix}")
        status = convert(all_of_them, out, labels=labels, update=True).status
    assert status == "updated"
    next(iter(shards_in(out))).unlink()
    shardctl.repair(out)
    assert classes_in(out) == [NFC] * 4 + ["zebra"] * 2


def test_a_list_of_classes_has_no_name_in_two_forms(tmp_path, out):
    source, labels = images(tmp_path), tmp_path / "labels"
    write(labels / "1.txt", "1 0.5 0.5 1 1")
    data = write(tmp_path / "data.yaml", f"train: in\nnames: [{NFC}, {NFD}]\n")
    classes = write(labels / "classes.txt", f"{NFC}\n{NFD}\n")
    for options, says in (
        ({"labels": f"yolo:{data}"}, "names are a list of different names"),
        ({"labels": f"yolo:{labels}"}, "repeats"),
        ({"classes": classes}, "each class on one line"),
    ):
        with pytest.raises(InputError, match=says):
            convert(source, out, **options)
    write(classes, f"{NFD}\ncat\n")
    convert(source, out, labels=f"yolo:{labels}")
    assert names_in(out) == [NFC, "cat"]
