"""What every format of many records can do: cut a file into units, find the types of its records,
read them."""

from __future__ import annotations

import codecs
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.errors import Rejection
from shardctl.format.arrays import Bools, Numbers
from shardctl.images.defaults import MAX_PIXELS
from shardctl.sources.format_table import FRAME, format_of
from shardctl.sources.types import Types
from shardctl.system.files import open_ordinary

UNIT_BYTES = 1 << 20
"""About how many bytes of a file that can be cut anywhere are one unit. Parsing 1 MiB at a time is
as fast as parsing more."""

PIECE_BYTES = 64 << 20
"""How much of a large file is scanned by one task when it is cut."""

RECORD_BYTES = 256 << 20
"""The largest record that is read. pyarrow.json takes three times the size of a string in
memory."""

CHOSEN = b"shardctl.chosen"
"""In the metadata of a schema whose columns a person chose: then others of a file are left out,
else they are a Misfit."""

GIVEN = b"given"
"""The value of CHOSEN where a person gave the types too. Then a string is a string: where types are
found, it may also be the JSON text of values that fit no common type."""

JSON = b"shardctl.json"
"""In the metadata of a field of strings: each is the JSON text of what a record has, strings in
quotes."""

FOLDER = "__folder__"
"""The field with the folder that a member of a tar is in, "." for none. Only records whose label it
is have it."""

DETECT = "detect"
"""The name of an encoding that stands for: find out."""

