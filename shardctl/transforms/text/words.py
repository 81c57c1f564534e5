"""The characters, words, lines and paragraphs of many texts at once, and which of them are there
twice.

A word is what `str.split` gives: characters between white space. White space counts neither as
characters of a line or a paragraph, nor when two of them are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.arrays import (
    Bools,
    Bytes,
    Floats,
    Numbers,
    TextBytes,
    bytes_of,
    edges_of,
    owners_of,
    texts_from,
)

NEWLINE = 0x0A
LEAD = 0xC0
"""The first byte of a character of several is this or more; the others of it are below, and above
those of ASCII."""


def texts_of_kept(data: Bytes, keep: Bools, offsets: Numbers) -> pa.Array:
    """Return texts without some of their bytes: those where `keep` is False. Text i is
    data[offsets[i]:offsets[i + 1]]."""
    sizes = np.zeros(len(offsets), np.int64)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        sizes[filled + 1] = np.add.reduceat(keep, offsets[filled], dtype=np.int64)
    return texts_from(data[keep], np.cumsum(sizes))


def is_ascii(data: Bytes) -> bool:
    """Return whether all characters are of ASCII."""
    return not len(data) or int(data.max()) < 0x80


def spaces(data: Bytes) -> Bools:
    """Return which bytes are of white space, (bytes,): of the characters that `str.split` splits
    at."""
    # Ranges take a tenth of the time of a table. Numbers of a byte wrap around, so that each range
    # is one comparison.
    found: Bools = (data == 0x20) | (data - np.uint8(0x09) < 5) | (data - np.uint8(0x1C) < 4)
    if is_ascii(data):
        return found
    for first, tails in _WIDE_SPACES.items():
        begins = np.flatnonzero(data == first)
        for tail in tails if len(begins) else ():
            places = begins
            for number, byte in enumerate(tail, 1):
                places = places[data[places + number] == byte]
            for number in range(len(tail) + 1):
                found[places + number] = True
    return found


def letters(data: Bytes) -> Bools:
    """Return at which bytes a letter begins, (bytes,), as `str.isalpha` has it."""
    return _begins(data, str.isalpha)


def parts_of_words(data: Bytes) -> Bools:
    """Return which bytes are of letters, digits, marks on letters and underscores, (bytes,)."""
    begins = _begins(data, _is_part_of_word)
    if is_ascii(data):
        return begins
    first = np.flatnonzero((data & 0xC0) != 0x80)
    return np.repeat(begins[first], np.diff(np.append(first, len(data))))


def _is_part_of_word(character: str) -> bool:
    import unicodedata

    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


def _begins(data: Bytes, kind: Callable[[str], bool]) -> Bools:
    """Return at which bytes a character of a kind begins, (bytes,)."""
    table = _table(kind)
    found, wide = table[data], data >= 0x80
    if wide.any():
        points = np.frombuffer(data[wide].tobytes().decode().encode("utf-32-le"), np.uint32)
        found[wide] = False
        found[data >= LEAD] = table[np.minimum(points, _LAST)]
    return found


_LAST = 0x3FFFF
"""The code points above are no letters: tags, selectors of variants, private use. One entry of a
table stands for all."""


@cache
def _table(kind: Callable[[str], bool]) -> Bools:
    """Return which code points are of a kind. 30 ms."""
    found = np.fromiter((kind(chr(point)) for point in range(_LAST + 1)), bool, _LAST + 1)
    found[_LAST] = False
    return found


def _wide_spaces() -> dict[int, list[bytes]]:
    """Return the first bytes of white space that is not of ASCII, and what may follow each."""
    found: dict[int, list[bytes]] = {}
    for point in range(0x80, 0x10000):
        if chr(point).isspace():
            first, *tail = chr(point).encode()
            found.setdefault(first, []).append(bytes(tail))
    return found


_WIDE_SPACES = _wide_spaces()


class _OfTexts:
    """Parts of texts: those of text t are of_text[t] to of_text[t + 1] - 1."""

    of_text: Numbers

    @property
    def count(self) -> Numbers:
        """How many there are in each text, (texts,)."""
        return np.diff(self.of_text)

    def per_text(self, values: Numbers | Bools) -> Numbers:
        """Return the sums of the values of the parts, (parts,), by text, (texts,)."""
        return np.diff(edges_of(values)[self.of_text])

    def share(self, chosen: Bools) -> Floats:
        """Return the share of the parts of each text that are chosen, (parts,): (texts,)."""
        return shares(self.per_text(chosen), self.count)


@dataclass(frozen=True)
class Spans(_OfTexts):
    """Stretches of words of texts: span i has the words first[i] to end[i] - 1. Those of text t are
    of_text[t] to of_text[t + 1] - 1, and `text` (n,) says it the other way.
    """

    first: Numbers
    end: Numbers
    of_text: Numbers
    text: Numbers


def stretches(inside: Bools, offsets: Numbers) -> tuple[Numbers, Numbers]:
    """Return where stretches of bytes that are `inside` begin and end, (n,) each. Text i is from
    offsets[i] to offsets[i + 1], and no stretch goes into another one."""
    starts, ends = inside.copy(), inside.copy()
    starts[1:] &= ~inside[:-1]
    ends[:-1] &= ~inside[1:]
    filled = np.flatnonzero(np.diff(offsets))
    begins, stops = offsets[filled], offsets[filled + 1] - 1
    starts[begins], ends[stops] = inside[begins], inside[stops]
    return np.flatnonzero(starts), np.flatnonzero(ends) + 1


class Words(_OfTexts):
    """The words of texts: word i is data[starts[i]:ends[i]], and those of text t are of_text[t] to
    of_text[t + 1] - 1."""

    def __init__(self, texts: pa.Array) -> None:
        self.bytes: TextBytes = bytes_of(texts)
        data, offsets = self.bytes
        self.spaces = spaces(data)
        self.starts, self.ends = stretches(~self.spaces, offsets)
        self.of_text: Numbers = np.searchsorted(self.starts, offsets)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def texts(self) -> int:
        """How many texts there are."""
        return len(self.of_text) - 1

    @cached_property
    def text(self) -> Numbers:
        """The number of the text of each word, (words,)."""
        return owners_of(self.count)

    @cached_property
    def characters(self) -> Numbers:
        """How many characters each word has, (words,)."""
        return self.between(self.starts, self.ends)

    @cached_property
    def _characters_before(self) -> npt.NDArray[np.int32] | None:
        """How many characters begin before each byte, (bytes + 1,); None where every byte is one."""
        data = self.bytes.data
        if is_ascii(data):
            return None
        before = np.zeros(len(data) + 1, np.int32)  # a column of strings has less than 2 GB
        np.cumsum((data & 0xC0) != 0x80, out=before[1:])
        return before

    def between(self, starts: Numbers, ends: Numbers) -> Numbers:
        """Return how many characters there are from some places in the data to others."""
        before = self._characters_before
        return ends - starts if before is None else (before[ends] - before[starts]).astype(np.int64)

    @cached_property
    def lengths_before(self) -> Numbers:
        """How many characters the words before each one have, and all words: (words + 1,)."""
        return edges_of(self.characters)

    @cached_property
    def text_characters(self) -> Numbers:
        """How many characters the words of each text have, (texts,)."""
        return np.diff(self.lengths_before[self.of_text])

    def with_letters(self) -> Bools:
        """Return which words have a letter, (words,)."""
        return np.logical_or.reduceat(letters(self.bytes.data), self.starts)

    @cached_property
    def _lines_before(self) -> Numbers:
        """How many lines end before each word, and how many texts: (words,). Words of one line have
        the same number."""
        return np.searchsorted(np.flatnonzero(self.bytes.data == NEWLINE), self.starts) + self.text

    def lines(self) -> Spans:
        """Return the lines that have words."""
        return self._spans(np.diff(self._lines_before) > 0)

    def paragraphs(self) -> Spans:
        """Return the paragraphs: lines with words that no line without words divides."""
        return self._spans((np.diff(self._lines_before) > 1) | (np.diff(self.text) > 0))

    def _spans(self, changes: Bools) -> Spans:
        """Return the spans between which words change: `changes` (words - 1,) is between a word and
        the next."""
        first = np.concatenate([np.zeros(min(1, len(self)), np.int64), np.flatnonzero(changes) + 1])
        end = np.append(first[1:], len(self))[: len(first)]
        return Spans(first, end, np.searchsorted(first, self.of_text), self.text[first])

    def having(self, spans: Spans, strings: tuple[str, ...], at_end: bool) -> Bools:
        """Return which spans begin, or end, with one of these strings, (spans,)."""
        data = self.bytes.data
        starts, ends = self.starts[spans.first], self.ends[spans.end - 1]
        found = np.zeros(len(starts), bool)
        for string in strings:
            wanted = np.frombuffer(string.encode(), np.uint8)
            rows = np.flatnonzero(ends - starts >= len(wanted))
            places = (ends[rows] - len(wanted)) if at_end else starts[rows]
            for number, byte in enumerate(wanted):
                fits = data[places + number] == byte
                rows, places = rows[fits], places[fits]
            found[rows] = True
        return found

    @cached_property
    def packed(self) -> TextBytes:
        """The bytes of all words without what is between them; offsets are those of words, (words +
        1,)."""
        return TextBytes(self.bytes.data[~self.spaces], edges_of(self.ends - self.starts))

    def ids(self) -> Numbers:
        """Return a number for each word, (words,): the same for words of a text that are the same,
        another one for others, and for those of other texts. They are 0, 1, …, in the order in
        which they are first there."""
        words = _numbered(texts_from(*self.packed))
        return dense(self.text * (int(words.max(initial=0)) + 1) + words)

    def repeated(self, spans: Spans) -> Bools:
        """Return which spans have been there before in their text, (spans,), white space aside."""
        data, offsets = self.packed
        strings = texts_from(data, np.append(offsets[spans.first], offsets[-1]))
        ids = _numbered(strings)
        return ~are_first(dense(spans.text * (int(ids.max(initial=0)) + 1) + ids))


def dense(keys: Numbers) -> Numbers:
    """Return numbers for keys: 0, 1, …, in the order in which they are first there."""
    return _numbered(pa.array(keys))


def are_first(numbers: Numbers) -> Bools:
    """Return where each of some numbers (`dense`) is for the first time."""
    return np.diff(np.maximum.accumulate(numbers), prepend=-1) > 0


def _numbered(values: pa.Array) -> Numbers:
    numbers: npt.NDArray[np.int32] = values.dictionary_encode().indices.to_numpy()
    return numbers.astype(np.int64)


def shares(parts: Numbers, whole: Numbers) -> Floats:
    """Return parts / whole, 0 where there is nothing."""
    return np.divide(parts, whole, out=np.zeros(len(whole)), where=whole > 0)


def duplicate_shares(words: Words, spans: Spans) -> tuple[Floats, Floats]:
    """Return the shares of the spans of each text that have been in it before, and of the
    characters in them: (texts,) both."""
    repeated = words.repeated(spans)
    before, whole = words.lengths_before, words.text_characters
    characters = (before[spans.end] - before[spans.first]) * repeated
    return spans.share(repeated), shares(spans.per_text(characters), whole)
