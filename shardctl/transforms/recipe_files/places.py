"""Where the keys of a TOML file are: tomllib reads the values, and says nothing of their places."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from dataclasses import dataclass

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Key = tuple[str | int, ...]
"""The way to a value: names of keys, and numbers of the items of lists (from 0), from the outermost
in."""

_SPACES = re.compile(r"[ \t]*")
_BLANKS = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# numbers, booleans, dates: dates may have a space inside
_PLAIN_VALUE = re.compile(r"[^,\]}#\r\n]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{1,2}(?!"))?'
    r"|'''.*?'''(?:'{1,2}(?!'))?"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


@dataclass(frozen=True)
class TextPlace:
    """A place in a text: line and column, in characters, from 1."""

    line: int
    column: int


def places(text: str) -> dict[Key, TextPlace]:
    """Return where every key and every item of a list begins, in a text that tomllib has read
    without an error.

    The place of a table is that of its header, or of the first key that names it.
    """
    scanner = _Scanner(text)
    scanner.document()
    starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(offset: int) -> TextPlace:
        line = bisect_right(starts, offset)
        return TextPlace(line, offset - starts[line - 1] + 1)

    return {key: place(offset) for key, offset in scanner.found.items()}


def nearest_place(found: dict[Key, TextPlace], key: Key) -> TextPlace | None:
    """Return the place of a key, or else that of the innermost table or list around it that has
    one."""
    return next(
        (found[key[:length]] for length in range(len(key), 0, -1) if key[:length] in found), None
    )


def end_of_value(text: str, start: int) -> int:
    """Return where a TOML value that begins at `start` ends; a value that is no string or list ends
    before a blank.

    Raises ValueError if a string or a list does not end.
    """
    scanner = _Scanner(text)
    scanner.at = start
    if text[start : start + 1] in tuple("\"'[{"):
        scanner.value(())
        return scanner.at
    match = re.compile(r"\S*").match(text, start)
    return match.end() if match else start


class _Scanner:
    """Goes through a TOML text once, and notes in `found` at which character each key begins."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found: dict[Key, int] = {}
        self._tables: dict[Key, int] = {}
        """How many tables of a list of tables there are so far."""

    def document(self) -> None:
        table: Key = ()
        while self._skip(_BLANKS) < len(self.text):
            if self._next("["):
                table = self._header()
            else:
                self._pair(table)

    def value(self, key: Key) -> None:
        if self._next('"') or self._next("'"):
            self._take(_STRING)
        elif self._next("["):
            self._list(key)
        elif self._next("{"):
            self._inline_table(key)
        else:
            self._take(_PLAIN_VALUE)

    def _header(self) -> Key:
        """Read [a.b] or [[a.b]], and return the way to the table that begins."""
        start, double = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if double else 1
        names = self._names()
        self.at += 2 if double else 1
        key: Key = ()
        for number, name in enumerate(names, 1):
            key = (*key, name)
            self.found.setdefault(key, start)
            if double and number == len(names):
                self._tables[key] = self._tables.get(key, 0) + 1
            if key in self._tables:
                key = (*key, self._tables[key] - 1)
                self.found.setdefault(key, start)
        return key

    def _pair(self, table: Key) -> None:
        start = self.at
        names = self._names()
        for length in range(1, len(names) + 1):
            self.found.setdefault((*table, *names[:length]), start)
        self._expect("=")
        self._skip(_SPACES)
        self.value((*table, *names))

    def _list(self, key: Key) -> None:
        self.at += 1
        number = 0
        while self._skip(_BLANKS) < len(self.text) and not self._next("]"):
            item = (*key, number)
            self.found[item] = self.at
            self.value(item)
            number += 1
            self._skip(_BLANKS)
            if self._next(","):
                self.at += 1
        self._expect("]")

    def _inline_table(self, key: Key) -> None:
        self.at += 1
        while self._skip(_BLANKS) < len(self.text) and not self._next("}"):
            self._pair(key)
            self._skip(_BLANKS)
            if self._next(","):
                self.at += 1
        self._expect("}")

    def _names(self) -> tuple[str, ...]:
        """Read a key, which may have several parts with dots between them."""
        names: list[str] = []
        while True:
            self._skip(_SPACES)
            if self._next('"') or self._next("'"):
                (name,) = tomllib.loads(f"{self._take(_STRING)} = 0")
            else:
                name = self._take(_BARE_KEY)
            names.append(name)
            self._skip(_SPACES)
            if not self._next("."):
                return tuple(names)
            self.at += 1

    def _next(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"no TOML from character {self.at} on")
        self.at = match.end()
        return match[0]

    def _expect(self, text: str) -> None:
        if not self._next(text):
            raise ValueError(f"no {text} at character {self.at}")
        self.at += len(text)
