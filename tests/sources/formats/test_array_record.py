"""ArrayRecord: records by number, each an Example; what is none is a reject, and damage is
named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from reading import cut, damaged_reads, read, types_of

from shardctl.sources.format_table import format_of
from shardctl.sources.formats import Reading, Unit, ending_of, find_format

module = pytest.importorskip("array_record.python.array_record_module")
examples = pytest.importorskip("shardctl.sources.formats.tfrecord")

FORM = find_format(".array_record", Reading())


def example(number: int) -> bytes:
    made = examples.messages()()
    made.features.feature.add(key="n").value.int64_list.value.append(number)
    made.features.feature.add(key="text").value.bytes_list.value.append(f"row {number}".encode())
    return bytes(made.SerializeToString(deterministic=True))


def write(path: Path, payloads: list[bytes], options: str = "group_size:1,uncompressed") -> Path:
    writer = module.ArrayRecordWriter(str(path), options)
    for payload in payloads:
        writer.write(payload)
    writer.close()
    return path


@pytest.mark.parametrize("options", ["group_size:1,uncompressed", "group_size:7,zstd:3"])
def test_examples_come_out_by_number(options, tmp_path):
    path = write(tmp_path / "a.array_record", [example(n) for n in range(100)], options)
    found = read(FORM, path)
    assert found.rows == [{"n": n, "text": f"row {n}"} for n in range(100)]
    assert found.numbers == list(range(1, 101))
    parts = [Unit(0, 1, 40, 41, 20), Unit(0, 1, 0, 1, 3)]
    assert read(FORM, path, units=parts).numbers == [*range(41, 61), 1, 2, 3]
    assert read(FORM, path, choose=lambda rows: rows % 9 == 0).numbers == list(range(9, 100, 9))


def test_what_is_no_example_is_a_reject(tmp_path):
    path = write(tmp_path / "a.array_record", [example(0), b"\xff", example(2), b"0"])
    found = read(FORM, path)
    assert found.numbers == [1, 3]
    assert [reject[:2] for reject in found.rejects] == [
        (2, "not-an-example"),
        (4, "not-an-example"),
    ]


def test_features_beside_give_their_types(tmp_path):
    path = write(tmp_path / "set-train.array_record-00000-of-00001", [example(n) for n in range(3)])
    features = {
        "featuresDict": {
            "features": {"n": {"classLabel": {"numClasses": "3"}}, "text": {"text": {}}},
        }
    }
    (tmp_path / "features.json").write_text(json.dumps(features))
    (tmp_path / "n.labels.txt").write_text("a\nb\nc\n")
    assert types_of(FORM, path).classes == {"n": ("a", "b", "c")}


def test_a_file_of_no_records_has_no_units(tmp_path):
    assert cut(FORM, write(tmp_path / "a.array_record", [])) == []


def test_a_file_is_known_by_name_or_content(tmp_path):
    path = write(tmp_path / "a", [example(0)])
    assert format_of(".array_record").fits(path.read_bytes())
    assert ending_of("a", str(path)) == ".array_record"
    assert ending_of("a-train.array_record-00000-of-00002", "nowhere") == ".array_record"


def test_damage_is_rejected(tmp_path):
    path = write(
        tmp_path / "a.array_record", [example(n) for n in range(10)], "group_size:3,zstd:3"
    )
    places = np.flatnonzero(np.frombuffer(path.read_bytes(), np.uint8))[::8]
    assert damaged_reads(FORM, path, places) > 1.5 * len(places)
