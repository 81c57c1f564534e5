"""Files of lines are cut exactly, wherever the grid falls."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from conftest import examples
from hypothesis import example, given
from hypothesis import strategies as st
from reading import cut, read, units_of

from shardctl.errors import Rejection
from shardctl.sources.formats.base import (
    Choose,
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
    cuts, at_once = (
        cut(LineFile(Lines(), unit_bytes=cell, piece_bytes=piece, record_bytes=longest), path)
        for piece in (cell * cells, 1 << 20)
    )
    assert b"".join(data[each.offset : each.offset + each.size] for each in cuts) == content
    for each in cuts:
        assert each.records == len(line_ends(data[each.offset : each.offset + each.size]))
        assert each.offset == len(head) or data[each.offset - 1 : each.offset] == b"\n"
    limit = max(longest, cell)
    lengths = np.diff(line_ends(content), prepend=0)
    assert [each.size for each in cuts if each.fault] == lengths[lengths > limit].tolist()
    # A unit goes over its cell by no more than what it begins with and one line.
    assert all(each.size <= 2 * cell + limit for each in cuts if not each.fault)
    assert [each[:3] for each in cuts] == [each[:3] for each in at_once]


@examples(100)
@given(CONTENT, st.integers(0, 4), st.integers(0, 4), st.integers(1, 9))
def test_records_of_a_unit_are_read_with_their_numbers(tmp_path, content, skip, less, cell):
    path = tmp_path / "file"
    path.write_bytes(content)
    form = LineFile(Lines(), unit_bytes=cell)
    for unit in units_of(cut(form, path)):
        data = content[unit.offset : unit.offset + unit.size]
        skipped = min(skip, unit.records - 1)
        records = max(1, unit.records - skipped - less)
        wanted = Unit(unit.offset, unit.size, skipped, unit.first + skipped, records)
        found = read(form, path, schema=TEXT, units=[wanted])
        lines = (
            data.splitlines(keepends=True) if b"\r" not in data else re.findall(b".*\n|.+$", data)
        )
        assert found.table["line"].to_pylist() == lines[skipped : skipped + records]
        assert found.numbers == list(range(wanted.first, wanted.first + records))
        assert found.digests == [xxhash.xxh3_64(data).hexdigest()]


def write_rows(path: Path, count: int) -> None:
    path.write_bytes(
        b"\xef\xbb\xbf"
        + b"".join(b'{"n": %d, "text": "line %d"}\n' % (n, n) for n in range(1, count + 1))
    )


def test_lines_of_json_are_read_by_units(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, 100)
    form = LineFile(JsonLines(), unit_bytes=256)
    assert len(cut(form, path)) > 10
    assert [row["n"] for row in read(form, path).rows] == list(range(1, 101))
    third = read(form, path, choose=lambda numbers: numbers % 3 == 0)
    assert third.numbers == [row["n"] for row in third.rows] == list(range(3, 101, 3))


def test_a_file_that_became_shorter_is_a_rejection(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, 10)
    form = LineFile(JsonLines())
    size = path.stat().st_size
    (unit,) = units_of(cut(form, path))
    path.write_bytes(path.read_bytes()[:-1])
    for work in (
        lambda: form.scan(str(path), 0, size, READING),
        lambda: form.types(str(path), unit, READING),
        lambda: read(form, path, schema=pa.schema([]), units=[unit]),
    ):
        with pytest.raises(Rejection) as raised:
            work()
        assert (raised.value.stage, raised.value.error) == ("read", "changed")


def test_a_line_that_is_too_long_is_a_fault_that_says_so(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":"' + b"x" * 5000 + b'"}\n{"a":2}\n')
    found = read(LineFile(JsonLines(), unit_bytes=64, record_bytes=1024), path)
    assert found.rows == [{"a": 1}, {"a": 2}]
    [(number, error, message)] = found.rejects
    assert (number, error) == (2, "too-large")
    assert "5009 bytes" in message
    assert "1.0 KiB" in message
