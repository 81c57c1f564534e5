"""What TFRecord and TFDS hold: every sort of value that an Example has, and nothing else without
being told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import google_crc32c
import made
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, export
from made import back_from, comes_back, table
from pyarrow import parquet

import shardctl
from shardctl.errors import InputError, InstallError, UsageError
from shardctl.interop.exports.examples import serialized
from shardctl.sources.export_description import Description, Field
from shardctl.sources.formats.tfrecord import messages

BOTH = ("tfrecord", "tfds")


def features_of(folder: Path) -> Any:
    return json.loads((folder / "features.json").read_bytes())["featuresDict"]["features"]


def written(folder: Path, type_: pa.DataType, value: Any) -> Path:
    """Write a dataset of one value."""
    shardctl.write(
        folder, [{"key": "0", "value": value}], pa.schema({"key": pa.string(), "value": type_})
    )
    return folder


LOSSES: list[tuple[str, pa.DataType, Any, str]] = [
    ("tfrecord", pa.float64(), 0.1, "rounds float64"),
    ("tfrecord", pa.list_(pa.float64(), 2), [0.1, 0.2], "rounds float64"),
    ("tfrecord", pa.uint64(), 2**63, "a number is larger"),
    ("tfrecord", pa.list_(pa.int32()), [1, None], "some of its lists lack values"),
    ("tfrecord", pa.list_(pa.list_(pa.int32())), [[1], []], "and no list<item: int32>"),
    (
        "tfrecord",
        pa.struct({"a": pa.list_(pa.list_(pa.int8()))}),
        {"a": [[1], []]},
        "and a is list",
    ),
    ("tfrecord", pa.struct({"a": pa.float64()}), {"a": 0.1}, "a is float64"),
    ("tfrecord", pa.struct({"a": pa.int8(), "b": pa.int8()}), {"a": 1, "b": None}, "members lack"),
    ("tfrecord", pa.struct({"a": pa.list_(pa.int8())}), {"a": [1, None]}, "members lack"),
    ("tfrecord", pa.struct({"a/b": pa.int8()}), {"a/b": 1}, "a member is called 'a/b'"),
    ("tfrecord", pa.timestamp("us"), None, r"and no timestamp\[us\]"),
    ("tfds", pa.struct({"a": pa.int8()}), None, "1 are missing"),
    ("tfds", pa.int32(), None, "1 are missing"),
    ("tfds", pa.list_(pa.int32(), 2), None, "1 are missing"),
]


@pytest.mark.parametrize(("to", "type_", "value", "message"), LOSSES)
def test_a_loss_is_told_and_json_has_none(tmp_path, out, to, type_, value, message):
    dataset = written(tmp_path / "in", type_, value)
    with pytest.raises(UsageError, match=message):
        export(dataset, out, to)
    comes_back(dataset, out, to, on_loss="json")


@pytest.mark.parametrize("to", BOTH)
def test_paths_that_are_not_the_keys_have_a_name_that_no_column_takes(tmp_path, out, to):
    mask = made.picture(1, "PNG", "L")
    sample = {"key": "a", "image": made.picture(1), "mask": mask, "mask/path": "text"}
    shardctl.write(tmp_path / "in", [sample], roles={"mask": "mask"})
    with pytest.raises(UsageError, match="rename"):
        shardctl.export(tmp_path / "in", out, to)
    comes_back(tmp_path / "in", out, to, rename={"mask/path": "other"})


VALUES = st.sampled_from(
    [
        (pa.int64(), "int64_list", st.integers(-(2**63), 2**63 - 1)),
        (pa.uint64(), "int64_list", st.integers(0, 2**63 - 1)),
        (pa.float32(), "float_list", st.floats(width=32, allow_nan=False)),
        (pa.binary(), "bytes_list", st.binary(max_size=300)),
    ]
)


@examples(30)
@given(
    data=st.data(), name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
)
def test_examples_are_those_of_protobuf(data, name):
    type_, kind, values = data.draw(VALUES)
    lists = data.draw(st.lists(st.lists(values, max_size=5), min_size=1, max_size=5))
    batch = pa.record_batch([pa.array(lists, pa.list_(type_))], names=[name])
    expected = []
    for each in lists:
        example = messages()()
        feature = getattr(example.features.feature.add(key=name).value, kind)
        feature.SetInParent()
        feature.value.extend(each)
        expected.append(example.SerializeToString())
    assert list(serialized(batch, [Field("column", name, "value")])) == expected


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    dataset = written(tmp_path / "in", pa.int8(), 1)
    monkeypatch.setitem(__import__("sys").modules, google_crc32c.__name__, None)
    with pytest.raises(InstallError, match="google-crc32c"):
        shardctl.export(dataset, tmp_path / "out", "tfds")


def labelled(folder: Path, classes: dict[str, list[str]]) -> Path:
    """Convert a table of Hugging Face with labels of these classes."""
    features = {name: {"_type": "ClassLabel", "names": names} for name, names in classes.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema([(name, pa.int64()) for name in classes], metadata)
    parquet.write_table(pa.table({name: [0, 1] for name in classes}, schema), folder / "in.parquet")
    convert(folder / "in.parquet", folder / "in")
    return folder / "in"


def test_classes_of_tfds_are_in_files_of_their_names(tmp_path, out):
    dataset = labelled(tmp_path, {"label": ["cat", "dog"], "a/b": ["é", "a b", "c"]})
    export(dataset, out, "tfds")
    assert (out / "label.labels.txt").read_bytes() == b"cat\ndog\n"
    assert (out / "a-b.labels.txt").read_text("utf-8") == "é\na b\nc\n"
    found = features_of(out)
    assert found["label"]["classLabel"] == {"numClasses": "2"}
    assert found["a"]["featuresDict"]["features"]["b"]["classLabel"] == {"numClasses": "3"}
    assert set(Description.load(out).files) >= {"label.labels.txt", "a-b.labels.txt"}


def test_a_split_that_tfds_cannot_name_is_refused(tmp_path):
    shardctl.write(tmp_path / "in", {"v1.0": [{"number": 1}]})
    with pytest.raises(InputError, match=r"the split 'v1\.0' has a dot"):
        shardctl.export(tmp_path / "in", tmp_path / "out", "tfds")


def test_tfds_has_no_splits_without_samples_and_files_that_may_have_none(tmp_path, out):
    dataset = made.write_features(tmp_path / "in")
    export(dataset, out, "tfds", where="key == '2'")
    info = json.loads((out / "dataset_info.json").read_bytes())
    assert {split["name"]: split["shardLengths"] for split in info["splits"]} == {
        "train": ["0", "1", "0"]
    }
    assert (out / "shardctl-train.tfrecord-00000-of-00003").stat().st_size == 0
    assert table(back_from(out))["key"].to_pylist() == ["2"]
    export(dataset, tmp_path / "records", "tfrecord", where="key == '2'")
    assert [path.name for path in (tmp_path / "records").glob("*.tfrecord")] == [
        "train-00001.tfrecord"
    ]


def test_categories_of_objects_are_in_a_file(tmp_path, out):
    export(made.write_objects(tmp_path / "in"), out, "tfds")
    assert (out / "objects-category.labels.txt").read_text() == "cat\nbig dog\n"


@pytest.mark.parametrize(
    ("formats", "encoding"),
    [
        (("JPEG", "JPEG"), "jpeg"),
        (("PNG", "PNG"), "png"),
        (("JPEG", "PNG"), ""),
        (("JPEG", "GIF"), None),
    ],
)
def test_tfds_is_told_how_images_are_encoded(tmp_path, out, formats, encoding):
    samples = [
        {"key": format_ + str(place), "image": made.picture(1, format_)}
        for place, format_ in enumerate(formats)
    ]
    schema = pa.schema([("key", pa.string()), ("image", pa.binary())])
    shardctl.write(tmp_path / "in", samples, schema, samples_per_shard=1)
    shardctl.export(tmp_path / "in", out, "tfds", workers=2 if encoding is None else 0)
    image = features_of(out)["image"]
    if encoding is None:
        assert image["tensor"]["dtype"] == "string"
    else:
        shape = {"dimensions": ["-1", "-1", "3"]}
        assert image["image"] == {"dtype": "uint8", "encodingFormat": encoding, "shape": shape}
