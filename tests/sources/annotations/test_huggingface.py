from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_files import shards_in
from in_this_process import convert
from making import box, coco_file, converted, mask, photos, rejects, samples, values_of
from pyarrow import parquet

import shardctl
from shardctl.errors import InputError, UsageError


def labelled(root: Path, *objects: Any, **more: Any) -> Path:
    """A folder of images with a metadata.jsonl that has their objects."""
    photos(root, *(f"{number}.png" for number in range(len(objects))))
    lines = [
        json.dumps({"file_name": f"{n}.png", "objects": each, **more})
        for n, each in enumerate(objects)
    ]
    (root / "metadata.jsonl").write_text("\n".join(lines))
    return root


def objects_of(out: Path) -> list[Any]:
    return [sample["objects"] for _, sample in sorted(samples(out).items())]


def test_objects_of_metadata_become_the_column_of_all_formats(tmp_path, out):
    one = {
        "bbox": [[1, 2, 3, 2], [0.5, 1, 2, 1]],
        "category": [1, 0],
        "area": [6, 2.5],
        "id": [7, 8],
    }
    none: dict[str, list[Any]] = {name: [] for name in one}
    given = [{**one, "colour": ["a", "b"]}, {**none, "colour": []}, None]
    said = converted(labelled(tmp_path / "in", *given, note="x"), out).notices
    assert objects_of(out) == [one, none, None]
    schema = dict(shardctl.open(out).manifest.schema)
    assert "bbox: list<item: fixed_size_list<item: float>[4]>" in schema["objects"]
    assert schema["note"] == "string"
    assert shardctl.open(out).manifest.fields["objects"] == {"role": "objects", "names": None}
    assert "left out: colour of 2 objects" in str(said)


@pytest.mark.parametrize("name", ["categories", "label", "labels", "category_id", "category"])
def test_categories_are_known_by_the_usual_names_and_become_numbers(tmp_path, out, name):
    boxes = [[0, 0, 1, 1]] * 2
    source = labelled(
        tmp_path / "in", {"bbox": boxes, name: ["dog", "cat"]}, {"bbox": [], name: []}
    )
    converted(source, out)
    assert objects_of(out) == [{"category": [1, 0], "bbox": boxes}, {"category": [], "bbox": []}]
    assert shardctl.open(out).manifest.fields["objects"]["names"] == ["cat", "dog"]


def test_boxes_without_categories_stay_a_plain_column_and_a_note_says_so(tmp_path, out):
    objects = {"bbox": [[0, 0, 1, 1]], "kind": ["x"], "category": [[0, 1]]}
    said = converted(labelled(tmp_path / "in", objects), out).notices
    assert objects_of(out) == [objects]
    assert "bbox and no categories" in str(said)


