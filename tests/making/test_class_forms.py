"""One class in two forms of Unicode, as a Mac and other systems write é, is one class, wherever its
name stands."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from in_this_process import convert
from PIL import Image

import shardctl
from shardctl.errors import InputError

NFC, NFD = "b\u00e4r", "ba\u0308r"
OF = {"1": NFC, "2": NFD, "3": "zebra"}
"""The class of each image."""

VOC = (
    "<annotation><object><name>{}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
    "</annotation>"
)


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30)).save(path)


def images(root: Path) -> Path:
    for name in OF:
        image(root / "in" / f"{name}.png")
    return root / "in"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


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
    return [
        write(
            root / "in.jsonl", "".join(json.dumps({"label": label}) + "\n" for label in OF.values())
        )
    ], "auto"


def table(root: Path, *, coded: bool) -> tuple[list[Path], Any]:
    labels = pa.array(OF.values())
    pq.write_table(
        pa.table({"label": labels.dictionary_encode() if coded else labels}), root / "in.parquet"
    )
    return [root / "in.parquet"], "auto"


def members(root: Path) -> tuple[list[Path], Any]:
    image(root / "1.png")
    data = (root / "1.png").read_bytes()
    with tarfile.open(root / "in.tar", "w") as tar:
        for name, folder in OF.items():
            info = tarfile.TarInfo(f"{folder}/{name}.png")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return [root / "in.tar"], "auto"


def voc(root: Path) -> tuple[list[Path], Any]:
    for name, label in OF.items():
        write(root / "xml" / f"{name}.xml", VOC.format(label))
    return [images(root)], f"voc:{root / 'xml'}"


def metadata(root: Path) -> tuple[list[Path], Any]:
    lines = (
        json.dumps(
            {"file_name": f"{name}.png", "objects": {"bbox": [[1, 1, 2, 2]], "category": [label]}}
        )
        for name, label in OF.items()
    )
    write(images(root) / "metadata.jsonl", "\n".join(lines))
    return [root / "in"], "auto"


def coco(root: Path) -> tuple[list[Path], Any]:
    found = []
    for number, (name, label) in enumerate(OF.items()):
        record = {
            "images": [{"id": number, "file_name": f"{name}.png"}],
            "annotations": [
                {"image_id": number, "category_id": int(label == "zebra"), "bbox": [1, 1, 2, 2]}
            ],
            "categories": [{"id": int(label == "zebra"), "name": label}],
        }
        found.append(f"coco:{write(root / f'{name}.json', json.dumps(record))}")
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
    """Return the name of the class of each sample."""
    names, found = names_in(out), list[int]()
    for split in shardctl.open(out).manifest.splits:
        for sample in shardctl.open(out, split=split.name):
            found.extend(
                sample["objects"]["category"] if "objects" in sample else [sample["label"]]
            )
    return [names[number] for number in found]


def names_in(out: Path) -> list[str]:
    dataset = shardctl.open(out)
    return list(dataset.classes or dataset.manifest.fields["objects"]["names"])


@pytest.mark.parametrize("form", FORMS)
def test_a_class_in_two_forms_is_one(tmp_path, out, form):
    sources, labels = FORMS[form](tmp_path)
    convert(sources, out, labels=labels)
    assert sorted(classes_in(out)) == [NFC, NFC, "zebra"]
    assert names_in(out) == [NFC, "zebra"]
    pins = write(tmp_path / "classes.txt", f"zebra\n{NFD}\n")
    convert(sources, tmp_path / "pinned", labels=labels, classes=pins)
    assert sorted(classes_in(tmp_path / "pinned")) == [NFC, NFC, "zebra"]
    assert names_in(tmp_path / "pinned") == ["zebra", NFC]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", ["records", "members"])
def test_records_that_come_later_may_have_the_other_form(tmp_path, out, form):
    (source,), labels = FORMS[form](tmp_path)
    (tmp_path / "all").mkdir()
    source.rename(tmp_path / "all" / f"1{source.suffix}")
    convert(tmp_path / "all", out, labels=labels)
    (tmp_path / "more").mkdir()
    (more,), _ = FORMS[form](tmp_path / "more")
    more.rename(tmp_path / "all" / f"2{source.suffix}")
    assert convert(tmp_path / "all", out, labels=labels, update=True).status == "updated"
    next(out.glob("*-0*.arrow")).unlink()
    shardctl.repair(out)
    assert sorted(classes_in(out)) == [NFC] * 4 + ["zebra"] * 2


def test_a_list_of_classes_has_no_name_in_two_forms(tmp_path, out):
    source = images(tmp_path)
    write(tmp_path / "labels" / "1.txt", "1 0.5 0.5 1 1")
    data = write(tmp_path / "data.yaml", f"train: in\nnames: [{NFC}, {NFD}]\n")
    with pytest.raises(InputError, match="names are a list of different names"):
        convert(source, out, labels=f"yolo:{data}")
    for text, says in ((f"{NFC}\n{NFD}\n", "repeats"), (f"{NFD}\ncat\n", None)):
        write(tmp_path / "labels" / "classes.txt", text)
        if says:
            with pytest.raises(InputError, match=says):
                convert(source, out, labels=f"yolo:{tmp_path / 'labels'}")
            with pytest.raises(InputError, match="each once"):
                convert(source, out, classes=tmp_path / "labels" / "classes.txt")
        else:
            convert(source, out, labels=f"yolo:{tmp_path / 'labels'}")
    assert names_in(out) == [NFC, "cat"]
