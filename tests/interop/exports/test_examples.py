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
from made import table
from pyarrow import parquet
from restoring import restored

import shardctl
from shardctl.errors import InputError, InstallError, UsageError
from shardctl.format.manifest import Manifest
from shardctl.interop.exports.examples import serialized
from shardctl.sources.export_description import Description, Field
from shardctl.sources.formats.tfrecord import messages
from shardctl.system.folders import LocalFolder

BOTH = ("tfrecord", "tfds")


def features_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "features.json").read_bytes())["featuresDict"][
        "features"
    ]
    return found


def written(folder: Path, values: dict[str, tuple[pa.DataType, list[Any]]], **options: Any) -> Path:
    """Write a dataset of these columns."""
    schema = pa.schema(
        [("key", pa.string()), *((name, type_) for name, (type_, _) in values.items())]
    )
    number = len(next(iter(values.values()))[1])
    rows = [
        {"key": str(row), **{name: each[row] for name, (_, each) in values.items()}}
        for row in range(number)
    ]
    shardctl.write(folder, rows, schema, **options)
    return folder


@pytest.mark.parametrize("to", BOTH)
def test_every_sort_of_feature_comes_back(tmp_path, out, to):
    dataset = made.write_features(tmp_path / "in")
    result = export(dataset, out, to)
    assert all(field.loss is None for field in result.fields)
    for split in ("train", "test"):
        assert restored(out, split).equals(table(dataset, split))


def test_a_missing_list_is_no_empty_one_and_a_block_may_lack_all(tmp_path, out):
    columns = {
        "list": (pa.list_(pa.int16()), [[], None, [1], [], None, None]),
        "texts": (pa.list_(pa.string()), [None, [], [""], ["a"], None, None]),
        "pair": (pa.list_(pa.int8(), 2), [None, [1, 2], None, [3, 4], None, None]),
        "flag": (pa.bool_(), [None, True, None, False, None, None]),
        "number": (pa.float32(), [0.0, None, 1.5, None, None, None]),
        "half": (pa.float16(), [None, None, 1.5, None, None, None]),
    }
    dataset = written(tmp_path / "in", columns, samples_per_shard=4)
    export(dataset, out, "tfrecord")
    assert restored(out, "train").equals(table(dataset))


LOSSES: list[tuple[str, pa.DataType, Any, str]] = [
    ("tfrecord", pa.float64(), 0.1, "float32, which rounds float64"),
    ("tfrecord", pa.list_(pa.float64(), 2), [0.1, 0.2], "float32, which rounds float64"),
    ("tfrecord", pa.uint64(), 2**63, "int64, and a number is larger"),
    ("tfrecord", pa.list_(pa.int32()), [1, None], "some of its lists lack values"),
    ("tfrecord", pa.list_(pa.list_(pa.int32())), [[1], []], "and no list<item: int32>"),
    ("tfrecord", pa.struct([]), {}, "and no struct<>"),
    (
        "tfrecord",
        pa.struct([("a", pa.list_(pa.list_(pa.int8())))]),
        {"a": [[1], []]},
        "and a is list<item: list<item: int8>>",
    ),
    (
        "tfrecord",
        pa.struct([("a", pa.float64())]),
        {"a": 0.1},
        "a is float64, and an Example has float32",
    ),
    (
        "tfrecord",
        pa.struct([("a", pa.int8()), ("b", pa.int8())]),
        {"a": 1, "b": None},
        "some of its members lack values",
    ),
    (
        "tfrecord",
        pa.struct([("a", pa.list_(pa.int8()))]),
        {"a": [1, None]},
        "some of its members lack values",
    ),
    ("tfrecord", pa.struct([("a/b", pa.int8())]), {"a/b": 1}, "a member is called 'a/b'"),
    ("tfds", pa.struct([("a", pa.int8())]), None, "TFDS has no missing values, and 1 are missing"),
    ("tfrecord", pa.timestamp("us"), None, r"and no timestamp\[us\]"),
    ("tfds", pa.int32(), None, "TFDS has no missing values, and 1 are missing"),
    ("tfds", pa.list_(pa.int32(), 2), None, "TFDS has no missing values, and 1 are missing"),
]


