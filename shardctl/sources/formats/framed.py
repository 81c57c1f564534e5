"""Files whose records lie one after the other, each with its own beginning and end: tar groups,
TFRecord, MDS, RecordIO."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.export_description import RESTORED, described
from shardctl.sources.files import changed, local_version
from shardctl.sources.formats.base import (
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    Digest,
    Format,
    Parsed,
    Reading,
    Unit,
    keep_open,
    take_kept,
)
from shardctl.sources.formats.columns import BATCH_BYTES, BATCH_ROWS
from shardctl.sources.formats.content import open_content
from shardctl.sources.formats.export_reader import ExportDecoder
from shardctl.sources.formats.found_values import (
    NOTHING_DECLARED,
    Container,
    Declared,
    Entries,
    Entry,
    Record,
    Records,
    Rejects,
    parsed_records,
    too_large,
)
from shardctl.sources.formats.sequential import with_count
from shardctl.sources.formats.tfds import FEATURES, Features
from shardctl.sources.splits import split_parts
from shardctl.sources.types import Types

Decoder = ExportDecoder | Features
"""What a file beside one says of its records: shardctl.json of an export, features.json of TFDS."""

Opened = tuple[Iterator[Entry], Decoder | None, Declared]
"""The records of a unit, what makes those of a dataset of them, and what is known of their fields.
They raise Rejection, also where there are fewer."""


class RecordFile(Format):
    """A file of records that are taken from it one after the other."""

    def __init__(self, has_features: bool) -> None:
        self._has_features = has_features

    def decoder(self, path: str) -> Decoder | None:
        """Return what a file beside one says of its records, None if there is none."""
        export = described(path)
        if export is not None and export.to in RESTORED:
            return ExportDecoder(export)
        return Features.beside(Path(path).with_name(FEATURES)) if self._has_features else None

    @abstractmethod
    def entries(
        self, path: str, unit: Unit, reading: Reading, digest: Digest
    ) -> AbstractContextManager[Opened]:
        """Open a file for the block."""

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records: those that are declared, and of others
        those of their values, found part by part, as far as they can be read.

        Strings of the field of labels name classes.
        """
        with self.entries(path, unit, reading, Digest()) as (entries, decoder, declared):
            label, types = reading.label, declared.types
            looked = reading.looked_among(types)
            found = [Types.of_schema(types, label, looked).with_classes(declared.classes)]
            known = set(types.names).difference(looked)
            with suppress(Rejection):
                for records, _ in _parts(entries, decoder, unit, None):
                    others = [
                        {name: value for name, value in record.items() if name not in known}
                        for _, record in records
                    ]
                    found.append(Types.of_values(others, label))
            return reduce(Types.join, found if len(types) else found[1:] or found)

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
        with self.entries(path, unit, reading, digest) as (entries, decoder, _):
            for records, rejects in _parts(entries, decoder, unit, choose):
                yield parsed_records(records, rejects, schema)


def _parts(
    entries: Iterator[Entry], decoder: Decoder | None, unit: Unit, choose: Choose | None
) -> Iterator[tuple[Records, Rejects]]:
    """Yield the records of a unit, some at a time, each with its number, and those that are
    rejected."""
    numbers = np.arange(unit.first, unit.first + unit.records)
    wanted = np.ones(len(numbers), bool) if choose is None else choose(numbers)
    records, rejects, size, passed = [], [], 0, 0
    each = zip(numbers.tolist(), wanted.tolist(), entries, strict=False)
    try:
        for number, is_wanted, (length, fields) in each:
            if is_wanted:
                try:
                    record = fields()
                    records.append((number, decoder.decoded(record) if decoder else record))
                except Rejection as rejection:
                    rejects.append((number, rejection))
            size, passed = size + length, passed + 1
            if size >= BATCH_BYTES or passed >= BATCH_ROWS:
                yield records, rejects
                records, rejects, size, passed = [], [], 0, 0
    except Rejection:  # there are no more
        yield records, rejects
        raise
    yield records, rejects


