"""The names of classes that lie beside masks and YOLO labels."""

from __future__ import annotations

import pytest
from making import converted, mask, photos, values_of

import shardctl
from shardctl.errors import InputError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("\ufeffsky\nroad\r\n\n", ("sky", "road")),
        ("sky\n\nroad", None),
        ("sky\nroad\nsky", None),
        ("\n", None),
    ],
)
@pytest.mark.parametrize("form", ["masks", "yolo"])
def test_each_line_of_a_list_of_classes_is_a_name(tmp_path, out, form, text, names):
    source = photos(tmp_path / "in", "a.png")
    mask(tmp_path / "masks" / "a.png", values_of((8, 6), 2))
    (tmp_path / "yolo").mkdir()
    (tmp_path / "yolo" / "a.txt").write_text("0 0.5 0.5 1 1")
    (tmp_path / form / "classes.txt").write_text(text, encoding="utf-8", newline="")
    if names is None and text.strip():
        with pytest.raises(InputError, match=r"classes.txt, line [23]: it (is blank|repeats sky)"):
            converted(source, out, f"{form}:{tmp_path / form}")
        return
    converted(source, out, f"{form}:{tmp_path / form}")
    role = shardctl.open(out).manifest.fields["mask" if form == "masks" else "objects"]
    assert role.get("names") == (list(names) if names else None)


@pytest.mark.parametrize("other", ["dog\ncat\n", "cat\ndog\ncow\n"])
@pytest.mark.parametrize("where", ["labels/val/classes.txt", "data.yaml"])
def test_lists_of_classes_that_differ_are_both_named(tmp_path, other, where):
    source = photos(tmp_path / "in", "images/train/a.png", "images/val/a.png")
    for split in ("train", "val"):
        (source / "labels" / split).mkdir(parents=True)
        (source / "labels" / split / "a.txt").write_text("0 0.5 0.5 1 1")
    (source / "labels" / "train" / "classes.txt").write_text("cat\ndog\n")
    text = (
        other if where != "data.yaml" else f"train: images\nnames: [{', '.join(other.split())}]\n"
    )
    (source / where).write_text(text)
    with pytest.raises(
        InputError,
        match=r"classes.txt and .*have different classes|data.yaml and .*have different classes",
    ):
        converted(
            source,
            tmp_path / "out",
            f"yolo:{source / (where if where == 'data.yaml' else 'labels')}",
        )


def test_a_list_of_classes_may_lie_beside_the_folder_of_labels(tmp_path, out):
    source = photos(tmp_path / "in", "images/a.png")
    (source / "labels").mkdir()
    (source / "labels" / "a.txt").write_text("1 0.5 0.5 1 1")
    (source / "classes.txt").write_text("cat\ndog\n")
    converted(source, out, f"yolo:{source}/labels")
    assert shardctl.open(out).manifest.fields["objects"]["names"] == ["cat", "dog"]
