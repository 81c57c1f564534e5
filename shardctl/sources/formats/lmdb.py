"""LMDB: a file of keys and values, in the order of the keys. The package lmdb reads it.

A record has the fields `key` and `value`, or `image` where the first value is one. Both are bytes,
or text where all of a field are. A pickle is a reject: it can run any code. Databases inside of the
file are not read. The file has no checksums, and the library crashes on some that are damaged: its
worker ends then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np

from shardctl.errors import Rejection
from shardctl.images.codecs.backend import SNIFF_BYTES, is_image
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
from shardctl.sources.formats.found_values import (
    NOTHING_DECLARED,
    Record,
    parsed_records,
    too_large,
    types_beside,
)
from shardctl.sources.types import Types
from shardctl.sources.values import Feature
from shardctl.system.files import ordinary
from shardctl.system.text import printable

MAGIC = b"\xde\xc0\xef\xbe"
MAGIC_AT = 16
"""Where every file has it: behind the head of its first page."""

MOST_UNITS = 64
"""Units of a file: to come to a record by its number, the keys of all before it are passed."""

DATABASE_BYTES = 48
"""The bytes of the value that stands for a database inside of the file."""

LOOKED_AT = 64
"""The first entries, of which some are tried for such a database."""


class Lmdb:
    """Reads LMDB files. Raises ImportError if the package is missing."""

    name: ClassVar[str] = "lmdb"
    types_can_be_sampled: ClassVar[bool] = True

    def __init__(self) -> None:
        import lmdb

        self._lmdb = lmdb

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the whole file: it says where its records are."""
        return [(0, size)]

    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Return the units, [offset, size, records]: what it costs to read a record is not known,
        and taken for the same."""
        with self._open(path) as entries:
            records = entries.count
        units = max(1, min(records, MOST_UNITS, size // UNIT_BYTES))
        edges = [records * unit // units for unit in range(units + 1)]
        places = [size * unit // units for unit in range(units + 1)]
        return [
            [places[at], places[at + 1] - places[at], edges[at + 1] - edges[at]]
            for at in range(units)
            if records
        ]

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units."""
        return [Cut(*each) for each in scans[0]]

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records."""
        parts = self._parts(path, unit, None, None)
        return types_beside(
            NOTHING_DECLARED, reading, ([record for _, record in part.records] for part in parts)
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
        """Yield the records of a unit."""
        for part in self._parts(path, unit, choose, digest):
            yield parsed_records(part.records, part.rejects, schema)

    @contextmanager
    def _open(self, path: str) -> Iterator[_Entries]:
        """Open a file for the block. Nothing is written, not even a lock. Raises OSError,
        Rejection."""
        with open(path, "rb", buffering=0, opener=ordinary) as file:
            start = file.read(MAGIC_AT + len(MAGIC))
            size = file.seek(0, 2)
        if start[MAGIC_AT:] != MAGIC:
            message = (
                "it is not an LMDB file, although its name says so, or damaged at its "
                "beginning; get it again"
            )
            raise Rejection("read", "not-lmdb", message)
        try:
            with self._environment(path) as environment:
                pages, page = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
                if pages * page > size:
                    message = (
                        f"it is to have {pages * page:,} bytes, and has {size:,}; it was "
                        "not "
                        "copied to its end, get it again"
                    )
                    raise Rejection("read", "truncated", message)
                with environment.begin(buffers=True) as transaction:
                    said = int(transaction.stat()["entries"])
                    # values of one key may lie side by side, without a header for each
                    if said > size:
                        raise damaged(
                            "the file",
                            ValueError(
                                f"it says that it has {said:,} entries, more than fit into it"
                            ),
                        )
                    self._refuse_databases(environment, transaction)
                    yield _Entries(transaction)
        except self._lmdb.Error as error:
            # LMDB names the path, which may be that of a copy of an object.
            raise damaged("the file", ValueError(str(error).removeprefix(f"{path}: "))) from None

    def _environment(self, path: str) -> Any:
        return self._lmdb.open(
            path,
            subdir=False,
            readonly=True,
            lock=False,
            readahead=False,
            create=False,
            max_dbs=LOOKED_AT,
        )

    def _refuse_databases(self, environment: Any, transaction: Any) -> None:
        """Raise Rejection if one of the first entries is a database of its own: what is in it would
        be lost."""
        for key, value in islice(transaction.cursor(), LOOKED_AT):
            if len(value) == DATABASE_BYTES:
                name = bytes(key)
                try:
                    environment.open_db(name, transaction, create=False)
                except self._lmdb.Error:  # an entry like others
                    continue
                shown = printable(name.decode("utf-8", "backslashreplace"))
                message = (
                    f"it has databases inside ({shown}), which are not read; write each to "
                    "a "
                    "file of its own"
                )
                raise Rejection("read", "databases", message)

    def _parts(
        self, path: str, unit: Unit, choose: Choose | None, digest: Digest | None
    ) -> Iterator[_Part]:
        """Yield the records of a unit, some at a time. Raises Rejection if a part of it cannot be
        read."""
        with self._open(path) as entries:
            end = min(unit.first - 1 + unit.records, entries.count)
            if end < unit.first <= unit.first - 1 + unit.records:
                raise changed()
            numbers = np.arange(unit.first, end + 1)
            wanted = np.ones(len(numbers), bool) if choose is None else choose(numbers)
            part, size, read = _Part([], []), 0, 0
            records = entries.from_number(unit.first - 1, entries.name)
            for number, is_wanted, values in zip(
                numbers.tolist(), wanted.tolist(), records, strict=False
            ):
                read += 1
                for name, value in values.items():
                    size += len(value)
                    if digest is not None:
                        digest.update(b"%d %d\n%b" % (len(name), len(value), name.encode()))
                        digest.update(value)
                if is_wanted:
                    part.take(number, values)
                if size >= BATCH_BYTES or len(part.records) >= BATCH_ROWS:
                    yield part
                    part, size = _Part([], []), 0
            yield part
            if read < len(numbers):
                raise damaged(
                    f"entry {unit.first + read}",
                    ValueError("it is not there, and the file says that it has more"),
                )


class _Entries:
    """The records of an open file, and their `count`."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self.count = int(transaction.stat()["entries"])
        start = next(
            (bytes(each["value"][:SNIFF_BYTES]) for each in self.from_number(0, "value")), b""
        )
        self.name = "image" if is_image(start) else "value"

    def from_number(self, first: int, name: str) -> Iterator[dict[str, Any]]:
        """Yield the records from a number on, counted from 0: their bytes by field. Their values
        are called `name`."""
        cursor = self._transaction.cursor()
        keys = islice(cursor.iternext(keys=True, values=False), first, None)
        return ({"key": key, name: cursor.value()} for key in keys)


class _Part(NamedTuple):
    """Records that were read, each with its number, and those that were rejected."""

    records: list[tuple[int, Record]]
    rejects: list[tuple[int, Rejection]]

    def take(self, number: int, values: dict[str, Any]) -> None:
        """Add a record, or why it is none."""
        try:
            self.records.append(
                (number, {name: Feature([_read(name, value)]) for name, value in values.items()})
            )
        except Rejection as rejection:
            self.rejects.append((number, rejection))


def _read(name: str, value: Any) -> bytes:
    """Return the bytes of a value. Raises Rejection."""
    if len(value) > RECORD_BYTES:
        raise too_large(len(value))
    data = bytes(value)
    if data[:1] == b"\x80" and data[1:2] in (b"\2", b"\3", b"\4", b"\5") and data.endswith(b"."):
        message = (
            f"its {name} is a pickle, which can run any code and is not read; write it as "
            "an "
            "image, text or JSON"
        )
        raise Rejection("read", "pickle", message)
    return data
