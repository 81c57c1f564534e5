"""Files of bare tokens: the documents of a split one behind the other, as trainers map them into
memory."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.arrays import dtype_of
from shardctl.format.roles import Tokens
from shardctl.format.token_columns import (
    DOCUMENT_COLUMNS,
    DOCUMENT_KEYS,
    LOSS_MASK,
    TOKENS,
    Numbers,
    Rows,
    documents_in,
    is_list_of_whole_numbers,
    list_offsets,
    main_tokens,
)
from shardctl.interop.exports.base import (
    Column,
    ColumnEncoding,
    Export,
    ExportPart,
    Progress,
    parts_by_split,
    refuse_choices,
)
from shardctl.interop.exports.source import Shard, Source
from shardctl.system.arguments import truth
from shardctl.system.files import FileFacts, StreamedFile, replacing

Lengths = Callable[[npt.NDArray[np.int64]], None]
"""Is told the lengths of the documents that were written, in order."""

WRITES_AHEAD = 2
"""Blocks of tokens that wait to be written."""


@dataclass(frozen=True)
class TokenCounts:
    """The documents and tokens of a file. `empty` documents, which have no token, were left out of
    it."""

    documents: int
    tokens: int
    empty: int


@dataclass(frozen=True)
class TokenForm:
    """How tokens are written: as `dtype`, little-endian, and with `eos` behind each document, None
    for as it is stored."""

    field: TokenField
    eos: int | None
    dtype: np.dtype[Any]

    @property
    def facts(self) -> dict[str, Any]:
        """What a reader of the files needs to know of the tokens."""
        role = self.field.role
        return {
            "dtype": self.dtype.name,
            "vocabulary": role.vocabulary,
            "eos": role.eos,
            "tokenizer": role.tokenizer,
        }

    def write(
        self,
        path: Path,
        source: Source,
        split: str,
        progress: Progress,
        lengths: Lengths = lambda _: None,
    ) -> tuple[FileFacts, TokenCounts]:
        """Write the documents of a split, and return what the file is and has."""
        documents = tokens = empty = 0
        # Hashing and writing take as long as the rest, and beside it in a thread they take none of
        # its time.
        with replacing(path, StreamedFile) as sink, ThreadPoolExecutor(1) as writer:
            writes: deque[Future[int]] = deque()
            for some in self.field.documents(source, split, progress):
                whole = ended(some, self.eos)
                writes.append(writer.submit(sink.write, self._narrowed(whole.tokens, source.shown)))
                if len(writes) > WRITES_AHEAD:
                    writes.popleft().result()
                lengths(whole.lengths)
                documents, tokens = documents + len(whole.lengths), tokens + len(whole.tokens)
                empty += len(some.lengths) - len(whole.lengths)
            for write in writes:
                write.result()
        return sink.facts, TokenCounts(documents, tokens, empty)

    def _narrowed(self, tokens: npt.NDArray[Any], shown: str) -> npt.NDArray[Any]:
        """Return tokens in the type of the file, none changed. Raises DatasetError for one that
        cannot be there."""
        if not len(tokens):
            return tokens
        least, most, vocabulary = int(tokens.min()), int(tokens.max()), self.field.role.vocabulary
        if least < 0 or (vocabulary is not None and most >= vocabulary):
            odd, below = (
                (least, "") if least < 0 else (most, f" and below {vocabulary}, their vocabulary")
            )
            raise DatasetError(
                f"{shown}: has a token {odd}; tokens are numbers from 0 on{below}; `shardctl "
                "verify` tells more"
            )
        if most > np.iinfo(self.dtype).max:
            raise InputError(
                f"{shown}: has a token {most}, which {self.dtype.name} does not hold, and the "
                "files have no other"
            )
        return tokens.astype(self.dtype, copy=False)


@dataclass(frozen=True)
class TokenExport(Export):
    """Files of bare tokens. With `eos`, the end-of-text token is put behind each document that
    lacks it."""

    eos: bool = True

    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if there are no tokens, or none that ends them, or the
        files cannot hold them."""
        refuse_choices(source, self.name)
        self.form(source)

    def place(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written: the files have the tokens of all columns, and none as it
        is."""
        return None

    def parts(self, source: Source) -> Sequence[ExportPart]:
        """Return what is written at a time: every split, since a document may begin in one shard
        and end in another."""
        return parts_by_split(source)

    def facts(self, source: Source) -> dict[str, Any]:
        """Return what a reader of the files needs to know of the tokens."""
        return self.form(source).facts

    def notes(self, source: Source) -> tuple[str, ...]:
        """Return what is lost in such files."""
        if LOSS_MASK in source.layout.columns.names:
            return (
                f"{LOSS_MASK} was left out: these files have tokens only, so that the loss counts "
                "on all of them",
            )
        return ()

    def form(self, source: Source) -> TokenForm:
        """Return how the tokens are written. Raises as `check` does."""
        field = TokenField.of(source)
        return TokenForm(
            field,
            _end_of(field, truth("eos", self.eos), source.shown),
            self.dtype(field.role, source.shown),
        )

    @abstractmethod
    def dtype(self, role: Tokens, shown: str) -> np.dtype[Any]:
        """Return the type of the tokens in the files. Raises InputError for a vocabulary that it
        does not hold."""


def _end_of(field: TokenField, wanted: bool, shown: str) -> int | None:
    """Return the token to put behind documents; None for none. Raises UsageError if it is wanted
    and not known."""
    if not wanted:
        return None
    if field.role.eos is None:
        raise UsageError(
            f"{shown}: has no end-of-text token to put behind each document; --no-eos exports them "
            "without"
        )
    return field.role.eos


# --- the documents of a dataset of tokens, in order ---

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Documents:
    """Some documents, one behind the other: `tokens` (n,) of any type of whole numbers, `lengths`
    (documents,) int64."""

    tokens: Values
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenField:
    """The field of tokens of a dataset. `cut` tells that rows may be pieces of a document, numbered
    in `variant`."""

    name: str
    role: Tokens
    type: pa.DataType
    cut: bool

    @classmethod
    def of(cls, source: Source) -> TokenField:
        """Find the field of tokens. Raises InputError if there is none, or not one, DatasetError if
        it holds no tokens."""
        layout, shown = source.layout, source.shown
        main = main_tokens(layout.roles)
        if main is None:
            raise InputError(
                f"{shown}: has no tokens; convert the texts with --tokenizer, and export that "
                "dataset"
            )
        name, role = main
        if len(layout.roles.tokens) > 1 and name != TOKENS:
            raise InputError(
                f"{shown}: has several fields of tokens ({', '.join(layout.roles.tokens)}), and "
                "none is called tokens"
            )
        type_ = layout.columns.field(name).type
        if not is_list_of_whole_numbers(type_):
            raise DatasetError(
                f"{shown}: the field {name} is of type {type_}, which is not a list of tokens"
            )
        most = np.iinfo(dtype_of(type_.value_type)).max
        if role.eos is not None and role.eos > most:
            raise DatasetError(
                f"{shown}: {name} end with {role.eos}, which their type {type_.value_type} does "
                "not hold"
            )
        if role.packed:
            _check_packed(source, name, type_)
        steps: Any = source.manifest.recipe.get("transform")
        packs = any(isinstance(step, dict) and step.get("name") == "pack" for step in steps or ())
        numbered = "variant" in layout.columns.names and pa.types.is_integer(
            layout.columns.field("variant").type
        )
        return cls(name, role, type_, cut=packs and numbered and not role.packed)

    def documents(self, source: Source, split: str, progress: Progress) -> Iterator[Documents]:
        """Yield the documents of a split in order, those of about a block at a time. Some may be
        empty. Raises DatasetError."""
        made: Iterator[tuple[int, Values, npt.NDArray[np.int64]]]
        for shard in source.shards(split):
            made = joined_blocks(shard, self.name) if self.role.packed else self._rows(shard)
            for rows, tokens, lengths in made:
                yield Documents(tokens, lengths)
                progress(rows)

    def _rows(self, shard: Shard) -> Iterator[tuple[int, Values, npt.NDArray[np.int64]]]:
        for block in shard.blocks():
            column = block.column(self.name)
            values = column.flatten()  # without what is behind a missing row
            if values.null_count:
                raise shard.damaged(f"a value is missing in {self.name}")
            if self.cut and pc.any(pc.greater(block.column("variant"), 0)).as_py():
                raise InputError(
                    f"{shard.folder.shown()}: its long documents are cut into rows of their own "
                    "(pack none); export a dataset"
                    " that is not packed, or packed with concat or bfd"
                )
            yield block.num_rows, np.from_dlpack(values), np.diff(list_offsets(column))


def _check_packed(source: Source, name: str, type_: pa.DataType) -> None:
    """Raise DatasetError if blocks do not say which documents are in them, or have no fixed
    length."""
    columns = source.layout.columns
    types = {
        column: columns.field(column).type
        for column in DOCUMENT_COLUMNS
        if columns.get_field_index(column) >= 0
    }
    fits = (
        pa.types.is_fixed_size_list(type_)
        and type_.list_size > 0
        and set(types) == set(DOCUMENT_COLUMNS)
    )
    for column, found in types.items():
        wanted = pa.types.is_string if column == DOCUMENT_KEYS else pa.types.is_integer
        fits = fits and pa.types.is_list(found) and wanted(found.value_type)
    if not fits:
        names = ", ".join(DOCUMENT_COLUMNS)
        raise DatasetError(
            f"{source.shown}: {name} are packed blocks, which have a fixed length and the columns "
            f"{names}; this dataset lacks"
            " them"
        )


def ended(documents: Documents, eos: int | None) -> Documents:
    """Return the documents without the empty ones, each with `eos` behind it where it does not end
    so; None adds nothing."""
    lengths = documents.lengths[documents.lengths > 0]
    if eos is None or not len(lengths):
        return Documents(documents.tokens, lengths)
    ends = np.cumsum(lengths)
    lacks = documents.tokens[ends - 1] != eos
    tokens = np.insert(documents.tokens, ends[lacks], eos)
    return Documents(tokens, lengths + lacks)


# --- documents that were packed into blocks: a document may be cut, and its pieces may lie anywhere
# in its shard ---


@dataclass(frozen=True)
class Pieces:
    """The pieces of documents in some blocks of fixed length, in the order in which they are
    stored. (pieces,) int64 each.

    `row` is the block's row in its shard, `offset` the place of the first token in it, `start` that
    in the document. Pieces of one document have the same number in `document`, and the tokens of
    all of them in `total`.
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
        """Return the same with pieces joined where one goes on right behind the other, in the next
        of rows of `size`."""
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
        return Pieces(
            self.row[first],
            self.offset[first],
            length,
            self.start[first],
            self.document[first],
            self.total[first],
        )


def joined_blocks(shard: Shard, name: str) -> Iterator[tuple[int, npt.NDArray[Any], Numbers]]:
    """Yield for every block its rows, and the documents that are whole by then: tokens (n,) and
    lengths (documents,).

    A document comes where its last piece is stored. Pieces of cut documents are held until then.
    Padding is left out.
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
        tokens, lengths = _whole(
            np.from_dlpack(values), there, (there.row - first) * size + there.offset, held
        )
        yield block.num_rows, tokens, lengths
        first += block.num_rows
    assert not held, "pieces that lack others were refused"


@dataclass
class _Held:
    """The pieces of a document so far, each with its start, and the tokens that are still to
    come."""

    missing: int
    parts: list[tuple[int, npt.NDArray[Any]]]


def _whole(
    tokens: npt.NDArray[Any], pieces: Pieces, place: Numbers, held: dict[int, _Held]
) -> tuple[npt.NDArray[Any], Numbers]:
    """Return the documents that the pieces of a block complete; the other pieces are kept in
    `held`."""
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
        # a view would keep the whole block in memory
        known.parts.append((int(pieces.start[begin]), part.copy()))
        known.missing -= len(part)
        if not known.missing:
            made += [
                values for _, values in sorted(held.pop(document).parts, key=lambda each: each[0])
            ]
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
            raise shard.damaged(
                f"its blocks do not say which documents they have: {error}"
            ) from error
        counts = np.bincount(there.row, minlength=block.num_rows)
        if (
            key.null_count
            or any(column.null_count for column in columns.values())
            or not np.array_equal(np.diff(list_offsets(columns[DOCUMENT_KEYS])), counts)
        ):
            raise shard.damaged(
                "its blocks do not say which documents they have: a key, a length or a place is "
                "missing"
            )
        keys.append(key)
        for kept, values in zip(
            numbers,
            (first + there.row, there.first - there.row * size, there.length, there.start),
            strict=True,
        ):
            kept.append(values)
        first += block.num_rows
    row, offset, length, start = (np.concatenate(each) for each in numbers)
    document, total = _documents(shard, pa.chunked_array(keys, pa.string()), start, length)
    return Pieces(row, offset, length, start, document, total)


def _documents(
    shard: Shard, keys: pa.ChunkedArray, start: Numbers, length: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the document of each piece, as the number of its first piece, and the tokens of this
    document."""
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
    follows[1:] = (code[1:] == code[:-1]) & (
        start[places][1:] == (start[places] + length[places])[:-1]
    )
    if not (begins | follows).all():
        key = keys[int(places[np.flatnonzero(~(begins | follows))[0]])].as_py()
        raise shard.damaged(
            f"a piece of the document {key!r:.200} is missing, or two documents have this key"
        )
    heads = np.flatnonzero(begins)
    counts = np.diff(np.append(heads, len(places)))
    document[places] = np.repeat(places[heads], counts)
    total[places] = np.repeat(np.add.reduceat(length[places], heads), counts)
    return document, total
