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
        numbers = part.first + np.arange(len(starts))
        if b"\r" in data:
            before = np.frombuffer(data, np.uint8)[ends - 1]
            ends = ends - ((before == _CARRIAGE_RETURN) & (ends > starts) & (ends < len(data)))
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
        batch = with_columns(pa.record_batch({"text": texts}), schema, _cast)
        return Parsed(numbers, batch, rejects)

    def places(self, data: bytes) -> tuple[Numbers, Numbers]:
        """Return where each record begins and where its last line feed is, or the data end: two
        times (n,) int64."""
        feeds = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED)
        ends = feeds if not data or data.endswith(b"\n") else np.append(feeds, len(data))
        return np.concatenate((np.zeros(min(1, len(ends)), np.int64), ends[:-1] + 1)), ends


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
        raw = np.frombuffer(data, np.uint8)
        starts, ends = super().places(data)
        inked = ~_IS_BLANK[raw[starts]]
        for place in np.flatnonzero(~inked & (ends > starts)):  # lines that begin with a blank
            inked[place] = bool(data[starts[place] : ends[place]].strip(_BLANKS))
        first = inked & np.diff(inked, prepend=False)
        last = inked & np.diff(inked, append=False)
        return starts[first], ends[last]


def _cast(texts: pa.Array, _: pa.Field, out: pa.Field) -> pa.Array:
    if texts.type == out.type:
        return texts
    try:
        return texts.cast(out.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Misfit(f"the field text: {error}") from None


def _between(data: bytes, starts: Numbers, ends: Numbers) -> pa.StringArray:
    """Return the texts between these places. They are not checked to be UTF-8."""
    if not len(starts):
        return pa.array([], pa.string())
    places = np.empty(2 * len(starts), np.int32)  # a part has less than 2 GiB: see RECORD_BYTES
    places[0::2], places[1::2] = starts, ends
    both = pa.StringArray.from_buffers(len(places) - 1, pa.py_buffer(places), pa.py_buffer(data))
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
