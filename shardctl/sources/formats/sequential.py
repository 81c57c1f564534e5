"""Files that are read from their beginning to their end: compressed ones, other encodings, records
without a rule to cut at."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import xxhash

from shardctl.errors import Rejection
from shardctl.sources.files import changed, local_version
from shardctl.sources.formats.base import (
    DETECT,
    RECORD_BYTES,
    UNIT_BYTES,
    Cut,
    Digest,
    Reading,
    TextFile,
    TextFormat,
    TextPart,
    Unit,
    keep_open,
    refused,
    take_kept,
)
from shardctl.sources.formats.content import Chunks, compression_named, decompressed
from shardctl.sources.formats.encodings import (
    DETECTED_BYTES,
    UNDECODED,
    Transcoder,
    detect,
    resolve,
    undecoded,
)
from shardctl.sources.formats.lines import HEAD_BYTES, too_long
from shardctl.system.files import open_ordinary
from shardctl.system.text import counted, format_bytes

NAMED_BYTES = 1000
"""In so many places of a part that could not be decoded, the byte is looked up and named."""


class Sequential(TextFile):
    """A text format in files that are compressed (told by the name), in another encoding, or both;
    or plain, in one go.

    Such a file is one unit, which is decoded from its beginning. Several units of a plan that
    follow each other in it are read without beginning anew, where the same process reads them in
    their order. Plain files in UTF-8 are cut between any records.
    """

    part_bytes, chunk_bytes, record_bytes = UNIT_BYTES, UNIT_BYTES, RECORD_BYTES

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> dict[str, Any]:
        """Read a file to its end, and return the units and the encoding. Where it could not be read
        to its end, the last unit says why. Raises Rejection if nothing of the file can be used."""
        cuts: list[Cut] = []
        records = total = 0
        with closing(_Records(self, path, reading)) as opened:
            start = opened.offset
            while part := opened.take():
                if opened.is_plain and part.records:
                    cuts.append(Cut(start + total, opened.offset - start - total, part.records))
                records += part.records
                total = opened.offset - start
        return opened.scanned(cuts, size, records, f" ({total} bytes)")

    def parts(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> Generator[TextPart]:
        """Yield the records of a unit, about 1 MiB at a time. The digest is that of their text in
        UTF-8.

        A part that turns out not to fit its schema is put back: then what is read next of the file
        may begin with it, and not with the file.
        """
        version = local_version(path)
        key = (type(self.text), self.part_bytes, path, *version, reading, reading.only)
        records = take_kept(key, unit.skip) or _Records(self, path, reading, key, unit.offset)
        part, goes_on = None, False
        first, left = unit.first, unit.records
        try:
            while records.passed < unit.skip and records.take(unit.skip - records.passed):
                pass
            while left:
                part = records.take(left)
                if part is None:
                    raise records.fault or changed()
                if digest is not None:
                    digest.update(part.hashed)
                if digest is not None or not part.fault:
                    named = records.naming(part, first) if part.undecoded or part.fault else None
                    yield TextPart(part.data, first, records.head.columns, named=named)
                first += part.records
                left -= part.records
            goes_on = True
        except GeneratorExit:
            if part is not None and not part.fault:
                records.put_back(part)
                goes_on = True
            raise
        finally:
            if not goes_on or records.is_plain or (records.ended and not records.buffer):
                records.close()
            else:
                keep_open(records)


class TextStream(Chunks):
    """The text of a file in UTF-8, decompressed and decoded, from its beginning to its end.

    `fault` is why it is not read to the end of the file. `undecoded` are the places in the file of
    bytes that could not be decoded: each is UNDECODED in the text, and is in it no longer when it
    was taken (`places_in`).
    """

    def __init__(self, path: str, reading: Reading, chunk_bytes: int) -> None:
        compression = compression_named(path)
        self._where = " of its decompressed content" if compression else ""
        self._file = open_ordinary(path)
        self._chunk_bytes = chunk_bytes
        try:
            super().__init__(_chunks(self._file, compression, chunk_bytes))
            named = reading.encoding
            wanted = DETECTED_BYTES if named == DETECT else 4
            start = bytearray()
            while len(start) < wanted and (chunk := self.next_chunk()):
                start += chunk
            if named == DETECT:
                named = detect(bytes(start[:DETECTED_BYTES]), self.is_whole)
            self.encoding, mark = resolve(named, bytes(start[:4]))
        except BaseException:
            self.close()
            raise
        self.is_plain = not compression and self.encoding == "utf-8"
        self._transcoder = Transcoder(self.encoding, mark) if self.encoding != "utf-8" else None
        self.undecoded = self._transcoder.undecoded if self._transcoder else array("q")
        self._start = bytes(start[mark:])

    def more(self) -> bytes:
        """Return more of the text: it may be nothing before the end, too."""
        chunk, self._start = self._start or self.next_chunk(), b""
        if self._transcoder is None:
            return chunk
        return self._transcoder.feed(chunk, self.is_whole)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.done and not self._start

    @property
    def is_whole(self) -> bool:
        """Whether all of the file has been read, and nothing is missing at its end."""
        return self.done and not self.fault

    def places_in(self, text: bytes | bytearray, size: int) -> array[int]:
        """Return where in the file those of the first `size` bytes of a text are that could not be
        decoded, and forget them."""
        count = text.count(UNDECODED, 0, size) if self.undecoded else 0
        places = self.undecoded[:count]
        del self.undecoded[:count]
        return places

    def scanned(self, cuts: list[Cut], size: int, records: int, read: str = "") -> dict[str, Any]:
        """Return the units of a file of `size` bytes that was read to its end, one of all records
        without `cuts`, and its encoding. Where it could not be read to its end, the last unit says
        why. Raises Rejection if no record of it can be used."""
        fault = self.fault and with_count(self.fault, records, read)
        if fault and not records:
            raise fault
        if records and not cuts:
            cuts = [Cut(0, size, records)]
        if fault:
            cuts.append(Cut(size, 0, 1, fault))
        return {"encoding": self.encoding, "cuts": cuts}

    def undecoded_at(self, place: int | None) -> Rejection:
        """Return why a record is rejected of which the byte at `place` of the file could not be
        decoded."""
        return undecoded(self.encoding, place, self._where)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Part(NamedTuple):
    """Some records: their text in UTF-8, how many they are, and where in the file bytes could not
    be decoded.

    Or one record with a `fault`: it is too large. Then `data` is a line that is rejected in its
    place, and `hashed` a checksum of it.
    """

    data: bytes
    hashed: bytes
    records: int
    undecoded: array[int]
    fault: Rejection | None = None


class _Records(TextStream):
    """The text of an open file, taken from it some whole records at a time. `offset` is where in
    the text the next one begins, `passed` are before it."""

    def __init__(
        self,
        form: Sequential,
        path: str,
        reading: Reading,
        key: tuple[Any, ...] = (),
        offset: int = 0,
    ) -> None:
        super().__init__(path, reading, form.chunk_bytes)
        self.key, self.passed, self.buffer = key, 0, b""
        self._form = form.text
        self._part_bytes, self._record_bytes = form.part_bytes, form.record_bytes
        try:
            self._fill(HEAD_BYTES)
            self.head = self._form.head(self.buffer[:HEAD_BYTES], reading)
        except BaseException as fault:
            self.close()
            if not isinstance(fault, Rejection):
                raise
            if fault.error == "not-utf8" and self.undecoded:
                fault = self.undecoded_at(self.undecoded[0])
            raise self.fault or fault from None
        self._pass_bytes(self.head.size)
        self.offset = self.head.size
        if offset > self.offset and self.is_plain:
            self.buffer, self.offset = b"", offset
            self._file.seek(offset)
            self._start, self.done = b"", False
            self.chunks = _chunks(self._file, None, self._chunk_bytes)

    def take(self, most: int | None = None) -> _Part | None:
        """Return the next records, about `part_bytes` of them and at most `most`; None at the end,
        or if there is a fault."""
        wanted = min(self._part_bytes, self._record_bytes)
        while True:
            self._fill(wanted + 1)
            if self.is_whole and len(self.buffer) <= wanted:
                end = len(self.buffer)
            else:
                end = self._form.complete(self.buffer[:wanted])
            if end or len(self.buffer) <= wanted or wanted == self._record_bytes:
                break
            wanted = min(2 * wanted, self._record_bytes)
        if not end:
            return self._too_large() if len(self.buffer) > wanted else None
        data = self.buffer[:end]
        records = self._form.count(data)
        if most is not None and records >= most:
            data, records = data[: _end_of(data, most, self._form)], most
        self.passed += records
        self.offset += len(data)
        return _Part(data, data, records, self._pass_bytes(len(data)))

    def put_back(self, part: _Part) -> None:
        """Have the part that was taken last taken once more."""
        self.buffer = part.data + self.buffer
        self.passed -= part.records
        self.offset -= len(part.data)
        self.undecoded[:0] = part.undecoded

    def _too_large(self) -> _Part | None:
        """Pass over a record that is larger than records may be.

        Where its end can be found only by holding all of it, such as that of a quoted field, what
        follows is not read either.
        """
        # not every line feed ends a record, even after a quote
        if self._form.complete(b'"\n') != 2:
            self.fault = refused(
                "too-large",
                f"a record of more than {format_bytes(self._record_bytes)}; it and what follows it in the file is not read",
            )
            self.done, self._start, self.buffer = True, b"", b""
            return None
        checksum, size, end = xxhash.xxh3_64(), 0, 0
        while not end and self.buffer:
            end = self.buffer.find(b"\n") + 1
            passed = end or len(self.buffer)
            checksum.update(self.buffer[:passed])
            size += passed
            self._pass_bytes(passed)
            if not end:
                self._fill(self._part_bytes)
        if not end and self.fault:
            return None  # the file is cut within it
        self.passed += 1
        self.offset += size
        fault = too_long(size, self._record_bytes)
        return _Part(UNDECODED + b"\n", checksum.digest(), 1, array("q"), fault)

    def _pass_bytes(self, size: int) -> array[int]:
        """Take bytes from the buffer, and return where in the file those of them are that could not
        be decoded."""
        places = self.places_in(self.buffer, size)
        self.buffer = self.buffer[size:]
        return places

    def _fill(self, size: int) -> None:
        """Have at least `size` bytes in the buffer, or all that are left."""
        chunks = [self.buffer]
        have = len(self.buffer)
        while have < size and not self.ended:
            chunks.append(self.more())
            have += len(chunks[-1])
        self.buffer = b"".join(chunks)

    def naming(self, part: _Part, first: int) -> Callable[[int, Rejection], Rejection]:
        """Return what says in the rejects of a part where in the file bytes could not be decoded,
        in place of where the text in UTF-8 is wrong."""
        places: dict[int, int] = {}
        start, number, at = 0, first, -1
        for place in part.undecoded[:NAMED_BYTES]:
            before, at = at, part.data.index(UNDECODED, at + 1)
            if before >= 0 and part.data.find(b"\n", before, at) < 0:
                continue  # the same record
            end = start + self._form.complete(part.data[start:at])
            number += self._form.count(part.data[start:end])
            start = end
            places.setdefault(number, place)
        return lambda number, why: (
            part.fault or self.undecoded_at(places.get(number)) if why.error == "not-utf8" else why
        )


def _chunks(file: BinaryIO, compression: str | None, size: int) -> Iterator[bytes]:
    """Yield what a file holds, decompressed, at most `size` bytes at a time."""
    plain = iter(partial(file.read, size), b"")
    for chunk in decompressed(file, compression) if compression else plain:
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


def with_count(fault: Rejection, records: int, size: str = "") -> Rejection:
    """Return why a file is not read to its end, and how many records of it there are if it is
    cut."""
    if fault.error != "truncated":
        return fault
    had = (
        f"after {counted(records, 'record')}{size}"
        if records
        else "before the end of its first record"
    )
    kept = {0: "", 1: "; it is kept"}.get(records, "; they are kept")
    return fault.saying(f"{fault.message}, {had}{kept}; get the whole file")
