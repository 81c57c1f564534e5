"""Files whose records lie one after the other, each with its own beginning and end: tar groups,
TFRecord, MDS, RecordIO."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.export_description import RESTORED, described
from shardctl.sources.files import changed
from shardctl.sources.formats.base import (
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    Cut,
    Digest,
    Format,
    Parsed,
    Reading,
    Unit,
    keep_open,
    plain_fault,
    take_kept,
)
from shardctl.sources.formats.columns import BATCH_BYTES, BATCH_ROWS, version_of
from shardctl.sources.formats.content import open_content
from shardctl.sources.formats.export_reader import ExportDecoder
from shardctl.sources.formats.found_values import (
    NOTHING_DECLARED,
    Container,
    Declared,
    Frame,
    Record,
    parsed_records,
    too_large,
    types_beside,
)
from shardctl.sources.formats.sequential import with_count
from shardctl.sources.formats.tfds import FEATURES, Features
from shardctl.sources.splits import split_parts
from shardctl.sources.types import Types


class Framed(Format):
    """Reads the records of a container. A plain file is cut between any of them; a compressed one
    is read in one go."""

    def __init__(
        self, form: type[Container], has_features: bool = False, unit_bytes: int = UNIT_BYTES
    ) -> None:
        self._form, self._has_features, self._unit_bytes = form, has_features, unit_bytes

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units, [offset, size, records, (stage, error, message) of the reject or None];
        folders named as splits."""
        with closing(_Opened(self._form, self._has_features, path, reading)) as opened:
            cuts = _Cuts(size, self._unit_bytes, opened.is_compressed)
            for frame in opened.frames():
                cuts.add(frame)
            opened.pass_rest()
            return {
                "cuts": cuts.finish(opened.container.content.fault),
                "folders": sorted(cuts.folders),
            }

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units."""
        return super().join([scan["cuts"] for scan in scans], size)

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records, found part by part, as far as they
        can be read."""
        with closing(_Opened(self._form, self._has_features, path, reading)) as opened:
            declared = opened.declared
        parts = self._parts(path, unit, reading, None, None)
        return types_beside(
            declared, reading, ([record for _, record in part.records] for part in parts)
        )

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit. The digest is of all their bytes."""
        for part in self._parts(path, unit, reading, choose, digest):
            yield parsed_records(part.records, part.rejects, schema)

    def _parts(
        self, path: str, unit: Unit, reading: Reading, choose: Choose | None, digest: Digest | None
    ) -> Iterator[_Part]:
        """Yield the records of a unit, some at a time."""
        key = (self._form.__name__, path, *version_of(path), reading, reading.only)
        opened = take_kept(key, unit.skip) or _Opened(
            self._form, self._has_features, path, reading, key, unit.offset
        )
        try:
            opened.pass_records(unit.skip)
            first, left = unit.first, unit.records
            while left:
                part = opened.take(first, left, choose, digest)
                if not part.passed:
                    raise opened.container.content.fault or changed()
                first, left = first + part.passed, left - part.passed
                yield part
        except BaseException:
            opened.close()
            raise
        if opened.is_compressed:
            keep_open(opened)
        else:
            opened.close()


class Entries(Protocol):
    """The records of an open file that a package gives one by one; `count` is how many there
    are."""

    count: int

    def edges(self, size: int) -> list[int]:
        """Return at which records the units of a file of `size` bytes begin, from 0, and the
        end."""

    def records(
        self, first: int, digest: Digest | None
    ) -> Iterator[tuple[int, Callable[[], Record]]]:
        """Yield the size of each record from number `first` on, counted from 1, and what gives its
        fields, or raises Rejection. Raises Rejection."""
        ...


Opener = Callable[[str], AbstractContextManager[Entries]]
"""Opens a file of such a format for a block. Raises OSError, Rejection."""


class OneByOne(Format):
    """Reads the records of such a format. What it costs to read one is not known, and taken for the
    same."""

    def __init__(self, opened: Opener, has_features: bool) -> None:
        self._opened, self._has_features = opened, has_features

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units."""
        with self._opened(path) as entries:
            edges, count = entries.edges(size) if entries.count else [], entries.count
        places = [edge * size // count for edge in edges]
        return [
            [start, end - start, after - first]
            for (start, end), (first, after) in zip(pairwise(places), pairwise(edges), strict=True)
        ]

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records, part by part."""
        decoder = _decoder_beside(path, self._has_features)
        parts = self._parts(path, unit, None, None)
        records = ([record for _, record in part.records] for part in parts)
        return types_beside(decoder.declared if decoder else NOTHING_DECLARED, reading, records)

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit. The digest is of what the package gives."""
        for part in self._parts(path, unit, choose, digest):
            yield parsed_records(part.records, part.rejects, schema)

    def _parts(
        self, path: str, unit: Unit, choose: Choose | None, digest: Digest | None
    ) -> Iterator[_Part]:
        """Yield the records of a unit, some at a time. Raises Rejection if a part of it cannot be
        read."""
        decoder = _decoder_beside(path, self._has_features)
        with self._opened(path) as entries:
            end = min(unit.first - 1 + unit.records, entries.count)
            if end < unit.first <= unit.first - 1 + unit.records:
                raise changed()
            numbers = np.arange(unit.first, end + 1)
            wanted = np.ones(len(numbers), bool) if choose is None else choose(numbers)
            part, size = _Part([], [], 0), 0
            entry = entries.records(unit.first, digest)
            for number, is_wanted, (length, fields) in zip(
                numbers.tolist(), wanted.tolist(), entry, strict=False
            ):
                size += length
                if is_wanted:
                    try:
                        if length > RECORD_BYTES:
                            raise too_large(length)
                        record = fields()
                        part.records.append(
                            (number, decoder.decoded(record) if decoder else record)
                        )
                    except Rejection as rejection:
                        part.rejects.append((number, rejection))
                if size >= BATCH_BYTES or len(part.records) >= BATCH_ROWS:
                    yield part
                    part, size = _Part([], [], 0), 0
            yield part


class _Cuts:
    """The units of a file, as they are found."""

    def __init__(self, size: int, unit_bytes: int, is_compressed: bool) -> None:
        self._size, self._unit_bytes, self._is_compressed = size, unit_bytes, is_compressed
        self._cuts: list[list[Any]] = []
        self._start = self._end = self._records = 0
        self._kept = 0  # records before what cannot be read
        self.folders: set[str] = set()

    def add(self, frame: Frame) -> None:
        """Add a record. In a compressed file those that are rejected are found again when it is
        read."""
        self._kept += not frame.last
        self.folders.update(split_parts(frame.folder))
        alone = frame.last or (frame.fault is not None and not self._is_compressed)
        if alone or (self._end - self._start >= self._unit_bytes and not self._is_compressed):
            self._finish_unit()
        if alone:
            self._cuts.append([frame.offset, frame.end - frame.offset, 1, plain_fault(frame.fault)])
            return
        if not self._records:
            self._start = frame.offset
        self._records += 1
        self._end = frame.end

    def _finish_unit(self) -> None:
        if self._records:
            start, end = (0, self._size) if self._is_compressed else (self._start, self._end)
            self._cuts.append([start, end - start, self._records, None])
        self._start = self._end = self._records = 0

    def finish(self, fault: Rejection | None) -> list[list[Any]]:
        """Return the units. Raises Rejection if there is none because of the fault."""
        self._finish_unit()
        if fault is None:
            return self._cuts
        counted = with_count(fault, self._kept) if fault.error == "truncated" else fault
        if not self._cuts:
            raise counted
        if self._cuts[-1][3] is None:
            return [*self._cuts, [self._size, 0, 1, plain_fault(counted)]]
        if self._cuts[-1][3] == plain_fault(fault):
            self._cuts[-1][3] = plain_fault(counted)
        return self._cuts


class Decoder(Protocol):
    """What a file beside one says of its records: shardctl.json of an export, features.json of
    TFDS."""

    @property
    def declared(self) -> Declared:
        """The types of the fields, and the names of classes."""
        ...

    def decoded(self, record: Record) -> Record:
        """Return the fields that a record stands for. Raises Rejection."""
        ...


def _decoder_beside(path: str, has_features: bool) -> Decoder | None:
    export = described(path)
    if export is not None and export.to in RESTORED:
        return ExportDecoder(export)
    return Features.beside(Path(path).with_name(FEATURES)) if has_features else None


class _Part(NamedTuple):
    """Records that were read, each with its number, those that were rejected, and how many were
    passed in all."""

    records: list[tuple[int, Record]]
    rejects: list[tuple[int, Rejection]]
    passed: int


class _Opened:
    """An open file, and where the next record of it begins; `passed` records are before that."""

    def __init__(
        self,
        form: type[Container],
        has_features: bool,
        path: str,
        reading: Reading,
        key: tuple[Any, ...] = (),
        start: int = 0,
    ) -> None:
        self.key = key
        content = open_content(path, form.is_plain)
        self.is_compressed = content.compression is not None
        self.passed = 0
        self._ended = False
        try:
            self._decoder = _decoder_beside(path, has_features)
            all_fields = isinstance(self._decoder, ExportDecoder)
            self.container = form(content, path, Reading() if all_fields else reading)
            begin = self.container.begin()
        except BaseException:
            content.close()
            raise
        self.offset = begin if self.is_compressed else max(begin, start)

    @property
    def declared(self) -> Declared:
        """What the file itself, or one beside it, says of the fields of its records."""
        return (self._decoder or self.container).declared

    def frames(self) -> Iterator[Frame]:
        """Yield the records from here on."""
        while (frame := self.next_frame()) is not None:
            yield frame
            if frame.last:
                return

    def pass_rest(self) -> None:
        """Read a compressed file to its end, where the checksum is of what was read. Raises
        Rejection if it is damaged."""
        if self.is_compressed:
            self.container.content.release(sys.maxsize)

    def next_frame(self) -> Frame | None:
        """Return the next record, and pass it."""
        frame = self._frame()
        if frame is not None:
            self.offset = frame.end
            self.passed += 1
        return frame

    def _frame(self) -> Frame | None:
        """Return the record at the present place. The end is not looked for twice: a compressed
        file has released it."""
        if self._ended:
            return None
        self.container.content.release(self.offset)
        frame = self.container.frame(self.offset)
        self._ended = frame is None
        return frame

    def pass_records(self, until: int) -> None:
        """Pass over records until so many have been passed. Raises Rejection if there are fewer."""
        while self.passed < until:
            if self.next_frame() is None:
                raise self.container.content.fault or changed()

    def take(self, first: int, most: int, choose: Choose | None, digest: Digest | None) -> _Part:
        """Read the next records, of which the first has the number `first`: about BATCH_BYTES of
        them, `most` at most."""
        records: list[tuple[int, Record]] = []
        rejects: list[tuple[int, Rejection]] = []
        most = min(most, BATCH_ROWS)
        wanted = None if choose is None else choose(np.arange(first, first + most))
        passed = size = 0
        while passed < most and size < BATCH_BYTES:
            frame = self._frame()
            if frame is None:
                break
            number, is_wanted = first + passed, wanted is None or bool(wanted[passed])
            if frame.fault is not None:
                rejects += [(number, frame.fault)] if is_wanted else []
            elif is_wanted or digest is not None:
                data = self.container.content.at(frame.offset, frame.end - frame.offset)
                if len(data) < frame.end - frame.offset:
                    raise self.container.content.fault or changed()
                size += len(data)
                if digest is not None:
                    digest.update(data)
                if is_wanted:
                    try:
                        record = self.container.fields(frame, data)
                        decoder = self._decoder
                        records.append((number, decoder.decoded(record) if decoder else record))
                    except Rejection as rejection:
                        rejects.append((number, rejection))
            self.offset = frame.end
            self.passed += 1
            passed += 1
        return _Part(records, rejects, passed)

    def close(self) -> None:
        """Close the file."""
        self.container.content.close()
