"""Plain text whose records are lines, or paragraphs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import Numbers
from shardctl.sources.formats.base import (
    OTHER_ENCODING,
    Choose,
    Misfit,
    Parsed,
    Reading,
    TextFormat,
    TextPart,
)
from shardctl.sources.formats.columns import with_columns
from shardctl.sources.formats.lines import is_utf8
from shardctl.sources.types import Types

_LINE_FEED = 10
_CARRIAGE_RETURN = 13

_BLANKS = b" \t\r\n"
"""What a blank line between paragraphs may hold."""

_IS_BLANK = np.isin(np.arange(256), list(_BLANKS))


class Lines(TextFormat):
    """A record is a line: its text without the line end (LF or CRLF). Empty lines are numbered, and
    are no records."""

    record = "line"

    def types_of(self, part: TextPart, reading: Reading) -> Types:
        """Return that of text."""
        return Types.of(pa.record_batch({"text": pa.array(["a"])}), reading.label)

    def parse(
        self, part: TextPart, reading: Reading, schema: pa.Schema, choose: Choose | None
    ) -> Parsed:
        """Return the texts of the records; a CR before the last line feed is none of it."""
        data = part.data
        starts, ends = self.places(data)
        raw = np.frombuffer(data, np.uint8)
        numbers = part.first + np.arange(len(starts))
        if b"\r" in data:
            before = np.maximum(ends - 1, 0)
            cut = (raw[before] == _CARRIAGE_RETURN) & (ends > starts) & (ends < len(data))
            ends = ends - cut
        wanted = ends > starts
        if choose is not None:
            wanted &= choose(numbers)
        rejects = []
        for place, position in _not_utf8(data, starts, ends):
            if wanted[place]:
                message = f"not UTF-8 at byte {position} of the {self.record}; {OTHER_ENCODING}"
                rejects.append((int(numbers[place]), Rejection("decode", "not-utf8", message)))
                wanted[place] = False
        texts = _between(data, starts, ends)
        if not wanted.all():
            texts, numbers = texts.filter(pa.array(wanted)), numbers[wanted]
        rows = pa.record_batch({"text": texts})
        batch = with_columns(rows, schema, lambda column, _, out: _cast(column, out.type))
        return Parsed(numbers, batch, rejects)

    def places(self, data: bytes) -> tuple[Numbers, Numbers]:
        """Return where each record begins and where its last line feed is, or the data end: two
        times (n,) int64."""
        return _lines(data)


class Paragraphs(Lines):
    """A record is a paragraph: lines between blank ones (nothing but spaces and tabs). Line ends in
    it stay as they are.

    Files of paragraphs can be cut at blank lines only. Blank lines are no records and have no
    numbers.
    """

    record = "paragraph"

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
        return len(self.places(data)[0])

    def places(self, data: bytes) -> tuple[Numbers, Numbers]:
        """Return where each paragraph is."""
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


def _lines(data: bytes) -> tuple[Numbers, Numbers]:
    feeds = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED)
    ends = feeds if not data or data.endswith(b"\n") else np.append(feeds, len(data))
    return np.concatenate((np.zeros(min(1, len(ends)), np.int64), ends[:-1] + 1)), ends


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


def _not_utf8(data: bytes, starts: Numbers, ends: Numbers) -> Iterator[tuple[int, int]]:
    """Yield which records are not UTF-8, and at which of their bytes."""
    if is_utf8(data):
        return
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        try:
            data[start:end].decode()
        except UnicodeDecodeError as error:
            yield place, error.start
