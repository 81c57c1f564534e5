from __future__ import annotations

import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from shardctl.sources.formats.base import Parsed, Reading, TextFormat, TextPart
from shardctl.sources.formats.text import Lines, Paragraphs

SCHEMA = pa.schema([("text", pa.string())])


def parse(form: TextFormat, data: bytes, first: int = 1, **more: object) -> Parsed:
    parsed = form.parse(
        TextPart(data, first), Reading(), more.get("schema", SCHEMA), more.get("choose")
    )  # type: ignore[arg-type]
    parsed.batch.validate(full=True)
    assert len(parsed.numbers) == len(parsed.batch)
    return parsed


def records(parsed: Parsed) -> list[tuple[int, str]]:
    return list(zip(parsed.numbers.tolist(), parsed.batch["text"].to_pylist(), strict=True))


def test_a_line_loses_its_line_end_and_no_more():
    data = b"one\ntwo\r\nthree\r\r\n \tfour \n\x00nul\x00\nlone\rcr\n\n\r\nlast\r"
    parsed = parse(Lines(), data)
    assert records(parsed) == [
        (1, "one"),
        (2, "two"),
        (3, "three\r"),
        (4, " \tfour "),
        (5, "\x00nul\x00"),
        (6, "lone\rcr"),
        (9, "last\r"),
    ]
    assert parsed.rejects == []
    assert Lines().count(data) == 9


def test_lines_that_are_not_utf8_are_rejected_alone_and_the_byte_is_named():
    data = (
        "日本\n".encode()
        + b"ab\xff\xfe\n"
        + "é\n".encode()
        + b"\xc3\n"
        + b"\xa9\n"
        + b"end \xed\xa0\x80"
    )
    parsed = parse(Lines(), data, first=10)
    assert records(parsed) == [(10, "日本"), (12, "é")]
    assert [(number, fault.stage, fault.error) for number, fault in parsed.rejects] == [
        (number, "decode", "not-utf8") for number in (11, 13, 14, 15)
    ]
    assert [fault.message.split(";")[0] for _, fault in parsed.rejects] == [
        f"not UTF-8 at byte {place} of the line" for place in (2, 0, 0, 4)
    ]


@given(
    st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    st.booleans(),
)
@examples(150)
def test_every_line_is_a_record_or_a_reject_or_empty(lines, ended):
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    expected, wrong = [], []
    for number, line in enumerate(data.split(b"\n"), 1):
        is_last = number == data.count(b"\n") + 1
        text = line[:-1] if line.endswith(b"\r") and not is_last else line
        try:
            if text:
                expected.append((number, text.decode()))
        except UnicodeDecodeError:
            wrong.append(number)
    parsed = parse(Lines(), data)
    assert records(parsed) == expected
    assert [number for number, _ in parsed.rejects] == wrong
    assert Lines().count(data) == len(data.split(b"\n")) - (not data or data.endswith(b"\n"))


def test_a_paragraph_keeps_its_inner_line_ends():
    data = b"\n \t\none\ntwo\n\n\n  three\r\n four\r\n \r\n\r\nfive\n\t\n\xffsix\n\nseven"
    parsed = parse(Paragraphs(), data)
    assert records(parsed) == [(1, "one\ntwo"), (2, "  three\r\n four"), (3, "five"), (5, "seven")]
    assert [(number, fault.message.split(";")[0]) for number, fault in parsed.rejects] == [
        (4, "not UTF-8 at byte 0 of the paragraph")
    ]
    assert Paragraphs().count(data) == 5


@pytest.mark.parametrize("form", [Lines(), Paragraphs()])
@given(st.text("ab \t\r\n", max_size=30), st.integers(0, 30))
@examples(150)
def test_complete_records_are_the_same_in_parts(form, text, cut):
    data = text.encode()
    at = form.complete(data[:cut])
    assert at <= cut
    one, two = parse(form, data[:at]), parse(form, data[at:], first=1 + form.count(data[:at]))
    assert records(one) + records(two) == records(parse(form, data))
    assert form.count(data[:at]) + form.count(data[at:]) == form.count(data)


def test_a_byte_order_mark_is_no_text():
    assert Lines().head(b"\xef\xbb\xbfa\n", Reading()).size == 3
    assert Paragraphs().head(b"a\n", Reading()).size == 0
