"""The characters of many texts at once, as bytes of UTF-8: which are white space, letters, parts of
words, and how many."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.arrays import Bytes, Indices, texts_from

Mask = npt.NDArray[np.bool_]

NEWLINE = 0x0A
LEAD = 0xC0
"""The first byte of a character of several is this or more; the others of it are below, and above
those of ASCII."""


def texts_of_kept(data: Bytes, keep: Mask, offsets: Indices) -> pa.Array:
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


def spaces(data: Bytes) -> Mask:
    """Return which bytes are of white space, (bytes,): of the characters that `str.split` splits
    at."""
    # Ranges take a tenth of the time of a table. Numbers of a byte wrap around, so that each range
    # is one comparison.
    found: Mask = (data == 0x20) | (data - np.uint8(0x09) < 5) | (data - np.uint8(0x1C) < 4)
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


def characters_before(data: Bytes) -> npt.NDArray[np.int32] | None:
    """Return how many characters begin before each byte, (bytes + 1,); None where every byte is
    one."""
    if is_ascii(data):
        return None
    before = np.zeros(len(data) + 1, np.int32)  # a column of strings has less than 2 GB
    np.cumsum((data & 0xC0) != 0x80, out=before[1:])
    return before


def letters(data: Bytes) -> Mask:
    """Return at which bytes a letter begins, (bytes,), as `str.isalpha` has it."""
    return _begins(data, str.isalpha)


def parts_of_words(data: Bytes) -> Mask:
    """Return which bytes are of letters, digits, marks on letters and underscores, (bytes,)."""
    begins = _begins(data, _is_part_of_word)
    if is_ascii(data):
        return begins
    first = np.flatnonzero((data & 0xC0) != 0x80)
    return np.repeat(begins[first], np.diff(np.append(first, len(data))))


def _is_part_of_word(character: str) -> bool:
    import unicodedata

    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


def _begins(data: Bytes, kind: Callable[[str], bool]) -> Mask:
    """Return at which bytes a character of a kind begins, (bytes,)."""
    table = _table(kind)
    ascii_table = np.zeros(256, bool)
    ascii_table[:0x80] = table[:0x80]
    found = ascii_table[data]
    if not is_ascii(data):
        first = np.flatnonzero(data >= LEAD)
        found[first] = table[np.minimum(_code_points(data, first), _LAST)]
    return found


def _code_points(data: Bytes, first: Indices) -> npt.NDArray[np.int32]:
    """Return the code points of characters of two bytes or more that begin at these bytes."""
    lead = data[first].astype(np.int32)
    second = _tail(data, first, 1)
    points = ((lead & 0x1F) << 6) | second
    three = lead >= 0xE0
    if three.any():
        points[three] = (
            ((lead[three] & 0x0F) << 12) | (second[three] << 6) | _tail(data, first[three], 2)
        )
    four = lead >= 0xF0
    if four.any():
        third, fourth = _tail(data, first[four], 2), _tail(data, first[four], 3)
        points[four] = ((lead[four] & 0x07) << 18) | (second[four] << 12) | (third << 6) | fourth
    return points


def _tail(data: Bytes, first: Indices, place: int) -> npt.NDArray[np.int32]:
    return data[first + place].astype(np.int32) & 0x3F


_LAST = 0x3FFFF
"""The code points above are no letters: tags, selectors of variants, private use. One entry of a
table stands for all."""


@cache
def _table(kind: Callable[[str], bool]) -> Mask:
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
