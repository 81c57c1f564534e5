"""What is marked in images goes out as COCO and as YOLO, and comes back through their readers as it
was."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dataset_facts import tree
from in_this_process import convert, export
from made import picture, table
from PIL import Image, ImageOps
from tars import members_of, tar

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.images.codecs import rle

KEYS = ("a/x.jpg", "../up", "new\nline.jpg", "A.jpg", "a.jpg", "café/ü: 1", "con")
"""Names that file systems and readers could take for something else."""

ROLE: dict[str, Any] = {
    "role": "objects",
    "names": ["cat", 'a "dog": #1', "yes"],
    "ids": [3, 7, 90],
    "supercategories": ["animal", "", "word"],
    "keypoints": ["left_ear", "right_ear"],
    "skeleton": [[0, 1]],
    "flip": [1, 0],
}
BOXES: dict[str, Any] = {"bbox": [[0, 0.1, 2.3, 3], [1.1, 2, 3.7, 1]], "category": [2, 0]}
POLYGONS = {
    **BOXES,
    "segmentation": [[[0, 0.1, 2.3, 0.1, 2.3, 3.1]], [[1.1, 2, 4.8, 2, 4.8, 3, 1.1, 3]]],
}
POINTS = {**BOXES, "keypoints": [[[0.6, 1.5, 2], [3.25, 2.5, 1]], [[0, 0, 0], [4.5, 2.5, 0.5]]]}


def turned(number: int) -> bytes:
    """Return an image of one colour that EXIF turns: it is the same when it is written turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    target = io.BytesIO()
    Image.new("RGB", (6, 8), (number,) * 3).save(target, "JPEG", exif=exif)
    return target.getvalue()


def all_members() -> dict[str, Any]:
    """Return objects with all that COCO knows: two polygons, an RLE of a crowd, and keypoints."""
    mask = np.zeros((6, 8), bool)
    mask[1:3, 2:7] = True
    return {
        "id": [900, 5, 17],
        "category": [2, 0, 0],
        "bbox": [[0, 0.1, 2.3, 3], [2, 1, 5, 2], [-1.5, 0, 3, 3]],
        "area": [3.3, 10, 7],
        "iscrowd": [False, True, False],
        "segmentation": [[[0, 0.1, 2.3, 0.1, 2.3, 3.1], [4, 4, 5, 4, 5, 5.7]], [], []],
        "rle": [None, {"size": [6, 8], "counts": rle.encode(mask)}, None],
        "keypoints": [[[0.6, 1.5, 2], [3.25, 2.5, 1]], [], [[0, 0, 0], [7.5, 0.5, 0.7]]],
    }


def write(
    folder: Path, objects: dict[str, Any], role: dict[str, Any] = ROLE, **more: list[Any]
) -> Path:
    """Write images with all the objects, with none, not annotated, with the first object only, and
    so on: `val` has none.

    One is turned by EXIF. `more` has a column of values.
    """
    samples = []
    for n, key in enumerate(KEYS):
        mine = dict(objects)
        if "id" in mine:
            mine["id"] = [number + 1000 * n for number in mine["id"]]
        nothing, first = ({name: items[:most] for name, items in mine.items()} for most in (0, 1))
        sample = {
            "key": key,
            "image": turned(n) if n == 3 else picture(n),
            "objects": (mine, nothing, None, first)[n % 4],
        }
        samples.append({**sample, **{name: more[name][n] for name in more}})
    splits = {"train": samples[:5], "val": samples[5:]}
    shardctl.write(folder, splits, roles={"objects": role}, samples_per_shard=3)
    return folder


def write_splits(
    folder: Path, splits: dict[str, dict[str, Any] | None], role: dict[str, Any] = ROLE
) -> Path:
    """Write splits of one image with these objects, whose keys are 0, 1, ..."""
    samples = {
        split: [{"key": str(n), "image": picture(n), "objects": objects}]
        for n, (split, objects) in enumerate(splits.items())
    }
    shardctl.write(folder, samples, roles={"objects": role})
    return folder


