"""The arrays of one large JSON object, a few thousand elements at a time: the file is never in
memory as a whole."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from shardctl.errors import InputError
from shardctl.sources.annotations.inputs import reading
from shardctl.sources.files import local_copy
from shardctl.system.files import HashingReader, open_ordinary
from shardctl.system.text import printable

BLOCK_BYTES = 1 << 20
"""What is read at a time."""

ELEMENTS_AT_ONCE = 4096
"""Elements that are Python objects at a time."""

ELEMENT_CHARACTERS = 256 << 20
"""The longest element that is read."""

NEAR_THE_END = 32
"""A fault so few characters before the end of what was read may be none: a word or a number goes on
in what comes next."""

_SPACE = re.compile(r"[ \t\r\n]*")
BETWEEN_OBJECTS = re.compile(r"\}[ \t\r\n]*,(?=[ \t\r\n]*\{)")
"""A comma between two objects, and the bracket before it."""

_LAST = re.compile(r"\}[ \t\r\n]*\]")
"""What is most often the end of the array: a bracket after an object."""

LEAST_TOGETHER = 1 << 16
"""Characters that must have been read for elements to be parsed together; and how far from their
end the last comma may be."""


class Part(NamedTuple):
    """Some elements of the array with this name, the first of which is number `first` of it, from
    0.

    They are `elements`, or `columns` with a row for each where the reader of the array made these.
    """

    name: str
    first: int
    elements: list[Any]
    columns: pa.RecordBatch | None = None


Columns = Callable[[str], pa.RecordBatch | None]
"""Makes columns of the text of JSON objects with commas between them; None if it cannot, and they
are to be Python objects."""


class JsonParts:
    """Reads a file that is one JSON object, and yields the elements of the arrays in it. `sha256`
    is known at the end.

    `columns` are readers of arrays by their names. Values of the object that are no arrays are left
    out. Raises InputError: it cannot be read, is not UTF-8, or no such JSON.
    """

    def __init__(self, file: str, columns: Mapping[str, Columns]) -> None:
        self.file, self.sha256, self._columns = file, "", columns
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        # the text from the place that has been read to, more of which is read as it is needed
        self._buffer, self._place, self._before, self._tried = "", 0, 0, 0

    def __iter__(self) -> Iterator[Part]:
        with (
            reading(self.file),
            open_ordinary(local_copy(self.file)) as opened,
            HashingReader(opened) as self._raw,
        ):
            if not self._mark("{"):
                raise self._wrong(
                    "it is not a JSON object, which begins with {; a list of results has no images"
                )
            for _ in self._items("}"):
                name = self._value("a name")
                if not isinstance(name, str) or not self._mark(":"):
                    raise self._wrong("a name and a colon were expected")
                if self._mark("["):
                    yield from self._elements(name)
                else:
                    self._value(printable(name))
            if not self._is_at_end():
                raise self._wrong("something follows the object")
            self.sha256 = self._raw.sha256

    def _items(self, end: str) -> Iterator[None]:
        """Yield before each member or element, up to the bracket at the end of them."""
        mark = self._mark(end)
        while mark != end:
            yield
            mark = self._mark(f",{end}")
            if not mark:
                raise self._wrong(f"a comma or {end} was expected")

    def _elements(self, name: str) -> Iterator[Part]:
        first, elements = 0, list[Any]()
        for _ in self._items("]"):
            found = self._several(name)
            if isinstance(found, pa.RecordBatch):
                if elements:
                    yield Part(name, first, elements)
                yield Part(name, first + len(elements), [], found)
                first, elements = first + len(elements) + found.num_rows, []
            else:
                elements += found
            elements.append(self._value(f"element {first + len(elements)} of {printable(name)}"))
            if len(elements) >= ELEMENTS_AT_ONCE:
                yield Part(name, first, elements)
                first, elements = first + len(elements), []
        yield Part(name, first, elements)

    def _mark(self, marks: str) -> str:
        """Return the next character and step over it if it is one of these; "" for another."""
        here = "" if self._is_at_end() else self._buffer[self._place]
        if here not in marks:
            return ""
        self._place += len(here)
        return here

    def _is_at_end(self) -> bool:
        """Step over space, and return whether nothing else is left."""
        while True:
            self._place = _SPACE.match(self._buffer, self._place).end()  # type: ignore[union-attr]  # it matches
            if self._place < len(self._buffer):
                return False
            if not self._fill():
                return True

    def _value(self, what: str) -> Any:
        """Return the next value, and step over it. Raises InputError, which says what it is."""
        self._is_at_end()
        while True:
            try:
                value, end = self._json.raw_decode(self._buffer, self._place)
            except json.JSONDecodeError as error:
                goes_on = error.pos >= len(self._buffer) - NEAR_THE_END or error.msg.startswith(
                    "Unterminated string"
                )
                is_long = len(self._buffer) - self._place > ELEMENT_CHARACTERS
                if is_long or not goes_on or not self._fill():
                    why = "the file is cut" if goes_on else error.msg
                    why = f"over {ELEMENT_CHARACTERS} characters" if is_long else why
                    self._place = error.pos
                    raise self._wrong(f"{why}, in {what}") from None
            # nested too deep, or a number of thousands of digits
            except (RecursionError, ValueError) as error:
                raise self._wrong(f"{error}, in {what}") from None
            else:
                # A number may go on in what comes next: of 1.5 cut behind the point, 1 is read.
                may_go_on = (
                    isinstance(value, int | float) and end >= len(self._buffer) - NEAR_THE_END
                )
                if not may_go_on or not self._fill():
                    self._place = end
                    return value

    def _several(self, name: str) -> list[Any] | pa.RecordBatch:
        """Return objects that follow and that have been read as a whole, and step over the comma
        after them; else none.

        Text from the beginning of an element to a comma is elements if it is JSON between brackets:
        a comma within an element would leave a bracket or a string open. They are columns where
        these can be made of them.
        """
        if self._place < self._tried or len(self._buffer) - self._place < LEAST_TOGETHER:
            return []
        last = _LAST.search(self._buffer, self._place)
        self._tried = end = last.end() if last else len(self._buffer)
        cut = None
        for cut in BETWEEN_OBJECTS.finditer(  # noqa: B007 - the last one
            self._buffer, max(self._place, end - LEAST_TOGETHER), end
        ):
            pass
        if cut is None:
            return []
        together = self._buffer[self._place : cut.start() + 1]
        columns = self._columns.get(name)
        elements: list[Any] | pa.RecordBatch | None = columns(together) if columns else None
        if elements is None:
            decode, errors = _decoder()
            try:
                elements = decode(f"[{together}]")
            except errors:
                # a broken element, or that comma is within one: they are looked at one by one
                return []
        self._place = cut.end()
        return elements

    def _wrong(self, why: str) -> InputError:
        """Return the error of a file that is not what it should be, at the place that has been read
        to."""
        return InputError(
            f"{printable(self.file)}: not the JSON of annotations, at character "
            f"{self._before + self._place}: {why}"
        )

    def _fill(self) -> bool:
        """Read on, and return whether there was more. What has been read is let go."""
        data = self._raw.read(max(BLOCK_BYTES, len(self._buffer) - self._place)) or b""
        more = self._utf8.decode(data, final=not data)
        if data:
            self._before += self._place
            self._buffer = self._buffer[self._place :] + more
            self._place = self._tried = 0
        return bool(data)


@cache
def _decoder() -> tuple[Callable[[str], Any], tuple[type[Exception], ...]]:
    """Return what parses JSON text, and what it raises: msgspec (an extra), where it is installed,
    takes half of the time.

    What it refuses and json does not (NaN, numbers that are too large) is left to json, so the
    values are the same.
    """
    try:
        import msgspec
    except ImportError:
        return json.loads, (ValueError, RecursionError)
    return msgspec.json.decode, (ValueError, RecursionError, msgspec.MsgspecError)