OTHER_ENCODING = "give --encoding (detect tries to find it), or recode the file"
"""What to do with a text that is not UTF-8, for messages."""

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before utf-16-le, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""The byte order marks of encodings."""

JUDGED_BYTES = 64 << 10
"""How much of the beginning of a file is searched for the NUL bytes of UTF-16."""

_LOW = bytes(range(0x20))
"""High bytes of UTF-16 in which nearly all alphabets are. Text in UTF-8 hardly has these bytes,
except for line ends."""


def refuse_wide(data: bytes, reading: Reading) -> None:
    """Raise Rejection if a file that begins with `data` is in UTF-16 or UTF-32 by its mark, or is
    read as UTF-8 and is not.

    Without a mark, most of what is in UTF-16 is valid UTF-8 too: every second byte is NUL.
    """
    name = next((name[:6] for mark, name in BOMS[1:] if data.startswith(mark)), None)
    if name is not None:
        raise refused(
            "not-utf8", f"its first bytes say that it is in {name.upper()}; use --encoding {name}"
        )
    if reading.encoding == "utf-8" and (found := unmarked_wide(data)):
        raise looks_wide("read", found)


def looks_wide(stage: str, encoding: str) -> Rejection:
    """Return why a file is rejected that should be UTF-8, and has the NUL bytes of another
    encoding."""
    return Rejection(
        stage,
        "not-utf8",
        f"it looks like {encoding.upper()}, by its NUL bytes; use --encoding {encoding}",
    )


def unmarked_wide(data: bytes) -> str | None:
    """Return the encoding of a file without a byte order mark that begins with `data`, if that is
    UTF-16 or UTF-32; else None.

    In UTF-16 most high bytes of an alphabet are below 32, and those of spaces, line ends and ASCII
    are NUL. A text in UTF-8 with some NUL bytes has them at any places, and letters between them.
    """
    sample = data[:JUDGED_BYTES]
    units = len(sample) // 4
    if not units or 0 not in sample:
        return None
    quarters = [sample[place : 4 * units : 4] for place in range(4)]
    zeros = [quarter.count(0) for quarter in quarters]
    if zeros[3] == units and 2 * zeros[2] > units > 2 * zeros[0]:
        return "utf-32-le"
    if zeros[0] == units and 2 * zeros[1] > units > 2 * zeros[3]:
        return "utf-32-be"
    for name, high in (("utf-16-le", 1), ("utf-16-be", 0)):
        own, other = zeros[high] + zeros[high + 2], zeros[1 - high] + zeros[3 - high]
        low = sum(
            len(quarter) - len(quarter.translate(None, _LOW)) for quarter in quarters[high::2]
        )
        if own > 8 * other and 128 * own >= units and 5 * low >= 6 * units:
            return name
    return None


Choose = Callable[[Numbers], Bools]
"""Tells of the numbers of some records, (n,) int64 and increasing, which of them are wanted, (n,)
bool."""


@dataclass(frozen=True)
class Reading:
    """How records are read: the same for all files of a dataset, from its recipe.

    `record` says what a record of plain text is: file, line or paragraph. `columns` names the
    columns of delimited files without a header; `encoding` is a name that Python knows, or
    `detect`. `label` is the field whose strings may name classes. `image` is the field that has
    images, `auto` if it is to be found; None where images are files of their own. `format` names
    the only format that is read, "" for any. `only` are the fields that are wanted, none for all.
    Cells of delimited files that are one of `null_values` are missing. `looked` are fields whose
    values say their type, where a file has one. A record of JSON that is a list is the field
    `list_field` of one; "": it is none. `key` is the column of labels files with the names of files.
    """

    record: str = "file"
    encoding: str = "utf-8"
    columns: tuple[str, ...] = ()
    delimiter: str | None = None
    label: str = "label"
    image: str | None = None
    format: str = ""
    only: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS
    looked: tuple[str, ...] = ()
    list_field: str = ""
    key: str | None = None

    def looked_among(self, schema: pa.Schema) -> list[str]:
        """Return the columns of a file with these types whose values are looked at: `looked`, and
        the label if it has strings."""
        return [
            f.name
            for f in schema
            if f.name in self.looked or (f.name == self.label and pa.types.is_string(f.type))
        ]

    @property
    def has_image_records(self) -> bool:
        """Whether images are records of files: of tables, or frames of images."""
        return self.image is not None or self.record == FRAME


class Cut(NamedTuple):
    """A unit as a format cuts it: `size` bytes from `offset` on, with `records` records; blank
    lines count as records.

    A unit with a `fault` has one record, which is rejected with this reason and not read.
    """

    offset: int
    size: int
    records: int
    fault: Rejection | None = None


class Unit(NamedTuple):
    """A stretch of a file, and which of its records are wanted.

    The stretch is `size` bytes from `offset` on. Its first `skip` records are passed over; the
    wanted ones have the numbers from `first` on, counted through the file from 1, and there are
    `records` of them.
    """

    offset: int
    size: int
    skip: int
    first: int
    records: int

    def part(self, after: int, records: int) -> Unit:
        """Return a stretch of so many of its records, those after the first ones."""
        return self._replace(skip=self.skip + after, first=self.first + after, records=records)


Digest = xxhash.xxh3_64
"""What hashes the bytes that records are made of."""


@dataclass(frozen=True)
class Parsed:
    """Some records of a unit, read: `numbers` (n,) int64, increasing, are those of the rows of
    `batch`.

    `rejects` are those that could not be read, each with its number. Blank lines are in neither.
    """

    numbers: Numbers
    batch: pa.RecordBatch
    rejects: list[tuple[int, Rejection]]


class Misfit(Exception):
    """A value does not fit the type that was found for its field: types were found in other records
    than these."""


class ColumnMisfit(Misfit):
    """No value of a column of the file can fit, whatever the record: text where there should be
    numbers, for instance."""


def is_given(schema: pa.Schema) -> bool:
    """Return whether a person gave the types of a schema."""
    return bool((schema.metadata or {}).get(CHOSEN) == GIVEN)


def is_json(field: pa.Field) -> bool:
    """Return whether a field has the JSON text of its values."""
    return JSON in (field.metadata or {})


def json_texts(values: Iterable[Any], plain: Callable[[Any], Any] = str) -> pa.Array:
    """Return the JSON text of each value, null for None. `plain` gives what JSON has in the place
    of what it does not have."""
    texts = [
        None if value is None else json.dumps(value, ensure_ascii=False, default=plain)
        for value in values
    ]
    return pa.array(texts, pa.string())


def without_columns(rows: int) -> pa.RecordBatch:
    """Return a batch of rows without columns. RecordBatch.from_arrays would give no rows."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


