"""The shards open elsewhere, with no shardctl."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from dataset_files import shard_in, shards_in, tables_in
from doc_snippets import ROOT, snippets
from handmade import write_dataset
from in_this_process import convert

import shardctl


@pytest.fixture
def encoded(photos: Path, tmp_path: Path) -> list[str]:
    convert(
        photos,
        tmp_path / "out",
        recipe={"store": "jpeg:90", "transform": [{"name": "resize", "size": 24}]},
    )
    return sorted(str(path) for path in shards_in(tmp_path / "out"))


@pytest.fixture
def with_columns(photos: Path, tmp_path: Path) -> list[str]:
    """Original bytes, with nested columns from a labels file."""
    records = [
        {
            "file_name": str(path.relative_to(photos)),
            "label": path.parent.name,
            "boxes": [[1, 2], [n]],
            "at": {"x": n / 2},
            "objects": {"found": [{"name": "a", "parts": [n]}, {"name": "b", "parts": []}]},
        }
        for n, path in enumerate(sorted(photos.rglob("*.*")))
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, records)))
    convert(photos, tmp_path / "cols", labels=str(tmp_path / "labels.jsonl"))
    return sorted(str(path) for path in shards_in(tmp_path / "cols"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside datasets and what it imports
@pytest.mark.parametrize("which", ["encoded", "with_columns"])
def test_hugging_face_sees_images_and_class_labels(which, request, photos, tmp_path):
    import datasets

    files = request.getfixturevalue(which)
    ds = datasets.load_dataset(
        "arrow", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert isinstance(ds.features["image"], datasets.Image)
    assert ds.features["label"].names == ["dunes", "forest", "harbour", "night", "snow", "sunset"]
    assert len(ds) == 60
    ours = shardctl.open(Path(files[0]).parents[1])
    for index in (0, 31, 59):
        theirs = ds[index]
        assert np.array_equal(np.asarray(theirs["image"].convert("RGB")), ours[index]["image"])
        assert ds.features["label"].int2str(theirs["label"]) == theirs["key"].split("/")[0]
    if which == "with_columns":
        assert ds[3]["boxes"] == [[1, 2], [3]]
        assert ds[3]["at"] == {"x": 1.5}
        assert ds[3]["objects"] == {
            "found": [{"name": "a", "parts": [3]}, {"name": "b", "parts": []}]
        }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside datasets and what it imports
def test_hugging_face_reads_raw_shards_as_vectors_when_it_is_told_so(
    raw_dataset, tmp_path, monkeypatch, cli
):
    """By the lines in docs/format.md. Without them it refuses the tensor type."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").symlink_to(raw_dataset)
    _, lines = snippets((ROOT / "docs" / "format.md").read_text(encoding="utf-8"), "python")
    names: dict[str, Any] = {"paths": cli(*"inspect out --files --split train".split()).out.split()}
    exec(lines.replace("224", "32"), names)
    theirs, ours = names["ds"][0], shardctl.open(raw_dataset, split="train")[0]
    assert (theirs["key"], theirs["label"]) == (ours["key"], ours["label"])
    assert np.array_equal(np.array(theirs["image"], np.uint8).reshape(32, 32, 3), ours["image"])
    with pytest.raises(ValueError, match="fixed_shape_tensor"):
        datasets.load_dataset("arrow", data_files=names["files"], split="train")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside datasets and what it imports
def test_hugging_face_reads_every_type_that_a_function_can_add(tmp_path):
    import datasets

    values = {
        "half": (pa.float16(), np.float16(0.5)),
        "single": (pa.float32(), 0.5),
        "day": (pa.date32(), datetime.date(2026, 1, 2)),
        "time": (pa.timestamp("us"), datetime.datetime(2026, 1, 2, 3)),
        "bytes": (pa.binary(), b"x"),
        "pairs": (pa.list_(pa.list_(pa.struct([("x", pa.int8())]))), [[{"x": 1}], []]),
    }
    schema = pa.schema({"key": pa.string()} | {name: type_ for name, (type_, _) in values.items()})
    sample = {"key": "a"} | {name: value for name, (_, value) in values.items()}
    write_dataset(tmp_path / "out", schema, [tuple(sample.values())], 1)
    path = shard_in(tmp_path / "out", "train-00000")
    ds = datasets.load_dataset(
        "arrow", data_files=[str(path)], split="train", cache_dir=str(tmp_path / "cache")
    )
    assert ds[0] == sample


def test_polars_and_pandas_and_pyarrow_read_encoded_shards(encoded):
    keys = [sample["key"] for sample in shardctl.open(Path(encoded[0]).parents[1])]
    polars = pl.concat([pl.read_ipc(path) for path in encoded])
    assert polars["key"].to_list() == keys
    assert polars["image"].struct.field("bytes")[0][:3] == b"\xff\xd8\xff"
    assert pd.concat([pd.read_feather(path) for path in encoded])["key"].tolist() == keys
    assert (
        pyarrow.dataset.dataset(encoded, format="ipc").to_table(columns=["key"])["key"].to_pylist()
        == keys
    )


def test_polars_and_pandas_read_raw_shards(raw_dataset):
    path = shards_in(raw_dataset)[0]
    first = shardctl.open(raw_dataset, split="train")[0]
    polars = pl.read_ipc(path)
    assert polars["key"][0] == first["key"]
    assert np.array_equal(
        np.asarray(polars["image"].to_list()[0], np.uint8).reshape(32, 32, 3), first["image"]
    )
    pandas = pd.read_feather(path)
    assert np.array_equal(np.asarray(pandas["image"][0]).reshape(32, 32, 3), first["image"])


def test_polars_and_pandas_read_text_shards(demo, out):
    convert(demo / "lines.jsonl", out, samples_per_shard=50)
    (path,) = shards_in(out)
    lines = [json.loads(line) for line in (demo / "lines.jsonl").read_text().splitlines()]
    assert pl.read_ipc(path).drop("key").to_dicts() == lines
    assert pd.read_feather(path)["text"].tolist() == [line["text"] for line in lines]


def test_sha256sum_checks_a_dataset(raw_dataset):
    command = "sha256sum -c --quiet --strict SHA256SUMS".split()
    tables = tables_in(raw_dataset)
    done = subprocess.run(command, cwd=tables, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    lines = (tables / "SHA256SUMS").read_text().splitlines()
    listed = {(tables / line.split("  ")[1]).resolve() for line in lines}
    # they differ between copies of the same sources
    with_times = {"manifest.json", "update.arrows", "SHA256SUMS"}
    files = {path.resolve() for path in raw_dataset.rglob("*") if path.is_file()}
    assert listed == {path for path in files if path.name not in with_times}
