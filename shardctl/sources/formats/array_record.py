"""ArrayRecord, the files that Grain and TFDS read by number. A record is a tf.train.Example;
Google's package reads the files.

The package compares the checksums of what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from shardctl.errors import Rejection, first_line
from shardctl.sources.export_description import RESTORED, described
from shardctl.sources.files import changed
from shardctl.sources.formats.base import (
    RECORD_BYTES,
    UNIT_BYTES,
    Choose,
    Cut,
    Digest,
    Parsed,
    Reading,
    Unit,
)
from shardctl.sources.formats.columns import BATCH_BYTES, BATCH_ROWS, damaged
from shardctl.sources.formats.export_reader import declared_by, restored
from shardctl.sources.formats.found_values import (
    NOTHING_DECLARED,
    Declared,
    Record,
    parsed_records,
    too_large,
    types_beside,
)
from shardctl.sources.formats.tfds import FEATURES, Features
from shardctl.sources.formats.tfrecord import example_parser
from shardctl.sources.types import Types
from shardctl.system.files import ordinary
from shardctl.system.text import printable

MAGIC = (
    bytes.fromhex("83af70d10d884a3f")
    + bytes(8)
    + bytes.fromhex("4000000000000000")
    + bytes.fromhex("91bac23c9287e1a9")
)
"""What every file begins with: the head of a block and the signature of Riegeli, on which the
format is built."""

_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
"""No threads, and nothing is read before it is asked for."""


class ArrayRecord:
    """Reads ArrayRecord files. Raises ImportError if the package is missing, InstallError if what
    reads an Example is."""

    name: ClassVar[str] = "array-record"
    types_can_be_sampled: ClassVar[bool] = True

    def __init__(self) -> None:
        from array_record.python import array_record_module

        self._module = array_record_module
        self._parse = example_parser()

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the whole file: it says where its records are."""
        return [(0, size)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units, [offset, size, records]: what it costs to read a record is not known,
        and taken for the same."""
        with self._open(path) as reader:
            count = reader.num_records()
        each = max(1, min(count, UNIT_BYTES * count // max(1, size)))
        edges = [*range(0, count, each), count]
        places = [edge * size // max(1, count) for edge in edges]
        return [
            [places[at], places[at + 1] - places[at], edges[at + 1] - edges[at]]
            for at in range(len(edges) - 1)
            if edges[at + 1] > edges[at]
        ]

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units."""
        return [Cut(*each) for each in scans[0]]

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records, and those that a features.json beside
        the file gives them."""
        parts = self._parts(path, unit, None, None)
        return types_beside(
            _Said(path).declared,
            reading,
            ([record for _, record in part.records] for part in parts),
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
        """Yield the records of a unit. The digest is of their data as it is when it is
        decompressed."""
        for part in self._parts(path, unit, choose, digest):
            yield parsed_records(part.records, part.rejects, schema)

    @contextmanager
    def _open(self, path: str) -> Iterator[Any]:
        """Open a file for the block. Raises OSError, Rejection."""
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            start = file.read(len(MAGIC))
        if start != MAGIC:
            message = (
                "it is not an ArrayRecord file, although its name says so, or damaged at "
                "its "
                "beginning; get it again"
            )
            raise Rejection("read", "not-array-record", message)
        try:
            reader = self._module.ArrayRecordReader(path, _OPTIONS)
            if not reader.ok():
                reader.close()  # which says why
        except (RuntimeError, ValueError) as error:
            raise _damaged("the file", error) from None
        try:
            yield reader
        finally:
            with suppress(RuntimeError):  # what was wrong has been said
                reader.close()

    def _parts(
        self, path: str, unit: Unit, choose: Choose | None, digest: Digest | None
    ) -> Iterator[_Part]:
        """Yield the records of a unit, some at a time. Raises Rejection if a part of it cannot be
        read."""
        said = _Said(path)
        with self._open(path) as reader:
            end = min(unit.first - 1 + unit.records, reader.num_records())
            if end <= unit.first - 1 < unit.first - 1 + unit.records:
                raise changed()
            numbers = np.arange(unit.first, end + 1)
            wanted = np.ones(len(numbers), bool) if choose is None else choose(numbers)
            part, size = _Part([], []), 0
            for number, is_wanted in zip(numbers.tolist(), wanted.tolist(), strict=True):
                data = _record(reader, number)
                size += len(data)
                if digest is not None:
                    digest.update(data)
                if is_wanted:
                    self._take(part, number, data, said)
                if size >= BATCH_BYTES or len(part.records) >= BATCH_ROWS:
                    yield part
                    part, size = _Part([], []), 0
            yield part

    def _take(self, part: _Part, number: int, data: bytes, said: _Said) -> None:
        try:
            if len(data) > RECORD_BYTES:
                raise too_large(len(data))
            part.records.append((number, said.decoded(self._parse(data))))
        except Rejection as rejection:
            part.rejects.append((number, rejection))


class _Part(NamedTuple):
    """Records that were read, each with its number, and those that were rejected."""

    records: list[tuple[int, Record]]
    rejects: list[tuple[int, Rejection]]


class _Said:
    """What files beside one say of its records: shardctl.json of an export, or features.json of
    TFDS."""

    def __init__(self, path: str) -> None:
        export = described(path)
        self._export = export if export is not None and export.to in RESTORED else None
        self._features = None if self._export else Features.beside(Path(path).with_name(FEATURES))

    @property
    def declared(self) -> Declared:
        """The types of the fields, and the names of classes."""
        if self._export is not None:
            return declared_by(self._export)
        return (
            NOTHING_DECLARED
            if self._features is None
            else Declared(self._features.types, self._features.classes)
        )

    def decoded(self, record: Record) -> Record:
        """Return the fields that a record stands for. Raises Rejection."""
        if self._export is not None:
            return restored(record, self._export)
        return record if self._features is None else self._features.decoded(record)


def _record(reader: Any, number: int) -> bytes:
    try:
        data: bytes = reader.read([number - 1])[0]
    except (RuntimeError, ValueError, IndexError) as error:
        raise _damaged(f"record {number}", error) from None
    return data


def _damaged(what: str, error: Exception) -> Rejection:
    return damaged(what, ValueError(printable(first_line(error).partition(";")[0])))
