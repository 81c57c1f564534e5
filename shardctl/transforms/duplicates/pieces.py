"""What is compared of texts: whole documents, or their lines or paragraphs. Hashes of them, and
texts without some of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from shardctl.format.arrays import (
    Bools,
    Bytes,
    Hashes,
    Numbers,
    bytes_of,
    edges_of,
    sums_of,
    texts_from,
)

DOCUMENT, LINE, PARAGRAPH = "document", "line", "paragraph"

_LINE_FEED, _RETURN, _BLANK = 10, 13, 32


@dataclass(frozen=True)
class Pieces:
    """Pieces of texts, in order. A piece is `data` (bytes) from `start` to `end`, in the text
    `row`, where it is the piece `number`, counted from 0. All but `data` are (n,) int64.

    Lines and paragraphs that hold nothing but blanks are no pieces. A line has no line end; a
    paragraph is lines between those that are blank.
    """

    data: Bytes
    start: Numbers
    end: Numbers
    row: Numbers
    number: Numbers

    def __len__(self) -> int:
        return len(self.start)

    @property
    def sizes(self) -> Numbers:
        """The bytes of each piece, (n,)."""
        return self.end - self.start

    def hashes(self) -> Hashes:
        """Return the XXH3-128 of each piece, (n, 2)."""
        view, digest = self.data.data, xxhash.xxh3_128_digest
        digests = b"".join(
            [digest(view[a:b]) for a, b in zip(self.start.tolist(), self.end.tolist(), strict=True)]
        )
        return np.frombuffer(digests, ">u8").reshape(-1, 2).astype(np.uint64)


def pieces_of(texts: pa.Array, unit: str) -> Pieces:
    """Cut texts, (n,) string without nulls, into their units: document, line or paragraph."""
    data, offsets = bytes_of(texts)
    if unit == DOCUMENT:
        return Pieces(
            data, offsets[:-1], offsets[1:], np.arange(len(texts)), np.zeros(len(texts), np.int64)
        )
    return _lines(data, offsets, whole_paragraphs=unit == PARAGRAPH)


def _lines(data: Bytes, offsets: Numbers, whole_paragraphs: bool) -> Pieces:
    begins = np.append(True, data[:-1] == _LINE_FEED)[: len(data)]
    begins[offsets[:-1][np.diff(offsets) > 0]] = True
    start = np.flatnonzero(begins)
    row = np.searchsorted(offsets, start, side="right") - 1
    end = np.append(start[1:], len(data))[: len(start)]
    end = end - (data[end - 1] == _LINE_FEED)
    end = end - ((end > start) & (data[end - 1] == _RETURN))
    has_ink = np.maximum.reduceat(data, start) > _BLANK
    begins = ends = has_ink
    if whole_paragraphs and len(start):
        goes_on = has_ink[:-1] & has_ink[1:] & (row[1:] == row[:-1])  # to the next line
        begins = has_ink & ~np.append(False, goes_on)
        ends = has_ink & ~np.append(goes_on, False)
    start, end, row = start[begins], end[ends], row[begins]
    number = np.arange(len(row)) - np.searchsorted(row, row)
    return Pieces(data, start, end, row, number)


def without_pieces(texts: pa.Array, pieces: Pieces, dropped: Bools) -> pa.Array:
    """Return texts without some of their pieces: `dropped` is (pieces,).

    With a piece goes what is between it and the piece before it, or, where none is kept before it,
    what is between it and the next one. Of a text whose pieces are all dropped nothing is left but
    what is no piece.
    """
    row = pieces.row
    kept_before: Numbers = np.cumsum(~dropped) - ~dropped  # in all texts
    after: Bools = kept_before > kept_before[np.searchsorted(row, row)]
    is_last = np.append(row[1:] != row[:-1], True)[: len(row)]
    start = np.where(after, np.roll(pieces.end, 1), pieces.start)[dropped]
    end = np.where(after | is_last, pieces.end, np.roll(pieces.start, -1))[dropped]
    change = np.zeros(len(pieces.data) + 1, np.int8)
    np.add.at(change, start, 1)
    np.add.at(change, end, -1)
    left = pieces.data[np.cumsum(change[:-1], dtype=np.int8) == 0]
    removed = sums_of(end - start, row[dropped], len(texts))
    return texts_from(left, edges_of(bytes_of(texts).sizes - removed))