class Head(NamedTuple):
    """What a text file begins with: `size` bytes before its first record (byte order mark, header),
    its columns if they are named there or in the recipe."""

    size: int
    columns: tuple[str, ...] = ()


class TextPart(NamedTuple):
    """Some whole records of a text file, the last one of a file with or without its line end.

    `first` is the number of the first of them, `columns` are those of the head. Records of CSV
    beyond `most` are another unit's. `named` says of a reject, by its number, what is wrong in the
    terms of the file.
    """

    data: bytes
    first: int = 1
    columns: tuple[str, ...] = ()
    most: int | None = None
    named: Callable[[int, Rejection], Rejection] | None = None


class TextFormat(ABC):
    """A format whose records are text in UTF-8, one after the other, each ended by a line end:
    lines, JSON lines, CSV. What is not said otherwise is that of lines.

    `data` always begins with a record and holds whole records, the last one of a file with or
    without its line end.
    """

    def of(self, _reading: Reading) -> TextFormat:
        """Return this format as the recipe wants it."""
        return self

    def head(self, data: bytes, reading: Reading) -> Head:
        """Look at the beginning of a file, or all of a small one. Raises Rejection if the file
        cannot be this format."""
        refuse_wide(data, reading)
        return Head(len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0)

    def complete(self, data: bytes) -> int:
        """Return how many bytes of `data` are records that end in it: 0 if not even the first one
        does."""
        return data.rfind(b"\n") + 1

    def count(self, data: bytes) -> int:
        """Return how many records `data` has; blank lines count."""
        return count_lines(data)

    @abstractmethod
    def types_of(self, part: TextPart, reading: Reading) -> Types:
        """Return the types of the fields of these records."""

    @abstractmethod
    def parse(
        self, part: TextPart, reading: Reading, schema: pa.Schema, choose: Choose | None
    ) -> Parsed:
        """Read these records into the columns of `schema`. Raises Misfit."""


_STEP_BYTES = 1 << 18


def count_byte(data: bytes | memoryview, byte: int) -> int:
    """Return how often a byte is in `data`: in steps that stay in the processor's cache, 5 times as
    fast as `bytes.count`."""
    array = np.frombuffer(data, np.uint8)
    found = np.empty(min(len(array), _STEP_BYTES), np.bool_)
    count = 0
    for start in range(0, len(array), _STEP_BYTES):
        step = array[start : start + _STEP_BYTES]
        count += int(np.count_nonzero(np.equal(step, byte, out=found[: len(step)])))
    return count


def count_lines(data: bytes) -> int:
    """Return the number of lines, the last one with or without its line end."""
    return count_byte(data, b"\n"[0]) + (data[-1:] not in (b"", b"\n"))


