"""Documents that were packed into blocks: a document may be cut, and its pieces may lie anywhere in its shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.format.token_columns import DOCUMENT_COLUMNS, DOCUMENT_KEYS, Numbers, Rows, documents_in, list_offsets
from shardctl.interop.exports.source import Shard
from shardctl.system.dataclass import dataclass


@dataclass(frozen=True)
class Pieces:
    """The pieces of documents in some blocks of fixed length, in the order in which they are stored. (pieces,) int64 each.

    `row` is the block's row in its shard, `offset` the place of the first token in it, `start` that in the document. Pieces of
    one document have the same number in `document`, and the tokens of all of them in `total`.
    """

    row: Numbers
    offset: Numbers
    length: Numbers
    start: Numbers
    document: Numbers
    total: Numbers

    def of_rows(self, first: int, last: int) -> Pieces:
        """Return the pieces of the rows from `first` to before `last`."""
        begin, end = np.searchsorted(self.row, [first, last])
        part = slice(begin, end)
        each = (self.row, self.offset, self.length, self.start, self.document, self.total)
        return Pieces(*(values[part] for values in each))

    def merged(self, size: int) -> Pieces:
        """Return the same with pieces joined where one goes on right behind the other, in the next of rows of `size`."""
        place = self.row * size + self.offset
        goes_on = np.zeros(len(place), np.bool_)
        goes_on[1:] = (
            (self.document[1:] == self.document[:-1])
            & (self.start[1:] == self.start[:-1] + self.length[:-1])
            & (place[1:] == place[:-1] + self.length[:-1])
        )
        first = np.flatnonzero(~goes_on)
        if len(first) == len(place):
            return self
        length = np.add.reduceat(self.length, first)
        return Pieces(self.row[first], self.offset[first], length, self.start[first], self.document[first], self.total[first])


def joined_blocks(shard: Shard, name: str) -> Iterator[tuple[int, npt.NDArray[Any], Numbers]]:
    """Yield for every block its rows, and the documents that are whole by then: tokens (n,) and lengths (documents,).

    A document comes where its last piece is stored. Pieces of cut documents are held until then. Padding is left out.
    """
    pieces = _pieces_of(shard, shard.columns.field(name).type.list_size)
    held: dict[int, _Held] = {}
    first = 0
    for block in shard.blocks():
        column = block.column(name)
        values = column.flatten()
        if column.null_count or values.null_count:
            raise shard.damaged(f"a value is missing in {name}")
        size = column.type.list_size
        there = pieces.of_rows(first, first + block.num_rows).merged(size)
        tokens, lengths = _whole(np.from_dlpack(values), there, (there.row - first) * size + there.offset, held)
        yield block.num_rows, tokens, lengths
        first += block.num_rows
    assert not held, "pieces that lack others were refused"


@dataclass
class _Held:
    """The pieces of a document so far, each with its start, and the tokens that are still to come."""

    missing: int
    parts: list[tuple[int, npt.NDArray[Any]]]


def _whole(
    tokens: npt.NDArray[Any], pieces: Pieces, place: Numbers, held: dict[int, _Held]
) -> tuple[npt.NDArray[Any], Numbers]:
    """Return the documents that the pieces of a block complete; the other pieces are kept in `held`."""
    end = place + pieces.length
    is_part = pieces.length != pieces.total
    breaks = np.ones(len(place), np.bool_)
    breaks[1:] = (place[1:] != end[:-1]) | is_part[1:] | is_part[:-1]
    starts = np.flatnonzero(breaks)
    stops = np.append(starts[1:], len(place))
    made, lengths = [tokens[:0]], [pieces.length[:0]]
    for begin, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        part = tokens[place[begin] : end[stop - 1]]
        if not is_part[begin]:
            made.append(part)
            lengths.append(pieces.length[begin:stop])
            continue
        document = int(pieces.document[begin])
        known = held.setdefault(document, _Held(int(pieces.total[begin]), []))
        known.parts.append((int(pieces.start[begin]), part.copy()))  # a view would keep the whole block in memory
        known.missing -= len(part)
        if not known.missing:
            made += [values for _, values in sorted(held.pop(document).parts, key=lambda each: each[0])]
            lengths.append(pieces.total[begin : begin + 1])
    return np.concatenate(made), np.concatenate(lengths)


def _pieces_of(shard: Shard, size: int) -> Pieces:
    """Read which pieces a shard has. Raises DatasetError if that cannot be."""
    keys: list[pa.Array] = []
    numbers: list[list[Numbers]] = [[np.zeros(0, np.int64)] for _ in range(4)]
    first = 0
    for block in shard.blocks_of(DOCUMENT_COLUMNS):
        columns = {name: block.column(name) for name in DOCUMENT_COLUMNS}
        key = columns[DOCUMENT_KEYS].flatten()
        try:
            there = documents_in(Rows(np.zeros(0), np.arange(block.num_rows + 1) * size), columns)
        except ValueError as error:
            raise shard.damaged(f"its blocks do not say which documents they have: {error}") from error
        counts = np.bincount(there.row, minlength=block.num_rows)
        if (
            key.null_count
            or any(column.null_count for column in columns.values())
            or not np.array_equal(np.diff(list_offsets(columns[DOCUMENT_KEYS])), counts)
        ):
            raise shard.damaged("its blocks do not say which documents they have: a key, a length or a place is missing")
        keys.append(key)
        for kept, values in zip(
            numbers, (first + there.row, there.first - there.row * size, there.length, there.start), strict=True
        ):
            kept.append(values)
        first += block.num_rows
    row, offset, length, start = (np.concatenate(each) for each in numbers)
    document, total = _documents(shard, pa.chunked_array(keys, pa.string()), start, length)
    return Pieces(row, offset, length, start, document, total)


def _documents(shard: Shard, keys: pa.ChunkedArray, start: Numbers, length: Numbers) -> tuple[Numbers, Numbers]:
    """Return the document of each piece, as the number of its first piece, and the tokens of this document."""
    document, total = np.arange(len(start)), length.copy()
    if not start.any():
        return document, total  # no document is cut
    cut = pc.is_in(keys, value_set=pc.unique(keys.filter(pa.array(start > 0))))
    of_cut = np.flatnonzero(cut.combine_chunks())
    codes = keys.filter(cut).combine_chunks().dictionary_encode().indices
    code = np.from_dlpack(codes)
    order = np.lexsort((of_cut, start[of_cut], code))
    code, places = code[order], of_cut[order]
    begins = start[places] == 0
    follows = np.zeros(len(places), np.bool_)
    follows[1:] = (code[1:] == code[:-1]) & (start[places][1:] == (start[places] + length[places])[:-1])
    if not (begins | follows).all():
        key = keys[int(places[np.flatnonzero(~(begins | follows))[0]])].as_py()
        raise shard.damaged(f"a piece of the document {key!r:.200} is missing, or two documents have this key")
    heads = np.flatnonzero(begins)
    counts = np.diff(np.append(heads, len(places)))
    document[places] = np.repeat(places[heads], counts)
    total[places] = np.repeat(np.add.reduceat(length[places], heads), counts)
    return document, total
