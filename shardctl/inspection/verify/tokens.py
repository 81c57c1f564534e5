"""The check of tokens: numbers that the vocabulary has, documents that fit their blocks, masks of 0 and 1.

Such a shard is what was written, by another program or with another role. No Python object is made for each token.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.roles import Roles, Tokens
from shardctl.format.token_columns import (
    DOCUMENT_COLUMNS,
    DOCUMENT_KEYS,
    DOCUMENT_LENGTHS,
    DOCUMENT_STARTS,
    LOSS_MASK,
    Rows,
    list_offsets,
    main_tokens,
    token_rows,
)
from shardctl.inspection.verify.check import Block, Fault, Shard
from shardctl.inspection.verify.finding import CONVERT_AGAIN

BAD_TOKENS, BAD_DOCUMENTS, BAD_LOSS_MASK = "bad-tokens", "bad-documents", "bad-loss-mask"


def wrong_tokens(shard: Shard, block: Block) -> Iterator[Fault]:
    """Yield the first fault of each kind and row of a block whose tokens are not as docs/format.md describes them."""
    found: dict[tuple[int, str], str] = {}
    for row, kind, what in _wrong_rows(block.data, shard.own_roles):
        found.setdefault((row, kind), what)
    for (row, kind), what in sorted(found.items()):
        yield block.fault(row, kind, f"{what}; {CONVERT_AGAIN}")


def _wrong_rows(block: pa.RecordBatch, roles: Roles) -> Iterator[tuple[int, str, str]]:
    """Yield the row of each fault in a block, its kind and its message."""
    main = main_tokens(roles)
    if main is None or not block.num_rows:
        return
    for name, role in roles.tokens.items():
        try:
            tokens = token_rows(block.column(name))
        except ValueError as error:
            yield 0, BAD_TOKENS, f"{name}: {error}"
            continue
        yield from ((row, BAD_TOKENS, f"{name} {what}") for row, what in _outside(tokens, role))
        if role.packed:
            yield from ((row, BAD_DOCUMENTS, what) for row, what in _wrong_documents(block, tokens, role))
        if name == main[0] and LOSS_MASK in block.schema.names:
            yield from ((row, BAD_LOSS_MASK, what) for row, what in _wrong_mask(block.column(LOSS_MASK), tokens, name))


def _outside(tokens: Rows, role: Tokens) -> Iterator[tuple[int, str]]:
    if role.vocabulary is None or not len(tokens.values):
        return
    ids = tokens.values
    least, most = int(ids.min()), int(ids.max())
    if least >= 0 and most < role.vocabulary:
        return
    for place in _first_of_each_row(tokens, (ids < 0) | (ids >= role.vocabulary)):
        row = _row_of(tokens, place)
        at = place - int(tokens.offsets[row])
        yield row, f"has the token {ids[place]} at place {at}, and its vocabulary has the numbers 0 to {role.vocabulary - 1}"


def _wrong_documents(block: pa.RecordBatch, tokens: Rows, role: Tokens) -> Iterator[tuple[int, str]]:
    missing = [name for name in DOCUMENT_COLUMNS if name not in block.schema.names]
    if missing:
        yield 0, f"its tokens are packed, and there is no column {' and no column '.join(missing)}"
        return
    keys = block.column(DOCUMENT_KEYS)
    try:
        lengths, starts = token_rows(block.column(DOCUMENT_LENGTHS)), token_rows(block.column(DOCUMENT_STARTS))
        counts = np.diff(list_offsets(keys))
    except (ValueError, pa.ArrowException) as error:
        yield 0, f"the columns of documents cannot be read: {error}"
        return
    for row in np.flatnonzero((lengths.lengths != counts) | (starts.lengths != counts)).tolist():
        several = f"{counts[row]} of {DOCUMENT_KEYS}, {lengths.lengths[row]} of {DOCUMENT_LENGTHS}"
        yield row, f"has {several} and {starts.lengths[row]} of {DOCUMENT_STARTS}; there must be one for each document"
    for row in np.flatnonzero(lengths.lengths == 0).tolist():
        yield row, "is a block without a document"
    for rows, name, low, least in ((lengths, DOCUMENT_LENGTHS, 1, "1"), (starts, DOCUMENT_STARTS, 0, "0")):
        for place in _first_of_each_row(rows, rows.values < low):
            yield _row_of(rows, place), f"has {rows.values[place]} in {name}, and the least is {least}"
    row_of = np.repeat(np.arange(block.num_rows), lengths.lengths)
    filled = np.bincount(row_of, np.maximum(lengths.values, 0), minlength=block.num_rows).astype(np.int64)
    size = tokens.lengths
    for row in np.flatnonzero(filled > size).tolist():
        yield row, f"has documents of {filled[row]} tokens together in a block of {size[row]}"
    if role.pad is not None:
        within = np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], size)
        for place in _first_of_each_row(tokens, (within >= np.repeat(filled, size)) & (tokens.values != role.pad)):
            yield (
                _row_of(tokens, place),
                f"has the token {tokens.values[place]} behind its documents, where padding is {role.pad}",
            )


def _wrong_mask(column: pa.Array, tokens: Rows, name: str) -> Iterator[tuple[int, str]]:
    try:
        mask = token_rows(column)
    except ValueError as error:
        yield 0, f"{LOSS_MASK}: {error}"
        return
    for row in np.flatnonzero(mask.lengths != tokens.lengths).tolist():
        yield row, f"{LOSS_MASK} has {mask.lengths[row]} numbers, and {name} has {tokens.lengths[row]}"
    for place in _first_of_each_row(mask, (mask.values != 0) & (mask.values != 1)):
        yield _row_of(mask, place), f"{LOSS_MASK} has the number {mask.values[place]}, and it is 0 or 1"


def _first_of_each_row(rows: Rows, wrong: npt.NDArray[np.bool_]) -> list[int]:
    """Return the first place of each row that is wrong: a row may have millions of them."""
    places = np.flatnonzero(wrong)
    _, first = np.unique(np.searchsorted(rows.offsets, places, side="right"), return_index=True)
    return [int(place) for place in places[first]]


def _row_of(rows: Rows, place: int) -> int:
    return int(np.searchsorted(rows.offsets, place, side="right")) - 1
