from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from making import converted, photos, rejects, samples

import shardctl
from shardctl.errors import InputError
from shardctl.sources.annotations.yolo import Setup, parse


def labelled(
    root: Path, lines: dict[str, str], images: tuple[str, ...] = ("a.png", "b.png")
) -> Path:
    """images/ and labels/ with a file for each that is given."""
    photos(root / "images", *images)
    (root / "labels").mkdir(exist_ok=True)
    for name, text in lines.items():
        path = root / "labels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def objects_of(root: Path, out: Path, labels: str, **options: Any) -> dict[str, Any]:
    converted(root / "images", out, labels, **options)
    return {key: sample["objects"] for key, sample in samples(out).items()}


def test_boxes_are_shares_of_the_image_around_their_centre(tmp_path, out):
    root = labelled(
        tmp_path / "in",
        {"a.txt": "1 0.5 0.5 0.5 0.5\n\n0 0.25 0.5 0.25 1 \n", "classes.txt": "cat\ndog\n"},
    )
    found = objects_of(root, out, f"yolo:{root}/labels")
    assert found["a.png"] == {"category": [1, 0], "bbox": [[2, 1.5, 4, 3], [1, 0, 2, 6]]}
    assert found["b.png"] == {"category": [], "bbox": []}, "no file: background"
    assert shardctl.open(out).manifest.fields["objects"] == {
        "role": "objects",
        "names": ["cat", "dog"],
    }


def test_polygons_give_their_boxes(tmp_path):
    root = labelled(
        tmp_path / "in",
        {"a.txt": "0 0 0 0.5 0 0.5 0.5\n0 0.5 0.5 1 1", "b.txt": "2 0.25 0 1 0 1 1 0.25 1 0 0.5"},
    )
    found = objects_of(root, tmp_path / "out", f"yolo:{root}/labels")
    assert found["a.png"] == {
        "category": [0, 0],
        "bbox": [[0, 0, 4, 3], [0, 0, 8, 6]],
        "segmentation": [[[0, 0, 4, 0, 4, 3]], []],
    }
    assert found["b.png"]["bbox"] == [[0, 0, 8, 6]]


@pytest.mark.parametrize("task", ["segment", "obb"])
def test_nine_numbers_take_a_task(tmp_path, out, task):
    root = labelled(tmp_path / "in", {"a.txt": "0 0.5 0 1 0.5 0.5 1 0 0.5"})
    with pytest.raises(
        InputError,
        match=r"a\.txt: line 1: nine numbers may be a polygon .* yolo_task='segment' or "
        r"yolo_task='obb'",
    ):
        converted(root / "images", out, f"yolo:{root}/labels")
    found = objects_of(root, out, f"yolo:{root}/labels", yolo_task=task)
    assert found["a.png"]["segmentation"] == [[[4, 0, 8, 3, 4, 6, 0, 3]]]
    assert found["a.png"]["bbox"] == [[0, 0, 8, 6]]


POSE = "kpt_shape: [2, 3]\nflip_idx: [1, 0]\n"


