"""Lines of JSON come out as if each was parsed on its own, whichever way is taken."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import example, given
from hypothesis import strategies as st

from shardctl.errors import Rejection
from shardctl.sources import jsonl
from shardctl.sources.formats.base import OTHER_ENCODING, Choose, Misfit, Parsed, Reading, TextPart
from shardctl.sources.formats.jsonl import JsonLines
from shardctl.sources.types import Types

READING = Reading()


def types_of(data: bytes) -> Types:
    return JsonLines().types_of(TextPart(data), READING)


def parse(data: bytes, schema: pa.Schema, choose: Choose | None = None) -> Parsed:
    return JsonLines().parse(TextPart(data), READING, schema, choose)


def fit(value: Any, type_: pa.DataType) -> Any:
    """Return a parsed JSON value as its column wants it: JSON text where the column is a string and
    the value is not."""
    if value is None:
        return value
    if isinstance(value, str):
        return value if pa.types.is_string(type_) else None
    if pa.types.is_string(type_):
        return json.dumps(value, ensure_ascii=False)
    if pa.types.is_list(type_):
        return [fit(item, type_.value_type) for item in value]
    if pa.types.is_struct(type_):
        return {field.name: fit(value.get(field.name), field.type) for field in type_}
    return value


def one_by_one(data: bytes) -> tuple[list[tuple[int, dict[str, Any]]], list[tuple[int, str, str]]]:
    """Return the numbered objects of the lines, and (number, error, message) of the rejected
    ones."""
    records, rejects = [], []
    for number, line in enumerate(re.findall(b"[^\n]*\n|[^\n]+$", data), 1):
        if line.strip():
            try:
                records.append((number, jsonl.parse_line(line)))
            except Rejection as error:
                said = error.message.replace("recode the file", OTHER_ENCODING)
                rejects.append((number, error.error, said))
    return records, rejects


def same(one: Any, other: Any) -> bool:
    """Equal, -0.0 apart from 0.0 and NaN equal to itself."""
    return repr(one) == repr(other)


def check(data: bytes) -> None:
    records, rejects = one_by_one(data)
    types = types_of(data)
    expected_types = Types.of_values([value for _, value in records], "label")
    assert types.found() == expected_types.found()
    assert types.labels() == expected_types.labels()
    for schema in (types.schema(), types.found()):
        parsed = parse(data, schema)
        assert [(n, r.error, r.message) for n, r in parsed.rejects] == rejects
        assert parsed.numbers.tolist() == [number for number, _ in records]
        assert parsed.batch.num_rows == len(records)
        if len(schema):
            expected = [
                {f.name: fit(value.get(f.name), f.type) for f in types.schema()}
                for _, value in records
            ]
            arrays = [pa.array([row[f.name] for row in expected], f.type) for f in types.schema()]
            assert parsed.batch.schema == types.schema()
            assert same(
                parsed.batch.to_pylist(),
                pa.RecordBatch.from_arrays(arrays, schema=types.schema()).to_pylist(),
            )
            parsed.batch.validate(full=True)


FIELDS = st.sampled_from(["a", "b", "label", "", "é", "a b"])
SCALARS = st.sampled_from(
    [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "-0.0",
        "1",
        "-1",
        "1.5",
        "1e5",
        "1E+2",
        "0e-400",
        "9007199254740992",
    ]
    + [
        "9007199254740993",
        "-9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "1e400",
        "1e-400",
        "5e-324",
    ]
    + [
        "NaN",
        "-NaN",
        "Infinity",
        "-Infinity",
        "Inf",
        "01",
        "+1",
        ".5",
        "1.",
        "nul",
        "9" * 30,
        "0." + "0" * 330 + "1",
    ]
    + [
        '""',
        '"x"',
        '"2020-01-01"',
        '"2020-01-01T10:11:12Z"',
        '"\\u0000"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\udc00"',
        '"\\/\\n"',
    ]
    + ['"é"', '"\\x"', '"} null"', '"NaN"', '"a\tb"', '"[[{"', '"1e-400"']
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(st.sampled_from("xyz"), inner), max_size=3).map(
            lambda items: "{" + ",".join(f'"{name}":{value}' for name, value in items) + "}"
        )
    ),
    max_leaves=4,
)
OBJECTS = st.lists(st.tuples(FIELDS, VALUES), max_size=3).map(
    lambda items: ("{" + ", ".join(f'"{name}": {value}' for name, value in items) + "}").encode()
)
ODD = st.sampled_from(
    [
        b"",
        b" ",
        b"\r",
        b"\x0b",
        b"\x00",
        b"null",
        b"[]",
        b"1",
        b'"a"',
        b"{",
        b"}",
        b'{"a":',
        b"1}",
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf",
    ]
    + [
        b'{"a":1}{"a":2}',
        b'{"a":1} null {"a":2}',
        b'{"a":1}null',
        b'{"a":1},',
        b' {"a":1} ',
        b'{"a":1}\r',
        b'\xef\xbb\xbf{"a":1}',
    ]
    + [
        b'{"a":1}\x00',
        b'{"a":\x00}',
        b'{"a":1,"a":2}',
        b'{"b":{"x":null,"x":null}}',
        b"{'a':1}",
        b"{a:1}",
        b'{"a":1,}',
        b"{}",
        b"NaN",
    ]
    + [
        b'{"a":[null,null]}',
        b'{"a":{}}',
        b'{"a":{"x":{}}}',
        b'{"\\ud800":1}',
        b'{"a":1}//',
        b'{"a":1}/**/',
        b"\xff",
        b'{"\xff":1}',
    ]
)
LINES = st.lists(st.one_of(OBJECTS, OBJECTS, OBJECTS, ODD), max_size=5)
GOOD_SCALARS = st.sampled_from(
    [
        "null",
        "true",
        "0",
        "7",
        "1.5",
        '"x"',
        '"2020-01-01"',
        "9007199254740993",
        "-0",
        "1e-400",
        '""',
    ]
)


@examples(400)
@given(LINES, st.sampled_from([b"\n", b"\r\n"]), st.booleans())
@example([b'{"a":1} null {"a":2}'], b"\n", True)
@example([b'{"a":[null,null]}', b'{"a":[null]}'], b"\n", True)
def test_hostile_lines_are_read_as_if_one_by_one(lines, end, ended):
    check(end.join(lines) + (end if ended and lines else b""))


@examples(150)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), GOOD_SCALARS), unique_by=lambda pair: pair[0]),
        min_size=1,
        max_size=4,
    )
)
def test_plain_lines_are_read_as_if_one_by_one(rows):
    check(
        "".join(
            "{" + ",".join(f'"{name}":{value}' for name, value in row) + "}\n" for row in rows
        ).encode()
    )


@examples(150)
@given(LINES, LINES)
def test_types_of_a_part_are_widened_or_give_the_same_as_types_of_all(one, other):
    sampled, late = b"".join(line + b"\n" for line in one), b"".join(line + b"\n" for line in other)
    part = types_of(sampled)
    everything = part.join(types_of(late))
    expected = parse(late, everything.schema())
    try:
        parsed = parse(late, part.found())
    except Misfit:
        assert everything.found() != part.found()
        return
    # No value needed another column than the ones of the part: all others are strings in both.
    assert part.schema() == everything.schema()
    assert same(parsed.batch.to_pylist(), expected.batch.to_pylist())


@examples(150)
@given(LINES)
def test_chosen_lines_are_those_of_all_lines(lines):
    data = b"".join(line + b"\n" for line in lines)
    schema = types_of(data).schema()
    every, odd = parse(data, schema), parse(data, schema, lambda numbers: numbers % 2 == 1)
    wanted = np.flatnonzero(every.numbers % 2)
    assert odd.numbers.tolist() == every.numbers[wanted].tolist()
    if len(schema):
        assert same(odd.batch.to_pylist(), every.batch.take(pa.array(wanted)).to_pylist())
    assert [n for n, _ in odd.rejects] == [n for n, _ in every.rejects if n % 2]


@pytest.mark.parametrize(
    "levels",
    [jsonl.DEEPEST - 1, jsonl.DEEPEST, jsonl.MOST_LEVELS - 1, jsonl.MOST_LEVELS, 20_000, 300_000],
)
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deeply_nested_lines_end_no_process(levels, opening, closing):
    deep = b'{"a":' + opening * levels + b"1" + closing * levels + b"}\n"
    check(deep + b'{"a":1}\n')
    schema = pa.schema([("a", pa.list_(pa.int64()))])
    if levels < jsonl.MOST_LEVELS:
        with pytest.raises(Misfit):
            parse(deep, schema)
    else:
        assert [reject.error for _, reject in parse(deep, schema).rejects] == ["too-deep"]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), "1.5"),
        (pa.int64(), "9223372036854775808"),
        (pa.int8(), "128"),
        (pa.float64(), "9007199254740993"),
        (pa.float64(), '"NaN"'),
        (pa.bool_(), "0"),
        (pa.null(), '"x"'),
        (pa.list_(pa.int64()), "{}"),
        (pa.struct([("x", pa.int64())]), '{"y": null}'),
        (pa.date32(), '"soon"'),
    ],
)
def test_a_value_that_needs_another_type_is_a_misfit(type_, value):
    schema = pa.schema([("a", type_), ("b", pa.string())])
    with pytest.raises(Misfit, match="record 3"):
        parse(f'{{"b":"x"}}\nbroken\n{{"a":{value}}}\n'.encode(), schema)


def test_a_new_field_is_a_misfit_and_a_broken_line_with_one_is_not():
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(Misfit, match="the field b is new"):
        parse(b'{"a":1,"b":2}\n', schema)
    assert [n for n, _ in parse(b'{"a":1,"b":2\n{"a":1}\n', schema).rejects] == [1]


def test_times_stay_text():
    data = (
        b'{"when":"2020-01-01","n":[{"t":"2020-01-01 '
        b'10:00:00"}],"label":"2020-01-01"}\n{"label":"2020-01-02"}\n'
    )
    types = types_of(data)
    assert types.schema().field("when").type == pa.string()
    assert types.labels() == ["2020-01-01", "2020-01-02"]


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        (pa.timestamp("ns"), '"2020-01-01 10:00:00.123456789"', "1577836800"),
        (pa.timestamp("us", "UTC"), '"2020-01-01T10:00:00Z"', '"2020-01-01T10:00:00"'),
        (pa.decimal128(5, 2), '"1.50"', '"1.505"'),
        (pa.binary(), '"x"', "1"),
        (pa.float32(), "0.5", '"0.5"'),
        (pa.list_(pa.int8(), 2), "[1, 2]", "[1, 2, 3]"),
        (pa.list_(pa.struct([("t", pa.date32())])), '[{"t": "2020-01-01"}]', '[{"t": "x"}]'),
    ],
)
def test_given_types_are_the_same_by_both_ways(type_, good, bad):
    schema = pa.schema([("a", type_)])
    line = f'{{"a":{good}}}\n{{"a":null}}\n'.encode()
    fast, slow = parse(line, schema).batch, parse(line + b"broken\n", schema).batch
    assert fast.schema == slow.schema == schema
    assert fast.equals(slow)
    assert fast.column(0).null_count == 1
    for after in ("", "broken\n"):
        with pytest.raises(Misfit, match="record"):
            parse(f'{{"a":{bad}}}\n{after}'.encode(), schema)


def test_the_types_of_records_with_names_of_their_own_take_memory_as_their_bytes_do():
    records = ({"id": n, "of": {"name": n, f"name {n}": 1}} for n in range(5000))
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        types = types_of(data)
    finally:
        pa.set_memory_pool(before)
    assert types.mixed() == ["of"]
    assert pool.max_memory() < 200 << 20
