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
from shardctl.system.files import HashingReader, ordinary
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

_BLANK = ("", " ", "\t", "\r", "\n")


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

    def __init__(self, file: str, columns: Mapping[str, Columns] | None = None) -> None:
        self.file = file
        self.sha256 = ""
        self._columns = columns or {}
        self._shown = printable(file)

    def __iter__(self) -> Iterator[Part]:
        with (
            reading(self.file),
            open(local_copy(self.file), "rb", buffering=0, opener=ordinary) as opened,
            HashingReader(opened) as raw,
        ):
            yield from _parts_of(_Text(raw, self._shown), self._columns)
            self.sha256 = raw.sha256


def _parts_of(text: _Text, columns: Mapping[str, Columns]) -> Iterator[Part]:
    if text.mark("{") != "{":
        what = (
            "the file is empty"
            if text.is_at_end()
            else "it is not a JSON object, which begins with {"
        )
        raise text.wrong(what)
    if text.mark('}"', take=False) == "}":
        text.mark("}")
    else:
        while True:
            name = text.value("", None)
            if not isinstance(name, str) or text.mark(":") != ":":
                raise text.wrong("a name and a colon were expected")
            if text.mark("[", take=False) == "[":
                yield from _elements(text, name, columns.get(name, _no_columns))
            else:
                text.value(name, None)
            mark = text.mark(",}")
            if mark == "}":
                break
            if mark != ",":
                raise text.wrong(f"a comma or a bracket was expected after {printable(name)}")
    if not text.is_at_end():
        raise text.wrong("something follows the object")


def _no_columns(_: str) -> None:
    return None


def _elements(text: _Text, name: str, columns: Columns) -> Iterator[Part]:
    text.mark("[")
    first, elements = 0, list[Any]()
    if text.mark("]", take=False) == "]":
        text.mark("]")
    else:
        while True:
            found = text.several(columns)
            if isinstance(found, pa.RecordBatch):
                if elements:
                    yield Part(name, first, elements)
                yield Part(name, first + len(elements), [], found)
                first, elements = first + len(elements) + found.num_rows, []
            else:
                elements += found
            elements.append(text.value(name, first + len(elements)))
            mark = text.mark(",]")
            if len(elements) >= ELEMENTS_AT_ONCE:
                yield Part(name, first, elements)
                first, elements = first + len(elements), []
            if mark == "]":
                break
            if mark != ",":
                raise text.wrong(f"a comma or ] was expected in {printable(name)}")
    yield Part(name, first, elements)


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


def _shown(name: str, number: int | None) -> str:
    of = printable(name) or "the names in it"
    return of if number is None else f"element {number} of {of}"


class _Text:
    """The text of a file from the place that has been read to, more of which is read as it is
    needed."""

    def __init__(self, raw: HashingReader, shown: str) -> None:
        self._raw, self._shown = raw, shown
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._buffer, self._place, self._before, self._ended = "", 0, 0, False
        self._tried = 0

    def mark(self, marks: str, take: bool = True) -> str:
        """Return the next character if it is one of these, and step over it if it is to be taken;
        "" for another."""
        here = self._buffer[self._place : self._place + 1]
        if here and here in marks:
            self._place += take
            return here
        while True:
            found = _SPACE.match(self._buffer, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._buffer) or not self._fill():
                break
        here = self._buffer[self._place : self._place + 1]
        if not here or here not in marks:
            return ""
        self._place += take
        return here

    def value(self, name: str, number: int | None) -> Any:
        """Return the next value, and step over it. Raises InputError, which names it: element
        `number` of the array `name`."""
        if self._buffer[self._place : self._place + 1] in _BLANK:
            self.mark("")
        while True:
            try:
                value, end = self._json.raw_decode(self._buffer, self._place)
            except json.JSONDecodeError as error:
                goes_on = error.pos >= len(self._buffer) - NEAR_THE_END or error.msg.startswith(
                    "Unterminated string"
                )
                if len(self._buffer) - self._place > ELEMENT_CHARACTERS:
                    raise self.wrong(
                        f"{_shown(name, number)} has over {ELEMENT_CHARACTERS} characters"
                    ) from None
                if not goes_on or not self._fill():
                    self._place = error.pos
                    why = "the file is cut" if goes_on else error.msg
                    raise self.wrong(f"{why}, in {_shown(name, number)}") from None
            except RecursionError:
                raise self.wrong(f"{_shown(name, number)} is nested too deep") from None
            except ValueError as error:  # a number of thousands of digits
                raise self.wrong(f"{_shown(name, number)}: {error}") from None
            else:
                # A number may go on in what comes next: of 1.5 cut behind the point, 1 is read.
                may_go_on = (
                    isinstance(value, int | float) and end >= len(self._buffer) - NEAR_THE_END
                )
                if not may_go_on or not self._fill():
                    self._place = end
                    return value

    def several(self, columns: Columns) -> list[Any] | pa.RecordBatch:
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
        elements: list[Any] | pa.RecordBatch | None = columns(together)
        if elements is None:
            decode, errors = _decoder()
            try:
                elements = decode(f"[{together}]")
            except errors:
                # a broken element, or that comma is within one: they are looked at one by one
                return []
        self._place = cut.end()
        return elements

    def is_at_end(self) -> bool:
        """Return whether nothing but space is left."""
        self.mark("")
        return self._place >= len(self._buffer)

    def wrong(self, why: str) -> InputError:
        """Return the error of a file that is not what it should be, at the place that has been read
        to."""
        return InputError(
            f"{self._shown}: not the JSON of annotations, at character "
            f"{self._before + self._place}: {why}"
        )

    def _fill(self) -> bool:
        """Read on, and return whether there was more. What has been read is let go."""
        if self._ended:
            return False
        data = self._raw.read(max(BLOCK_BYTES, len(self._buffer) - self._place)) or b""
        self._ended = not data
        more = self._decoder.decode(data, final=self._ended)
        self._before += self._place
        self._buffer, self._place = self._buffer[self._place :] + more, 0
        self._tried = 0
        return True
