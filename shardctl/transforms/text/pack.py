"""Tokens of documents packed into blocks for language models, or cut into pieces. The places:
shardctl/format/packing.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, Rejection
from shardctl.format.arrays import Array, Numbers, is_binary, is_text
from shardctl.format.packing import METHODS, Pieces, fewest_blocks, windows
from shardctl.format.roles import Role, Tokens
from shardctl.format.token_columns import (
    DOCUMENT_KEYS,
    DOCUMENT_LENGTHS,
    DOCUMENT_STARTS,
    LOSS_MASK,
    TOKENS,
    is_list_of_whole_numbers,
    list_lengths,
)
from shardctl.system.options import Whole, Word, setting
from shardctl.system.text import format_bytes, printable
from shardctl.transforms.base import (
    BatchRun,
    BatchTransform,
    Counts,
    HeldMemoryError,
    Records,
    RejectRow,
    type_of,
)
from shardctl.transforms.settings import Checked, SettingError

MOST_TOKEN = 2**32 - 1

WINDOW_TOKENS = 16 << 20
"""Tokens of documents that are packed together by best fit. More fill blocks no better: 50,000
documents leave 0.01 % free."""

WINDOW_DOCUMENTS = 1 << 20
"""The same for short documents."""

TOGETHER = 1 << 20
"""Tokens of blocks that are made at a time; of pieces, tokens and bytes of other fields."""

MOST_COPIED = 256 << 20
"""Bytes that the other fields of a document may take where each of its pieces has them."""


def _end_token(value: Any) -> bool | int:
    if not isinstance(value, int) or not 0 <= value <= MOST_TOKEN:
        raise ValueError("must be true, false or the number of a token")
    return value


END_TOKEN = Checked(_end_token, {"anyOf": [{"type": "boolean"}, Whole(0, MOST_TOKEN).schema()]})
"""True, false, or the number of a token."""


class Pack(BatchTransform, step="pack"):
    """Packs the tokens of documents into blocks of one length, or cuts them into pieces. It is the
    last step."""

    length: int | None = setting(
        Whole(2, 1 << 20),
        None,
        "Tokens of a block. With method none the most of a piece; left out: any number.",
    )
    method: str = setting(
        Word(*METHODS),
        "concat",
        "concat: one document behind the other, cut at the ends of blocks. bfd: best-fit "
        "decreasing, which cuts no document"
        " that fits in a block. none: rows of their own length, padded by the loader.",
    )
    stride: int = setting(
        Whole(0, 1 << 20),
        0,
        "With method none: tokens that a piece repeats of the one before, with 0 in loss_mask: "
        "each counts once.",
    )
    eos: bool | int = setting(
        END_TOKEN,
        True,
        "The token after each document that does not end with it. true: the EOS of the tokenizer, false: none.",
    )
    pad: int | None = setting(
        Whole(0, MOST_TOKEN),
        None,
        "The token that fills blocks up. Default: that of the tokenizer, else eos, else 0.",
    )

    def __post_init__(self) -> None:
        if self.length is None and (self.packs or self.stride):
            what = f"method {self.method}" if self.packs else "stride"
            raise SettingError(
                f"{what} needs length, the tokens of a block (--block-length 2048)", "length"
            )
        if self.packs and self.stride:
            raise SettingError(f"stride is for method none, and not for {self.method}", "stride")
        if self.length is not None and self.stride >= self.length:
            raise SettingError(
                f"stride must be below length, {self.length}; it is {self.stride}", "stride"
            )

    @property
    def packs(self) -> bool:
        """Whether rows are blocks, of several documents."""
        return self.method != "none"

    @property
    def joins(self) -> bool:
        """Blocks are of several records."""
        return self.packs

    @property
    def splits(self) -> bool:
        """Pieces are several of a record."""
        return not self.packs and self.length is not None

    is_last = True

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns of blocks; of pieces, those that were given and `loss_mask` where they
        overlap."""
        type_ = _token_type(given)
        if type_ == pa.uint16() and max(self.eos, self.pad or 0) >= 1 << 16:
            raise InputError(
                f"eos and pad of pack must be below {1 << 16}, as the tokens are stored as uint16"
            )
        masked = LOSS_MASK in given.names
        if masked and not is_list_of_whole_numbers(given.field(LOSS_MASK).type):
            raise InputError(
                f"pack takes {LOSS_MASK} as lists of 0 and 1, and it is {given.field(LOSS_MASK).type}"
            )
        size = self.length if self.packs else -1
        made = {TOKENS: pa.list_(type_, size)}
        if masked or self.stride:
            made[LOSS_MASK] = pa.list_(pa.uint8(), size)
        if self.packs:
            return pa.schema([*made.items(), *_DOCUMENT_FIELDS])
        return pa.schema({f.name: f.type for f in given} | made)

    def roles(self, given: Mapping[str, Role]) -> Mapping[str, Role]:
        """Return the roles with that of the tokens: with the tokens that end documents and fill up.
        Raises SettingError."""
        role = given.get(TOKENS)
        known = role if isinstance(role, Tokens) else Tokens()
        eos = known.eos if isinstance(self.eos, bool) else self.eos
        if self.eos is True and eos is None:
            why = (
                f"the tokenizer {printable(known.tokenizer)} has none"
                if known.tokenizer
                else "its number is not known"
            )
            raise SettingError(
                f"pack ends each document with the token EOS, but {why}: give a number (--step 'pack "
                "eos=2 …'), or eos = false for nothing",
                "eos",
            )
        pad = next((each for each in (self.pad, known.pad, eos) if each is not None), 0)
        for key, token in (("eos", eos), ("pad", pad)):
            if token is not None and known.vocabulary is not None and token >= known.vocabulary:
                raise SettingError(
                    f"{key} is {token}, and the vocabulary has the tokens 0 to "
                    f"{known.vocabulary - 1}",
                    key,
                )
        return {**given, TOKENS: replace(known, eos=eos, pad=pad, packed=self.packs)}

    def begin(self, folder: Path, roles: Mapping[str, Role]) -> BatchRun:
        """Return what packs the documents of one shard."""
        role = roles[TOKENS]
        assert isinstance(role, Tokens), "as `roles` says"
        eos = None if self.eos is False else role.eos
        if self.packs:
            return _Packing(self, eos, role.pad or 0)
        return BatchRun(partial(self._cut, eos), "documents", "tokens", "pieces", "longer")

    def _cut(
        self, eos: int | None, records: Records, reject: RejectRow, counts: Counts
    ) -> Iterable[Records]:
        """Yield a row for each document, or for each piece of at most `length` tokens, some at a
        time: overlapping ones may have many times the tokens of their documents."""
        kept = np.ones(records.batch.num_rows, bool)
        if self.length is not None:  # each piece has a copy of the other fields
            tokens = list_lengths(records.batch.column(TOKENS))
            more = np.maximum(0, tokens - self.length)
            pieces_of = 1 - (-more // (self.length - self.stride))  # or one more, with EOS
            copied = _bytes_of_rows(records.batch) * pieces_of
            kept = (copied <= MOST_COPIED) | (pieces_of <= 1)
            for row in np.flatnonzero(~kept).tolist():
                message = (
                    f"its other fields would take {format_bytes(int(copied[row]))} in its some "
                    f"{pieces_of[row]:,} pieces; leave them out (keep_text = false, --schema)"
                )
                reject(row, Rejection("transform", "too-large", message))
        places = np.flatnonzero(kept)
        documents, records = _documents_of(
            records.kept(kept), eos, lambda row, rejection: reject(int(places[row]), rejection)
        )
        if not len(documents):
            return
        size = self.length or int(documents.lengths.max())
        pieces = windows(documents.lengths, size, self.stride)
        _count(counts, documents.lengths, self.length)
        counts["pieces"] += len(pieces)
        copied = _bytes_of_rows(records.batch)[pieces.document]
        groups = (np.cumsum(pieces.length + copied) - 1) // TOGETHER
        edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(pieces)]
        for first, last in pairwise(edges):
            yield self._rows(records, documents, pieces.of_blocks(first, last))

    def _rows(self, records: Records, documents: _Documents, pieces: Pieces) -> Records:
        """Return a row for each of some pieces. `records` are those of the documents."""
        values, ends = documents.taken(pieces), np.cumsum(pieces.length)
        if self.stride:
            inside = np.arange(ends[-1]) - np.repeat(ends - pieces.length, pieces.length)
            repeated = (inside < self.stride) & np.repeat(pieces.start > 0, pieces.length)
            mask = values.get(LOSS_MASK, np.ones(len(inside), np.uint8))
            values[LOSS_MASK] = np.where(repeated, np.uint8(0), mask)
        edges = pa.array(np.append(0, ends).astype(np.int32))
        made = {
            name: pa.ListArray.from_arrays(edges, pa.array(numbers))
            for name, numbers in values.items()
        }
        if self.splits:
            assert self.length is not None, "else there is nothing to split"
            number = pieces.start // (self.length - self.stride)
            made["variant"] = pa.array(number.astype(np.int32))
        batch, taken = records.batch, pieces.document
        columns = {
            name: None if name in made else column.take(pa.array(taken))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        return Records(records.file, records.numbers[taken], pa.record_batch(columns | made))


_DOCUMENT_FIELDS = (
    pa.field(DOCUMENT_KEYS, pa.list_(pa.string())),
    pa.field(DOCUMENT_LENGTHS, pa.list_(pa.int32())),
    pa.field(DOCUMENT_STARTS, pa.list_(pa.int32())),
)
"""What lies in a block: an item for each piece of a document."""


def _token_type(given: pa.Schema) -> pa.DataType:
    """Return the type in which tokens are stored. Raises InputError if there are none."""
    type_ = type_of(given, TOKENS)
    if not is_list_of_whole_numbers(type_):
        found = f"the records have no field {TOKENS}"
        if TOKENS in given.names:
            found = f"the field {TOKENS} is {type_}"
        raise InputError(
            f"pack takes the column {TOKENS}, lists of whole numbers, and {found}; tokenize "
            "before it (--tokenizer FILE)"
        )
    return pa.uint16() if type_.value_type == pa.uint16() else pa.uint32()


@dataclass(frozen=True)
class _Documents:
    """Some documents, or parts of them. `values` has their tokens, and the loss mask if there is
    one, all one behind the other: (all tokens,) each.

    `keys` (n,) are those of their records, `lengths` (n,) their numbers of tokens, and `first` (n,)
    the places of their first tokens in the whole documents.
    """

    keys: pa.Array
    lengths: Numbers
    first: Numbers
    values: dict[str, Array]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """How many tokens they have."""
        return len(self.values[TOKENS])

    def part(self, first: int, last: int) -> _Documents:
        """Return those from `first` to before `last`."""
        inside = slice(int(self.lengths[:first].sum()), int(self.lengths[:last].sum()))
        values = {name: numbers[inside] for name, numbers in self.values.items()}
        return _Documents(
            self.keys[first:last], self.lengths[first:last], self.first[first:last], values
        )

    def taken(self, pieces: Pieces) -> dict[str, Array]:
        """Return the values of pieces of them, one behind the other."""
        starts = np.cumsum(self.lengths) - self.lengths
        where = _places(starts[pieces.document] + pieces.start, pieces.length)
        return {name: numbers[where] for name, numbers in self.values.items()}

    def cut(self, pieces: Pieces) -> _Documents:
        """Return pieces of them as documents, with values of their own."""
        values = {name: numbers.copy() for name, numbers in self.taken(pieces).items()}
        first = self.first[pieces.document] + pieces.start
        return _Documents(self.keys.take(pa.array(pieces.document)), pieces.length, first, values)

    @staticmethod
    def joined(parts: list[_Documents]) -> _Documents:
        """Return all documents together."""
        if len(parts) == 1:
            return parts[0]
        return _Documents(
            pa.concat_arrays([part.keys for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.first for part in parts]),
            {
                name: np.concatenate([part.values[name] for part in parts])
                for name in parts[0].values
            },
        )


def _places(starts: Numbers, lengths: Numbers) -> Numbers | slice:
    """Return the places of stretches of these starts and lengths, (n,) each, one behind the
    other."""
    ends = np.cumsum(lengths)
    before = ends - lengths
    if (starts - starts[0] == before).all():  # nothing needs to be copied
        return slice(int(starts[0]), int(starts[0] + ends[-1]))
    places: Numbers = np.repeat(starts - before, lengths) + np.arange(ends[-1])
    return places


_EMPTY = Rejection("transform", "empty", "the document has no tokens")
_NO_TOKENS = Rejection(
    "transform", "no-tokens", f"its tokens are not all whole numbers from 0 to {MOST_TOKEN}"
)
_OTHER_MASK = Rejection("transform", "other-length", f"{LOSS_MASK} is not as long as {TOKENS}")


def _documents_of(
    records: Records, eos: int | None, reject: RejectRow
) -> tuple[_Documents, Records]:
    """Return the documents of records, and the record of each: those that have no tokens or wrong
    ones are rejected. Documents that do not end with `eos` get it; it counts for the loss as the
    token before it does."""
    lists = {
        name: records.batch.column(name)
        for name in (TOKENS, LOSS_MASK)
        if name in records.batch.schema.names
    }
    lengths = list_lengths(lists[TOKENS])
    faults = dict.fromkeys(np.flatnonzero(lengths == 0).tolist(), _EMPTY)
    ends = np.cumsum(lengths)
    wrong = np.searchsorted(ends, _wrong_tokens(lists[TOKENS]), side="right")
    faults |= dict.fromkeys(wrong.tolist(), _NO_TOKENS)
    for each in lists.values():
        others = np.flatnonzero(list_lengths(each) != lengths)
        faults |= dict.fromkeys(others.tolist(), _OTHER_MASK)
    records = records.without(sorted(faults.items()), reject)
    values = {name: _numbers_in(records.batch.column(name)) for name in lists}
    tokens = values[TOKENS]
    values[TOKENS] = tokens.astype(
        np.uint16 if tokens.dtype == np.uint16 else np.uint32, copy=False
    )
    if LOSS_MASK in values:
        values[LOSS_MASK] = (values[LOSS_MASK] != 0).astype(np.uint8)
    lengths = list_lengths(records.batch.column(TOKENS))
    first = np.zeros(len(lengths), np.int64)
    if eos is not None:
        ends = np.cumsum(lengths)
        lacking = values[TOKENS][ends - 1] != eos
        places, lengths = ends[lacking], lengths + lacking
        for name, numbers in values.items():
            added = numbers.dtype.type(eos) if name == TOKENS else numbers[places - 1]
            values[name] = np.insert(numbers, places, added)
    return _Documents(records.batch.column("key"), lengths, first, values), records


def _numbers_in(lists: pa.Array) -> Array:
    """Return the whole numbers in lists, one behind the other, 0 for those that are missing."""
    values = lists.flatten()
    values = values.fill_null(0) if values.null_count else values
    return np.asarray(values)


def _wrong_tokens(lists: pa.Array) -> Numbers:
    """Return the places of those of all numbers in lists that are missing, or are no tokens."""
    values = lists.flatten()
    wrong = np.zeros(len(values), bool)
    if values.null_count:
        wrong = np.asarray(values.is_null())
    numbers = _numbers_in(lists)
    if numbers.dtype.kind == "i" or numbers.dtype.itemsize == 8:
        wrong = wrong | (numbers < 0) | (numbers.astype(np.uint64) > MOST_TOKEN)
    return np.flatnonzero(wrong)


def _count(counts: Counts, lengths: Numbers, size: int | None) -> None:
    """Add documents to what is counted."""
    counts["documents"] += len(lengths)
    counts["tokens"] += int(lengths.sum())
    if size is not None:
        counts["longer"] += int((lengths > size).sum())


class _Packing(BatchRun):
    """Packs the documents of one shard into blocks.

    `concat` gives blocks as soon as they are full. `bfd` packs a window of documents at a time:
    which ones are in it depends on their order and lengths alone, and not on how many records come
    together.
    """

    def __init__(self, step: Pack, eos: int | None, pad: int) -> None:
        assert step.length is not None, "a block has a length"
        self._size, self._pad, self._eos = step.length, pad, eos
        self._divide, self._by_fit = METHODS[step.method], step.method == "bfd"
        self._held: list[_Documents] = []
        self._tokens = self._documents = 0
        names = ("documents", "tokens", "blocks", "pieces", "longer", "cut")
        self._counts: Counts = dict.fromkeys(names, 0)
        self._lengths = np.zeros(self._size + 1, np.int64)

    def apply(self, records: Records, reject: RejectRow) -> Iterator[Records]:
        """Yield the blocks that are full, or those of full windows."""
        documents, _ = _documents_of(records, self._eos, reject)
        _count(self._counts, documents.lengths, self._size)
        while len(documents):
            taken, most = len(documents), self._size
            if self._by_fit:
                most = WINDOW_TOKENS
                ends = np.cumsum(documents.lengths)
                by_tokens = int(np.searchsorted(ends, most - self._tokens)) + 1
                taken = min(taken, by_tokens, WINDOW_DOCUMENTS - self._documents)
            part, documents = documents.part(0, taken), documents.part(taken, len(documents))
            self._held.append(part)
            self._tokens += part.tokens
            self._documents += taken
            if self._tokens >= most or self._documents >= WINDOW_DOCUMENTS:
                yield from self._filled(records.file, part.tokens)

    def _filled(self, file: int, last: int) -> Iterator[Records]:
        """Yield the blocks that are full, or those of a full window. `last` are the tokens that
        came last."""
        try:
            yield from self._pack(file, whole=self._by_fit)
        except MemoryError as error:
            # the shard is built again; a probe goes on with what comes
            self._held, self._tokens, self._documents = [], 0, 0
            if self._by_fit and last < WINDOW_TOKENS // 2:
                raise HeldMemoryError from error
            raise

    def finish(self) -> Iterator[Records]:
        """Yield the rest: the last block is filled up."""
        if self._held:
            yield from self._pack(0, whole=True)

    def _pack(self, file: int, whole: bool) -> Iterator[Records]:
        """Yield the blocks of what is held; the last one is held again unless the `whole` is
        wanted."""
        documents = _Documents.joined(self._held)
        pieces = self._divide(documents.lengths, self._size)
        blocks = pieces.blocks if whole else documents.tokens // self._size
        rest = pieces.of_blocks(blocks, pieces.blocks)
        self._held = [documents.cut(rest)] if len(rest) else []
        self._tokens, self._documents = int(rest.length.sum()), len(rest)
        self._count(documents, pieces.of_blocks(0, blocks))
        self._counts["blocks"] += blocks
        step = max(1, TOGETHER // self._size)
        for first in range(0, blocks, step):
            last = min(first + step, blocks)
            batch = self._blocks(documents, pieces.of_blocks(first, last), last - first)
            yield Records(file, np.zeros(last - first, np.int64), batch)

    def _count(self, documents: _Documents, pieces: Pieces) -> None:
        self._counts["pieces"] += len(pieces)
        if self._by_fit:
            self._lengths += np.bincount(pieces.length, minlength=self._size + 1)
            return
        # A document that fits is cut once at most: what begins inside of it is its second piece.
        starts = documents.first[pieces.document] + pieces.start
        whole = starts + documents.lengths[pieces.document] - pieces.start
        self._counts["cut"] += int(((starts > 0) & (whole <= self._size)).sum())

    def _blocks(self, documents: _Documents, pieces: Pieces, blocks: int) -> pa.RecordBatch:
        edges = np.searchsorted(pieces.block, np.arange(blocks + 1))
        before = np.cumsum(pieces.length) - pieces.length  # tokens of the pieces before each
        places = pieces.block * self._size + before - before[edges[:-1]][pieces.block]
        keys = documents.keys.take(pa.array(pieces.document))
        columns: dict[str, pa.Array] = {"key": keys.take(pa.array(edges[:-1]))}
        for name, values in documents.taken(pieces).items():
            full = values
            if len(values) < blocks * self._size:
                fill = self._pad if name == TOKENS else 0
                full = np.full(blocks * self._size, fill, values.dtype)
                full[_places(places, pieces.length)] = values
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(full), self._size)
        starts = documents.first[pieces.document] + pieces.start
        for name, items in (
            (DOCUMENT_KEYS, keys),
            (DOCUMENT_LENGTHS, pa.array(pieces.length.astype(np.int32))),
            (DOCUMENT_STARTS, pa.array(starts.astype(np.int32))),
        ):
            columns[name] = pa.ListArray.from_arrays(pa.array(edges.astype(np.int32)), items)
        return pa.record_batch(columns)

    def counts(self) -> dict[str, int]:
        """Return what was packed: `blocks` of `documents` with `tokens` in `pieces`, and the
        `padding` in tokens.

        `least_padding` is what no packing of the same pieces goes below (packing.fewest_blocks; for
        concat of the same tokens). `longer` documents do not fit in a block, and are cut by every
        method; `cut` ones would fit, and were cut.
        """
        counted = self._counts
        held = counted["tokens"] - self._tokens
        least = fewest_blocks(self._lengths, self._size) if self._by_fit else -(-held // self._size)
        padding = counted["blocks"] * self._size - held
        return {**counted, "padding": padding, "least_padding": least * self._size - held}


def _bytes_of_rows(batch: pa.RecordBatch) -> Numbers:
    """Return the bytes of the texts and binary values of each row, (n,); the key is not counted."""
    import pyarrow.compute as pc

    total = np.zeros(batch.num_rows, np.int64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name != "key" and (is_text(column.type) or is_binary(column.type)):
            total += np.asarray(pc.binary_length(column).fill_null(0))
    return total
