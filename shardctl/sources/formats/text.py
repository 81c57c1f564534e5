"""Plain text whose records are lines, or paragraphs."""

from __future__ import annotations

import codecs
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.formats.base import (
    OTHER_ENCODING,
    Choose,
    Head,
    Misfit,
    Numbers,
    Parsed,
    Reading,
    refuse_wide,
)
from shardctl.sources.formats.lines import count_lines
from shardctl.sources.types import Types, without_nulls

_LINE_FEED = 10
_CARRIAGE_RETURN = 13

_BLANKS = b" \t\r\n"
"""What a blank line between paragraphs may hold."""

_IS_BLANK = np.isin(np.arange(256), list(_BLANKS))


class Lines:
    """A record is a line: its text without the line end (LF or CRLF). Empty lines are numbered, and
    are no records."""

    name: ClassVar[str] = "lines"
    types_can_be_sampled: ClassVar[bool] = True

    def of(self, reading: Reading) -> Lines:
        """Return this format: a recipe changes nothing of it."""
        return self

    def head(self, data: bytes, reading: Reading) -> Head:
        """Pass over a byte order mark."""
        return _head(data, reading)

    def complete(self, data: bytes) -> int:
        """Return the place after the last line feed."""
        return data.rfind(b"\n") + 1

    def count(self, data: bytes) -> int:
        """Return how many lines there are."""
        return count_lines(data)

    def types_of(self, data: bytes, first: int, head: Head, reading: Reading) -> Types:
        """Return that of text."""
        return _types(reading)

    def parse(
        self,
        data: bytes,
        first: int,
        head: Head,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
    ) -> Parsed:
        """Return the lines, of which the first has the number `first`."""
        starts, ends = _lines(data)
        return _parsed(data, starts, ends, first, schema, choose, "line")


class Paragraphs:
    """A record is a paragraph: lines between blank ones (nothing but spaces and tabs). Line ends in
    it stay as they are.

    Files of paragraphs can be cut at blank lines only. Blank lines are no records and have no
    numbers.
    """

    name: ClassVar[str] = "paragraphs"
    types_can_be_sampled: ClassVar[bool] = True

    def of(self, reading: Reading) -> Paragraphs:
        """Return this format: a recipe changes nothing of it."""
        return self

    def head(self, data: bytes, reading: Reading) -> Head:
        """Pass over a byte order mark."""
        return _head(data, reading)

    def complete(self, data: bytes) -> int:
        """Return the place after the last blank line."""
        end = data.rfind(b"\n") + 1
        while end:
            start = data.rfind(b"\n", 0, end - 1) + 1
            if not data[start:end].strip(_BLANKS):
                return end
            end = start
        return 0

    def count(self, data: bytes) -> int:
        """Return how many paragraphs there are."""
        return len(_paragraphs(data)[0])

    def types_of(self, data: bytes, first: int, head: Head, reading: Reading) -> Types:
        """Return that of text."""
        return _types(reading)

    def parse(
        self,
        data: bytes,
        first: int,
        head: Head,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
    ) -> Parsed:
        """Return the paragraphs, of which the first has the number `first`."""
        starts, ends = _paragraphs(data)
        return _parsed(data, starts, ends, first, schema, choose, "paragraph")


def _head(data: bytes, reading: Reading) -> Head:
    refuse_wide(data, reading)
    return Head(len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0)


def _types(reading: Reading) -> Types:
    return Types.of(pa.record_batch({"text": pa.array(["a"])}), reading.label)


def _lines(data: bytes) -> tuple[Numbers, Numbers]:
    """Return where each line begins and where its line feed is, or the data end: two times (n,)
    int64."""
    feeds = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED)
    ends = feeds if not data or data.endswith(b"\n") else np.append(feeds, len(data))
    return np.concatenate((np.zeros(min(1, len(ends)), np.int64), ends[:-1] + 1)), ends


def _paragraphs(data: bytes) -> tuple[Numbers, Numbers]:
    """Return where each paragraph begins and where its last line feed is, or the data end: two
    times (n,) int64."""
    if not data:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    raw = np.frombuffer(data, np.uint8)
    starts, ends = _lines(data)
    inked = ~_IS_BLANK[raw[starts]]
    for place in np.flatnonzero(~inked & (ends > starts)):  # lines that begin with a blank
        inked[place] = bool(data[starts[place] : ends[place]].strip(_BLANKS))
    first = inked & ~np.concatenate(([False], inked[:-1]))
    last = inked & ~np.concatenate((inked[1:], [False]))
    return starts[first], ends[last]


def _parsed(
    data: bytes,
    starts: Numbers,
    ends: Numbers,
    first: int,
    schema: pa.Schema,
    choose: Choose | None,
    what: str,
) -> Parsed:
    """Return the records between `starts` and `ends`, which are line feeds or the end; a CR before
    a line feed goes too."""
    raw = np.frombuffer(data, np.uint8)
    numbers = np.arange(first, first + len(starts))
    if b"\r" in data:
        before = np.maximum(ends - 1, 0)
        cut = (raw[before] == _CARRIAGE_RETURN) & (ends > starts) & (ends < len(data))
        ends = ends - cut
    wanted = ends > starts
    if choose is not None:
        wanted &= choose(numbers)
    faults = _not_utf8(data, starts, ends)
    rejects = []
    for place, position in faults:
        if wanted[place]:
            message = f"not UTF-8 at byte {position} of the {what}; {OTHER_ENCODING}"
            rejects.append((int(numbers[place]), Rejection("decode", "not-utf8", message)))
            wanted[place] = False
    texts = _between(data, starts, ends)
    if not wanted.all():
        texts, numbers = texts.filter(pa.array(wanted)), numbers[wanted]
    whole = without_nulls(schema)
    columns = [
        _cast(texts, f.type) if f.name == "text" else pa.nulls(len(texts), f.type) for f in whole
    ]
    return Parsed(numbers, pa.RecordBatch.from_arrays(columns, schema=whole), rejects)


def _cast(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    if texts.type == type_:
        return texts
    try:
        return texts.cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Misfit(f"the field text: {error}") from None


def _between(data: bytes, starts: Numbers, ends: Numbers) -> pa.StringArray:
    """Return the texts between these places. They are not checked to be UTF-8."""
    if not len(starts):
        return pa.array([], pa.string())
    places = np.empty(2 * len(starts), np.int32)  # a part has less than 2 GiB: see RECORD_BYTES
    places[0::2], places[1::2] = starts, ends
    buffers = [None, pa.py_buffer(places), pa.py_buffer(data)]
    both = pa.StringArray.from_buffers(len(places) - 1, *buffers[1:])
    return both.take(pa.array(np.arange(0, len(places), 2)))


def _not_utf8(data: bytes, starts: Numbers, ends: Numbers) -> list[tuple[int, int]]:
    """Return which records are not UTF-8, and at which of their bytes."""
    faults: list[tuple[int, int]] = []
    if _valid(data):
        return faults
    view = memoryview(data)
    at = 0
    while True:
        try:
            codecs.utf_8_decode(view[at:], "strict", True)
        except UnicodeDecodeError as error:
            position = at + error.start
            place = int(np.searchsorted(starts, position, "right")) - 1
            faults.append((place, position - int(starts[place])))
            at = int(ends[place])
        else:
            return faults


def _valid(data: bytes) -> bool:
    text = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data)
    )
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