@pytest.mark.parametrize(("to", "type_", "value", "message"), LOSSES)
def test_a_loss_is_told_and_json_has_none(tmp_path, out, to, type_, value, message):
    dataset = written(tmp_path / "in", {"value": (type_, [value])})
    with pytest.raises(UsageError, match=message):
        export(dataset, out, to)
    export(dataset, out, to, on_loss="json")
    assert restored(out, "train").equals(table(dataset))


@pytest.mark.parametrize("to", [*BOTH, "array-record"])
def test_members_of_objects_and_structs_are_features_of_their_own(tmp_path, out, to):
    dataset = made.write_objects(tmp_path / "in")
    result = export(dataset, out, to)
    assert [field.form for field in result.fields if field.name == "objects"] == ["struct"]
    for split in ("train", "test"):
        assert restored(out, split).equals(table(dataset, split))
    if to == "tfds":
        assert (out / "objects-category.labels.txt").read_text() == "cat\nbig dog\n"
    convert(out, tmp_path / "back")
    for split in ("train", "test"):
        assert table(tmp_path / "back", split).equals(table(dataset, split))
    assert (
        Manifest.load(LocalFolder(tmp_path / "back")).roles.objects
        == Manifest.load(LocalFolder(dataset)).roles.objects
    )


def test_a_missing_struct_is_none_of_a_tfrecord(tmp_path, out):
    struct = pa.struct(
        [
            ("a", pa.int8()),
            ("words", pa.list_(pa.string())),
            ("pairs", pa.large_list(pa.list_(pa.int16(), 2))),
        ]
    )
    values = [
        {"a": 1, "words": [], "pairs": [[1, 2], [3, 4]]},
        None,
        {"a": 0, "words": ["x"], "pairs": []},
    ]
    dataset = written(tmp_path / "in", {"value": (struct, values)})
    export(dataset, out, "tfrecord")
    assert restored(out, "train").equals(table(dataset))
    convert(out, tmp_path / "back")
    assert table(tmp_path / "back").equals(table(dataset))


@pytest.mark.parametrize("to", BOTH)
def test_paths_that_are_not_the_keys_have_a_name_that_no_column_takes(tmp_path, out, to):
    dataset = tmp_path / "in"
    samples = [
        {
            "key": "a",
            "image": made.picture(1),
            "mask": made.picture(1, "PNG", "L"),
            "mask/path": "text",
        }
    ]
    shardctl.write(dataset, samples, roles={"mask": "mask"})
    with pytest.raises(UsageError, match="rename"):
        shardctl.export(dataset, out, to)
    export(dataset, out, to, rename={"mask/path": "other"})
    assert restored(out, "train").equals(table(dataset))
    assert restored(out, "train")["mask"][0]["path"].as_py() == "a.png"


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
    dataset = written(tmp_path / "in", {"number": (pa.int8(), [1])})
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
    assert restored(out, "train")["key"].to_pylist() == ["2"]
    export(dataset, tmp_path / "records", "tfrecord", where="key == '2'")
    assert [path.name for path in (tmp_path / "records").glob("*.tfrecord")] == [
        "train-00001.tfrecord"
    ]


@pytest.mark.parametrize(
    ("formats", "expected"),
    [
        (
            ["JPEG", "JPEG"],
            {
                "dtype": "uint8",
                "encodingFormat": "jpeg",
                "shape": {"dimensions": ["-1", "-1", "3"]},
            },
        ),
        (
            ["PNG", "PNG"],
            {"dtype": "uint8", "encodingFormat": "png", "shape": {"dimensions": ["-1", "-1", "3"]}},
        ),
        (
            ["JPEG", "PNG"],
            {"dtype": "uint8", "encodingFormat": "", "shape": {"dimensions": ["-1", "-1", "3"]}},
        ),
        (["JPEG", "GIF"], None),
    ],
)
def test_tfds_is_told_how_images_are_encoded(tmp_path, out, formats, expected):
    samples = [
        {"key": name, "image": made.picture(1, format_)}
        for name, format_ in zip("ab", formats, strict=True)
    ]
    shardctl.write(
        tmp_path / "in",
        samples,
        pa.schema([("key", pa.string()), ("image", pa.binary())]),
        samples_per_shard=1,
    )
    shardctl.export(tmp_path / "in", out, "tfds", workers=2 if expected is None else 0)
    image = features_of(out)["image"]
    assert image.get("image") == expected
    assert expected or image["tensor"]["dtype"] == "string"