class Framed(RecordFile):
    """Reads the records of a container. A plain file is cut between any of them; a compressed one
    is read in one go."""

    def __init__(
        self, form: type[Container], has_features: bool = False, unit_bytes: int = UNIT_BYTES
    ) -> None:
        super().__init__(has_features)
        self._form, self._unit_bytes = form, unit_bytes

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units; folders named as splits."""
        decoder = self.decoder(path)
        with closing(_opened(self._form, decoder, path, reading)) as opened:
            cuts, folders = _cut(opened, size, self._unit_bytes)
        return {"cuts": cuts, "folders": sorted(folders)}

    @contextmanager
    def entries(self, path: str, unit: Unit, reading: Reading, digest: Digest) -> Iterator[Opened]:
        """Open a file for the block, where the last unit of a compressed one ended."""
        decoder = self.decoder(path)
        key = (self._form.__name__, path, *local_version(path), reading, reading.only)
        opened = take_kept(key, unit.skip) or _opened(
            self._form, decoder, path, reading, key, unit.offset
        )
        try:
            yield _entries(opened, unit.skip, digest), decoder, (decoder or opened).declared
        except BaseException:
            opened.close()
            raise
        if opened.content.compression:
            keep_open(opened)
        else:
            opened.close()


class OneByOne(RecordFile):
    """Reads the records of a file that a package gives one by one. What it costs to read one is not
    known, and taken for the same."""

    def __init__(
        self, opened: Callable[[str], AbstractContextManager[Entries]], has_features: bool
    ) -> None:
        super().__init__(has_features)
        self._opened = opened

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units."""
        with self._opened(path) as (edges, _):
            pass
        places = [edge * size // max(1, edges[-1]) for edge in edges]
        cuts = [
            [start, end - start, after - first]
            for (start, end), (first, after) in zip(pairwise(places), pairwise(edges), strict=True)
        ]
        return {"cuts": cuts}

    @contextmanager
    def entries(self, path: str, unit: Unit, reading: Reading, digest: Digest) -> Iterator[Opened]:
        """Open a file for the block. The digest is of what the package gives."""
        decoder = self.decoder(path)
        with self._opened(path) as (_, records):
            declared = decoder.declared if decoder else NOTHING_DECLARED
            found = (
                (size, partial(_refused, too_large(size)) if size > RECORD_BYTES else fields)
                for size, fields in records(unit.first, digest)
            )
            yield found, decoder, declared


def _cut(opened: Container, size: int, unit_bytes: int) -> tuple[list[list[Any]], set[str]]:
    """Return the units of a file, and the folders of its records that are named as splits. Raises
    Rejection if no record can be read.

    In a compressed file those that are rejected are found again when it is read.
    """
    content = opened.content
    cuts, folders, kept, is_whole = list[list[Any]](), set[str](), 0, bool(content.compression)
    for frame in iter(opened.next_frame, None):
        kept += not frame.last  # records before what cannot be read
        folders.update(split_parts(frame.folder))
        length = frame.end - frame.offset
        if frame.last or (frame.fault and not is_whole):
            cuts.append([frame.offset, length, 1, frame.fault])
            if frame.last:
                break
        elif cuts and not cuts[-1][3] and (is_whole or cuts[-1][1] < unit_bytes):
            cuts[-1][1] = size if is_whole else frame.end - cuts[-1][0]
            cuts[-1][2] += 1
        else:
            cuts.append([0, size, 1, None] if is_whole else [frame.offset, length, 1, None])
    if is_whole:  # to its end, where the checksum is of what was read
        content.release(sys.maxsize)
    if (why := content.fault) is not None:
        counted = with_count(why, kept)
        if not cuts:
            raise counted
        if cuts[-1][3] is None:
            cuts.append([size, 0, 1, counted])
        elif cuts[-1][3] is why:
            cuts[-1][3] = counted
    return cuts, folders


def _opened(
    form: type[Container],
    decoder: Decoder | None,
    path: str,
    reading: Reading,
    key: tuple[Any, ...] = (),
    start: int = 0,
) -> Container:
    """Open a file, at the record that begins at `start` if it is plain."""
    content = open_content(path, form.is_plain)
    try:
        made = form(content, path, Reading() if isinstance(decoder, ExportDecoder) else reading)
        begin = made.begin()
    except BaseException:
        content.close()
        raise
    made.key, made.offset = key, begin if content.compression else max(begin, start)
    return made


def _entries(opened: Container, skip: int, digest: Digest) -> Iterator[Entry]:
    """Yield the records behind the first `skip` ones. Raises Rejection where there are no more."""
    for frame in iter(opened.next_frame, None):
        if opened.passed <= skip:
            continue
        if frame.fault is not None:
            yield 0, partial(_refused, frame.fault)
            continue
        size = frame.end - frame.offset
        data = opened.content.at(frame.offset, size)
        if len(data) < size:
            break
        digest.update(data)
        yield size, partial(opened.fields, frame, data)
    raise opened.content.fault or changed()


def _refused(fault: Rejection) -> Record:
    raise fault
