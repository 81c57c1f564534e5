from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardctl
from shardctl import inspection
from shardctl.errors import DatasetError, UsageError


def test_the_overview_adds_up(raw_dataset: Path) -> None:
    record = inspection.overview(raw_dataset).record()
    assert record["samples"] == 60
    assert record["bytes"] == sum(path.stat().st_size for path in raw_dataset.glob("*-of-*.arrow"))
    assert sum(split["samples"] for split in record["splits"]) == 60
    assert record["classes"] == dict.fromkeys(("dunes", "forest", "harbour", "night", "snow", "sunset"), 10)
    assert [column["name"] for column in record["schema"]] == ["key", "image", "label"]
    assert record["recipe"]["store"] == "raw"
    assert inspection.column_bytes(raw_dataset)["image"] == 60 * 32 * 32 * 3


def test_a_key_leads_to_its_record_and_its_source(raw_dataset: Path, photos: Path) -> None:
    ds = shardctl.open(raw_dataset)
    for index in (0, 17, 59):
        sample = ds[index]
        (record,) = inspection.record_of_key(raw_dataset, sample["key"])
        assert (record.index, record.source, record.intact) == (index, str(photos / sample["key"]), True)
        assert np.array_equal(record.values["image"], sample["image"])
        same = inspection.record_at(raw_dataset / record.shard, None, record.row)
        assert same.values["key"] == sample["key"]


def test_an_unknown_key_suggests_near_ones(raw_dataset: Path) -> None:
    with pytest.raises(UsageError, match=r"no key 'dunes/dunes-0001.jpg'; did you mean dunes/dunes-00\d\d.jpg"):
        inspection.record_of_key(raw_dataset, "dunes/dunes-0001.jpg")


def test_the_key_of_a_reject_tells_why(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.jpg").write_bytes(next(photos.rglob("*.jpg")).read_bytes())
    (tmp_path / "in" / "bad.jpg").write_bytes(b"bad")
    shardctl.convert(tmp_path / "in", tmp_path / "out", workers=0)
    with pytest.raises(DatasetError, match=r"bad.jpg: was rejected when the dataset was made \(not an image"):
        inspection.record_of_key(tmp_path / "out", "bad.jpg")
    assert inspection.overview(tmp_path / "out").reasons == {"decode: not-an-image": 1}


def test_a_shard_is_described_without_its_dataset(raw_dataset: Path, tmp_path: Path) -> None:
    name = next(raw_dataset.glob("val-*.arrow")).name
    (tmp_path / name).write_bytes((raw_dataset / name).read_bytes())
    found = inspection.describe_shard(tmp_path / name, check=True)
    assert found.split == "val"
    assert found.samples == sum(block.rows for block in found.blocks)
    assert all(block.intact for block in found.blocks)
    assert found.column_bytes["image"] == found.samples * 32 * 32 * 3


def test_places_that_are_not_there_are_said(raw_dataset: Path) -> None:
    shard = raw_dataset / "train-00000-of-00005.arrow"
    for block, row, message in ((9, 0, "no block 9"), (0, 900, "no row 900"), (None, 900, "no row"), (None, -1, "no row -1")):
        with pytest.raises(UsageError, match=message):
            inspection.record_at(shard, block, row)
    with pytest.raises(UsageError, match="no shard 'x'"):
        inspection.find_shard(raw_dataset, "x")
    with pytest.raises(UsageError, match="no split 'test'"):
        inspection.head(raw_dataset, "test", 1, None)
    with pytest.raises(UsageError, match="no column colour"):
        inspection.head(raw_dataset, None, 1, ["colour"])


def test_the_head_is_the_beginning(raw_dataset: Path) -> None:
    ds = shardctl.open(raw_dataset, split="val")
    samples = inspection.head(raw_dataset, "val", 12, ["label", "key"])
    assert [sample["key"] for sample in samples] == [ds[index]["key"] for index in range(12)]
    assert list(samples[0]) == ["label", "key"]
