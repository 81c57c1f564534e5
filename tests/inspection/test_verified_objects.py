"""`verify` finds the marked objects that the loader cannot read, and those that say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_files import shards_in
from handmade import write_dataset
from objects_in_images import FIELDS, ROLE, SAMPLES, png, struct, thing, write

import shardctl
from shardctl.errors import DatasetError
from shardctl.format.roles import Mask, Objects

BOX = [5.0, 4.0, 2.0, 2.0]
NAN = float("nan")
NO_POINT = "has an object with a keypoint that is not three finite numbers"


def written(root: Path, objects: list[Any], role: Objects = ROLE) -> Path:
    """Write samples with these values of `objects`, two in a block; return the shard."""
    rows = [
        (f"k{place}", png(16, 12), png(16, 12, grey=True), value)
        for place, value in enumerate(objects)
    ]
    write_dataset(
        root, FIELDS, rows, 99, sample_bytes=2_000_000, roles={"mask": Mask("png"), "objects": role}
    )
    (shard,) = shards_in(root)
    return shard


def runs(size: Any, counts: Any) -> Any:
    return struct([thing(BOX), thing(BOX, rle={"size": size, "counts": counts})])


WRONG: list[tuple[str, Any]] = [
    ("has 2 of bbox and 1 of id; there must be one for each "
     "object", {**struct([thing(BOX)] * 2), "id": [1]}),  # type: ignore[dict-item]
    ("has 2 of bbox and 0 of "
     "area", {**struct([thing(BOX)] * 2), "area": None}),  # type: ignore[dict-item]
    ("has a bbox that is not four finite numbers: [1.0, nan, 3.0, "
     "4.0]", struct([thing(BOX), thing([1, NAN, 3, 4], area=1)])),
    ("has a bbox that is not four finite numbers: [1.0, 2.0, inf, "
     "4.0]", struct([thing([1, 2, float("inf"), 4], area=1)])),
    ("has a bbox that is not four finite numbers: "
     "None", {**struct([thing(BOX)] * 2), "bbox": [BOX, None]}),  # type: ignore[dict-item]
    ("has the category 3, and there are names for 0 to 2", struct([thing(BOX, 2), thing(BOX, 3)])),
    ("has the category -2, and there are names for 0 to 2", struct([thing(BOX, -2)])),
    ("has an object of 4 keypoints, where 3 have "
     "names", struct([thing(BOX), thing(BOX, keypoints=[[1, 1, 2]] * 4)])),
    ("has a polygon of 7 "
     "numbers", struct([thing(BOX), thing(BOX, segmentation=[[1.0] * 6, [1.0] * 7])])),
    ("has a polygon with a number that is not "
     "finite", struct([thing(BOX, segmentation=[[1.0] * 6, [1.0, NAN] * 3])])),
    (NO_POINT, struct([thing(BOX, keypoints=[]), thing(BOX, keypoints=[[1, 1, 2], [1, float("inf"), 2]])])),
    (NO_POINT, struct([thing(BOX, keypoints=[[1, 1, 2], [None, 1, 2]])])),
    ("has an RLE without a size or without counts", runs(None, b"11")),
    ("has an RLE without a size or without counts", runs((12, 16), None)),
]  # fmt: skip


def test_objects_that_are_wrong_are_found_with_their_place(out):
    good = struct([thing([1, 2, 3, 4], 2), thing(BOX)])
    objects = [value for _, wrong in WRONG for value in (good, None, wrong)]
    shard = written(out, objects)
    for target in (shard, out):
        found = [each for each in shardctl.verify(target).findings if each.kind == "bad-annotation"]
        places = [(row // 2, row, f"k{row}") for row in range(2, len(objects), 3)]
        assert [(each.block, each.row, each.key) for each in found] == places
        for finding, (says, _) in zip(found, WRONG, strict=True):
            assert finding.message.startswith(f"objects {says}")


def test_an_rle_that_is_no_mask_of_its_size_is_found_at_deep(tmp_path):
    shard = written(
        tmp_path / "out", [struct([]), None, runs((12, 16), b"\x01"), None, runs((12, 16), b"1")]
    )
    assert shardctl.verify(shard, level="full").ok
    found = shardctl.verify(shard, level="deep").findings
    assert [(each.kind, each.block, each.row, each.key) for each in found] == [
        ("does-not-decode", 1, 2, "k2"),
        ("does-not-decode", 2, 4, "k4"),
    ]
    assert found[0].message.startswith(
        "objects has an RLE that is not the compressed lengths of runs"
    )
    assert found[1].message.startswith(
        "objects has an RLE that has runs of 1 pixels, and 16x12 are 192"
    )


def test_what_the_loader_refuses_and_sends_to_verify_is_found_there(out):
    refused = WRONG[:2] + WRONG[7:9]
    written(out, [value for _, value in refused])
    dataset = shardctl.open(out)
    for row in range(len(refused)):
        with pytest.raises(DatasetError, match="shardctl verify"):
            dataset.take([row], columns=["objects"])
    assert [
        each.row for each in shardctl.verify(out).findings if each.kind == "bad-annotation"
    ] == [0, 1, 2, 3]


def test_objects_that_can_be_read_are_no_finding(tmp_path, out):
    write(out, SAMPLES)
    assert not [each for each in shardctl.verify(out).findings if each.kind == "bad-annotation"]
    unnamed = struct([thing(BOX, 99, keypoints=[[1, 1, 2]] * 5), thing(BOX, keypoints=[[1, 1, 2]])])
    assert shardctl.verify(
        written(tmp_path / "unnamed", [None, unnamed], Objects()), level="deep"
    ).ok
    empty = written(tmp_path / "empty", [None, None, struct([]), None])
    assert shardctl.verify(empty, level="deep").ok


@pytest.mark.thorough
def test_a_column_that_is_not_one_of_objects_is_found(out):
    fields = pa.schema([("key", pa.string()), ("objects", pa.list_(pa.float32()))])
    write_dataset(out, fields, [("k", [1.0])], 2, roles={"objects": ROLE})
    (shard,) = shards_in(out)
    (found,) = shardctl.verify(shard).findings
    assert found.message.startswith(
        "objects is not a column of objects: it is not a struct of lists"
    )
