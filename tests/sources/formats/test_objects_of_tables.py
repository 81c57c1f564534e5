"""The column objects of tables: what of it is moved with the image, what is refused, and what a
note says of its boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_facts import stored
from flipped_photos import FLIP, GREY, PHOTO, png
from in_this_process import convert
from pyarrow import parquet

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.images.codecs import rle

NUMBERS = pa.list_(pa.list_(pa.float64()))
HALVED: dict[str, Any] = {**FLIP, "transform": [{"name": "resize", "size": "4x3"}]}


def table(folder: Path, value: Any, type_: Any) -> Path:
    columns = {
        "image": pa.array([PHOTO] * 3, pa.binary()),
        "objects": pa.array([value] * 3, pa.struct(type_)),
    }
    parquet.write_table(pa.table(columns), folder / "a.parquet")
    return folder / "a.parquet"


def plain(folder: Path, *boxes: list[float], **types: pa.DataType) -> Path:
    value = {"bbox": list(boxes), "category": [0] * len(boxes)}
    return table(folder, value, {"bbox": NUMBERS, "category": pa.list_(pa.int64()), **types})


FLOATS, NUMBER, TEXT = pa.float32(), pa.int64(), pa.large_string()


@pytest.mark.parametrize(
    ("boxes", "categories"),
    [
        (pa.list_(pa.list_(FLOATS, 4)), pa.list_(NUMBER)),
        (pa.large_list(pa.large_list(FLOATS)), pa.large_list(NUMBER)),
        (pa.large_list(pa.list_(FLOATS)), pa.large_list(TEXT)),
    ],
)
def test_boxes_of_any_lists_are_moved(boxes, categories, tmp_path, out):
    category: Any = "cat" if categories.value_type == TEXT else 1
    given = {"bbox": [[1, 2, 3, 4]], "category": [category]}
    convert(table(tmp_path, given, {"bbox": boxes, "category": categories}), out, recipe=FLIP)
    assert stored(out, "objects")[0] == {"bbox": [[4, 2, 3, 4]], "category": [category]}


def test_places_of_whole_numbers_are_moved_to_parts_of_pixels(tmp_path, out):
    types = {name: pa.list_(pa.int64()) for name in ("category", "area", "id")}
    given = {"bbox": [[1, 2, 3, 3]], "category": [1], "area": [9], "id": [7]}
    source = table(tmp_path, given, {"bbox": pa.list_(pa.list_(pa.int64())), **types})
    convert(source, out, recipe=HALVED)
    assert stored(out, "objects")[0] == {**given, "bbox": [[0.5, 1, 1.5, 1.5]], "area": [2.25]}
    convert(source, tmp_path / "kept", recipe={"kind": "image"})
    assert isinstance(stored(tmp_path / "kept", "objects")[0]["bbox"][0][0], int)


RUNS = {"size": [6, 8], "counts": rle.encode(np.ones((6, 8), bool)).decode()}
MEMBERS = {
    "polygon": ([[1, 2, 3, 2, 3, 4]], NUMBERS),
    "landmarks": ([[1, 2]], NUMBERS),
    "boxes": (["1 2 3 4"], pa.list_(pa.string())),
    "mask": (
        [RUNS],
        pa.list_(pa.struct([("size", pa.list_(pa.int64())), ("counts", pa.string())])),
    ),
}


@pytest.mark.parametrize("member", MEMBERS)
def test_members_that_would_stay_behind_are_refused(member, tmp_path, out):
    value, type_ = MEMBERS[member]
    types = {"bbox": NUMBERS, "category": pa.list_(pa.int64()), member: type_}
    given = {"bbox": [[1, 2, 3, 4]], "category": [0], member: value}
    source = table(tmp_path, given, types)
    with pytest.raises(UsageError, match=rf"but not objects\.{member}: .*unmoved objects"):
        convert(source, out, recipe=FLIP)
    for more in ({"unmoved": ["objects"]}, {"transform": [{"name": "grayscale"}]}):
        convert(source, out, recipe={**FLIP, **more}, overwrite=True)
        assert stored(out, "objects") == [given] * 3


def test_boxes_that_are_shares_are_refused(tmp_path):
    source = plain(tmp_path, [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1])
    with pytest.raises(InputError, match=r"shares .*pixels"):
        convert(source, tmp_path / "out", recipe=FLIP)
    # nothing reads them
    convert(source, tmp_path / "kept", recipe={"kind": "image"})
    convert(plain(tmp_path, [0, 0, 1, 1]), tmp_path / "pixel", recipe=FLIP)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.png").write_bytes(PHOTO)
    line = {"file_name": "a.png", "objects": {"bbox": [[0.1, 0.2, 0.3, 0.4]], "category": [0]}}
    (folder / "metadata.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=r"metadata\.jsonl: all boxes .* drop_columns objects"):
        convert(folder, tmp_path / "files")
    convert(folder, tmp_path / "files", drop_columns=["objects"])


def test_boxes_outside_of_the_image_are_counted_and_follow_the_rule(tmp_path):
    source = plain(tmp_path, [2, 1, 10, 3], [1, 1, 2, 2])
    for rule, boxes in {
        "keep": [[2, 1, 10, 3], [1, 1, 2, 2]],
        "clip": [[2, 1, 6, 3], [1, 1, 2, 2]],
        "drop": [[1, 1, 2, 2]],
    }.items():
        result = convert(source, tmp_path / rule, recipe={"kind": "image"}, boxes_outside=rule)
        assert stored(tmp_path / rule, "objects")[0]["bbox"] == boxes
        said = "3 boxes reach outside of the image; kept as they are" in str(result.notices)
        assert said == (rule == "keep")


def test_what_is_to_stay_must_be_there_and_must_not_move_by_its_role(tmp_path, out):
    source = plain(tmp_path, [1, 2, 3, 4])
    with pytest.raises(UsageError, match="unmoved: there is no field bboxes; fields are "):
        convert(source, out, recipe={**FLIP, "unmoved": ["bboxes"]})
    images, masks = tmp_path / "in", tmp_path / "masks"
    for folder, data in ((images, PHOTO), (masks, GREY)):
        folder.mkdir()
        (folder / "a.png").write_bytes(data)
    told = {**FLIP, "unmoved": ["mask"]}
    with pytest.raises(UsageError, match=r"unmoved.*mask.*: it is a mask by role"):
        convert(images, out, recipe=told, labels=[f"masks:{masks}"])
    convert(images, tmp_path / "marked", labels=[f"masks:{masks}"])
    shardctl.export(tmp_path / "marked", tmp_path / "exported", to="parquet")
    with pytest.raises(UsageError, match=r"unmoved.*mask.*: it is a mask by role"):
        convert(tmp_path / "exported", out, recipe=told)


def test_bytes_that_turn_out_to_be_images_are_found(tmp_path, out):
    """In the first value that there is, in structs, and in a later record, which is a reject
    then."""
    records, path = 400, tmp_path / "a.parquet"
    images = [png(np.full((6, 8, 3), n % 250, np.uint8)) for n in range(records)]

    def write(name: str, values: list[Any]) -> Path:
        table = pa.table({"image": pa.array(images, pa.binary()), name: values})
        parquet.write_table(table, path, row_group_size=100)
        return path

    struct = [{"sem": GREY, "id": 1}] * records
    last = [None] * 90 + [GREY] * (records - 90)
    for name, values in {"gt": struct, "extra": last}.items():
        with pytest.raises(UsageError, match=f"but not {name}: it is a place in the image, a mask"):
            convert(write(name, values), out, recipe=FLIP)
    write("extra", [GREY if number == 110 else b"none" for number in range(records)])
    (example,) = convert(path, out, recipe=FLIP).examples
    assert (example.key, example.error) == ("a.parquet#111", "unmoved-image")
    assert "--unmoved extra" in example.message
    told = convert(path, tmp_path / "told", recipe={**FLIP, "unmoved": ["extra"]})
    assert told.rejected == 0
