"""Splits that files beside the images tell of: what they say is used, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_this_process import convert
from making import coco_file, photo, photos

import shardctl
from shardctl.errors import DatasetError, InputError

TRAIN, VAL = [f"{number:03d}" for number in range(7)], [f"{number:03d}" for number in range(7, 10)]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lines(names: list[str], form: str = "{}") -> str:
    return "".join(f"{form.format(name)}\n" for name in names)


def yolo(root: Path, data: str) -> tuple[list[Path], list[str]]:
    for name in TRAIN + VAL:
        day = "monday" if name in TRAIN else "friday"
        photo(root / "images" / day / f"{name}.jpg")
        write(root / "labels" / day / f"{name}.txt", "0 0.5 0.5 0.5 0.5\n")
    write(root / "train.txt", lines(TRAIN, "./images/monday/{}.jpg"))
    write(root / "val.txt", lines(VAL, f"{root}/images/friday/{{}}.jpg"))
    write(root / "data.yaml", f"names: [cat]\n{data}\n")
    return [root], [f"yolo:{root / 'data.yaml'}"]


def coco(root: Path) -> tuple[list[Path], list[str]]:
    photos(root / "images", *lines(TRAIN + VAL, "{}.jpg").split())
    files = [
        coco_file(root / f"instances_{split}.json", [(int(n), f"{n}.jpg") for n in names], [])
        for split, names in (("train", TRAIN), ("val", VAL))
    ]
    return [root / "images"], [f"coco:{file}" for file in files]


def voc(root: Path) -> tuple[list[Path], list[str]]:
    photos(root / "JPEGImages", *lines(TRAIN + VAL, "{}.jpg").split())
    for name in TRAIN + VAL:
        write(root / "Annotations" / f"{name}.xml", "<annotation></annotation>")
    lists = {"train": TRAIN, "val": VAL, "trainval": TRAIN + VAL, "cat_train": VAL}
    for split, names in lists.items():
        write(root / "ImageSets" / "Main" / f"{split}.txt", lines(names))
    return [root / "JPEGImages"], [f"voc:{root}"]


def food(root: Path) -> tuple[list[Path], list[str]]:
    for split, names in (("train", TRAIN), ("val", VAL)):
        listed = lines(names, "pie/{}") + lines(names, "soup/{}")  # their last parts are not enough
        photos(root / "images", *(f"{name}.jpg" for name in listed.split()))
        write(root / "meta" / f"{split}.txt", listed)
    return [root], ["auto"]


FORMS: dict[str, Any] = {
    "lists": lambda root: yolo(root, "train: train.txt\nval: val.txt"),
    "folders": lambda root: yolo(root, "train: images/monday\nval: images/friday"),
    "coco": coco,
    "voc": voc,
    "food": food,
}


def splits_of(out: Path) -> dict[str, int]:
    return {split.name: split.samples for split in shardctl.open(out).manifest.splits}


@pytest.mark.parametrize("form", FORMS)
def test_splits_that_files_tell_are_the_splits(tmp_path, out, form):
    sources, labels = FORMS[form](tmp_path / "in")
    for more in ({"dry_run": True}, {}):
        result = convert(sources, out, labels=labels, **more)
        assert "are the splits: train, val" in str(result.notices)
    found = {
        s: {Path(x["key"]).stem for x in shardctl.open(out, split=s)} for s in ("train", "val")
    }
    assert found == {"train": set(TRAIN), "val": set(VAL)}
    assert convert(sources, tmp_path / "one", labels=labels, split="none").warnings == ()
    assert list(splits_of(tmp_path / "one")) == ["train"]
    drawn = convert(sources, tmp_path / "drawn", labels=labels, split="train=0.5,val=0.5")
    assert "are splits (train, val), but split='train=0.5,val=0.5' divides all" in str(
        drawn.warnings
    )


@pytest.mark.parametrize("form", ["lists", "voc", "food"])
def test_an_update_follows_the_lists(tmp_path, out, form):
    sources, labels = FORMS[form](tmp_path / "in")
    convert(sources, out, labels=labels)
    assert convert(sources, out, labels=labels).status == "up-to-date"
    train, val = (next((tmp_path / "in").rglob(f"{name}.txt")) for name in ("train", "val"))
    *rest, moved = train.read_text().splitlines(keepends=True)
    train.write_text("".join(rest))
    val.write_text(val.read_text() + moved)
    with pytest.raises(DatasetError, match="differs in its"):
        convert(sources, out, labels=labels)
    convert(sources, out, update=True, labels=labels)
    convert(sources, tmp_path / "fresh", labels=labels)
    updated, fresh = (
        {
            each["key"]: split
            for split in ("train", "val")
            for each in shardctl.open(path, split=split)
        }
        for path in (out, tmp_path / "fresh")
    )
    assert updated == fresh
    assert [split for key, split in sorted(updated.items()) if "006" in key][-1] == "val"


def test_lists_that_come_later_are_seen(tmp_path, out):
    (source,), _ = food(tmp_path / "in")
    (source / "meta").rename(tmp_path / "meta")
    convert(source, out)
    (tmp_path / "meta").rename(source / "meta")
    convert(source, out, update=True)
    assert list(splits_of(out)) == ["train", "val"]


def test_what_is_told_in_part_or_twice_is_refused(tmp_path, out):
    sources, labels = voc(tmp_path / "in")
    val = tmp_path / "in" / "ImageSets" / "Main" / "val.txt"
    val.write_text(lines(VAL[1:]))
    with pytest.raises(InputError, match=r"names no split for 1 input \(007\.jpg\)"):
        convert(sources, out, labels=labels)
    val.write_text(lines([*VAL, TRAIN[0]]))
    with pytest.raises(InputError, match=r"1 input \(000\.jpg\) in two splits, train and val"):
        convert(sources, out, labels=labels)
    val.write_text(lines([*VAL, "missing"]))
    result = convert(sources, out, labels=labels)
    assert "1 name of no input (missing); skipped" in str(result.notices)


def test_two_splits_of_the_same_images_are_one(tmp_path, out):
    sources, labels = yolo(tmp_path / "in", "train: images\nval: images")
    result = convert(sources, out, labels=labels)
    assert "train and val are the same 10 inputs: one split" in str(result.notices)
    assert list(splits_of(out)) == ["train"]


def test_folders_keep_their_names_and_may_not_contradict(tmp_path, out):
    """As Roboflow writes them."""
    source = photos(tmp_path / "in", "train/images/a.jpg", "valid/images/a.jpg")
    for split in ("train", "valid"):
        write(source / split / "labels" / "a.txt", "0 0.5 0.5 0.5 0.5\n")
    labels = f"yolo:{source}/data.yaml"
    write(source / "data.yaml", "names: [cat]\ntrain: ../train/images\nval: ../valid/images\n")
    convert(source, out, labels=labels)
    assert splits_of(out) == {"train": 1, "valid": 1}
    assert all(len(sample["objects"]["bbox"]) == 1 for sample in shardctl.open(out))
    write(source / "data.yaml", "names: [cat]\nval: ../train/images\ntrain: ../valid/images\n")
    with pytest.raises(InputError, match="puts 2 inputs into another split than the folder"):
        convert(source, tmp_path / "two", labels=labels)
    convert(source, tmp_path / "two", labels=labels, split="lists")
    keys = [x["key"] for x in shardctl.open(tmp_path / "two", split="val")]
    assert keys == ["train/images/a.jpg"]


def test_a_text_that_lists_no_input_is_no_list(tmp_path, out):
    source = photos(tmp_path / "in", "train/0.jpg", "train/1.jpg", "val/2.jpg")
    write(source / "test.txt", "a cat on a mat\n")
    write(source / "val.txt", "x/2.jpg 0\n")
    convert(source, out)
    assert splits_of(out) == {"train": 2, "val": 1}


def test_lists_of_several_splits_that_name_no_input_are_refused(tmp_path, out):
    """As Caffe and Places365 have them, with a label behind each name."""
    source = photos(tmp_path / "in", "images/000.jpg")
    for split in ("train", "val"):
        write(source / f"{split}.txt", "images/000.jpg 0\n")
    with pytest.raises(
        InputError, match=r"no line of .*train\.txt, .*val\.txt is the name of an input"
    ):
        convert(source, out)
    convert(source, out, split="none")
    assert splits_of(out) == {"train": 1}


def test_a_list_of_training_images_does_not_name_those_of_another_folder(tmp_path, out):
    source = photos(tmp_path / "in", "val/1.jpg")
    write(source / "train.txt", "val/1.jpg\n")
    with pytest.raises(InputError, match="puts 1 input into another split than the folder"):
        convert(source, out)
