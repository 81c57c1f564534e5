"""RecordIO: records as MXNet and dmlc-core write them, those split at an embedded magic too."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from containers import INTEROP, Promises, errors, expected
from reading import read

from shardctl.sources.formats.framed import Framed
from shardctl.sources.formats.recordio import MAGIC, RecordIOFile

FORM = Framed(RecordIOFile)
HEAD = struct.pack("<I", MAGIC)


def part(data: bytes, kind: int = 0) -> bytes:
    return HEAD + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def record(number: int) -> bytes:
    data = struct.pack("<IfQQ", 0, number % 3, number, 0) + bytes([number]) * (50 + 7 * number)
    return (
        part(data) if number % 2 else part(data[:40], 1) + part(data[40:48], 2) + part(data[48:], 3)
    )


class TestRecordIO(Promises):
    form = RecordIOFile
    suffix = ".rec"

    def whole(self, count: int) -> bytes:
        return b"".join(map(record, range(count)))

    def starts(self, count: int) -> list[int]:
        return [0, *np.cumsum([len(record(number)) for number in range(count)]).tolist()]


@pytest.mark.parametrize("name", ["plain.rec", "images.rec"])
def test_records_are_those_that_were_written(name):
    found = read(FORM, INTEROP / "recordio" / name)
    wanted = expected("recordio")[name]
    if name == "images.rec":  # one label of two numbers: as JSON text beside the others
        wanted = [{**row, "label": str(row["label"]).replace("2]", "2.0]")} for row in wanted]
    assert found.rows == wanted
    assert found.rejects == []


@pytest.mark.parametrize("kinds", [(3,), (2,), (1, 0), (1, 1), (1, 2, 0), (5,)])
def test_parts_in_another_order_than_they_can_have_are_damage(kinds, tmp_path):
    path = tmp_path / "a.rec"
    path.write_bytes(
        part(b"good") + b"".join(part(b"data", kind) for kind in kinds) + part(b"good")
    )
    found = read(FORM, path)
    assert [row["data"] for row in found.rows] == [b"good"]
    assert errors(found) == [(2, "damaged")]


def test_a_number_of_labels_that_does_not_fit_is_no_image(tmp_path):
    path = tmp_path / "a.rec"
    payload = struct.pack("<IfQQ", 1 << 31, 0, 0, 0) + b"abc"
    path.write_bytes(part(payload))
    assert read(FORM, path).rows == [{"data": payload}]
