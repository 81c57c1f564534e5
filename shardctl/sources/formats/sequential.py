"""Files that are read from their beginning to their end: compressed ones, other encodings, records
without a rule to cut at."""

from __future__ import annotations

import os
from array import array
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.sources.files import changed
from shardctl.sources.formats.base import (
    DETECT,
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    Cut,
    Digest,
    Format,
    Misfit,
    Parsed,
    Reading,
    TextFormat,
    Unit,
    plain_fault,
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
from shardctl.sources.formats.lines import HEAD_BYTES
from shardctl.sources.types import Types
from shardctl.system.files import ordinary
from shardctl.system.text import counted, format_bytes

T = TypeVar("T")


class KeptOpen(Generic[T]):
    """The file that this process read last, from its beginning on, such as a compressed one; by the
    number of the process: a forked one must not share its open file.

    Two files are the same, and read in the same way, if their `key` is equal. The last item of the
    key is the reading. `passed` is the number of records that have been read. There are two at
    most: shardctl reads the keys of records, which are a single field, ahead of the records.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, bool], Any] = {}

    def keep(self, file: Any) -> None:
        """Keep a file open where it is, for the unit that follows in it."""
        self._closed(file.key)
        self._kept[_place(file.key)] = file

    def take(self, key: tuple[Any, ...], unit: Unit) -> T | None:
        """Return the file that has this key, if it was kept and has not passed the beginning of the
        unit; another one is closed."""
        kept = self._kept.get(_place(key))
        if kept is not None and kept.key == key and kept.passed <= unit.skip:
            return cast(T, self._kept.pop(_place(key)))
        self._closed(key)
        return None

    def _closed(self, key: tuple[Any, ...]) -> None:
        if (other := self._kept.pop(_place(key), None)) is not None:
            other.close()


def _place(key: tuple[Any, ...]) -> tuple[int, bool]:
    return os.getpid(), len(key[-1].only) == 1


NAMED_BYTES = 1000
"""In so many places of a part that could not be decoded, the byte is looked up and named."""


class Sequential(Format):
    """A text format in files that are compressed (told by the name), in another encoding, or both;
    or plain, in one go.

    Such a file is one unit, which is decoded from its beginning. Several units of a plan that
    follow each other in it are read without beginning anew, where the same process reads them in
    their order. Plain files in UTF-8 are cut between any records.
    """

    def __init__(
        self,
        text: TextFormat,
        part_bytes: int = UNIT_BYTES,
        chunk_bytes: int = UNIT_BYTES,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        self.text = text
        self.types_can_be_sampled = text.types_can_be_sampled
        self.part_bytes = part_bytes
        self.chunk_bytes = chunk_bytes
        self.record_bytes = record_bytes

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> dict[str, Any]:
        """Read a file to its end. `encoding` is the one it is in, `bytes` the size of its text in
        UTF-8 without a header.

        Also `records`, `cuts` (offset, size, records) and `fault`, why the file is not read to its
        end: stage, error and message, or None. Raises OSError; Rejection if nothing of the file can
        be used.
        """
        cuts: list[list[int]] = []
        records = total = 0
        with closing(_Records(self, path, reading)) as opened:
            while part := opened.take():
                if opened.can_be_cut and part.records:
                    cuts.append([opened.offset - part.size, part.size, part.records])
                records += part.records
                total += part.size
            fault, encoding = opened.text.fault, opened.text.encoding
        if fault and fault.error == "truncated":
            fault = with_count(fault, records, f" ({total} bytes)")
        return {
            "encoding": encoding,
            "bytes": total,
            "records": records,
            "cuts": cuts if cuts or not records else [[0, size, records]],
            "fault": plain_fault(fault),
        }

    def join(self, scans: list[dict[str, Any]], size: int) -> list[Cut]:
        """Return the units. Where the file could not be read to its end, the last one says why."""
        (scan,) = scans
        fault = Rejection(*scan["fault"]) if scan["fault"] else None
        if fault and not scan["records"]:
            raise fault
        return [Cut(*cut) for cut in scan["cuts"]] + ([Cut(size, 0, 1, fault)] if fault else [])

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records, found part by part."""
        found = None
        for part, first, records in self._parts(path, unit, reading):
            if part.fault:
                continue
            types = self.text.types_of(part.data, first, records.head, reading)
            found = types if found is None else found.join(types)
        return found if found is not None else Types.of_schema(pa.schema([]), reading.label)

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit, about 1 MiB at a time. The digest is that of their text in
        UTF-8."""
        with closing(self._parts(path, unit, reading)) as parts:
            for part, first, records in parts:
                digest.update(part.data)
                if part.fault:
                    yield _rejected(first, part.fault, schema, choose)
                    continue
                try:
                    parsed = self.text.parse(
                        part.data, first, records.head, reading, schema, choose
                    )
                except Misfit:
                    records.put_back(part)
                    raise
                yield (
                    _naming_bytes(parsed, part, first, self.text, records)
                    if part.undecoded
                    else parsed
                )

    def _parts(
        self, path: str, unit: Unit, reading: Reading
    ) -> Generator[tuple[_Part, int, _Records]]:
        """Yield the parts of a unit, the number of the first record of each, and the stream that
        they come from.

        A part may be put back into it: then what is read next of the file may begin with it, and
        not with the file.
        """
        records = _KEPT.take(_key(self, path, reading), unit) or _Records(
            self, path, reading, unit.offset
        )
        done = False
        try:
            first, left = unit.first, unit.records
            while records.passed < unit.skip and records.take(unit.skip - records.passed):
                pass
            while left:
                part = records.take(left)
                if part is None:
                    raise records.text.fault or changed()
                yield part, first, records
                first += part.records
                left -= part.records
            done = True
        finally:
            goes_on = done or records.has_part_back
            if not goes_on or records.can_be_cut or records.is_exhausted:
                records.close()
            else:
                _KEPT.keep(records)


@dataclass(frozen=True)
class _Part:
    """Some records: their text in UTF-8, its size, how many they are, and where in the file bytes
    could not be decoded.

    Or one record with a `fault`: it is too large, and `data` is a checksum of it.
    """

    data: bytes
    size: int
    records: int
    undecoded: array[int]
    fault: Rejection | None = None


class _Records:
    """The text of an open file, taken from it some whole records at a time."""

    def __init__(self, form: Sequential, path: str, reading: Reading, offset: int = 0) -> None:
        self.key = _key(form, path, reading)
        self.passed = 0
        self.has_part_back = False
        self._form = form.text
        self._part_bytes = form.part_bytes
        self._record_bytes = form.record_bytes
        self._buffer = b""
        self._file: BinaryIO = open(path, "rb", buffering=0, opener=ordinary)  # noqa: SIM115 (closed by close)
        try:
            self._start(form, path, reading, offset)
        except BaseException:
            self.close()
            raise

    def _start(self, form: Sequential, path: str, reading: Reading, offset: int) -> None:
        self.text = TextStream(self._file, path, reading, form.chunk_bytes)
        self.can_be_cut = self.text.is_plain
        self._fill(HEAD_BYTES)
        try:
            self.head = self._form.head(self._buffer[:HEAD_BYTES], reading)
        except Rejection as fault:
            places = self.text.undecoded if fault.error == "not-utf8" else ()
            named = self.text.undecoded_at(places[0]) if places else fault
            raise self.text.fault or named from None
        self._pass_bytes(self.head.size)
        self.offset = self.head.size
        if offset > self.offset and self.can_be_cut:
            self._buffer, self.offset = b"", offset
            self.text.go_to(offset)

    def take(self, most: int | None = None) -> _Part | None:
        """Return the next records, about `part_bytes` of them and at most `most`; None at the end,
        or if there is a fault."""
        self.has_part_back = False
        wanted = min(self._part_bytes, self._record_bytes)
        while True:
            self._fill(wanted + 1)
            if self.text.is_whole and len(self._buffer) <= wanted:
                end = len(self._buffer)
            else:
                end = self._form.complete(self._buffer[:wanted])
            if end or len(self._buffer) <= wanted or wanted == self._record_bytes:
                break
            wanted = min(2 * wanted, self._record_bytes)
        if not end:
            return self._too_large() if len(self._buffer) > wanted else None
        data = self._buffer[:end]
        records = self._form.count(data)
        if most is not None and records >= most:
            data, records = data[: _end_of(data, most, self._form)], most
        return self._taken(data, records)

    def _taken(self, data: bytes, records: int) -> _Part:
        self.passed += records
        self.offset += len(data)
        return _Part(data, len(data), records, self._pass_bytes(len(data)))

    def put_back(self, part: _Part) -> None:
        """Have the part that was taken last taken once more."""
        self._buffer = part.data + self._buffer
        self.passed -= part.records
        self.offset -= part.size
        self.text.undecoded[:0] = part.undecoded
        self.has_part_back = True

    def _too_large(self) -> _Part | None:
        """Pass over a record that is larger than records may be.

        Where its end can be found only by holding all of it, such as that of a quoted field, what
        follows is not read either.
        """
        limit = format_bytes(self._record_bytes)
        if not _ends_at_line_feeds(self._form):
            message = (
                f"a record of more than {limit}; it and what follows it in the file is not read"
            )
            self.text.end(Rejection("read", "too-large", message))
            self._buffer = b""
            return None
        checksum, size, end = xxhash.xxh3_64(), 0, 0
        while not end and self._buffer:
            end = self._buffer.find(b"\n") + 1
            passed = end or len(self._buffer)
            checksum.update(self._buffer[:passed])
            size += passed
            self._pass_bytes(passed)
            if not end:
                self._fill(self._part_bytes)
        if not end and self.text.fault:
            return None  # the file is cut within it
        self.passed += 1
        self.offset += size
        message = f"a line of {size} bytes, and at most {limit} are read as one record; divide it"
        fault = Rejection("read", "too-large", message)
        return _Part(checksum.digest(), size, 1, array("q"), fault)

    def _pass_bytes(self, size: int) -> array[int]:
        """Take bytes from the buffer, and return where in the file those of them are that could not
        be decoded."""
        places = self.text.places_in(self._buffer, size)
        self._buffer = self._buffer[size:]
        return places

    def _fill(self, size: int) -> None:
        """Have at least `size` bytes in the buffer, or all that are left."""
        chunks = [self._buffer]
        have = len(self._buffer)
        while have < size and not self.text.ended:
            chunks.append(self.text.read())
            have += len(chunks[-1])
        self._buffer = b"".join(chunks)

    @property
    def is_exhausted(self) -> bool:
        """Whether there are no more records."""
        return self.text.ended and not self._buffer

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TextStream:
    """The text of an open file in UTF-8, decompressed and decoded, from its beginning to its end.

    `fault` is why it is not read to the end of the file. `undecoded` are
    the places in the file of bytes that could not be decoded: each is UNDECODED in the text, and in
    it no longer when it was taken (`places_in`).
    """

    def __init__(self, file: BinaryIO, path: str, reading: Reading, chunk_bytes: int) -> None:
        self.fault: Rejection | None = None
        self._done = False
        compression = split_compression(path)[1]
        self._where = " of its decompressed content" if compression else ""
        self._file, self._chunk_bytes = file, chunk_bytes
        self._chunks = _chunks(file, compression, chunk_bytes)
        wanted = DETECTED_BYTES if reading.encoding == DETECT else 4
        start = bytearray()
        while len(start) < wanted and (chunk := self._next()):
            start += chunk
        named = reading.encoding
        if named == DETECT:
            named = detect(bytes(start[:DETECTED_BYTES]), self.is_whole)
        self.encoding, mark = resolve(named, bytes(start[:4]))
        self.is_plain = not compression and self.encoding == "utf-8"
        self._transcoder = Transcoder(self.encoding, mark) if self.encoding != "utf-8" else None
        self.undecoded = self._transcoder.undecoded if self._transcoder else array("q")
        self._start = bytes(start[mark:])

    def read(self) -> bytes:
        """Return more of the text: it may be nothing before the end, too."""
        chunk, self._start = self._start or self._next(), b""
        if self._transcoder is None:
            return chunk
        return self._transcoder.feed(chunk, self.is_whole)

    def _next(self) -> bytes:
        try:
            chunk = next(self._chunks, b"")
        except Truncated:
            chunk = b""
            self.fault = Rejection("read", "truncated", "the compressed file ends early")
        self._done = not chunk
        return chunk

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._done and not self._start

    @property
    def is_whole(self) -> bool:
        """Whether all of the file has been read, and nothing is missing at its end."""
        return self._done and not self.fault

    def go_to(self, offset: int) -> None:
        """Go on at a place of a plain file."""
        self._file.seek(offset)
        self._start, self._done = b"", False
        self._chunks = _chunks(self._file, None, self._chunk_bytes)

    def end(self, fault: Rejection) -> None:
        """Read no further."""
        self.fault, self._done, self._start = fault, True, b""

    def places_in(self, text: bytes | bytearray, size: int) -> array[int]:
        """Return where in the file those of the first `size` bytes of a text are that could not be
        decoded, and forget them."""
        count = text.count(UNDECODED, 0, size) if self.undecoded else 0
        places = self.undecoded[:count]
        del self.undecoded[:count]
        return places

    def undecoded_at(self, place: int | None) -> Rejection:
        """Return why a record is rejected of which the byte at `place` of the file could not be
        decoded."""
        return undecoded(self.encoding, place, self._where)


def _chunks(file: BinaryIO, compression: str | None, size: int) -> Iterator[bytes]:
    """Yield what a file holds, decompressed, at most `size` bytes at a time."""
    if compression is None:
        while chunk := file.read(size):
            yield chunk
        return
    for chunk in decompressed(file, compression):
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def _end_of(data: bytes, records: int, text: TextFormat) -> int:
    """Return where the first `records` records of `data` end, which has as many or more: by halving
    what may be too much.

    The place does not depend on what follows them, blank lines for instance.
    """
    if text.count(data[: text.complete(data)]) < records:
        return len(data)  # the last one ends with the file, without a line end
    start = 0  # a place between records, with at most `records` before it
    low, high = 0, len(data)  # too few complete ones in data[:low], enough in data[:high]
    while high - low > 1:
        middle = (low + high) // 2
        end = start + text.complete(data[start:middle])
        have = text.count(data[start:end])
        if have >= records:
            high = middle
        else:
            low, start, records = middle, end, records - have
    return start + text.complete(data[start:high])


def _ends_at_line_feeds(text: TextFormat) -> bool:
    """Tell whether every line feed ends a record of this format, even after a quote."""
    return text.complete(b'"\n') == 2


def _rejected(number: int, fault: Rejection, schema: pa.Schema, choose: Choose | None) -> Parsed:
    wanted = choose is None or bool(choose(np.array([number]))[0])
    nothing = pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) for field in schema], schema=schema
    )
    return Parsed(np.empty(0, np.int64), nothing, [(number, fault)] if wanted else [])


def _naming_bytes(
    parsed: Parsed, part: _Part, first: int, text: TextFormat, records: _Records
) -> Parsed:
    """Say in the rejects where in the file bytes could not be decoded, in place of where the text
    in UTF-8 is wrong."""
    places: dict[int, int] = {}
    start, number, at = 0, first, -1
    for place in part.undecoded[:NAMED_BYTES]:
        before, at = at, part.data.index(UNDECODED, at + 1)
        if before >= 0 and part.data.find(b"\n", before, at) < 0:
            continue  # the same record
        end = start + text.complete(part.data[start:at])
        number += text.count(part.data[start:end])
        start = end
        places.setdefault(number, place)
    rejects = [
        (
            number,
            records.text.undecoded_at(places.get(number)) if fault.error == "not-utf8" else fault,
        )
        for number, fault in parsed.rejects
    ]
    return replace(parsed, rejects=rejects)


def with_count(fault: Rejection, records: int, size: str = "") -> Rejection:
    """Return why a file is not read to its end, and how many records of it there are."""
    had = (
        f"after {counted(records, 'record')}{size}"
        if records
        else "before the end of its first record"
    )
    kept = {0: "", 1: "; it is kept"}.get(records, "; they are kept")
    return Rejection(fault.stage, fault.error, f"{fault.message}, {had}{kept}; get the whole file")


_KEPT: KeptOpen[_Records] = KeptOpen()
"""The stream that was read last."""


def _key(form: Sequential, path: str, reading: Reading) -> tuple[Any, ...]:
    found = os.stat(path)  # noqa: PTH116 (called for every unit)
    return (
        type(form.text),
        form.part_bytes,
        path,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        reading,
    )