def parquet_of(root: Path, categories: list[list[int]], **names: list[str]) -> None:
    """A folder of images with a metadata.parquet as datasets writes it: names of classes by their
    columns."""
    photos(root, *(f"{number}.png" for number in range(len(categories))))
    objects = [{"bbox": [[0, 0, 1, 1]] * len(each), "category": each} for each in categories]
    table = pa.table(
        {
            "file_name": [f"{n}.png" for n in range(len(objects))],
            "objects": objects,
            "tags": [[0]] * len(objects),
        }
    )
    labels = {
        name: {"feature": {"names": each, "_type": "ClassLabel"}, "_type": "List"}
        for name, each in names.items()
    }
    features = {"tags": labels["tags"], "objects": {"category": labels["category"]}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    parquet.write_table(table.replace_schema_metadata(metadata), root / "metadata.parquet")


def test_names_of_numbered_categories_are_kept_and_files_that_differ_refused(
    tmp_path,
    out,
):
    names = {"category": ["car", "bus"], "tags": ["x", "y"]}
    parquet_of(tmp_path / "in" / "train", [[1, 0], [2], []], **names)
    assert "tags (2)" in str(converted(tmp_path / "in", out, "auto").notices)
    assert shardctl.open(out).manifest.fields["objects"]["names"] == ["car", "bus"]
    assert [each["category"] for each in objects_of(out)] == [[1, 0], []]
    ((key, (_, message)),) = rejects(out).items()
    assert (key, "beyond the names" in message) == ("train/1.png", True)
    parquet_of(tmp_path / "in" / "test", [[0]], category=["bus", "car"], tags=["y", "x"])
    with pytest.raises(InputError, match=r"different names .* of objects\.category, tags;"):
        converted(tmp_path / "in", tmp_path / "new", "auto")
    parquet_of(tmp_path / "in" / "test", [[0]], category=["car", "bus"], tags=["y", "x"])
    convert(tmp_path / "in", tmp_path / "new", drop_columns="tags")


@pytest.mark.parametrize(
    ("boxes", "categories", "says"),
    [
        ([[1, 2, 3]], [0], "a bbox of objects is not four finite numbers"),
        ([[1, 2, 3, float("nan")]], [0], "a bbox of objects is not four finite numbers"),
        ([[1, 2, 3, 4]], [], "objects has 1 of bbox and 0 of category"),
        ([[1, 2, 3, 4]], [-1], "a category of objects is missing, or below 0"),
        ([[1, 2, 3, 4]], [None], "a category of objects is missing, or below 0"),
    ],
)
def test_wrong_objects_reject_their_image_alone(tmp_path, out, boxes, categories, says):
    wrong = {"bbox": boxes, "category": categories}
    converted(labelled(tmp_path / "in", wrong, {"bbox": [[1, 2, 3, 4]], "category": [1]}), out)
    ((key, (error, message)),) = rejects(out).items()
    assert (key, error) == ("0.png", "bad-annotation")
    assert says in message


def test_a_labels_file_and_annotations_may_give_different_columns_and_not_the_same(
    tmp_path,
    out,
):
    source = labelled(tmp_path / "in", {"bbox": [[0, 0, 1, 1]], "category": [0]})
    (source / "0.txt").write_text("a caption")
    file = str(source / "metadata.jsonl")
    converted(source, out, file, "captions:")
    assert samples(out)["0.png"]["caption"] == "a caption"
    coco = coco_file(tmp_path / "coco.json", [(1, "0.png")], [box(1)])
    with pytest.raises(UsageError, match="both give objects"):
        converted(source, tmp_path / "new", file, f"coco:{coco}")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside datasets and what it imports
def test_objects_open_in_hugging_face_datasets_with_named_categories(tmp_path, out):
    import datasets

    source = photos(tmp_path / "in", "a.png", "b.png", "c.png")
    cat = {"id": 3, "name": "cat", "keypoints": ["nose"]}
    shapes = [[[1, 2, 4, 2, 4, 4]], {"size": [6, 8], "counts": [40, 8]}]
    objects = [box(1, segmentation=shape, keypoints=[1, 1, 2]) for shape in shapes]
    file = coco_file(tmp_path / "coco.json", [(1, "a.png"), (2, "b.png")], objects, [cat])
    mask(tmp_path / "masks" / "a.png", values_of((8, 6)))
    converted(source, out, f"coco:{file}", f"masks:{tmp_path}/masks")
    shards = [str(path) for path in shards_in(out)]
    found = datasets.load_dataset(
        "arrow", data_files=shards, split="train", cache_dir=str(tmp_path / "cache")
    )
    names = found.features["objects"]["category"].feature
    assert names == datasets.ClassLabel(names=["cat"])
    first, second, third = found
    assert first["objects"]["category"] == [0, 0]
    assert first["objects"]["segmentation"] == [shapes[0], []]
    assert first["objects"]["rle"][0] is None
    assert first["objects"]["keypoints"] == [[[1.5, 1.5, 2]]] * 2
    assert first["mask"].size == (8, 6)
    assert second["objects"]["category"] == []
    assert third["objects"] is None


@pytest.mark.parametrize(("rule", "kept"), [("keep", 3), ("clip", 2), ("drop", 1)])
def test_boxes_that_a_rule_drops_are_counted_though_no_size_is_known(tmp_path, out, rule, kept):
    boxes = [[1, 1, 2, 2], [5, 3, 9, 2], [20, 20, 2, 2]]
    source = labelled(tmp_path / "in", {"bbox": boxes, "category": [0, 1, 2]})
    said = str(convert(source, out, boxes_outside=rule).notices)
    assert shardctl.open(out).manifest.objects == {"kept": kept, "cut_off": 3 - kept}
    assert (f"{3 - kept} of 3 objects were cut off" in said) == (kept < 3)
