"""JSON documents in files that are compressed, in another encoding, or both: read from their
beginning to their end."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.sources.files import changed, read_range
from shardctl.sources.formats.base import (
    DETECT,
    JUDGED_BYTES,
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    Cut,
    Digest,
    Head,
    Numbers,
    Parsed,
    Reading,
    Unit,
    refuse_wide,
)
from shardctl.sources.formats.content import Truncated, decompressed, split_compression
from shardctl.sources.formats.encodings import (
    DETECTED_BYTES,
    UNDECODED,
    Transcoder,
    detect,
    resolve,
    undecoded,
)
from shardctl.sources.formats.jsonl import BOM, JsonLines
from shardctl.sources.formats.lines import BUFFER_BYTES, PART_BYTES
from shardctl.sources.formats.sequential import with_count
from shardctl.sources.types import Types
from shardctl.system.files import ordinary
from shardctl.system.text import format_bytes


class JsonStream:
    """A file is one unit. Its records are those that JsonDocument finds in the same text in a plain
    file."""

    name: ClassVar[str] = "json"
    types_can_be_sampled: ClassVar[bool] = False

    def __init__(
        self,
        record_bytes: int = RECORD_BYTES,
        block_bytes: int = UNIT_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._longest = record_bytes
        self._block = block_bytes
        self._part = part_bytes

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the file as one piece."""
        return [(0, size)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Read a file to its end. `fault` is why it is not read further: stage, error and message,
        or None."""
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            elements = _Elements(file, path, reading, self._longest, self._block)
            records = sum(1 for _ in elements)
            fault = elements.fault
            if fault and fault.error == "truncated":
                fault = with_count(fault, records)
        return {
            "encoding": elements.encoding,
            "records": records,
            "fault": [fault.stage, fault.error, fault.message] if fault else None,
        }

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the unit, and another one that is rejected where the file could not be read to its
        end."""
        (scan,) = scans
        fault = Rejection(*scan["fault"]) if scan["fault"] else None
        if fault and not scan["records"]:
            raise fault
        cuts = [Cut(0, size, scan["records"])] if scan["records"] else []
        return cuts + ([Cut(size, 0, 1, fault)] if fault else [])

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records; what cannot be read is left out."""
        parts = self._parts(path, unit, reading, xxhash.xxh3_64())
        found = (JsonLines().types_of(lines, first, Head(0), reading) for first, lines, _ in parts)
        return reduce(Types.join, found, Types.of_schema(pa.schema([]), reading.label))

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: Any,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit in parts. The digest is of their text in UTF-8."""
        for first, lines, faults in self._parts(path, unit, reading, digest):
            parsed = JsonLines().parse(lines, first, Head(0), reading, schema, choose)
            rejects = [
                (number, faults.get(number) or of_record(error)) for number, error in parsed.rejects
            ]
            yield Parsed(parsed.numbers, parsed.batch, rejects)

    def _parts(
        self, path: str, unit: Unit, reading: Reading, digest: Digest
    ) -> Iterator[tuple[int, bytes, dict[int, Rejection]]]:
        """Yield (number of the first record, records as lines, those that are rejected and why)."""
        lines: list[bytes] = []
        faults: dict[int, Rejection] = {}
        size, left, number = 0, unit.records, unit.first
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            elements = _Elements(file, path, reading, self._longest, self._block)
            for place, element in enumerate(elements):
                if place < unit.skip:
                    continue
                if not left:
                    break
                digest.update(element.data)
                if element.fault:
                    faults[number] = element.fault
                # a comma alone is no JSON: it is rejected
                lines.append(b"," if element.fault else as_line(element.data))
                size, left, number = size + len(lines[-1]), left - 1, number + 1
                if size >= self._part:
                    yield number - len(lines), b"\n".join(lines), faults
                    lines, faults, size = [], {}, 0
        if left:
            raise elements.fault or changed()
        if lines:
            yield number - len(lines), b"\n".join(lines), faults


class _Element(NamedTuple):
    """The text of a record in UTF-8; or the size of one that is too large."""

    data: bytes
    fault: Rejection | None = None


class _Elements:
    """The records of an open file, one after the other. `fault` is why the file could not be read
    to its end."""

    def __init__(
        self, file: BinaryIO, path: str, reading: Reading, longest: int, block: int
    ) -> None:
        self.fault: Rejection | None = None
        self._longest = longest
        compression = split_compression(path)[1]
        self._where = " of its decompressed content" if compression else ""
        self._chunks = (
            decompressed(file, compression) if compression else iter(lambda: file.read(block), b"")
        )
        start = bytearray()
        wanted = DETECTED_BYTES if reading.encoding == DETECT else len(BOM) + 1
        ended = False
        while len(start) < wanted and not ended:
            chunk = self._next_chunk()
            start += chunk
            ended = not chunk
        named = (
            detect(bytes(start[:DETECTED_BYTES]), ended)
            if reading.encoding == DETECT
            else reading.encoding
        )
        self.encoding, mark = resolve(named, bytes(start[:4]))
        self._transcoder = Transcoder(self.encoding, mark) if self.encoding != "utf-8" else None
        self._start = bytes(start[mark:])
        self._held = bytearray()
        self._base = 0  # the place of the first byte held

    def __iter__(self) -> Iterator[_Element]:
        for record in find_records(self._blocks(), 0, 0, in_array=False):
            if record.fault:
                self.fault = self.fault or Rejection("decode", "not-json", record.fault)
                return
            self._take(record.start - self._base)
            size = record.end - record.start
            if size > self._longest:
                self._take(record.after - self._base)
                yield _Element(
                    b"%d" % size, Rejection("read", "too-large", too_large(size, self._longest))
                )
            else:
                data = bytes(self._held[:size])
                places = self._take(record.after - self._base)
                yield _Element(
                    data, undecoded(self.encoding, places[0], self._where) if places else None
                )

    def _blocks(self) -> Iterator[bytes]:
        """Yield the text, and hold it until `_take`; of a record that is too large no more than a
        block."""
        chunk = self._start
        mark = len(BOM) if chunk.startswith(BOM) else 0
        first = True
        while chunk or first:
            text = self._transcoder.feed(chunk) if self._transcoder else chunk
            if first:
                text = b" " * mark + text[mark:]
            first = False
            yield from self._hold(text)
            chunk = self._next_chunk()
        if self._transcoder and self.fault is None:
            yield from self._hold(self._transcoder.feed(b"", final=True))

    def _hold(self, text: bytes) -> Iterator[bytes]:
        if len(self._held) > self._longest:
            self._take(len(self._held))
        self._held += text
        if text:
            yield text

    def _take(self, size: int) -> array[int]:
        """Let go of some of the text; return the places in the file of the bytes in it that could
        not be decoded."""
        places = array("q")
        if size <= 0:
            return places
        if self._transcoder and self._transcoder.undecoded:
            count = self._held.count(UNDECODED, 0, size)
            places = self._transcoder.undecoded[:count]
            del self._transcoder.undecoded[:count]
        del self._held[:size]  # moves nothing: bytearrays have an offset
        self._base += size
        return places

    def _next_chunk(self) -> bytes:
        try:
            return next(self._chunks, b"")
        except Truncated:
            self.fault = Rejection("read", "truncated", "the compressed file ends early")
            return b""


# --- JSON documents: an array of objects, one object, or several of either one after the other ---

_SPACE = b" \t\r\n"
_BETWEEN = _SPACE + b","
"""What may be between the arrays and objects of a file."""

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1
_STRUCTURE = _STEPS != 0
_STRUCTURE[b","[0]] = True

_NO_LINE_END = bytes.maketrans(b"\n", b"\r")
"""JSON takes both for spaces between values, and neither within a string."""

_WORDS = (
    ("not a line of JSON", "not JSON"),
    ("this line is", "this one is"),
    ("of the line", "of the record"),
    ("fix the line", "fix the record"),
)
"""What messages say of a line, and what they say of an element."""


class JsonDocument:
    """Files of JSON. The elements of an array are its records; an object outside of arrays is one
    record.

    Several arrays and objects may follow each other, with or without commas and line ends between
    them, and a comma may stand behind the last element. A file is cut between records, by its
    strings and brackets alone: a record that is broken within them is rejected alone. From where
    the brackets, strings or separators make no sense, the rest of the file is one reject that says
    from which byte on.
    """

    name: ClassVar[str] = "json"
    types_can_be_sampled: ClassVar[bool] = False

    def __init__(
        self,
        unit_bytes: int = UNIT_BYTES,
        record_bytes: int = RECORD_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._unit = unit_bytes
        self._longest = record_bytes
        self._buffer = buffer_bytes

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the whole file: whether a bracket is in a string depends on all that is before
        it."""
        return [(0, size)] if size else []

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units: [offset, bytes, records, (stage, error, message) of the reject or
        None]."""
        cuts: list[list[Any]] = []
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            refuse_wide(read_range(file.fileno(), 0, min(size, JUDGED_BYTES)), reading)
            start = (
                len(BOM)
                if size >= len(BOM) and read_range(file.fileno(), 0, len(BOM)) == BOM
                else 0
            )
            ranges = (
                (place, min(self._buffer, size - place))
                for place in range(start, size, self._buffer)
            )
            blocks = (read_range(file.fileno(), place, length) for place, length in ranges)
            unit, records = start, 0
            for record in find_records(blocks, start, size, in_array=False):
                fault = self._fault(record)
                if fault and records:
                    cuts.append([unit, record.start - unit, records, None])
                    unit, records = record.start, 0
                records += 1
                if fault or record.after - unit >= self._unit:
                    cuts.append([unit, record.after - unit, records, fault])
                    unit, records = record.after, 0
            if records:
                cuts.append([unit, size - unit, records, None])
        return cuts

    def _fault(self, record: _Record) -> tuple[str, str, str] | None:
        if record.fault:
            return "decode", "not-json", record.fault
        size = record.end - record.start
        if size <= self._longest:
            return None
        return "read", "too-large", too_large(size, self._longest)

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units."""
        cuts = [cut for scan in scans for cut in scan]
        return [
            Cut(offset, length, records, Rejection(*fault) if fault else None)
            for offset, length, records, fault in cuts
        ]

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records; what cannot be read is left out."""
        parts = self._parts(path, unit, None)
        return reduce(
            Types.join,
            (JsonLines().types_of(lines, first, Head(0), reading) for first, lines in parts),
        )

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: Any,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit in parts. The digest is of all bytes of the unit's range."""
        for first, lines in self._parts(path, unit, digest):
            parsed = JsonLines().parse(lines, first, Head(0), reading, schema, choose)
            rejects = [(number, of_record(error)) for number, error in parsed.rejects]
            yield Parsed(parsed.numbers, parsed.batch, rejects)

    def _parts(self, path: str, unit: Unit, digest: Digest | None) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the first record, records as lines), at least one part."""
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            data = read_range(file.fileno(), unit.offset, unit.size)
            # A unit begins after the comma of an array, or outside of all arrays.
            in_array = unit.offset > 0 and os.pread(file.fileno(), 1, unit.offset - 1) == b","
        if digest is not None:
            digest.update(data)
        records = list(find_records([data], unit.offset, unit.offset + unit.size, in_array))[
            unit.skip : unit.skip + unit.records
        ]
        if len(records) < unit.records or any(record.fault for record in records):
            raise changed()
        lines: list[bytes] = []
        first, size = unit.first, 0
        for record in records:
            lines.append(as_line(data[record.start - unit.offset : record.end - unit.offset]))
            size += len(lines[-1])
            if size >= PART_BYTES:
                yield first, b"\n".join(lines)
                first, lines, size = first + len(lines), [], 0
        if lines or first == unit.first:
            yield first, b"\n".join(lines)


def too_large(size: int, longest: int) -> str:
    """Return why a record is not read that is larger than records may be."""
    return (
        f"a record of {size} bytes, but at most {format_bytes(longest)} are read as one; divide it"
    )


def as_line(element: bytes) -> bytes:
    """Return an element as a line of JSON. Nothing between two commas is no blank line, but a
    broken record."""
    return element.strip(_SPACE).translate(_NO_LINE_END) or b","


def of_record(error: Rejection) -> Rejection:
    """Return what is wrong with a line as what is wrong with a record."""
    message = error.message
    for line, record in _WORDS:
        message = message.replace(line, record)
    return Rejection(error.stage, error.error, message)


# --- where records begin and end ---


class _Record(NamedTuple):
    """Where a record is in a file, and where the next one may begin: behind the comma or the
    bracket that ends it."""

    start: int
    end: int
    after: int
    fault: str | None = None


class _Mark(NamedTuple):
    """A bracket or comma at the level of records: its place in a block, its byte, and how deep it
    is nested."""

    place: int
    byte: int
    before: int
    after: int


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
        for mark in marks:
            here, text = offset + mark.place, data[max(start - offset, 0) : mark.place]
            if mark.before == 0 and mark.after == 1:
                if begun or text.strip(_BETWEEN):
                    yield _broken(start, end, "text outside of arrays and objects")
                    return
                in_array = mark.byte == b"["[0]
                start, begun = here + in_array, False
            elif mark.after == 1 and in_array:
                yield _Record(start, here, here + 1)
                start, begun = here + 1, False
            elif mark.before == 1 and mark.after == 0:
                if in_array and mark.byte != b"]"[0]:
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
    return _Record(start, end, end, f"not JSON from byte {start} on: {why}; fix the file")


def _marks(data: bytes, depth: int, in_string: bool) -> tuple[list[_Mark], str | None, int, bool]:
    """Return the marks of a block, what is wrong after the last of them, and how deep and whether
    in a string it ends."""
    array = np.frombuffer(data, np.uint8)
    quotes = _quotes(array)

    def outside(places: Numbers) -> npt.NDArray[np.bool_]:
        even: npt.NDArray[np.bool_] = (np.searchsorted(quotes, places) + in_string) % 2 == 0
        return even

    places = np.flatnonzero(_STRUCTURE[array])
    places = places[outside(places)]
    steps = _STEPS[array[places]].astype(np.int64)
    after = depth + np.cumsum(steps)
    before = after - steps
    line_ends = np.flatnonzero(array == b"\n"[0])
    broken = [
        (place, "a line end within a string")
        for place in line_ends[~outside(line_ends)][:1].tolist()
    ]
    broken += [(place, "a bracket closes nothing") for place in places[after < 0][:1].tolist()]
    at, wrong = min(broken, default=(len(data), None))
    marked = (places < at) & ((before == 0) | (after == 0) | ((steps == 0) & (after == 1)))
    columns = (places[marked], array[places[marked]], before[marked], after[marked])
    marks = [_Mark(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return (
        marks,
        wrong,
        int(after[-1]) if len(after) else depth,
        bool((len(quotes) + in_string) & 1),
    )


def _quotes(array: npt.NDArray[np.uint8]) -> Numbers:
    """Return where strings begin and end: the places of the quotes without an odd number of
    backslashes before."""
    quotes = np.flatnonzero(array == b'"'[0])
    slashes = np.flatnonzero(array == b"\\"[0])
    if not len(slashes):
        return quotes
    firsts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(firsts, append=len(slashes))
    escaped = (slashes[firsts] + lengths)[lengths % 2 == 1]
    return quotes[~np.isin(quotes, escaped, assume_unique=True)]