def test_a_data_file_says_folders_names_and_keypoints(tmp_path, out):
    root = labelled(
        tmp_path / "in",
        {"train/a.txt": "0 0.5 0.5 1 1 0.5 0.5 2 0 0 0", "val/a.txt": "1 0.5 0.5 1 1 0 0 0 1 1 1"},
        ("train/a.png", "val/a.png"),
    )
    (root / "data.yaml").write_text(
        f"path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n{POSE}"
    )
    found = objects_of(root, out, f"yolo:{root}/data.yaml")
    assert found["train/a.png"]["category"] == [0]
    assert found["train/a.png"]["keypoints"] == [[[4, 3, 2], [0, 0, 0]]]
    assert found["val/a.png"]["keypoints"] == [[[0, 0, 0], [8, 6, 1]]]
    role = shardctl.open(out).manifest.fields["objects"]
    assert role["names"] == ["cat", "dog"]
    assert role["flip"] == [1, 0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0 0.5 0.5 0.5", "line 2: 4 numbers, and it takes 5"),
        ("0 nan 0.5 0.5 0.5", "line 2: a number is not finite"),
        ("0 x 0.5 0.5 0.5", "line 2: it has something else than numbers"),
        ("2 0.5 0.5 0.5 0.5", "line 2: 2 is not the number of a class; the classes are 0 to 1"),
        ("0.5 0.5 0.5 0.5 0.5", "line 2: 0.5 is not the number of a class"),
        ("0 320 200 100 80", "line 2: 320 is not a share of the image's size, 0 to 1"),
        ("0 0 0 0.5 0 0.5 2", "line 2: 2 is not a share"),
        ("0" + " 0.5" * 13, "line 2: 14 numbers.* give a data.yaml that says kpt_shape"),
        ("0 0.5 0.5 1 1" + " 0.5 0.5 2" * 2, "line 2: 2 is not .* give a data.yaml"),
    ],
)
def test_a_wrong_line_rejects_its_image_alone(tmp_path, out, line, says):
    lines = {
        "a.txt": f"0 0.5 0.5 1 1\n{line}\n",
        "b.txt": "1 0.5 0.5 1 1",
        "classes.txt": "cat\ndog",
    }
    root = labelled(tmp_path / "in", lines)
    converted(root / "images", out, f"yolo:{root}/labels")
    ((key, (error, message)),) = rejects(out).items()
    assert (key, error) == ("a.png", "bad-annotation")
    assert re.search(f"a.txt: {says}", message)


@pytest.mark.parametrize(
    ("task", "line"),
    [
        (None, "0 1.005 0.5 1.01 0"),
        (None, "0 -0.01 0 0.5 0 0.5 1.01"),
        ("obb", "0 -0.2 0.5 0.2 0.1 0.6 0.5 0.2 0.9"),
        ("pose", "0 0.5 0.5 1 1 -3 7 0 0.5 0.5 2"),
    ],
)
def test_what_tools_write_close_to_the_edge_is_taken(task, line):
    assert parse(line.encode(), Setup((), None, task, (2, 3)))["category"] == [0]


@pytest.mark.parametrize("empty", [True, False])
def test_a_split_without_labels_is_background(tmp_path, out, empty):
    root = labelled(tmp_path / "in", {"train/a.txt": "0 0.5 0.5 1 1"}, ("train/a.png", "val/b.png"))
    if empty:
        (root / "labels" / "val").mkdir()
    data = "train: images/train\nval: images/val\ntest: images/none\nnames: [cat]\n"
    (root / "data.yaml").write_text(data)
    said = converted(root / "images", out, f"yolo:{root}/data.yaml").notices
    assert samples(out)["val/b.png"]["objects"]["category"] == []
    assert re.search("no labels in .*labels/val.* background", str(said))
    assert "images/none (not there)" in str(said)
    given = converted(root / "images", tmp_path / "folder", f"yolo:{root}").notices
    assert "data.yaml is not read" in str(given)


