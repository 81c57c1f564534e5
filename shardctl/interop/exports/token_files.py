"""Files of bare tokens: the documents of a split one behind the other, as trainers map them into
memory: Megatron's pairs of files, and nanoGPT's bare uint16 (train.bin and val.bin).

NAME.bin of Megatron has the tokens, NAME.idx where each document is, as megatron-core 0.16 reads
them. The index, little-endian: `MMIDIDX\\0\\0`, version 1 (8 bytes), code of the type (1 byte), the
number of sequences and that of documents + 1 (8 bytes each); the length of every sequence (int32),
its first byte in NAME.bin (int64), and the sequences at which documents begin, from 0 to the number
of all (int64). Here each document is one sequence.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.arrays import Array, Numbers, dtype_of
from shardctl.format.roles import Tokens
from shardctl.format.token_columns import (
    DOCUMENT_COLUMNS,
    DOCUMENT_KEYS,
    LOSS_MASK,
    TOKENS,
    Rows,
    documents_in,
    is_list_of_whole_numbers,
    list_lengths,
    main_tokens,
)
from shardctl.interop.exports.base import (
    Column,
    ColumnEncoding,
    Export,
    ExportPart,
    PartResult,
    Shard,
    Source,
    Work,
)
from shardctl.interop.exports.options import Choice
from shardctl.system.arguments import truth
from shardctl.system.files import FileFacts, StreamedFile, naming_the_path, replacing
from shardctl.transforms.tokenizers.base import UINT16_VOCABULARY

Values = Array

Documents = tuple[int, Values, Numbers]
"""The rows of a block, and documents one behind the other: tokens (n,) of any type of whole
numbers, lengths (documents,)."""

Lengths = Callable[[Numbers], None]
"""Is told the lengths of the documents that were written, in order."""

WRITES_AHEAD = 2
"""Blocks of tokens that wait to be written."""


@dataclass(frozen=True)
class TokenForm:
    """The field of tokens of a dataset, and how it is written: as `dtype`, little-endian, with
    `eos` behind each document that lacks it, None for as it is stored.

    `cut` tells that rows may be pieces of a document, numbered in `variant`.
    """

    name: str
    role: Tokens
    cut: bool
    eos: int | None
    dtype: np.dtype[Any]

    def write(self, work: Work, told: Lengths = lambda _: None) -> tuple[FileFacts, dict[str, int]]:
        """Write the documents of a split into SPLIT.bin, and return what the file is and has.

        `empty` documents, which have no token, are left out of it.
        """
        documents = tokens = empty = 0
        shown, path = work.source.shown, work.path(f"{work.split}.bin")
        # Hashing and writing take as long as the rest, and beside it in a thread they take none of
        # its time.
        with replacing(path, StreamedFile) as sink, ThreadPoolExecutor(1) as writer:
            writes: deque[Future[int]] = deque()
            for shard in map(work.source.shard, work.shards):
                made = joined_blocks(shard, self.name) if self.role.packed else self._rows(shard)
                for rows, values, lengths in made:
                    whole, ends = ended(values, lengths, self.eos)
                    writes.append(writer.submit(sink.write, self._narrowed(whole, shown)))
                    if len(writes) > WRITES_AHEAD:
                        writes.popleft().result()
                    told(ends)
                    documents, tokens = documents + len(ends), tokens + len(whole)
                    empty += len(lengths) - len(ends)
                    work.progress(rows)
            for write in writes:
                write.result()
        return sink.facts, {"documents": documents, "tokens": tokens, "empty": empty}

    def _rows(self, shard: Shard) -> Iterator[Documents]:
        for block in shard.blocks():
            column = block.column(self.name)
            values = column.flatten()  # without what is behind a missing row
            if values.null_count:
                raise shard.damaged(f"a value is missing in {self.name}")
            if self.cut and pc.any(pc.greater(block.column("variant"), 0)).as_py():
                raise InputError(
                    f"{shard.folder.shown()}: its long documents are cut into rows (pack none); "
                    "pack with concat or bfd, or not at all"
                )
            yield block.num_rows, np.from_dlpack(values), list_lengths(column)

    def _narrowed(self, tokens: Values, shown: str) -> Values:
        """Return tokens in the type of the file, none changed. Raises DatasetError for one that
        cannot be there."""
        if not len(tokens):
            return tokens
        least, most, vocabulary = int(tokens.min()), int(tokens.max()), self.role.vocabulary
        if least < 0 or (vocabulary is not None and most >= vocabulary):
            below = "" if vocabulary is None else f" and below {vocabulary}, their vocabulary"
            raise DatasetError(
                f"{shown}: has a token {least if least < 0 else most}; tokens are numbers from 0 "
                f"on{below}; `shardctl verify` tells more"
            )
        if most > np.iinfo(self.dtype).max:
            raise InputError(f"{shown}: has a token {most}, which {self.dtype.name} does not hold")
        return tokens.astype(self.dtype, copy=False)


@dataclass(frozen=True)
class TokenExport(Export):
    """Files of bare tokens. With `eos`, the end-of-text token is put behind each document that
    lacks it."""

    eos: bool = True

    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if there are no tokens, or none that ends them, or the
        files cannot hold them; or if more than a split was chosen, as they have no columns."""
        choice = source.choice
        chosen: dict[str, Any] = {
            "--columns": choice.columns,
            "--rename": choice.rename,
            "--where": choice.where,
            "--store": choice.store,
            "--on-loss": choice.on_loss != Choice.on_loss,
        }
        for option, value in chosen.items():
            if value:
                raise UsageError(f"{option} does not go with {self.name}, which has bare tokens")
        self.form(source)

    def encoding_of(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written: the files have the tokens of all columns, and none as it
        is."""
        return None

    def parts(self, source: Source) -> Sequence[ExportPart]:
        """Return what is written at a time: every split, since a document may begin in one shard
        and end in another."""
        return [
            ExportPart(split, split, tuple(n for n, _ in source.numbered_shards(split)), 0, 1)
            for split in source.splits
        ]

    def facts(self, source: Source) -> dict[str, Any]:
        """Return what a reader of the files needs to know of the tokens."""
        form = self.form(source)
        return {
            "dtype": form.dtype.name,
            "vocabulary": form.role.vocabulary,
            "eos": form.role.eos,
            "tokenizer": form.role.tokenizer,
        }

    def notes(self, source: Source) -> Iterator[str]:
        """Say what is lost in such files."""
        if LOSS_MASK in source.layout.columns.names:
            yield f"{LOSS_MASK} was left out, so that the loss counts all tokens"

    def form(self, source: Source) -> TokenForm:
        """Return how the tokens are written. Raises as `check` does, and DatasetError for a field
        that holds no tokens."""
        layout, shown = source.layout, source.shown
        main = main_tokens(layout.roles)
        if main is None:
            raise InputError(f"{shown}: has no tokens; convert the texts with --tokenizer")
        name, role = main
        if len(layout.roles.tokens) > 1 and name != TOKENS:
            raise InputError(
                f"{shown}: has several fields of tokens ({', '.join(layout.roles.tokens)}), and "
                "none is called tokens"
            )
        type_ = layout.columns.field(name).type
        if not is_list_of_whole_numbers(type_):
            raise DatasetError(f"{shown}: {name} has the type {type_}, and no lists of tokens")
        if role.eos is not None and role.eos > np.iinfo(dtype_of(type_.value_type)).max:
            raise DatasetError(
                f"{shown}: {name} end with {role.eos}, which {type_.value_type} does not hold"
            )
        if role.packed:
            _check_packed(source, name, type_)
        steps: Any = source.manifest.recipe.get("transform")
        packs = any(isinstance(step, dict) and step.get("name") == "pack" for step in steps or ())
        numbered = "variant" in layout.columns.names and pa.types.is_integer(
            layout.columns.field("variant").type
        )
        if truth("eos", self.eos) and role.eos is None:
            raise UsageError(
                f"{shown}: has no end-of-text token to put behind documents; --no-eos exports "
                "without"
            )
        eos, cut = role.eos if self.eos else None, packs and numbered and not role.packed
        return TokenForm(name, role, cut, eos, self.dtype(role, shown))

    @abstractmethod
    def dtype(self, role: Tokens, shown: str) -> np.dtype[Any]:
        """Return the type of the tokens in the files. Raises InputError for a vocabulary that it
        does not hold."""


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
        raise DatasetError(
            f"{source.shown}: {name} are packed blocks without a fixed length or one of "
            f"{', '.join(DOCUMENT_COLUMNS)}"
        )


def ended(tokens: Values, lengths: Numbers, eos: int | None) -> tuple[Values, Numbers]:
    """Return documents and their lengths without the empty ones, each with `eos` behind it where it
    does not end so; None adds nothing."""
    lengths = lengths[lengths > 0]
    if eos is None:
        return tokens, lengths
    ends = np.cumsum(lengths)
    lacks = tokens[ends - 1] != eos
    return np.insert(tokens, ends[lacks], eos), lengths + lacks


# --- documents that were packed into blocks: a document may be cut, and its pieces may lie anywhere
# in its shard ---

Pieces = Numbers
"""The pieces of documents in blocks of fixed length, in the order in which they are stored: (6,
pieces) int64.

In turn: the block's row in its shard, the place of the first token in it, the length, the start in
the document, a number that pieces of one document have in common, and the tokens of all of them.
"""


def _merged(pieces: Pieces, size: int) -> Pieces:
    """Return pieces joined where one goes on right behind the other, in the next of rows of
    `size`."""
    row, offset, length, start, document, _ = pieces
    place = row * size + offset
    goes_on = np.zeros(len(place), np.bool_)
    goes_on[1:] = (
        (document[1:] == document[:-1])
        & (start[1:] == start[:-1] + length[:-1])
        & (place[1:] == place[:-1] + length[:-1])
    )
    first = np.flatnonzero(~goes_on)
    if len(first) == len(place):
        return pieces
    merged = pieces[:, first]
    merged[2] = np.add.reduceat(length, first)
    return merged


def joined_blocks(shard: Shard, name: str) -> Iterator[Documents]:
    """Yield for every block its rows, and the documents that are whole by then.

    A document comes where its last piece is stored. Pieces of cut documents are held until then.
    Padding is left out.
    """
    pieces = _pieces_of(shard, shard.columns.field(name).type.list_size)
    held: dict[int, list[tuple[int, Values]]] = {}
    first = 0
    for block in shard.blocks():
        column = block.column(name)
        values = column.flatten()
        if column.null_count or values.null_count:
            raise shard.damaged(f"a value is missing in {name}")
        size = column.type.list_size
        begin, end = np.searchsorted(pieces[0], [first, first + block.num_rows])
        there = _merged(pieces[:, begin:end], size)
        place = (there[0] - first) * size + there[1]
        tokens, lengths = _whole(np.from_dlpack(values), there, place, held)
        yield block.num_rows, tokens, lengths
        first += block.num_rows
    assert not held, "pieces that lack others were refused"


def _whole(
    tokens: Values, pieces: Pieces, place: Numbers, held: dict[int, list[tuple[int, Values]]]
) -> tuple[Values, Numbers]:
    """Return the documents that the pieces of a block complete; the other pieces are kept in
    `held`, by their document, each with its start."""
    _, _, length, start, documents, total = pieces
    end = place + length
    is_part = length != total
    breaks = np.ones(len(place), np.bool_)
    breaks[1:] = (place[1:] != end[:-1]) | is_part[1:] | is_part[:-1]
    starts = np.flatnonzero(breaks)
    stops = np.append(starts[1:], len(place))
    made, lengths = [tokens[:0]], [length[:0]]
    for begin, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        part = tokens[place[begin] : end[stop - 1]]
        if not is_part[begin]:
            made.append(part)
            lengths.append(length[begin:stop])
            continue
        document = int(documents[begin])
        known = held.setdefault(document, [])
        # a view would keep the whole block in memory
        known.append((int(start[begin]), part.copy()))
        if sum(len(values) for _, values in known) == total[begin]:
            made += [values for _, values in sorted(held.pop(document), key=itemgetter(0))]
            lengths.append(total[begin : begin + 1])
    return np.concatenate(made), np.concatenate(lengths)


def _pieces_of(shard: Shard, size: int) -> Pieces:
    """Read which pieces a shard has. Raises DatasetError if that cannot be."""
    keys: list[pa.Array] = []
    found = [np.zeros((4, 0), np.int64)]
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
            or not np.array_equal(list_lengths(columns[DOCUMENT_KEYS]), counts)
        ):
            raise shard.damaged(
                "its blocks do not say which documents they have: something is missing"
            )
        keys.append(key)
        offset = there.first - there.row * size
        found.append(np.stack([first + there.row, offset, there.length, there.start]))
        first += block.num_rows
    pieces = np.concatenate(found, axis=1)
    _, _, length, start = pieces
    return np.vstack(
        [pieces, *_documents(shard, pa.chunked_array(keys, pa.string()), start, length)]
    )


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


MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
UINT16, INT32 = np.dtype("<u2"), np.dtype("<i4")
CODES = {UINT16: 8, INT32: 4}
"""The numbers of the types in the index. There is none for uint32."""

SMALL_VOCABULARY = 65_500
"""Megatron writes uint16 for a vocabulary below this, and int32 for any other, or for one that is
not known."""

LONGEST = 2**31 - 1
SPOOL_ITEMS = 1 << 17
"""Lengths of documents that are read back at a time."""


class Megatron(TokenExport):
    """A pair of files for each split."""

    def dtype(self, role: Tokens, shown: str) -> np.dtype[Any]:
        """Return uint16 for a small vocabulary, else int32."""
        return (
            UINT16 if role.vocabulary is not None and role.vocabulary < SMALL_VOCABULARY else INT32
        )

    def write(self, work: Work) -> PartResult:
        """Write SPLIT.bin and SPLIT.idx."""
        form, index = self.form(work.source), work.path(f"{work.split}.idx")
        # the lengths of a billion documents take 4 GB: they are in a nameless file
        with naming_the_path(work.folder):
            lengths = tempfile.TemporaryFile(dir=work.folder)  # noqa: SIM115 - in `with` below
        with lengths:

            def add(some: Numbers) -> None:
                if len(some) and some.max() > LONGEST:
                    raise InputError(
                        f"a document has {some.max():,} tokens; Megatron's index holds {LONGEST:,} "
                        "at most"
                    )
                with naming_the_path(work.folder):
                    lengths.write(some.astype(INT32).data)

            facts, counts = form.write(work, add)
            files = {
                f"{work.split}.bin": facts,
                index.name: _write_index(index, lengths, counts["documents"], form.dtype),
            }
        return PartResult(counts["documents"], files, counts)


def _write_index(
    path: Path, lengths: IO[bytes], count: int, dtype: np.dtype[np.generic]
) -> FileFacts:
    """Write the index of so many documents, whose lengths are in a file."""
    with replacing(path, StreamedFile) as sink:
        sink.write(MAGIC + struct.pack("<QBQQ", VERSION, CODES[dtype], count, count + 1))
        lengths.seek(0)
        shutil.copyfileobj(lengths, sink)
        place = 0
        lengths.seek(0)
        while data := lengths.read(SPOOL_ITEMS * INT32.itemsize):
            sizes = np.frombuffer(data, INT32) * np.int64(dtype.itemsize)
            ends = place + np.cumsum(sizes, dtype="<i8")
            sink.write(ends - sizes)
            place = int(ends[-1])
        for first in range(0, count + 1, SPOOL_ITEMS):
            sink.write(np.arange(first, min(first + SPOOL_ITEMS, count + 1), dtype="<i8"))
    return sink.facts


class NanoGpt(TokenExport):
    """A file for each split."""

    def dtype(self, role: Tokens, shown: str) -> np.dtype[Any]:
        """Return uint16. Raises InputError for a vocabulary that it does not hold."""
        if (role.vocabulary or 0) > UINT16_VOCABULARY:
            raise InputError(
                f"{shown}: has a vocabulary of {role.vocabulary:,}, and nanoGPT takes "
                f"{UINT16_VOCABULARY:,}; use a smaller tokenizer, or export to megatron"
            )
        return UINT16

    def write(self, work: Work) -> PartResult:
        """Write SPLIT.bin."""
        facts, counts = self.form(work.source).write(work)
        return PartResult(counts["documents"], {f"{work.split}.bin": facts}, counts)
