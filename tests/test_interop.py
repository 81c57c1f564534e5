"""The shards open elsewhere, with no shardctl."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset
import pytest

import shardctl


@pytest.fixture
def encoded(photos: Path, tmp_path: Path) -> list[str]:
    shardctl.convert(
        photos, tmp_path / "out", recipe={"store": "jpeg:90", "transform": [{"name": "resize", "size": 24}]}, workers=0
    )
    return sorted(str(path) for path in (tmp_path / "out").glob("train-*.arrow"))


@pytest.fixture
def with_columns(photos: Path, tmp_path: Path) -> list[str]:
    """Original bytes, with nested columns from a labels file."""
    lines = [
        json.dumps(
            {"file_name": str(path.relative_to(photos)), "label": path.parent.name, "boxes": [[1, 2], [n]], "at": {"x": n / 2}}
        )
        for n, path in enumerate(sorted(photos.rglob("*.*")))
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    shardctl.convert(photos, tmp_path / "cols", labels=str(tmp_path / "labels.jsonl"), workers=0)
    return sorted(str(path) for path in (tmp_path / "cols").glob("train-*.arrow"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside datasets and what it imports
@pytest.mark.parametrize("which", ["encoded", "with_columns"])
def test_hugging_face_sees_images_and_class_labels(
    which: str, request: pytest.FixtureRequest, photos: Path, tmp_path: Path
) -> None:
    import datasets

    files = request.getfixturevalue(which)
    ds = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert isinstance(ds.features["image"], datasets.Image)
    assert ds.features["label"].names == ["dunes", "forest", "harbour", "night", "snow", "sunset"]
    assert len(ds) == 60
    ours = shardctl.open(Path(files[0]).parent)
    for index in (0, 31, 59):
        theirs = ds[index]
        assert np.array_equal(np.asarray(theirs["image"].convert("RGB")), ours[index]["image"])
        assert ds.features["label"].int2str(theirs["label"]) == theirs["key"].split("/")[0]
    if which == "with_columns":
        assert ds[3]["boxes"] == [[1, 2], [3]]
        assert ds[3]["at"] == {"x": 1.5}


def test_polars_and_pandas_and_pyarrow_read_encoded_shards(encoded: list[str]) -> None:
    keys = [sample["key"] for sample in shardctl.open(Path(encoded[0]).parent)]
    polars = pl.concat([pl.read_ipc(path) for path in encoded])
    assert polars["key"].to_list() == keys
    assert polars["image"].struct.field("bytes")[0][:3] == b"\xff\xd8\xff"
    assert pd.concat([pd.read_feather(path) for path in encoded])["key"].tolist() == keys
    assert pyarrow.dataset.dataset(encoded, format="ipc").to_table(columns=["key"])["key"].to_pylist() == keys


def test_polars_and_pandas_read_raw_shards(raw_dataset: Path) -> None:
    path = sorted(raw_dataset.glob("train-*.arrow"))[0]
    first = shardctl.open(raw_dataset, split="train")[0]
    polars = pl.read_ipc(path)
    assert polars["key"][0] == first["key"]
    assert np.array_equal(np.asarray(polars["image"].to_list()[0], np.uint8).reshape(32, 32, 3), first["image"])
    pandas = pd.read_feather(path)
    assert np.array_equal(np.asarray(pandas["image"][0]).reshape(32, 32, 3), first["image"])


def test_polars_and_pandas_read_text_shards(demo: Path, tmp_path: Path) -> None:
    shardctl.convert(demo / "lines.jsonl", tmp_path / "out", workers=0, samples_per_shard=50)
    (path,) = (tmp_path / "out").glob("train-*.arrow")
    lines = [json.loads(line) for line in (demo / "lines.jsonl").read_text().splitlines()]
    assert pl.read_ipc(path).drop("key").to_dicts() == lines
    assert pd.read_feather(path)["text"].tolist() == [line["text"] for line in lines]


def test_sha256sum_checks_a_dataset(raw_dataset: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "-c", "--quiet", "--strict", "SHA256SUMS"], cwd=raw_dataset, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    listed = {line.split("  ")[1] for line in (raw_dataset / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in raw_dataset.iterdir()} - {"manifest.json", "SHA256SUMS"}