def lost_of(result: shardctl.ExportResult, column: str) -> str:
    """Return what is lost of a column that is written all the same."""
    (field,) = (each for each in result.fields if each.name == column)
    assert field.written is not None
    return field.loss or ""


def objects_of(dataset: Path) -> dict[bytes, Any]:
    """Return the objects by the upright pixels of their images."""
    return {pixels_of(row["image"]["bytes"]): row["objects"] for row in rows_of(dataset)}


def pixels_of(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as image:
        return ImageOps.exif_transpose(image).tobytes()


def rows_of(dataset: Path) -> list[dict[str, Any]]:
    splits = json.loads((dataset / "manifest.json").read_text())["splits"]
    return [row for split in splits for row in table(dataset, split["name"]).to_pylist()]


def role_of(dataset: Path) -> Any:
    return json.loads((dataset / "manifest.json").read_text())["fields"]["objects"]


def instances(folder: Path, split: str = "train") -> Any:
    return json.loads((folder / "annotations" / f"instances_{split}.json").read_text())


def from_coco(out: Path, dst: Path) -> Path:
    files = [f"coco:{path}" for path in sorted((out / "annotations").iterdir())]
    assert convert(out, dst, labels=files).rejected == 0
    return dst


def from_yolo(out: Path, dst: Path) -> Path:
    assert convert(out / "images", dst, labels=f"yolo:{out / 'data.yaml'}").rejected == 0
    return dst


# --- JSON ---


def test_the_counts_of_an_rle_are_the_text_that_readers_of_coco_take(tmp_path):
    before = write(tmp_path / "in", all_members())
    export(before, tmp_path / "files", "files")
    export(before, tmp_path / "tars", "webdataset")
    (line, *_) = (tmp_path / "files" / "train" / "metadata.jsonl").read_text().splitlines()
    members = members_of(tmp_path / "tars" / "train-00000.tar")
    in_tar = next(data for name, data in members.items() if name.endswith(".json"))
    of_pycocotools = {"size": [6, 8], "counts": "=2400000005"}
    for text in (line, in_tar):
        assert json.loads(text)["objects"]["rle"] == [None, of_pycocotools, None]


# --- COCO ---


def test_all_that_coco_knows_comes_back_as_it_was(tmp_path, out):
    before = write(tmp_path / "in", all_members())
    result = export(before, out, "coco")
    after = from_coco(out, tmp_path / "back")
    assert objects_of(after) == objects_of(before)
    assert role_of(after) == role_of(before)
    assert result.counts == {
        "train": {"samples": 5, "objects": 7},
        "val": {"samples": 2, "objects": 0},
    }
    assert any("2 images not annotated" in note for note in result.notes)


def test_images_have_safe_names_and_those_that_are_not_annotated_are_not_listed(tmp_path, out):
    export(write(tmp_path / "in", all_members()), out, "coco")
    twins = ["train/A~~1-0.jpg", "train/a~~1-1.jpg"]
    others = ["train/a_x.jpg", "train/_.._up.jpg", "train/new_line.jpg"]
    names = {name for name in tree(out) if name.endswith(".jpg")}
    assert names == {*twins, *others, "val/café_ü_ 1.jpg", "val/_con.jpg"}
    listed = [f"train/{image['file_name']}" for image in instances(out)["images"]]
    assert listed == [*others[:2], *twins]
    val = instances(out, "val")
    assert val["images"] == [{"id": 1, "file_name": "café_ü_ 1.jpg", "width": 8, "height": 6}]
    assert val["annotations"] == []


def test_a_file_of_coco_says_what_its_tools_need(tmp_path, out):
    export(write(tmp_path / "in", all_members()), out, "coco")
    said = instances(out)
    assert {"info", "licenses", "categories", "images", "annotations"} == set(said)
    assert [category["id"] for category in said["categories"]] == [3, 7, 90]
    assert said["categories"][0]["skeleton"] == [[1, 2]]
    first, crowd, _ = said["annotations"][:3]
    assert first["category_id"] == 90
    assert first["num_keypoints"] == 2
    assert first["keypoints"][3:] == [2.75, 2.0, 1]
    assert first["bbox"] == [0, 0.1, 2.3, 3]
    assert first["area"] == 3.3  # float32, with no more digits than it takes
    assert crowd["iscrowd"] == 1
    assert crowd["segmentation"]["size"] == [6, 8]
    assert "keypoints" not in crowd


def test_areas_that_are_not_known_are_those_of_the_shape(tmp_path, out):
    full = all_members()
    objects = {
        **{name: full[name] for name in ("bbox", "category", "rle")},
        "segmentation": [POLYGONS["segmentation"][1], [], []],
    }
    export(write(tmp_path / "in", objects), out, "coco")
    areas = [each["area"] for each in instances(out)["annotations"][:3]]
    assert areas == pytest.approx([3.7, 10, 9])


@pytest.mark.parametrize(
    ("ids", "written", "own"),
    [
        ([7, 7, 5], [1, 2, 3], [1, 2, 3, 4, 5, 6]),
        ([None, 7, 5], [1, 2, 3], [1, 2, 3, 4, 5, 6]),
        ([-4, 2**40, 0], [-4, 2**40, 0], [-4, 1000, 2**40, 1001, 0, 1002]),
    ],
)
def test_ids_are_kept_where_all_differ_and_counted_from_1_else(ids, written, own, tmp_path, out):
    samples = [
        {"image": picture(n), "image_id": number, "objects": {**BOXES, "id": [number, 1000 + n]}}
        for n, number in enumerate(ids)
    ]
    roles = {"objects": {"role": "objects", "names": ["a", "b", "c"]}}
    shardctl.write(tmp_path / "in", samples, roles=roles, samples_per_shard=2)
    export(tmp_path / "in", out, "coco")
    said = instances(out)
    assert [image["id"] for image in said["images"]] == written
    assert [each["image_id"] for each in said["annotations"]] == np.repeat(written, 2).tolist()
    assert [each["id"] for each in said["annotations"]] == own
    assert [category["id"] for category in said["categories"]] == [1, 2, 3]


def test_categories_without_names_are_called_by_their_numbers(tmp_path, out):
    result = export(write(tmp_path / "in", BOXES, {"role": "objects"}), out, "coco")
    assert instances(out)["categories"] == [{"id": n + 1, "name": str(n)} for n in range(3)]
    assert any("no names" in note for note in result.notes)
    back = from_coco(out, tmp_path / "back")
    assert objects_of(back).keys() == objects_of(tmp_path / "in").keys()


def test_a_split_that_is_not_annotated_has_images_only(tmp_path, out):
    export(write_splits(tmp_path / "in", {"train": BOXES, "test": None}), out, "coco")
    assert {"test/1.jpg", "train/0.jpg", "annotations/instances_train.json"} == set(tree(out)) - OWN
    assert objects_of(from_coco(out, tmp_path / "back"))[pixels_of(picture(1))] is None


# --- YOLO ---


@pytest.mark.parametrize(
    ("task", "objects"), [("detect", BOXES), ("segment", POLYGONS), ("pose", POINTS)]
)
def test_the_objects_of_each_task_come_back(task, objects, tmp_path, out):
    before = write(tmp_path / "in", objects)
    result = export(before, out, "yolo", task=task, on_loss="drop")
    assert "not annotated" in lost_of(result, "objects")
    after = from_yolo(out, tmp_path / "back")
    returned = objects_of(after)
    for image, there in objects_of(before).items():
        assert returned[image]["category"] == (there["category"] if there else [])
        for member in objects if there else ():
            wanted, found = flat(there[member]), flat(returned[image][member])
            assert np.allclose(found, wanted, rtol=1e-6, atol=1e-6), member
    said = ["names", *(["keypoints", "flip"] if task == "pose" else [])]
    assert {name: role_of(after)[name] for name in said} == {name: ROLE[name] for name in said}


def flat(values: Any) -> list[float]:
    return (
        [each for value in values for each in flat(value)] if isinstance(values, list) else [values]
    )


def test_data_yaml_names_the_folders_and_any_names_of_classes(tmp_path, out):
    role = {"role": "objects", "names": ["yes", '"', "a: #b\n\u2028\x85", "1"]}
    export(write_splits(tmp_path / "in", {"train": BOXES, "validation": BOXES}, role), out, "yolo")
    said = yaml.safe_load((out / "data.yaml").read_text())
    assert (said["train"], said["val"]) == ("images/train", "images/validation")
    assert (said["task"], said["nc"], said["names"]) == ("detect", 4, role["names"])
    assert (out / "labels" / "train" / "0.txt").read_text().split()[0] == "2"


def test_what_a_line_cannot_hold_is_said_before_and_left_out_if_that_is_allowed(tmp_path, out):
    before = write(tmp_path / "in", all_members())
    for task, said in (
        ("detect", "segmentation of 3 objects.*rle of 2 objects.*2 crowds"),
        ("segment", "3 objects of several"),
    ):
        with pytest.raises(UsageError, match=said):
            export(before, out, "yolo", task=task)
    assert not out.exists()
    result = export(before, out, "yolo", on_loss="drop")
    assert result.counts["train"] == {"samples": 5, "objects": 5}  # without the crowds
    assert "2 crowds" in lost_of(result, "objects")
    labels = {name for name in tree(out) if name.startswith("labels/")}
    assert labels == {
        f"labels/{name}.txt"
        for name in ("train/a_x", "train/_.._up", "train/A~~1-0", "train/a~~1-1", "val/café_ü_ 1")
    }


def test_places_outside_of_the_image_are_a_loss_and_the_rest_is_read_again(tmp_path, out):
    objects = {"bbox": [[6, 4, 9, 6], [1, 1, 2, 2], [-5, 4, 1, 1]], "category": [0, 1, 2]}
    before = write(tmp_path / "in", objects)
    with pytest.raises(UsageError, match="5 objects with places outside of the image"):
        export(before, out, "yolo")
    result = export(before, out, "yolo", on_loss="drop")
    assert result.counts["train"]["objects"] == 2
    after = objects_of(from_yolo(out, tmp_path / "back"))
    assert [there["category"] for there in after.values() if there["category"]] == [[1], [1]]


def test_objects_with_other_numbers_of_keypoints_are_a_loss(tmp_path, out):
    role = {
        name: value for name, value in ROLE.items() if name not in ("keypoints", "skeleton", "flip")
    }
    objects = {**BOXES, "keypoints": [[[1, 1, 2], [2, 2, 2]], [[1, 1, 2]]]}
    before = write(tmp_path / "in", objects, role)
    with pytest.raises(UsageError, match="2 objects whose keypoints are not 2"):
        export(before, out, "yolo", task="pose")
    result = export(before, out, "yolo", task="pose", on_loss="drop")
    assert result.counts["train"]["objects"] == 3


def test_splits_of_any_name_come_back_with_their_objects(tmp_path, out):
    splits = dict.fromkeys(("train", "val", "dev", "extra"), BOXES)
    export(write_splits(tmp_path / "in", splits), out, "yolo")
    data = f"yolo:{out / 'data.yaml'}"
    convert(out / "images", tmp_path / "back", labels=data, split="folder")
    assert [len(row["objects"]["category"]) for row in rows_of(tmp_path / "back")] == [2] * 4


def test_poses_need_keypoints(tmp_path, out):
    with pytest.raises(UsageError, match="no keypoints"):
        export(write(tmp_path / "in", BOXES), out, "yolo", task="pose")


# --- both ---

OWN = {"SHA256SUMS", "shardctl.json"}


def test_splits_that_some_file_systems_do_not_tell_apart_are_refused(tmp_path, out):
    write_splits(tmp_path / "in", {"train": BOXES, "Train": BOXES})
    with pytest.raises(UsageError, match="the splits train, Train"):
        shardctl.export(tmp_path / "in", out, "coco")


@pytest.mark.parametrize("to", ["coco", "yolo"])
def test_what_is_lost_and_renamed_is_told_before_and_behind(to, tmp_path, out, cli):
    before = write(tmp_path / "in", {**BOXES, "difficult": [True, False]}, caption=["text"] * 7)
    told: list[tuple[str, bool]] = []
    on_note = lambda note: told.append((note, out.exists()))  # noqa: E731 - one line, used once
    result = export(before, out, to, on_loss="drop", on_note=on_note)
    assert tuple(note for note, _ in told) == result.notes
    early = " ".join(note for note, done in told if not done)
    assert "difficult of 3 objects" in early
    assert "caption is left out" in early
    assert next(note for note, done in told if done).startswith(
        "7 files with another name than the key"
    )
    quiet = cli("export", before, tmp_path / "again", "--to", to, "--on-loss", "drop", "-q")
    assert (quiet.code, quiet.err) == (0, "")


def test_a_dataset_without_images_or_objects_is_refused(tmp_path, out):
    shardctl.write(tmp_path / "bare", [{"key": "a", "image": picture(0)}])
    with pytest.raises(InputError, match="has no column of objects"):
        shardctl.export(tmp_path / "bare", out, "coco")
    shardctl.write(tmp_path / "text", [{"key": "a", "text": "a"}])
    with pytest.raises(InputError, match="has no image"):
        shardctl.export(tmp_path / "text", out, "coco")


def test_a_sample_without_an_image_is_refused_and_may_be_left_out(tmp_path, out):
    numbers = np.ones((6, 8), np.uint8)  # of images only masks may be missing
    samples = [
        {"image": picture(n), "mask": None if n else numbers, "objects": BOXES} for n in range(2)
    ]
    shardctl.write(tmp_path / "in", samples, roles={"objects": ROLE, "mask": "mask"})
    chosen: dict[str, Any] = {"to": "yolo", "columns": ["mask", "objects"], "workers": 0}
    with pytest.raises(InputError, match=r"1 sample has no image.*leaves them out"):
        shardctl.export(tmp_path / "in", out, **chosen)
    result = shardctl.export(tmp_path / "in", out, **chosen, where="mask is not None")
    assert result.counts["train"] == {"samples": 1, "objects": 2}


def test_raw_images_become_png(tmp_path, out):
    sample = {"image": np.zeros((6, 8, 3), np.uint8), "objects": BOXES}
    shardctl.write(tmp_path / "in", [sample], roles={"objects": ROLE})
    export(tmp_path / "in", out, "coco")
    assert len(list(out.rglob("*.png"))) == 1


def test_exports_with_counts_in_base64_are_read_as_they_are(tmp_path, out):
    """Those of version 1."""
    before = write(tmp_path / "in", all_members())
    export(before, out, "webdataset")
    described = out / "shardctl.json"
    said = json.loads(described.read_text())
    for path in out.glob("*.tar"):
        old = [
            (name, data.replace(b'"=2400000005"', b'"PTI0MDAwMDAwMDU="'))
            for name, data in members_of(path).items()
        ]
        path.write_bytes(tar(old))
        said["files"][path.name]["bytes"] = path.stat().st_size
    described.write_text(json.dumps({**said, "version": 1}))
    convert(out, tmp_path / "back")
    assert objects_of(tmp_path / "back") == objects_of(before)