class Format(ABC):
    """A format of files that hold many records. Its methods keep nothing: they run in any process,
    for any file."""

    types_can_be_sampled = True
    """Whether the types of some units may be taken for those of all: `read` raises Misfit where
    others would be found."""

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return the ranges (offset, size) of a file of `size` bytes that can be scanned apart from
        each other: without a rule to cut at, the whole file."""
        return [(0, size)]

    @abstractmethod
    def scan(self, path: str, offset: int, size: int, reading: Reading) -> Any:
        """Look at a piece of a file, and return what `join` needs: `cuts` has the fields of each
        `Cut`; `encoding` and `folders` are what was found, if anything was. Raises OSError,
        Rejection.
        """

    def join(self, scans: list[Any], size: int) -> list[Cut] | None:
        """Return the units of a file, from the scans of all pieces in order.

        None: the pieces cannot be joined, and the file must be scanned again as one piece (0,
        size). Raises Rejection if no record of the file can be read.
        """
        return [Cut(*each) for scan in scans for each in scan["cuts"]]

    @abstractmethod
    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records; what cannot be read is left out.
        Raises OSError, Rejection.

        Of a file that declares types, only the values of the label and of `reading.looked` are
        read.
        """

    @abstractmethod
    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit, a part of at most a few MiB at a time, with the columns of
        `schema`.

        `choose` is asked which of them are wanted, all without it; the others are not parsed where
        that saves time. `digest` is given the bytes that all records of the unit (wanted or not)
        are made of. Raises Misfit, OSError; Rejection if nothing of the unit can be read.
        """


class TextFile(Format):
    """Files of a text format, however their text is had: a subclass takes it apart."""

    def __init__(self, text: TextFormat) -> None:
        self.text = text

    @abstractmethod
    def parts(
        self, path: str, unit: Unit, reading: Reading, digest: Digest | None
    ) -> Generator[TextPart]:
        """Yield the records of a unit, some at a time. Raises OSError, Rejection."""

    def types(self, path: str, unit: Unit, reading: Reading) -> Types:
        """Return the types of the fields of a unit's records, found part by part."""
        parts = self.parts(path, unit, reading, None)
        found = [self.text.types_of(part, reading) for part in parts]
        return reduce(Types.join, found or [Types.of_schema(pa.schema([]), reading.label)])

    def read(
        self,
        path: str,
        unit: Unit,
        reading: Reading,
        schema: pa.Schema,
        choose: Choose | None,
        digest: Digest,
    ) -> Iterator[Parsed]:
        """Yield the records of a unit, part by part."""
        with closing(self.parts(path, unit, reading, digest)) as parts:
            for part in parts:
                parsed = self.text.parse(part, reading, schema, choose)
                named = part.named
                if named is not None:
                    rejects = [(number, named(number, why)) for number, why in parsed.rejects]
                    parsed = replace(parsed, rejects=rejects)
                yield parsed


_kept: dict[tuple[int, bool], Any] = {}
"""The files that this process read last, from their beginning on, such as compressed ones. A forked
process must not share them, so that they have the number of theirs."""


def take_kept(key: tuple[Any, ...], skip: int) -> Any:
    """Return the file of this key, if it was kept and has not passed more records than `skip`;
    another one is closed.

    Two files are the same, and read in the same way, if their `key` is equal. Its last item are the
    fields that are wanted: as keys of records, a single field, are read ahead of the records, there
    are two files at most.
    """
    kept = _kept.pop((os.getpid(), len(key[-1]) == 1), None)
    if kept is None or (kept.key == key and kept.passed <= skip):
        return kept
    kept.close()
    return None


def keep_open(file: Any) -> None:
    """Keep a file open where it is, after `passed` records, for the unit that follows in it."""
    place = os.getpid(), len(file.key[-1]) == 1
    if (other := _kept.pop(place, None)) is not None:
        other.close()
    _kept[place] = file


def check_magic(path: str, ending: str) -> None:
    """Raise Rejection if a file does not begin as those of the format with this ending, which a
    package reads. Raises OSError."""
    row = format_of(ending)
    assert row.needs is not None, "a package reads it"
    with open_ordinary(path) as file:
        if not row.fits(file.read(JUDGED_BYTES)):
            raise not_this(f"an {row.needs.title} file", f"not-{row.name}")


def refused(error: str, message: str) -> Rejection:
    """Return why a file, or a record of it, is not read: a short stable name, and a sentence."""
    return Rejection("read", error, message)


def not_this(what: str, error: str) -> Rejection:
    """Return why a file is rejected that is not what its name says."""
    message = f"it is not {what}, or damaged at its beginning"
    return refused(error, f"{message}; get it again")