def test_nine_numbers_of_a_pose_are_its_keypoints():
    found = parse(b"0 0.5 0.5 1 1 0.1 0.2 0 0", Setup((), None, "pose", (2, 2)))
    assert found["keypoints"] == [[[0.1, 0.2, 2.0], [0.0, 0.0, 0.0]]]
    with pytest.raises(InputError, match="nine numbers"):
        parse(b"0 0.5 0.5 1 1 0.1 0.2 0 0", Setup(()))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("names: [a", "not YAML"),
        ("- 1", "not a data.yaml"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
        ("names: [a, a]\ntrain: images", "names are a list of different names"),
        ("names: {0: a, 2: b}\ntrain: images", "names must be numbered 0 to 1 without gaps"),
        ("names: [a]\ntrain: nowhere", r"no folder of labels.*\(nowhere\)"),
        ("names: [a, {en: b, de: c}]\ntrain: images", "names are a list of different names"),
        ("nc: 3\nnames: [a, b]\ntrain: images", "nc is 3, and there are 2 names"),
        ("names: [a]\ntrain: images\ntask: classify", "the task classify is not one of"),
        ("names: [a]\ntrain: images\ntask: pose", "task pose needs kpt_shape"),
        ("names: [a]\ntrain: images\nkpt_shape: [3]", "kpt_shape is a number of keypoints and 2"),
        ("names: [a]\nkpt_shape: [2, 3]\nflip_idx: [0, 0]", "has each of the 2 keypoints once"),
        ("names: [a]\nkpt_shape: [2, 3]\nflip_idx: [one, zero]", "of the 2 keypoints once"),
        ("names: &a [*a]\n", "1,000,000 values"),
        (
            "a: &a0 [x, x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
            "1,000,000 values",
        ),
    ],
)
def test_a_wrong_data_file_is_refused(tmp_path, text, says):
    root = labelled(tmp_path / "in", {"a.txt": "0 0.5 0.5 1 1"})
    (root / "data.yaml").write_text(text)
    with pytest.raises(InputError, match=f"{re.escape(str(root))}/data.yaml.*{says}"):
        converted(root / "images", tmp_path / "out", f"yolo:{root}/data.yaml")


def test_names_are_the_texts_that_are_written(tmp_path, out):
    root = labelled(tmp_path / "in", {"a.txt": "1 0.5 0.5 1 1"})
    names = ["yes", "no", "~", "012", "1_000", "1e3", "2024-01-01", "null", "0x1F", "é"]
    head = "defaults: &d\n  nc: 10\n<<: *d\ntrain: images\nval:\ntest: ~\nnames: "
    for form in (
        f"[{', '.join(names)}]",
        "".join(f"\n- {name}" for name in names),
        "".join(f"\n  {n}: {v}" for n, v in enumerate(names)),
    ):
        (root / "data.yaml").write_text(f"{head}{form}\n", "utf-8")
        said = converted(root / "images", out, f"yolo:{root}/data.yaml", overwrite=True).notices
        assert shardctl.open(out).manifest.fields["objects"]["names"] == names
        assert "not there" not in str(said)


def test_labels_of_no_image_are_counted_and_those_of_none_at_all_refused(tmp_path):
    root = labelled(tmp_path / "in", {"a.txt": "0 0.4 0.5 1 1", "gone.txt": "0 0.5 0.5 1 1"})
    said = str(converted(root / "images", tmp_path / "out", f"yolo:{root}/labels").notices)
    assert "1 label file without an image among the inputs (gone.txt); skipped" in said
    assert "1 of 2 inputs without label file: background" in said
    assert "1 box reaches outside of the image; kept" in said
    (root / "labels" / "a.txt").unlink()
    with pytest.raises(InputError, match="none of the 1 labels is called as an input"):
        converted(root / "images", tmp_path / "new", f"yolo:{root}/labels")


@pytest.mark.parametrize("beside", [True, False])
def test_labels_that_a_data_file_does_not_lead_to_are_not_left_out(tmp_path, out, beside):
    names = ("train/a.png", "more/b.png", "none/c.png")
    lines = dict.fromkeys(("train/a.txt", "more/b.txt"), "0 0.5 0.5 1 1")
    root, folder = labelled(tmp_path / "in", lines, names), "images"
    if beside:
        folder = "pictures"
        (root / "images").rename(root / folder)
        for file in lines:
            (root / "labels" / file).rename(root / folder / file)
    source, given = root / folder, f"yolo:{root}/data.yaml"
    (root / "data.yaml").write_text(f"train: {folder}/train\nnames: [cat]\n")
    with pytest.raises(InputError, match=r"no folder with more/b\.png, whose labels are "):
        converted(source, out, given, split="none")
    (root / "data.yaml").write_text(f"train: {folder}/train\nval: {folder}/more\nnames: [cat]\n")
    converted(source, out, given, split="none")
    found = [len(sample["objects"]["bbox"]) for _, sample in sorted(samples(out).items())]
    assert found == [1, 0, 1]
