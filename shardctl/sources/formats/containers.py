"""What every format can do whose records lie one after the other in a file. They are read by
framed.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from typing import ClassVar, NamedTuple, Protocol

import pyarrow as pa

from shardctl.errors import Rejection
from shardctl.sources.formats.base import RECORD_BYTES, Reading
from shardctl.sources.formats.content import Content
from shardctl.sources.formats.found_values import Record
from shardctl.sources.types import Types
from shardctl.system.text import format_bytes


class Frame(NamedTuple):
    """Where a record begins and ends in the content of its file, and why it is rejected, if it is.

    `last`: from here on nothing of the file can be read; then the record is what is left of it.
    `folder` is that of its name.
    """

    offset: int
    end: int
    fault: Rejection | None = None
    last: bool = False
    folder: str = ""


class Container(Protocol):
    """An open file of records."""

    @property
    def content(self) -> Content:
        """The content of the file."""
        ...

    @property
    def declared(self) -> Declared:
        """What the file itself, or one beside it, says of the fields of its records."""
        ...

    def begin(self) -> int:
        """Return where the first record begins. Raises Rejection if no record of the file can be
        read."""
        ...

    def frame(self, offset: int) -> Frame | None:
        """Return the record that begins at `offset`, None at the end of the file."""
        ...

    def fields(self, frame: Frame, data: bytes) -> Record:
        """Return the fields of the record that `frame` gave last, all its bytes given. Raises
        Rejection."""
        ...


class Declared(NamedTuple):
    """What is known of the fields of records without a look at them: their types, and the names of
    the classes of labels."""

    types: pa.Schema
    classes: dict[str, tuple[str, ...]]


NOTHING_DECLARED = Declared(pa.schema([]), {})


class ContainerFormat(Protocol):
    """A format of such files: it opens one."""

    name: ClassVar[str]

    def is_plain(self, start: bytes) -> bool:
        """Tell of the beginning of a file that looks compressed whether it is not."""
        ...

    def open(self, content: Content, path: str, reading: Reading) -> Container:
        """Return the records of a file. Raises OSError, Rejection."""
        ...


def types_beside(declared: Declared, reading: Reading, parts: Iterator[list[Record]]) -> Types:
    """Return the types of the fields of records: those that are declared, and of others those of
    their values.

    Records are looked at part by part, as far as they can be read. Strings of the field of labels
    name classes.
    """
    label = reading.label
    looked = {
        *reading.looked,
        *(f.name for f in declared.types if f.name == label and pa.types.is_string(f.type)),
    }
    found = [Types.of_schema(declared.types, label, looked).with_classes(declared.classes)]
    known = {f.name for f in declared.types} - looked
    with suppress(Rejection):
        for records in parts:
            others = [
                {name: value for name, value in record.items() if name not in known}
                for record in records
            ]
            found.append(Types.of_values(others, label))
    return reduce(Types.join, found if len(declared.types) else found[1:] or found)


def too_large(size: int, limit: int = RECORD_BYTES) -> Rejection:
    """Return why a record is not read that is larger than records may be."""
    message = (
        f"a record of {format_bytes(size)}, but at most {format_bytes(limit)} are read as "
        "one; divide it"
    )
    return Rejection("read", "too-large", message)
