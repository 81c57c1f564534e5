"""Folders of TFDS: what it wrote itself comes out with types, classes and splits; features.json may
be wrong in any way."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from containers import INTEROP, errors, expected
from dataset_facts import rejects_of, stored
from in_this_process import convert
from reading import read, types_of
from tfrecords import example, framed

import shardctl
from shardctl.errors import Rejection
from shardctl.sources.formats.framed import Framed
from shardctl.sources.formats.tfrecord import TFRecords

FORM = Framed(TFRecords, True)
TOY = INTEROP / "tfds"


def features(tree: dict[str, Any]) -> dict[str, Any]:
    return {"featuresDict": {"features": tree}}


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    return {
        "tensor": {
            "dtype": dtype,
            "shape": {"dimensions": [str(length) for length in shape]},
            "encoding": encoding,
        }
    }


def sequence(feature: dict[str, Any]) -> dict[str, Any]:
    return {"sequence": {"feature": feature}}


ZIPPED = zlib.compress(struct.pack("<2h", 1, -2))


def folder(
    tmp_path: Path,
    tree: Any,
    *records: dict[str, list[Any] | None],
    labels: dict[str, str] | None = None,
) -> Path:
    (tmp_path / "features.json").write_text(tree if isinstance(tree, str) else json.dumps(tree))
    for name, names in (labels or {}).items():
        (tmp_path / f"{name}.labels.txt").write_text(names)
    path = tmp_path / "toy-train.tfrecord-00000-of-00001"
    path.write_bytes(b"".join(framed(example(record)) for record in records))
    return path


@pytest.mark.parametrize("split", ["train", "test", "unsupervised"])
def test_records_are_those_that_tfds_reads(split):
    found = read(FORM, TOY / f"toy-{split}.tfrecord-00000-of-00001")
    assert found.rejects == []
    assert found.rows == expected("tfds")[split]


def test_types_and_classes_are_those_of_the_features():
    types = types_of(FORM, TOY / "toy-train.tfrecord-00000-of-00001")
    found = {f.name: str(f.type) for f in types.found()}
    assert found["matrix"] == "list<item: list<item: int32>>"
    assert (found["flag"], found["small"], found["large"], found["double"]) == (
        "bool",
        "uint8",
        "uint64",
        "double",
    )
    assert types.found().field("objects").type.field("bbox").type == pa.list_(
        pa.list_(pa.float32())
    )
    assert types.classes == {"label": ("zebra", "ant", "a cow")}


def test_a_folder_has_its_classes_in_their_own_order_and_its_splits(out):
    result = convert(TOY, out)
    ds = shardctl.open(out)
    assert (result.samples, result.rejected) == (7, 0)
    assert ds.classes == ("zebra", "ant", "a cow")
    for split, rows in expected("tfds").items():
        samples = list(shardctl.open(out, split=split))
        assert [sample["label"] for sample in samples] == [row["label"] for row in rows]
        assert sorted(sample["image"].shape[:2] for sample in samples) == [
            (3 + n, 4) for n in range(len(rows))
        ]
    assert shardctl.verify(out).findings == ()


def test_splits_without_usual_names_are_those_of_dataset_info(tmp_path, out):
    (tmp_path / "in").mkdir()
    names = ("validation_matched", "validation_mismatched", "extra")
    for name in names:
        shutil.copy(
            TOY / "toy-test.tfrecord-00000-of-00001",
            tmp_path / "in" / f"toy-{name}.tfrecord-00000-of-00001",
        )
    info = {"name": "toy", "splits": [{"name": name} for name in names]}
    (tmp_path / "in" / "dataset_info.json").write_text(json.dumps(info))
    convert(tmp_path / "in", out)
    assert {name: len(shardctl.open(out, split=name)) for name in names} == dict.fromkeys(names, 2)


@pytest.mark.parametrize(
    ("feature", "stored", "value", "type_"),
    [
        (tensor("int32"), [3], 3, pa.int32()),
        (tensor("float16", 2), [0.5, 1.0], [0.5, 1.0], pa.list_(pa.float16())),
        (tensor("string"), ["ä".encode()], "ä", pa.string()),
        (tensor("int64", 2, -1), [1, 2, 3, 4], [[1, 2], [3, 4]], pa.list_(pa.list_(pa.int64()))),
        (tensor("uint64"), [-1], 2**64 - 1, pa.uint64()),
        (tensor("int16", 2, encoding="zlib"), [ZIPPED], [1, -2], pa.list_(pa.int16())),
        (sequence(tensor("int8")), [], [], pa.list_(pa.int8())),
        (sequence(tensor("int8", 2)), [1, 2], [[1, 2]], pa.list_(pa.list_(pa.int8()))),
        (
            sequence(tensor("int8", 1, encoding="bytes")),
            [b"\1"],
            [[1]],
            pa.list_(pa.list_(pa.int8())),
        ),
        ({"image": {}}, [b"\xff"], b"\xff", pa.binary()),
        (
            {"boundingBox": {"dtype": "float32", "shape": {"dimensions": ["4"]}}},
            [0.5] * 4,
            [0.5] * 4,
            pa.list_(pa.float32()),
        ),
        (tensor("bfloat16"), [0.5], 0.5, pa.float32()),  # not known here: as it is stored
        ({"audio": {"dtype": "int64"}}, [1, 2], [1, 2], pa.list_(pa.int64())),
        (sequence(tensor("int64", -1, 2)), [1, 2], [1, 2], pa.list_(pa.int64())),
    ],
)
def test_a_feature_has_its_type(feature, stored, value, type_, tmp_path):
    found = read(FORM, folder(tmp_path, features({"x": feature}), {"x": stored}))
    assert found.rejects == []
    assert found.table.schema.field("x").type == type_
    assert found.rows[0]["x"] == value


@pytest.mark.parametrize(
    ("feature", "stored"),
    [
        (tensor("int32"), [2**31]),
        (tensor("uint8"), [-1]),
        (tensor("int64"), [0.5]),
        (tensor("bool"), [2]),
        (tensor("int32"), [1, 2]),
        (tensor("string"), [b"\xff"]),
        ({"image": {}}, [1, 2]),
        (tensor("int64", 2, 2), [1, 2, 3]),
        (tensor("int16", 2, encoding="zlib"), [ZIPPED[:-1]]),
        (tensor("int16", 2, encoding="bytes"), [b"12345"]),
        (tensor("int16", 2, encoding="bytes"), [7]),
        (tensor("int16", 2, encoding="bytes"), []),
        (sequence(tensor("int8", 2)), [1, 2, 3]),
    ],
)
def test_a_value_that_is_not_as_described_is_the_reject_of_its_record(feature, stored, tmp_path):
    tree = features({"x": feature, "n": tensor("int64")})
    found = read(FORM, folder(tmp_path, tree, {"n": [0]}, {"x": stored, "n": [1]}, {"n": [2]}))
    assert errors(found) == [(2, "other-type")]
    assert "feature 'x'" in found.rejects[0][2]
    assert found.rows == [{"x": None, "n": 0}, {"x": None, "n": 2}]


@pytest.mark.parametrize(
    "lengths",
    [[3], [1, 2], [-1, 3], [2**62, 2**62, 2**62, 2**62 + 2], [], [0.5, 1.5], [b"1", b"1"], None],
)
def test_lengths_of_ragged_values_must_be_theirs(lengths, tmp_path):
    tree = features({"x": sequence(sequence(tensor("int64")))})
    records: list[dict[str, list[Any] | None]] = [
        {"x/ragged_flat_values": [1, 2], "x/ragged_row_lengths_0": each}
        for each in (lengths, [0, 2])
    ]
    found = read(FORM, folder(tmp_path, tree, *records))
    assert found.rows[-1] == {"x": [[], [1, 2]]}
    assert errors(found) == [(1, "other-type")] or (
        lengths is None and found.rows[0] == {"x": None}
    )


def test_what_is_inflated_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("shardctl.sources.formats.tfds.MOST_INFLATED", 1000)
    tree = features({"x": sequence(tensor("int8", 300, encoding="zlib"))})
    item = zlib.compress(bytes(300))
    found = read(FORM, folder(tmp_path, tree, {"x": [item] * 3}, {"x": [item] * 4}))
    assert (found.numbers, errors(found)) == ([1], [(2, "other-type")])


def test_names_of_classes_may_be_missing_and_may_not_be_the_same(tmp_path):
    tree = features({"label": {"classLabel": {"numClasses": "2"}}})
    assert types_of(FORM, folder(tmp_path, tree, {"label": [1]})).classes == {}
    with pytest.raises(Rejection, match=re.escape("label.labels.txt has a name twice")) as caught:
        read(
            FORM,
            folder(tmp_path, json.dumps(tree) + " ", {"label": [1]}, labels={"label": "a\na\n"}),
        )
    assert caught.value.error == "bad-features"


def test_a_number_of_no_class_is_the_reject_of_its_record_and_minus_one_is_no_label(tmp_path, out):
    tree = features({"label": {"classLabel": {"numClasses": "2"}}})
    source = tmp_path / "in"
    source.mkdir()
    records: list[dict[str, list[Any] | None]] = [{"label": [n]} for n in (1, -1, 2)]
    folder(source, tree, *records, {}, labels={"label": "b\na\n"})
    convert(source, out)
    assert stored(out, "label") == [1, None, None]
    assert [reject.error for reject in rejects_of(out)] == ["unknown-class"]


LISTS = '{"sequence": {"feature": ' * 9 + '{"text": {}}' + "}}" * 9
DICTS = '{"featuresDict": {"features": {"a": ' * 200 + '{"text": {}}' + "}}}" * 200


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"featuresDict": 3}',
        '{"featuresDict": {"features": {"x": []}}}',
        '{"featuresDict": {"features": {"x": {"tensor": {}}}}}',
        '{"featuresDict": {"features": {"x": {"tensor": {"dtype": ["int8"]}}}}}',
        '{"featuresDict": {"features": {"x": {"tensor": {"dtype": "int8", "shape": {"dimensions": '
        '["a"]}}}}}}',
        '{"featuresDict": {"features": {"x/y": {"text": {}}}}}',
        f'{{"featuresDict": {{"features": {{"x": {LISTS}}}}}}}',
        f'{{"featuresDict": {{"features": {{"x": {DICTS}}}}}}}',
    ],
)
def test_features_that_cannot_be_read_are_one_sentence(text, tmp_path):
    try:
        found = read(FORM, folder(tmp_path, text, {"x": [1]}))
    except Rejection as rejection:
        assert rejection.error == "bad-features"  # noqa: PT017
        assert "move it away" in rejection.message  # noqa: PT017
    else:
        assert found.rejects or len(found.rows) == 1
