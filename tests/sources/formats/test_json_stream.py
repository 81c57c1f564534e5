"""JSON documents that are read from beginning to end: the same records as those of a plain file,
and flat memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from reading import cut, read, sized, units_of

from shardctl.errors import Rejection
from shardctl.sources.formats.base import Reading
from shardctl.sources.formats.json_stream import JsonDocument, JsonStream

PIECES = (
    '{"t": "',
    "a",
    '\\"',
    "\\\\",
    "}, {",
    '"}',
    ", ",
    "[",
    "]",
    "\n",
    '{"n": [1, {"x": 2}]}',
    "7",
    "é",
)


def outcome(form: Any, path: Path, reading: Reading) -> Any:
    try:
        cuts = cut(form, path, reading)
    except Rejection as rejection:
        return rejection.error
    if all(each.fault for each in cuts):
        return "not-json" if cuts else "nothing"
    found = read(form, path, reading)
    return found.numbers, found.rows, [reject[:2] for reject in found.rejects]


@examples(60)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.booleans(),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_a_stream_has_the_records_of_a_plain_file(tmp_path, parts, valid, block, part):
    text = (
        json.dumps([{"t": each} if len(each) % 2 else {"n": [len(each)]} for each in parts])
        if valid
        else "".join(parts)
    )
    (tmp_path / "a.json").write_bytes(text.encode())
    (tmp_path / "b.json").write_bytes(text.encode("utf-16-le"))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(text.encode()))
    expected = outcome(JsonDocument(), tmp_path / "a.json", Reading())
    stream = sized(JsonStream(), block_bytes=block, part_bytes=part)
    assert outcome(stream, tmp_path / "a.json", Reading()) == expected
    assert outcome(stream, tmp_path / "b.json", Reading(encoding="utf-16-le")) == expected
    assert outcome(stream, tmp_path / "c.json.gz", Reading()) == expected


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_a_record_that_is_too_large_is_passed_over(tmp_path, block):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"a": "x"}, {"a": "y" * 50}, {"a": "z"}]))
    found = read(sized(JsonStream(), record_bytes=20, block_bytes=block), path)
    assert (found.numbers, found.rows) == ([1, 3], [{"a": "x"}, {"a": "z"}])
    assert [(number, error) for number, error, _ in found.rejects] == [(2, "too-large")]


def test_a_part_of_the_records_is_that_part_of_all(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps([{"n": n} for n in range(20)]).encode()))
    (unit,) = units_of(cut(JsonStream(), path))
    parts = [unit._replace(skip=0, records=7), unit._replace(skip=7, first=8, records=13)]
    found = read(sized(JsonStream(), part_bytes=30), path, units=parts)
    assert found.numbers == list(range(1, 21))
    assert [row["n"] for row in found.rows] == list(range(20))
    chosen = read(JsonStream(), path, choose=lambda numbers: numbers % 2 == 0)
    assert [row["n"] for row in chosen.rows] == list(range(1, 20, 2))
