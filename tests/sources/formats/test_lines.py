"""Files of lines are cut exactly, wherever the grid falls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from conftest import examples
from hypothesis import example, given
from hypothesis import strategies as st

from shardctl.errors import Rejection
from shardctl.sources.formats.base import (
    Choose,
    Cut,
    Format,
    Head,
    Parsed,
    Reading,
    TextFormat,
    TextPart,
    Unit,
)
from shardctl.sources.formats.jsonl import JsonLines
from shardctl.sources.formats.lines import LineFile, line_ends
from shardctl.sources.types import Types

READING = Reading()
TEXT = pa.schema([("line", pa.binary())])


class Lines(TextFormat):
    """Lines as they are, after a head that ends with `!`."""

    def head(self, data: bytes, reading: Reading) -> Head:
        return Head(data.find(b"!") + 1)

    def types_of(self, part: TextPart, reading: Reading) -> Types:
        return Types.of(self.parse(part, reading, TEXT, None).batch, "")

    def parse(
        self, part: TextPart, reading: Reading, schema: pa.Schema, choose: Choose | None
    ) -> Parsed:
        data, ends = part.data, line_ends(part.data).tolist()
        found = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        numbers = part.first + np.arange(len(found))
        return Parsed(numbers, pa.record_batch({"line": pa.array(found, pa.binary())}), [])


def cuts_of(path: Path, form: LineFile) -> list[Cut]:
    size = path.stat().st_size
    scans = [
        json.loads(json.dumps(form.scan(str(path), *piece, READING))) for piece in form.pieces(size)
    ]
    cuts = form.join(scans, size)
    if cuts is None:
        cuts = form.join([form.scan(str(path), 0, size, READING)], size)
    assert cuts is not None
    return cuts


def units_of(cuts: list[Cut]) -> list[Unit]:
    units, first = [], 1
    for cut in cuts:
        units.append(Unit(cut.offset, cut.size, 0, first, cut.records))
        first += cut.records
    return units


CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r\n", b"\x00"]), max_size=40).map(
    b"".join
)


@examples(240)
@given(
    st.sampled_from([b"", b"", b"!", b"x\ny!", b"long head\n!"]),
    CONTENT,
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 30),
)
@example(b"", b"", 1, 1, 1)
@example(b"x!", b"", 1, 1, 1)
@example(b"", b"aaaa\naaaaaaaaaaaa", 4, 1, 8)
def test_units_are_whole_lines_and_their_records_add_up(
    tmp_path, head, content, cell, cells, longest
):
    path = tmp_path / "file"
    data = head + content
    path.write_bytes(data)
    form = LineFile(Lines(), unit_bytes=cell, piece_bytes=cell * cells, record_bytes=longest)
    cuts = cuts_of(path, form)
    assert b"".join(data[cut.offset : cut.offset + cut.size] for cut in cuts) == content
    for cut in cuts:
        assert cut.records == len(line_ends(data[cut.offset : cut.offset + cut.size]))
        assert cut.offset == len(head) or data[cut.offset - 1 : cut.offset] == b"\n"
    limit = max(longest, cell)
    ends = line_ends(content).tolist()
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    faults = [cut for cut in cuts if cut.fault]
    assert [cut.size for cut in faults] == [length for length in lengths if length > limit]
    # A unit goes over its cell by no more than what it begins with and one line.
    assert all(cut.size <= 2 * cell + limit for cut in cuts if not cut.fault)
    at_once = cuts_of(
        path, LineFile(Lines(), unit_bytes=cell, piece_bytes=1 << 20, record_bytes=longest)
    )
    assert [cut[:3] for cut in cuts] == [cut[:3] for cut in at_once]


@examples(100)
@given(CONTENT, st.integers(0, 4), st.integers(0, 4), st.integers(1, 9), st.integers(1, 20))
def test_records_of_a_unit_are_read_with_their_numbers(tmp_path, content, skip, less, cell, part):
    path = tmp_path / "file"
    path.write_bytes(content)
    form = LineFile(Lines(), unit_bytes=cell, part_bytes=part)
    for unit in units_of(cuts_of(path, form)):
        data = content[unit.offset : unit.offset + unit.size]
        ends = [0, *line_ends(data).tolist()]
        skipped = min(skip, unit.records - 1)
        records = max(1, unit.records - skipped - less)
        wanted = Unit(unit.offset, unit.size, skipped, unit.first + skipped, records)
        digest = xxhash.xxh3_64()
        parsed = list(form.read(str(path), wanted, READING, TEXT, None, digest))
        assert (
            b"".join(line for p in parsed for line in p.batch.column(0).to_pylist())
            == data[ends[skipped] : ends[skipped + records]]
        )
        numbers = [number for p in parsed for number in p.numbers.tolist()]
        assert numbers == list(range(wanted.first, wanted.first + records))
        assert digest.digest() == xxhash.xxh3_64(data).digest()


def write_rows(path: Path, count: int) -> None:
    path.write_bytes(
        b"\xef\xbb\xbf"
        + b"".join(b'{"n": %d, "text": "line %d"}\n' % (n, n) for n in range(1, count + 1))
    )


def test_lines_of_json_are_read_by_units(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, 100)
    form: Format = LineFile(JsonLines(), unit_bytes=256)
    units = units_of(cuts_of(path, form))
    assert len(units) > 10
    types = [form.types(str(path), unit, READING) for unit in units]
    schema = types[0].join(types[1]).schema()

    def third(numbers: Any) -> Any:
        return numbers % 3 == 0

    for choose, expected in ((None, list(range(1, 101))), (third, list(range(3, 101, 3)))):
        parsed = [
            p
            for unit in units
            for p in form.read(str(path), unit, READING, schema, choose, xxhash.xxh3_64())
        ]
        assert [number for p in parsed for number in p.numbers.tolist()] == expected
        assert pa.Table.from_batches([p.batch for p in parsed]).column("n").to_pylist() == expected


def test_a_file_that_became_shorter_is_a_rejection(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, 10)
    form = LineFile(JsonLines())
    size = path.stat().st_size
    unit = units_of(cuts_of(path, form))[0]
    path.write_bytes(path.read_bytes()[:-1])
    for work in (
        lambda: form.scan(str(path), 0, size, READING),
        lambda: form.types(str(path), unit, READING),
        lambda: list(form.read(str(path), unit, READING, pa.schema([]), None, xxhash.xxh3_64())),
    ):
        with pytest.raises(Rejection) as raised:
            work()
        assert (raised.value.stage, raised.value.error) == ("read", "changed")


def test_a_line_that_is_too_long_is_a_fault_that_says_so(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":"' + b"x" * 5000 + b'"}\n{"a":2}\n')
    cuts = cuts_of(path, LineFile(JsonLines(), unit_bytes=64, record_bytes=1024))
    assert [(cut.records, cut.fault is None) for cut in cuts] == [(1, True), (1, False), (1, True)]
    assert cuts[1].fault is not None
    assert cuts[1].fault.error == "too-large"
    assert "5009 bytes" in cuts[1].fault.message
    assert "1.0 KiB" in cuts[1].fault.message
