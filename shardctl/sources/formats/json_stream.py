"""JSON documents: an array of objects, one object, or several of either one after the other."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.format.arrays import Bytes, Numbers
from shardctl.sources.files import changed, read_range
from shardctl.sources.formats.base import (
    JUDGED_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    Cut,
    Digest,
    Reading,
    TextFile,
    TextPart,
    Unit,
    refuse_wide,
)
from shardctl.sources.formats.found_values import too_large
from shardctl.sources.formats.jsonl import BOM, JsonLines
from shardctl.sources.formats.lines import BUFFER_BYTES
from shardctl.sources.formats.sequential import TextStream
from shardctl.sources.types import Types
from shardctl.system.files import open_ordinary

PART_BYTES = 4 << 20
"""Bytes that are parsed together at most, unless one record is larger."""

_SPACE = b" \t\r\n"
_BETWEEN = _SPACE + b","
"""What may be between the arrays and objects of a file."""

_Element = tuple[bytes, Rejection | None]
"""The text of a record in UTF-8, and why it is rejected, if it is; of one that is too large, its
size."""


class JsonDocument(TextFile):
    """Files of JSON. The elements of an array are its records; an object outside of arrays is one
    record.

    Several arrays and objects may follow each other, with or without commas and line ends between
    them, and a comma may stand behind the last element. A file is cut between records, by its
    strings and brackets alone: a record that is broken within them is rejected alone. From where
    the brackets, strings or separators make no sense, the rest of the file is one reject that says
    from which byte on. Whether a bracket is in a string depends on all that is before it: a file is
    scanned in one go.
    """

    types_can_be_sampled = False
    unit_bytes, record_bytes = UNIT_BYTES, RECORD_BYTES
    block_bytes, part_bytes = BUFFER_BYTES, PART_BYTES

    def __init__(self) -> None:
        super().__init__(JsonLines())

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units."""
        cuts: list[Cut] = []
        with open_ordinary(path) as file:
            start = read_range(file.fileno(), 0, min(size, JUDGED_BYTES))
            refuse_wide(start, reading)
            unit, records = len(BOM) if start.startswith(BOM) else 0, 0
            blocks = (
                read_range(file.fileno(), place, min(self.block_bytes, size - place))
                for place in range(unit, size, self.block_bytes)
            )
            for record in find_records(blocks, unit, size, in_array=False):
                fault = self._fault(record)
                if fault and records:
                    cuts.append(Cut(unit, record.start - unit, records))
                    unit, records = record.start, 0
                records += 1
                if fault or record.after - unit >= self.unit_bytes:
                    cuts.append(Cut(unit, record.after - unit, records, fault))
                    unit, records = record.after, 0
            if records:
                cuts.append(Cut(unit, size - unit, records))
        return {"cuts": cuts}

    def _fault(self, record: _Record) -> Rejection | None:
        size = record.end - record.start
        if record.fault or size <= self.record_bytes:
            return record.fault
        return too_large(size, self.record_bytes)

    def parts(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> Generator[TextPart]:
        """Yield the records of a unit as lines, at least one part. The digest is of all bytes of
        the unit's range; of a stream, of the text of its records."""
        lines: list[bytes] = []
        faults: dict[int, Rejection] = {}
        first, size = unit.first, 0

        def named(number: int, why: Rejection) -> Rejection:
            """Return what is wrong with a line as what is wrong with a record."""
            message = why.message.replace("a line of JSON", "JSON").replace("line", "record")
            return faults.get(number) or why.saying(message)

        for element, fault in self._elements(path, unit, reading, digest):
            if fault:
                faults[first + len(lines)] = fault
            # nothing between two commas is no blank line, but a broken record
            # JSON takes both line ends for spaces between values, and neither within a string
            text = b"" if fault else element.strip(_SPACE).replace(b"\n", b"\r")
            lines.append(text or b",")
            size += len(lines[-1])
            if size >= self.part_bytes:
                yield TextPart(b"\n".join(lines), first, named=named)
                first, lines, size = first + len(lines), [], 0
        if lines or first == unit.first:
            yield TextPart(b"\n".join(lines), first, named=named)

    def _elements(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> Iterator[_Element]:
        """Yield the records of a unit."""
        with open_ordinary(path) as file:
            data = read_range(file.fileno(), unit.offset, unit.size)
            # A unit begins after the comma of an array, or outside of all arrays.
            in_array = unit.offset > 0 and os.pread(file.fileno(), 1, unit.offset - 1) == b","
        if digest is not None:
            digest.update(data)
        found = find_records([data], unit.offset, unit.offset + unit.size, in_array)
        records = list(found)[unit.skip : unit.skip + unit.records]
        if len(records) < unit.records or any(record.fault for record in records):
            raise changed()
        for record in records:
            yield data[record.start - unit.offset : record.end - unit.offset], None


class JsonStream(JsonDocument):
    """Such files that are compressed, in another encoding, or both. A file is one unit, which is
    read from its beginning; its records are those that JsonDocument finds in the same text."""

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Read a file to its end; `cuts` are the units. Raises Rejection if no record of it can be
        read."""
        with closing(TextStream(path, reading, self.block_bytes)) as text:
            return text.scanned([], size, sum(1 for _ in self._found(text)))

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields, by their names."""
        return Types.of_schema(pa.schema([]), reading.label).join(
            super().types(path, unit, reading)
        )

    def _elements(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> Iterator[_Element]:
        left = unit.records
        with closing(TextStream(path, reading, self.block_bytes)) as text:
            for place, (data, fault) in enumerate(self._found(text)):
                if place < unit.skip:
                    continue
                if not left:
                    break
                if digest is not None:
                    digest.update(data)
                yield data, fault
                left -= 1
        if left:
            raise text.fault or changed()

    def _found(self, text: TextStream) -> Iterator[_Element]:
        """Yield the records of a file; why it cannot be read to its end, the text says then."""
        held, base = bytearray(), 0  # the text from this byte on

        def blocks() -> Iterator[bytes]:
            """Yield the text, and hold it; of a record that is too large no more than a block."""
            nonlocal base
            first = True
            while not text.ended or first:
                block = text.more()
                if first and block.startswith(BOM):
                    block = b" " * len(BOM) + block[len(BOM) :]
                first = False
                if len(held) > self.record_bytes:
                    let_go(len(held))
                held.extend(block)
                if block:
                    yield block

        def let_go(size: int) -> list[int]:
            """Forget some of the text; return the places in the file of bytes in it that could not
            be decoded."""
            nonlocal base
            size = max(size, 0)
            places = text.places_in(held, size)
            del held[:size]  # moves nothing: bytearrays have an offset
            base += size
            return places.tolist()

        for record in find_records(blocks(), 0, 0, in_array=False):
            fault = self._fault(record)
            if record.fault:
                text.fault = text.fault or record.fault
                return
            let_go(record.start - base)
            size = record.end - record.start
            data = b"%d" % size if fault else bytes(held[:size])
            places = let_go(record.after - base)
            yield data, fault or (text.undecoded_at(places[0]) if places else None)


# --- where records begin and end ---


class _Record(NamedTuple):
    """Where a record is in a file, and where the next one may begin: behind the comma or the
    bracket that ends it."""

    start: int
    end: int
    after: int
    fault: Rejection | None = None


_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
_STRUCTURE = bytes(byte in b'{[]},"\n' for byte in range(256))
_QUOTE, _LINE_END, _SLASH, _OPEN_LIST, _CLOSE_LIST = b'"\n\\[]'


def find_records(
    blocks: Iterable[bytes], start: int, end: int, in_array: bool
) -> Iterator[_Record]:
    """Yield the records of a file's bytes from `start` to `end`, which begin within an array or
    outside of all.

    The last one has a fault, and goes to the end, where from its beginning on no records can be
    told apart.
    """
    depth, in_string, carry, offset = int(in_array), False, b"", start
    begun = False  # whether there is more than space from `start` to the present block
    for block in blocks:
        data = carry + block
        carry = b"\\" if (len(data) - len(data.rstrip(b"\\"))) % 2 else b""
        data = data[: len(data) - len(carry)]
        marks, wrong, depth, in_string = _marks(data, depth, in_string)
        for place, byte, before, after in marks:
            here, text = offset + place, data[max(start - offset, 0) : place]
            if before == 0 and after == 1:
                if begun or text.strip(_BETWEEN):
                    yield _broken(start, end, "text outside of arrays and objects")
                    return
                in_array = byte == _OPEN_LIST
                start, begun = here + in_array, False
            elif after == 1 and in_array:
                yield _Record(start, here, here + 1)
                start, begun = here + 1, False
            elif before == 1 and after == 0:
                if in_array and byte != _CLOSE_LIST:
                    yield _broken(start, end, "a } closes an array")
                    return
                if not in_array:
                    yield _Record(start, here + 1, here + 1)
                elif begun or text.strip(_SPACE):
                    yield _Record(start, here, here + 1)
                start, begun, in_array = here + 1, False, False
        if wrong:
            yield _broken(start, end, wrong)
            return
        begun = begun or bool(data[max(start - offset, 0) :].strip(_SPACE if depth else _BETWEEN))
        offset += len(data)
    if depth or in_string:
        yield _broken(start, end, "the file ends within an array, an object or a string")
    elif begun or carry:
        yield _broken(start, end, "text outside of arrays and objects")


def _broken(start: int, end: int, why: str) -> _Record:
    return _Record(
        start,
        end,
        end,
        Rejection("decode", "not-json", f"not JSON from byte {start} on: {why}; fix the file"),
    )


_Mark = list[int]
"""A bracket or comma at the level of records: its place in a block, its byte, and how deep nested
is what is before and after it."""


def _marks(data: bytes, depth: int, in_string: bool) -> tuple[list[_Mark], str | None, int, bool]:
    """Return the marks of a block, what is wrong after the last of them, and how deep and whether
    in a string it ends."""
    array = np.frombuffer(data, np.uint8)
    structure = np.frombuffer(bytearray(data.translate(_STRUCTURE)), np.bool_)
    structure[_escaped_quotes(array)] = False
    places = np.flatnonzero(structure)
    kinds = array[places]
    quotes = kinds == _QUOTE
    inside = (in_string + np.cumsum(quotes)) & 1 == 1
    in_string ^= bool(quotes.sum() & 1)
    line_ends = kinds == _LINE_END
    broken = [
        (place, "a line end within a string") for place in places[line_ends & inside][:1].tolist()
    ]
    outside = ~(inside | quotes | line_ends)
    places, kinds = places[outside], kinds[outside]
    steps = _STEPS[kinds]
    after = depth + np.cumsum(steps, dtype=np.int64)
    before = after - steps
    broken += [(place, "a bracket closes nothing") for place in places[after < 0][:1].tolist()]
    at, wrong = min(broken, default=(len(data), None))
    marked = (places < at) & ((before == 0) | (after == 0) | ((steps == 0) & (after == 1)))
    marks = np.stack([places, kinds, before, after])[:, marked].T.tolist()
    return marks, wrong, int(after[-1]) if len(after) else depth, in_string


def _escaped_quotes(array: Bytes) -> Numbers:
    """Return the places of the quotes with an odd number of backslashes before."""
    slashes = np.flatnonzero(array == _SLASH)
    firsts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(firsts, append=len(slashes))
    after = (slashes[firsts] + lengths)[lengths % 2 == 1]
    escaped: Numbers = after[array[after] == _QUOTE]
    return escaped
