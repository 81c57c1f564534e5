"""The names of classes that lie beside masks and YOLO labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from making import converted, mask, photos, values_of

import shardctl
from shardctl.errors import InputError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An image, its mask, its YOLO label."""
    source = photos(tmp_path / "in", "images/a.png")
    mask(source / "masks" / "a.png", values_of((8, 6), 2))
    (source / "labels").mkdir()
    (source / "labels" / "a.txt").write_text("0 0.5 0.5 1 1")
    return source


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("\ufeffsky\nroad\r\n\n", ["sky", "road"]),
        ("sky\n\nroad", "line 2: it is blank"),
        ("sky\nroad\nsky", "line 3: it repeats sky"),
        ("\n", None),
    ],
)
@pytest.mark.parametrize(
    ("labels", "column"), [("masks:masks", "mask"), ("yolo:labels", "objects")]
)
def test_each_line_of_a_list_of_classes_is_a_name(source, out, labels, column, text, names):
    form, folder = labels.split(":")
    (source / folder / "classes.txt").write_text(text, encoding="utf-8", newline="")
    given = f"{form}:{source / folder}"
    if isinstance(names, str):
        with pytest.raises(InputError, match=f"classes.txt, {names}"):
            converted(source, out, given)
    else:
        converted(source, out, given)
        assert shardctl.open(out).manifest.fields[column].get("names") == names


@pytest.mark.parametrize("other", ["dog\ncat\n", "cat\ndog\ncow\n"])
@pytest.mark.parametrize("where", ["labels/val/classes.txt", "data.yaml"])
def test_lists_of_classes_that_differ_are_both_named(source, out, other, where):
    (source / "labels" / "classes.txt").write_text("cat\ndog\n")
    (source / "labels" / "val").mkdir()
    yaml = where == "data.yaml"
    text = f"train: images\nnames: [{', '.join(other.split())}]\n" if yaml else other
    (source / where).write_text(text)
    with pytest.raises(InputError, match=r"(classes.txt|data.yaml) and .*have different classes"):
        converted(source, out, f"yolo:{source / (where if yaml else 'labels')}")


def test_a_list_of_classes_may_lie_beside_the_folder_of_labels(source, out):
    (source / "classes.txt").write_text("cat\ndog\n")
    converted(source, out, f"yolo:{source}/labels")
    assert shardctl.open(out).manifest.fields["objects"]["names"] == ["cat", "dog"]
