"""CSV files: what Python's csv module reads comes out, however the file is cut; every bad row is
named."""

from __future__ import annotations

import csv
import datetime
import io
import random
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from reading import cut, read, units_of

from shardctl.errors import Rejection
from shardctl.sources.formats import csv as module
from shardctl.sources.formats.base import CHOSEN, Misfit, Reading, TextPart, Unit
from shardctl.sources.formats.csv import Delimited, DelimitedFile
from shardctl.sources.types import Types

PARTS = st.lists(
    st.sampled_from(['"', ",", "\n", "\r\n", "\r", "a", "1", "é", '""', '"x"', '"\n"', "\ufeff"]),
    max_size=40,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.csv"


def strings(*names: str) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


@examples(150)
@given(parts=PARTS, columns=st.integers(1, 3), cell=st.integers(1, 9), piece=st.integers(5, 60))
def test_rows_are_those_of_the_csv_module_however_the_file_is_cut(
    parts, columns, cell, piece, tmp_path_factory
):
    path = tmp_path_factory.getbasetemp() / "cut.csv"
    body, names = "".join(parts), "abc"[:columns]
    path.write_bytes(f"{','.join(names)}\n{body}".encode())
    rows = dict(enumerate(csv.reader(io.StringIO(body, newline="")), 1))
    small, schema = DelimitedFile(Delimited(), cell, piece), strings(*names)
    cuts = cut(small, path)
    assert sum(each.size for each in cuts) == len(body.encode())
    found = read(small, path, schema=schema)
    whole = read(DelimitedFile(Delimited()), path, schema=schema)
    assert (found.numbers, found.rows, found.rejects) == (whole.numbers, whole.rows, whole.rejects)
    chosen = read(small, path, schema=schema, choose=lambda numbers: numbers % 2 == 0)
    assert chosen.numbers == [number for number in found.numbers if number % 2 == 0]
    assert chosen.rejects == [reject for reject in found.rejects if reject[0] % 2 == 0]
    if "unclosed-quote" not in str(found.rejects):
        assert sum(each.records for each in cuts) == len(rows)
        got = dict(zip(found.numbers, (list(row.values()) for row in found.rows), strict=True))
        assert got == {number: row for number, row in rows.items() if len(row) == columns}
        bad = [number for number, row in rows.items() if row and len(row) != columns]
        assert [number for number, *_ in found.rejects] == bad


def test_a_row_with_the_names_of_the_columns_is_a_header_once_more(path):
    path.write_text("id,text\n1,id\nid,text\n2,text\n")
    found = read(DelimitedFile(Delimited()), path)
    assert (found.rows, [(number, error) for number, error, _ in found.rejects]) == (
        [{"id": 1, "text": "id"}, {"id": 2, "text": "text"}],
        [(2, "header")],
    )
    path.write_text("word\nthe\nword\n")
    assert [row["word"] for row in read(DelimitedFile(Delimited()), path).rows] == ["the", "word"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_what_a_spreadsheet_says_of_its_separator_is_no_record(mark, path):
    path.write_bytes(mark + b"sep=;\r\nid;share\r\n1;0,5\r\n")
    with pytest.raises(Rejection, match="use --delimiter ';'"):
        cut(DelimitedFile(Delimited()), path)
    form = DelimitedFile(Delimited(";"))
    assert read(form, path).rows == [{"id": 1, "share": "0,5"}]
    named = read(form, path, Reading(columns=("a", "b"))).rows
    assert named == [{"a": "id", "b": "share"}, {"a": "1", "b": "0,5"}]
    path.write_bytes(mark + b"id;share\r\n1;0,5\r\n")
    [(*_, message)] = read(DelimitedFile(Delimited()), path).rejects
    assert "use --delimiter ';'" in message


def test_blank_lines_are_numbers_but_no_rows_and_quoted_nothing_is_a_row(path):
    path.write_text('a\n\n1\n""\n\n2\n')
    found = read(DelimitedFile(Delimited()), path)
    assert found.numbers == [2, 3, 5]
    assert [row["a"] for row in found.rows] == [1, None, 2]
    assert not found.rejects


@pytest.mark.parametrize("cell", [3, 1 << 20])
def test_a_quote_that_is_never_closed_costs_its_line_alone(path, cell):
    path.write_text('a,b\n1,x\n2,"y\n3,z\n4,w\n')
    found = read(DelimitedFile(Delimited(), cell, 8), path)
    assert found.rows == [{"a": 1, "b": "x"}, {"a": 3, "b": "z"}, {"a": 4, "b": "w"}]
    assert found.numbers == [1, 3, 4]
    [(number, error, message)] = found.rejects
    assert (number, error) == (2, "unclosed-quote")
    assert "at byte 2 of the row" in message


def test_nul_characters_and_byte_marks_inside_are_kept(path):
    path.write_bytes(b"\xef\xbb\xbfa,b\n\xef\xbb\xbfx,\0\n")
    assert read(DelimitedFile(Delimited()), path).rows == [{"a": "\ufeffx", "b": "\0"}]


def test_tabs(path):
    path.write_text("a\tb\nx,y\t2\n")
    assert read(DelimitedFile(Delimited("\t")), path).rows == [{"a": "x,y", "b": 2}]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\n\n", "empty"),
        (b"a,a\n1,2\n", "repeated-column"),
        (b"a,\n1,2\n", "nameless-column"),
        (b"a,\xff\n1,2\n", "not-utf8"),
        (b'a,"b\n1,2\n', "unclosed-quote"),
        (b"x" * (module.HEAD_BYTES + 1), "no-header"),
    ],
)
def test_a_header_that_cannot_be_used_is_one_sentence(data, error, path):
    path.write_bytes(data)
    with pytest.raises(Rejection) as caught:
        cut(DelimitedFile(Delimited()), path)
    assert caught.value.error == error


