"""JSON documents in files that are compressed, in another encoding, or both: read from their beginning to their end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import reduce
from typing import Any, BinaryIO, ClassVar, NamedTuple

import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.sources.formats.base import DETECT, RECORD_BYTES, UNIT_BYTES, Choose, Cut, Digest, Head, Parsed, Reading, Unit
from shardctl.sources.formats.encodings import DETECTED_BYTES, UNDECODED, Transcoder, detect, resolve, undecoded
from shardctl.sources.formats.json_array import as_line, find_records, of_record, too_large
from shardctl.sources.formats.jsonl import BOM, JsonLines
from shardctl.sources.formats.lines import PART_BYTES
from shardctl.sources.formats.ranges import changed
from shardctl.sources.formats.sequential import with_count
from shardctl.sources.formats.streams import Truncated, decompressed, split_compression
from shardctl.sources.types import Types
from shardctl.system.files import ordinary


class JsonStream:
    """A file is one unit. Its records are those that JsonDocument finds in the same text in a plain file."""

    name: ClassVar[str] = "json"
    types_can_be_sampled: ClassVar[bool] = False

    def __init__(self, record_bytes: int = RECORD_BYTES, block_bytes: int = UNIT_BYTES, part_bytes: int = PART_BYTES) -> None:
        self._longest = record_bytes
        self._block = block_bytes
        self._part = part_bytes

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the file as one piece."""
        return [(0, size)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Read a file to its end. `fault` is why it is not read further: stage, error and message, or None."""
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
        """Return the unit, and another one that is rejected where the file could not be read to its end."""
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
        self, path: str, unit: Unit, reading: Reading, schema: Any, choose: Choose | None, digest: Digest
    ) -> Iterator[Parsed]:
        """Yield the records of a unit in parts. The digest is of their text in UTF-8."""
        for first, lines, faults in self._parts(path, unit, reading, digest):
            parsed = JsonLines().parse(lines, first, Head(0), reading, schema, choose)
            rejects = [(number, faults.get(number) or of_record(error)) for number, error in parsed.rejects]
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
                lines.append(b"," if element.fault else as_line(element.data))  # a comma alone is no JSON: it is rejected
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
    """The records of an open file, one after the other. `fault` is why the file could not be read to its end."""

    def __init__(self, file: BinaryIO, path: str, reading: Reading, longest: int, block: int) -> None:
        self.fault: Rejection | None = None
        self._longest = longest
        compression = split_compression(path)[1]
        self._where = " of its decompressed content" if compression else ""
        self._chunks = decompressed(file, compression) if compression else iter(lambda: file.read(block), b"")
        start = bytearray()
        wanted = DETECTED_BYTES if reading.encoding == DETECT else len(BOM) + 1
        ended = False
        while len(start) < wanted and not ended:
            chunk = self._next_chunk()
            start += chunk
            ended = not chunk
        named = detect(bytes(start[:DETECTED_BYTES]), ended) if reading.encoding == DETECT else reading.encoding
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
                yield _Element(b"%d" % size, Rejection("read", "too-large", too_large(size, self._longest)))
            else:
                data = bytes(self._held[:size])
                places = self._take(record.after - self._base)
                yield _Element(data, undecoded(self.encoding, places[0], self._where) if places else None)

    def _blocks(self) -> Iterator[bytes]:
        """Yield the text, and hold it until `_take`; of a record that is too large no more than a block."""
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
        """Let go of some of the text; return the places in the file of the bytes in it that could not be decoded."""
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
