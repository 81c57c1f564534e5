"""Columns of tokens as flat arrays: the lists of a block one after the other, and the documents
that are in packed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Array, Bools, Numbers, edges_of, is_list, owners_of, sums_of
from shardctl.format.roles import Roles, Tokens

TOKENS, LOSS_MASK = "tokens", "loss_mask"
DOCUMENT_KEYS, DOCUMENT_LENGTHS, DOCUMENT_STARTS = DOCUMENT_COLUMNS = (
    "document_keys",
    "document_lengths",
    "document_starts",
)
"""The columns beside packed tokens: they have an item for each document, or piece of one, in a
block of tokens."""


@dataclass(frozen=True)
class Rows:
    """Lists of whole numbers: those of row n are `values[offsets[n] : offsets[n + 1]]`; of a
    missing list there are none.

    `values` is (total,), `offsets` is (rows + 1,) int64.
    """

    values: Array
    offsets: Numbers

    @property
    def lengths(self) -> Numbers:
        """How many numbers each row has, (rows,)."""
        return np.diff(self.offsets)

    def __getitem__(self, row: int) -> Array:
        """Return the numbers of a row."""
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]


@dataclass(frozen=True)
class Documents:
    """The documents in packed rows, or their pieces where they were cut: all of them one after the
    other, (pieces,) each.

    `row` is the row that a piece is in, `first` the place of its first token among the tokens of
    all rows, `length` how many tokens it has, `start` how many of its document are before it.
    `filled` (rows,) is how many tokens of a row are of documents; what is left is padding.
    """

    row: Numbers
    first: Numbers
    length: Numbers
    start: Numbers
    filled: Numbers

    def ends(self, tokens: Rows, eos: int | None) -> Bools:
        """Return which pieces end their document, (pieces,): the others go on in another row.

        A document is cut only where its row is full; there, the token that ends a document tells.
        """
        last = self.first + self.length - 1
        full = last + 1 == tokens.offsets[self.row + 1]
        return np.asarray(~full if eos is None else ~full | (tokens.values[last] == eos))

    def lengths(self, tokens: Rows, eos: int | None) -> Numbers:
        """Return how many tokens each document has that ends here, (documents,)."""
        return (self.start + self.length)[self.ends(tokens, eos)]

    def seconds(self, tokens: Rows) -> Bools:
        """Return which pieces are the second of their document, (pieces,): there is one for each
        document that was cut.

        The first piece has as many tokens as a row at most; the third begins behind the second,
        which is a full row.
        """
        return (self.start > 0) & (self.start <= tokens.lengths[self.row])


def is_list_of_whole_numbers(type_: pa.DataType) -> bool:
    """Return whether this is the type of lists of whole numbers, of any length or of one."""
    return bool(is_list(type_) and pa.types.is_integer(type_.value_type))


def token_rows(column: pa.Array) -> Rows:
    """Return a column of lists of whole numbers, of any length or of one. Raises ValueError for any
    other."""
    if not is_list_of_whole_numbers(column.type):
        raise ValueError(f"it is of type {column.type}, which is not a list of whole numbers")
    values = column.flatten()  # without those behind a missing list
    if values.null_count:
        raise ValueError("a number in a list is missing")
    return Rows(np.from_dlpack(values), list_offsets(column))


def list_offsets(column: pa.Array) -> Numbers:
    """Return where the items of each list begin among those of all, (rows + 1,) int64; a missing
    list has none."""
    return edges_of(list_lengths(column))


def list_lengths(column: pa.Array) -> Numbers:
    """Return how many items each list has, (rows,) int64; a missing list has none."""
    if not column.null_count and isinstance(column, pa.ListArray | pa.LargeListArray):
        lengths: Numbers = np.diff(column.offsets.to_numpy().astype(np.int64))
        return lengths
    import pyarrow.compute as pc  # 40 ms to import, which only some datasets need

    return np.from_dlpack(pc.list_value_length(column).fill_null(0)).astype(np.int64)


def documents_in(tokens: Rows, columns: Mapping[str, pa.Array]) -> Documents:
    """Return the documents in packed rows, by the columns DOCUMENT_LENGTHS and DOCUMENT_STARTS.
    Raises ValueError, with what is wrong, where they cannot be: then no place leads outside of the
    tokens.
    """
    lengths, starts = (token_rows(columns[name]) for name in (DOCUMENT_LENGTHS, DOCUMENT_STARTS))
    length, start = lengths.values.astype(np.int64), starts.values.astype(np.int64)
    row = owners_of(lengths.lengths)
    if (
        not np.array_equal(lengths.offsets, starts.offsets)
        or (length <= 0).any()
        or (start < 0).any()
    ):
        raise ValueError("lengths and places of documents do not go together")
    filled = sums_of(length, row, len(lengths.lengths))
    if (filled > tokens.lengths).any():
        raise ValueError("documents are longer than their block")
    within = np.cumsum(length) - length
    before = edges_of(filled)[row]
    return Documents(row, tokens.offsets[row] + within - before, length, start, filled)


def packed_column(roles: Roles) -> str | None:
    """Return the name of the column of packed tokens, None if there is none."""
    return next((name for name, role in roles.tokens.items() if role.packed), None)


def main_tokens(roles: Roles) -> tuple[str, Tokens] | None:
    """Return the column that is meant by "the tokens", with its role: `tokens`, else the first one;
    None if there is none."""
    found = roles.tokens
    return (TOKENS, found[TOKENS]) if TOKENS in found else next(iter(found.items()), None)


def columns_of_blocks(names: Sequence[str], roles: Roles) -> tuple[str, ...] | None:
    """Return which columns of blocks of tokens training needs, without the lists of their
    documents; None: all of `names`, as samples are no such blocks.
    """
    packed = [name for name, role in roles.tokens.items() if role.packed]
    masks = [LOSS_MASK] if LOSS_MASK in names else []
    return (*packed, *masks) if packed else None
