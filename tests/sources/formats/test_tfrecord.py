"""TFRecord: what TensorFlow wrote comes out; every checksum is looked at; features of all shapes
and kinds."""

from __future__ import annotations

import struct
import subprocess
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from containers import INTEROP, Promises, errors, expected
from dataset_facts import stored, sums
from in_this_process import command_line, convert
from reading import READING, read, types_of
from tfrecords import example, framed, write_examples

import shardctl
from shardctl.errors import InputError
from shardctl.sources.formats import ending_of, find_format
from shardctl.sources.formats.framed import Framed
from shardctl.sources.formats.tfrecord import TFRecords, masked

FORM = Framed(TFRecords, True)


def record(number: int) -> bytes:
    return framed(
        example(
            {
                "id": [number],
                "data": [bytes([255]) * (10 * number + 1)],
                "list": list(range(number)),
            }
        )
    )


class TestTFRecord(Promises):
    form = TFRecords
    suffix = ".tfrecord"

    def whole(self, count: int) -> bytes:
        return b"".join(map(record, range(count)))

    def starts(self, count: int) -> list[int]:
        return [0, *np.cumsum([len(record(number)) for number in range(count)]).tolist()]

    def test_every_flipped_byte_is_noticed(self, path):
        """By one of the two checksums of its record: either that record alone is lost, or all from
        there on."""
        path.write_bytes(self.whole(4))
        good, starts, rows = path.read_bytes(), self.starts(4), read(FORM, path).rows
        schema = types_of(FORM, path).found()
        for place in range(starts[1], starts[2]):
            path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
            found = read(FORM, path, schema=schema)
            in_head = place < starts[1] + 12
            assert errors(found) == [(2, "damaged")], place
            assert found.rows == (rows[:1] if in_head else [rows[0], *rows[2:]]), place
            assert f"at byte {starts[1]}" in found.rejects[0][2]


@pytest.mark.parametrize("name", ["plain.tfrecord", "gzip.tfrecord.gz", "zlib-00000-of-00001"])
def test_records_are_those_that_tensorflow_reads(name):
    path = INTEROP / "tfrecord" / name
    found = read(find_format(ending_of(name, str(path)), READING), path)
    assert found.rejects == []
    for row, features in zip(found.rows, expected("tfrecord")[name], strict=True):
        assert row.keys() >= features.keys()
        for field, value in row.items():
            stored = value if isinstance(value, list) else [] if value is None else [value]
            stored = [each.encode() if isinstance(each, str) else each for each in stored]
            assert stored == features.get(field, []), field
    singles = {
        field for row in found.rows for field, value in row.items() if not isinstance(value, list)
    }
    assert singles == {"id", "score", "name", "data", "mixed", "odd"}


def test_lists_of_features_are_lists_in_a_list():
    found = read(FORM, INTEROP / "tfrecord" / "sequence.tfrecord")
    wanted = expected("tfrecord")["sequence.tfrecord"]
    assert [row["steps"] for row in found.rows] == [row["steps"] for row in wanted]
    assert [row["words"] for row in found.rows] == [
        [word.decode() for (word,) in row["words"]] for row in wanted
    ]
    assert [(row["id"], row["who"]) for row in found.rows] == [(0, "x"), (1, "x"), (2, "x")]


def test_a_string_that_a_person_asks_for_is_text(tmp_path, out):
    values: list[list[Any] | None] = [[b"x"], [5], None, [], [b"y", b"z"], [1.5]]
    path = write_examples(tmp_path / "a.tfrecord", [{"a": value, "n": [1]} for value in values])
    made = convert(path, out, recipe={"schema": "a:string"})
    assert [sample["a"] for sample in shardctl.open(out)] == ["x", None, None]
    assert made.rejected == 3


def test_types_are_those_of_all_records():
    everything = read(FORM, INTEROP / "tfrecord" / "plain.tfrecord").table
    wanted = {
        "id": pa.int64(),
        "score": pa.float32(),
        "name": pa.string(),
        "data": pa.binary(),
        "values": pa.list_(pa.int64()),  # none in one, several in others
        "words": pa.list_(pa.string()),
        "mixed": pa.binary(),  # text but for one record
        "sometimes_one": pa.list_(pa.float32()),
    }
    assert {f.name: f.type for f in everything.schema if f.name in wanted} == wanted
    assert everything["odd"].to_pylist() == [None, -(2**63), None, 2**63 - 1, None]


def test_features_of_several_kinds_are_text(tmp_path):
    values: list[list[Any]] = [[b"text"], [3], [1.5, 2.0], [], [b"a", b"b"]]
    found = read(FORM, write_examples(tmp_path / "a.tfrecord", [{"x": value} for value in values]))
    assert [row["x"] for row in found.rows] == ["text", "3", "[1.5, 2.0]", None, '["a", "b"]']
    path = write_examples(tmp_path / "b.tfrecord", [{"x": [b"\xff"]}, {"x": [3]}])
    with pytest.raises(InputError, match="the field x holds values of several types"):
        read(FORM, path)


def test_an_empty_feature_fits_a_list_of_any_type_and_no_feature_is_null(tmp_path):
    records: list[dict[str, list[Any] | None]] = [{"x": [b"a", b"b"]}, {"x": []}, {"x": None}, {}]
    found = read(FORM, write_examples(tmp_path / "a.tfrecord", records))
    assert [row["x"] for row in found.rows] == [["a", "b"], [], None, None]


def test_what_is_no_example_is_the_reject_of_its_record(tmp_path):
    length = struct.pack("<Q", 2**64 - 1)  # beyond any file: the end of it
    beyond = length + struct.pack("<I", masked(google_crc32c.value(length))) + b"data"
    path = tmp_path / "a.tfrecord"
    for end in (record(1)[:12], beyond):
        payloads = (example({"a": [1]}), b"1", b"\x1a\x01x", b"")
        path.write_bytes(b"".join(map(framed, payloads)) + end)
        found = read(FORM, path)
        assert errors(found) == [(2, "not-an-example"), (3, "not-an-example"), (5, "truncated")]
        assert [row["a"] for row in found.rows] == [1, None]


def test_the_order_of_fields_is_the_same_in_every_process(tmp_path):
    """That of a map of protobuf is not: it is drawn anew in each."""
    path = write_examples(tmp_path / "a.tfrecord", [{f"f{n}": [n] for n in range(40)}] * 3)
    here, there = tmp_path / "here", tmp_path / "there"
    convert(path, here)
    subprocess.run(command_line("convert", path, there, "--workers=0"), check=True)
    assert sums(there) == sums(here)
    assert shardctl.open(here).schema.names[1:] == sorted(f"f{n}" for n in range(40))


def test_types_of_later_records_are_found_where_others_were_looked_at(tmp_path, out, monkeypatch):
    """Of a large file some units are looked at; a value that does not fit makes the conversion look
    at all of them."""
    monkeypatch.setattr("shardctl.making.convert.discover.TYPED_UNITS", 1)
    first = {"one": [1], "text": [b"a"], "number": [1], "f": [b"x" * 300_000]}
    last = {"one": [1, 2], "text": [b"\xff"], "number": [2**40], "new": [1.5]}
    path = write_examples(tmp_path / "a.tfrecord", [*[first] * 8, last])
    assert convert(path, out).rejected == 0
    assert stored(out, "one") == [[1]] * 8 + [[1, 2]]
    assert stored(out, "text") == [b"a"] * 8 + [b"\xff"]
    assert stored(out, "new") == [None] * 8 + [1.5]