@pytest.mark.parametrize("data", ["a,b", ""])
def test_a_header_alone_and_an_empty_file_have_no_records(path, data):
    path.write_text(data)
    assert cut(DelimitedFile(Delimited()), path) == []


def test_a_row_that_is_too_large_is_named_before_it_is_read(path):
    path.write_text('a\n1\n"' + "x" * 30 + '"\n3\n')
    found = read(DelimitedFile(Delimited(), 8, record_bytes=20), path)
    assert [(number, error) for number, error, _ in found.rejects] == [(2, "too-large")]
    assert [row["a"] for row in found.rows] == [1, 3]


def test_units_may_skip_records(path):
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(1, 101)))
    [whole] = units_of(cut(DelimitedFile(Delimited()), path))
    parts = [Unit(whole.offset, whole.size, skip, 1 + skip, 30) for skip in (30, 0, 60)]
    found = read(DelimitedFile(Delimited()), path, units=parts)
    assert (
        found.numbers
        == [row["n"] for row in found.rows]
        == [*range(31, 61), *range(1, 31), *range(61, 91)]
    )


CELLS = [
    "1",
    "0",
    "-7",
    "2.5",
    "1.10",
    "1.9",
    "0.50",
    "007",
    "+1",
    ".5",
    "1e-05",
    "nan",
    "",
    "x",
    "NA",
    "null",
    str(2**63),
    str(2**53 + 1),
]


@examples(100)
@given(cells=st.lists(st.sampled_from(CELLS), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_types_of_units_join_in_any_order_and_a_misfit_is_found_wherever_they_were_not_enough(
    cells, seed
):
    form, columns = Delimited(), ("a", "b")
    units = [f"{cell},\n".encode() for cell in cells]
    types = [form.types_of(TextPart(unit, 1, columns), Reading()) for unit in units]
    shuffled = random.Random(seed).sample(types, len(types))
    whole = reduce(Types.join, types).found()
    assert reduce(Types.join, shuffled).found().equals(whole, check_metadata=True)
    part = TextPart(b"".join(units), 1, columns)
    assert form.types_of(part, Reading()).found().equals(whole, check_metadata=True)
    form.parse(part, Reading(), whole, None)
    few = reduce(Types.join, types[:2]).found()
    if not few.equals(whole):
        with pytest.raises(Misfit):
            form.parse(part, Reading(), few, None)


@pytest.mark.parametrize(
    ("type_", "cells"),
    [
        ("int64", ["1", "", "-3"]),
        ("int64", ["9223372036854775807", "5"]),
        ("double", ["0.50", "0.25"]),
        ("double", ["1e-05", "2.5e+20"]),
        ("double", ["0.30000000000000004", "1.0"]),
        ("double", ["nan", "2"]),
        ("string", ["1.9", "1.10"]),
        ("string", ["007", ""]),
        ("string", ["nan", ""]),
        ("string", ["9223372036854775808", "1"]),
        ("string", ["100000000000000000000", "0.5"]),
        ("string", ["0.1000000000000000055511151231257827", "1"]),
        ("string", ["9007199254740993.5", "1"]),
        ("string", [".5", "1"]),
    ],
)
def test_numbers_are_those_that_the_docs_say(type_, cells, path):
    path.write_text("a,b\n" + "".join(f"{cell},.\n" for cell in cells))
    found = read(DelimitedFile(Delimited(), 3), path).table["a"]
    assert str(found.type) == type_
    make = {"int64": int, "double": float, "string": str}[type_]
    values = [make(cell) if cell or make is str else None for cell in cells]
    assert repr(found.to_pylist()) == repr(values)


def test_a_type_that_a_person_gives_takes_what_can_be_read_as_it(path):
    path.write_text("a,b,when\n007,1.10,2026-11-21\n1,2.5,\n")
    form, pair = DelimitedFile(Delimited()), [("a", pa.int32()), ("b", pa.float64())]
    found = read(form, path, schema=pa.schema([*pair, ("when", pa.date32()), ("c", pa.string())]))
    day = datetime.date(2026, 11, 21)
    assert found.rows == [
        {"a": 7, "b": 1.1, "when": day, "c": None},
        {"a": 1, "b": 2.5, "when": None, "c": None},
    ]
    with pytest.raises(Misfit, match=r"record 1 \(2026-11-21\)"):
        read(form, path, schema=pa.schema([*pair, ("when", pa.int64())]))
    with pytest.raises(Misfit, match="when"):
        read(form, path, schema=pa.schema(pair))
    chosen = read(form, path, schema=pa.schema(pair, {CHOSEN: b""}))
    assert chosen.table.column_names == ["a", "b"]


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["text/ag_news", "text/zh"])
def test_real_files_are_those_of_the_csv_module(corpus, name):
    for path in (corpus / name).rglob("*.csv"):
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
        reading = Reading(columns=tuple(f"c{place}" for place in range(len(rows[0]))))
        form = DelimitedFile(Delimited(), 1000, 100_000)
        found = read(form, path, reading, schema=strings(*reading.columns))
        assert [list(row.values()) for row in found.rows] == rows
