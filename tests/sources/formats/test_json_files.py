"""JSON documents: every element is one record, and what is broken is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from reading import cut, sized, units_of
from reading import read as read_whole

from shardctl.errors import Rejection
from shardctl.sources.formats.base import Format, Reading, unmarked_wide
from shardctl.sources.formats.json_stream import JsonDocument

READING = Reading()


def read(
    path: Path, form: Format, choose: Any = None
) -> tuple[list[tuple[int, Any]], list[tuple[int, str, str]]]:
    """Return the numbered records of a file, and (number, error, message) of the rejected ones."""
    found = read_whole(form, path, choose=choose)
    return list(zip(found.numbers, found.rows, strict=True)), sorted(found.rejects)


TEXT = st.sampled_from(
    ["", "a", '"', "\\", "}, {", "[", "]]", ",", "\n", "\r\n", '\\"', "\\\\", "é"]
)
ROWS = st.lists(
    st.fixed_dictionaries({"t": TEXT, "n": st.lists(st.integers(0, 3), max_size=2)}), max_size=8
)


@examples(30)
@given(ROWS, st.sampled_from([None, 1]), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_elements_come_out_whatever_the_blocks_and_units(
    tmp_path,
    rows,
    indent,
    block,
    unit,
    mark,
):
    path = tmp_path / "rows.json"
    form = sized(JsonDocument(), unit_bytes=unit, block_bytes=block)
    text = json.dumps(rows, indent=indent, ensure_ascii=False)
    expected = list(enumerate(rows, 1))
    followed = "".join(json.dumps(row, indent=indent) + "\n" for row in rows)
    with_commas = ",\n".join(json.dumps(row, indent=indent) for row in rows)
    in_two = json.dumps(rows[:3]) + "\n" + json.dumps(rows[3:], indent=indent)
    for written in (
        text,
        text + "\n",
        followed,
        with_commas,
        in_two,
        f"{text[:-1]} ,]" if rows else "[,]"[:1] + "]",
    ):
        path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + written.encode())
        assert read(path, form) == (expected, [])
    odd = read(path, form, lambda numbers: numbers % 2 == 1)
    assert odd == ([(number, row) for number, row in expected if number % 2], [])


PIECES = ['{"a":1}', "[", "]", "{", "}", ",", '"', "\\", "\n", " ", "1", ":", '"a"', "null", "\x00"]


@examples(150)
@given(st.lists(st.sampled_from(PIECES)))
def test_any_text_is_cut_the_same_in_blocks_of_any_size(tmp_path, parts):
    path = tmp_path / "rows.json"
    path.write_text("".join(parts), newline="")
    assume(unmarked_wide(path.read_bytes()) is None)  # that is refused as UTF-16
    whole = read(path, JsonDocument())
    for block, unit in ((1, 1), (2, 5), (3, 1000)):
        assert read(path, sized(JsonDocument(), unit_bytes=unit, block_bytes=block)) == whole
    try:
        expected = json.loads("".join(parts))
    except ValueError:
        return
    elements = expected if isinstance(expected, list) else [expected]
    objects = [element for element in elements if isinstance(element, dict)]
    assert [record for _, record in whole[0]] == objects
    if isinstance(expected, list | dict):
        assert len(whole[1]) == len(elements) - len(objects)


@pytest.mark.parametrize(
    ("text", "kept", "rejects"),
    [
        ('[{"a":1}, {"a":2 "b"}, {"a":3}]', [1, 3], {2: "not JSON (Expecting ',' delimiter"}),
        ('[{"a":1}, {"a":NULL}, 7, {"a":3}]', [1, 4], {2: "not JSON", 3: "is a number"}),
        ('[{"a":1}, {"a":3}', [1], {2: "from byte 9 on: the file ends within an array"}),
        ('[{"a":1}, {"a":"x}, {"a":3}]', [1], {2: "from byte 9 on: the file ends within"}),
        ('[{"a":1}, {"a":"x\n"}, {"a":3}]', [1], {2: "from byte 9 on: a line end within a string"}),
        ('[{"a":1}], {"a":3}]', [1, 2], {3: "from byte 18 on: a bracket closes nothing"}),
        ('[{"a":1}} {"a":3}', [], {1: "from byte 1 on: a } closes an array"}),
        ('[{"a":1}] and {"a":3}', [1], {2: "from byte 9 on: text outside of arrays"}),
        ("[", [], {1: "from byte 1 on: the file ends within"}),
        ('[{"a":1,"a":2}, {"a":"\\ud800"}]', [], {1: "appears twice", 2: "fix the record"}),
        ("", [], {}),
    ],
)
def test_what_is_broken_is_named(tmp_path, text, kept, rejects):
    path = tmp_path / "rows.json"
    path.write_text(text, newline="")
    for form in (JsonDocument(), sized(JsonDocument(), unit_bytes=1, block_bytes=3)):
        records, found = read(path, form)
        assert [number for number, _ in records] == kept
        assert [number for number, *_ in found] == list(rejects)
        for (_, _, message), part in zip(found, rejects.values(), strict=True):
            assert part in message
            assert "line of JSON" not in message


def test_a_record_that_is_too_long_or_no_text_is_a_fault_alone(tmp_path):
    path = tmp_path / "rows.json"
    long = b"x" * 5000
    path.write_bytes(b'[{"a":"x"},{"a":"\xff"},{"a":"%s"},{"a":"y"}]' % long)
    records, rejects = read(path, sized(JsonDocument(), record_bytes=1000))
    assert records == [(1, {"a": "x"}), (4, {"a": "y"})]
    assert [(number, error) for number, error, _ in rejects] == [(2, "not-utf8"), (3, "too-large")]
    assert "at most 1000 B are read" in rejects[1][2]


@pytest.mark.parametrize("later", ['[{"n": 1}]', '[{"n": 1}            ,', '["'])
def test_a_file_that_changed_is_a_rejection(tmp_path, later):
    path = tmp_path / "rows.json"
    path.write_text('[{"n": 1}, {"n": 2}]')
    form = JsonDocument()
    (unit,) = units_of(cut(form, path))
    path.write_text(later)
    with pytest.raises(Rejection) as raised:
        form.types(str(path), unit, READING)
    assert (raised.value.stage, raised.value.error) == ("read", "changed")
