"""Tokens as people read them: the texts of samples, the documents in a block, and the blocks that
have a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, ShardctlError
from shardctl.format.arrays import Array
from shardctl.format.dataset_location import DatasetLocation
from shardctl.format.dataset_tables import DatasetTables, RecordUnit, checked_column
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Roles, Tokens
from shardctl.format.shard import BlockFile
from shardctl.format.tables import REPAIR_ADVICE, ShardTable
from shardctl.format.token_columns import (
    DOCUMENT_COLUMNS,
    DOCUMENT_KEYS,
    DOCUMENT_LENGTHS,
    DOCUMENT_STARTS,
    LOSS_MASK,
    Rows,
    documents_in,
    list_offsets,
    main_tokens,
    token_rows,
)
from shardctl.inspection.content.blocks import (
    ALL,
    Piece,
    StoredBlock,
    StoredSample,
    Values,
    checked_columns,
    count_blocks,
    some_blocks,
)
from shardctl.inspection.content.statistics import Distribution, add_numbers, spread_of_counts
from shardctl.system.folders import Folder
from shardctl.system.permutation import evenly_spaced
from shardctl.transforms.tokenizers.base import Tokenizer
from shardctl.transforms.tokenizers.table import stored_tokenizer

BEGINNING = 48
"""Tokens of a document whose text is shown beside it: a line."""


class Decoder:
    """Turns tokens of a dataset back into text by the dataset's own tokenizer, of each sample up to
    `most` tokens.

    `folder` has the tokenizer; `columns` are those whose text is wanted, None for all. `why_not`
    says why there is no text, None as long as all that was asked for could be decoded. `tokenizer`
    is the one in use.
    """

    def __init__(
        self, folder: Folder, most: int | None = None, columns: Sequence[str] | None = None
    ) -> None:
        self._folder, self._most, self._columns = folder, most, columns
        self._opened: dict[Tokens, Tokenizer | None] = {}
        self.tokenizer: Tokenizer | None = None
        self.why_not: str | None = None

    def use(self, role: Tokens) -> Tokenizer | None:
        """Decode tokens of this role from now on, and return their tokenizer; None if there is none
        that can be used, and `why_not` says why."""
        if role not in self._opened:
            try:
                self._opened[role] = stored_tokenizer(self._folder, Roles({"tokens": role}))
            except ShardctlError as error:
                self._opened[role] = None
                self.why_not = str(error)
        self.tokenizer = self._opened[role]
        return self.tokenizer

    def decoded(self, records: Iterable[StoredSample]) -> Iterator[StoredSample]:
        """Yield records with their texts, and with the documents that are in them."""
        for record in records:
            texts: dict[str, str | None] = {}
            documents: tuple[Piece, ...] = ()
            for name, role in record.roles.tokens.items():
                if self._columns is not None and not {name, f"{name}_text"} & {*self._columns}:
                    continue
                tokenizer = self.use(role)
                ids = _numbers(record.values.get(name))
                if ids is not None and role.packed:
                    documents = tuple(self._pieces(record.values, ids, role))
                    ids = ids[: sum(piece.length for piece in documents)] if documents else ids
                if tokenizer is not None:
                    texts[name] = None if ids is None else self.text(ids, self._most)
            yield replace(record, texts=texts, documents=documents)

    def _pieces(self, values: Values, ids: Array, role: Tokens) -> Iterator[Piece]:
        """Yield the documents in a block, as far as their lengths and places can be."""
        said = [values.get(name) for name in DOCUMENT_COLUMNS]
        columns = [
            np.asarray(each, object).tolist() if isinstance(each, list | np.ndarray) else []
            for each in said
        ]
        if len(set(map(len, columns))) > 1:
            self.why_not = _NO_DOCUMENTS
            return
        place = 0
        for key, length, start in zip(*columns, strict=True):
            are_counts = _is_count(length) and _is_count(start)
            if not are_counts or not 0 < length <= len(ids) - place:
                self.why_not = _NO_DOCUMENTS
                return
            tokens = ids[place : place + length]
            certain = place + length < len(ids)  # only a full block cuts a document
            ends = True if certain else None if role.eos is None else bool(tokens[-1] == role.eos)
            name, text = None if key is None else str(key), self.text(tokens, BEGINNING)
            yield Piece(name, place, length, start, ends, text)
            place += length

    def text(self, ids: Array, most: int | None = None) -> str | None:
        """Return the text of tokens, or of the first `most`; None if they cannot be decoded."""
        tokenizer, begin = self.tokenizer, ids[:most]
        if tokenizer is None:
            return None
        try:
            if len(begin) and not 0 <= int(begin.min()) <= int(begin.max()) < tokenizer.vocabulary:
                raise ValueError("no such token")
            text = tokenizer.decode(begin.astype(np.uint32))
        except (LookupError, ValueError, OverflowError):  # a vocabulary may have holes
            self.why_not = _NO_SUCH_TOKEN
            return None
        return text if len(begin) == len(ids) else f"{text.rstrip(REPLACEMENT)}…"

    def name_of(self, number: int) -> str | None:
        """Return a token as people read it; None if there is none of this number, or no
        tokenizer."""
        try:
            return None if self.tokenizer is None else self.tokenizer.token(number)
        except LookupError:
            return None


_NO_SUCH_TOKEN = (
    "there are tokens that the vocabulary does not have; `shardctl verify --level deep` tells more"
)
_NO_DOCUMENTS = (
    "the lengths of documents do not fit their block; `shardctl verify --level deep` tells more"
)

REPLACEMENT = "\ufffd"
"""What stands for bytes that are no text: at the end of a beginning, those of a character that was
cut."""


def _numbers(values: Any) -> Array | None:
    """Return the tokens of a sample, (n,); None if there are none or they are no whole numbers."""
    if values is None:
        return None
    try:
        ids = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    return ids if ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids)) else None


def _is_count(number: Any) -> bool:
    return type(number) is int and number >= 0


def blocks_of_document(
    stored: DatasetTables, key: str, places: Iterable[RecordUnit] | None
) -> Iterator[tuple[int, int]]:
    """Yield the blocks of packed tokens that have a document: the number of the shard, and the row
    in it.

    `places` are those where the plan has the document: only the keys of their shards are read.
    None: those of all shards. Raises DatasetError.
    """
    shards = (
        range(len(stored.shards)) if places is None else sorted({place.shard for place in places})
    )
    for shard in shards:
        first = 0
        for keys in document_keys(stored.folder, stored.shards[shard].path):
            same = pc.indices_nonzero(pc.equal(keys.flatten(), key).fill_null(False))
            found = np.from_dlpack(same).astype(np.int64)
            rows = np.searchsorted(list_offsets(keys), found, side="right") - 1
            yield from ((shard, first + row) for row in np.unique(rows).tolist())
            first += len(keys)


def document_keys(folder: Folder, shard: str) -> Iterator[pa.Array]:
    """Yield the keys of the documents in a shard, a block after the other: (rows,) lists of
    strings. Raises DatasetError."""
    column = BlockFile.of(folder, shard).schema.get_field_index(DOCUMENT_KEYS)
    file = BlockFile.of(folder, shard, [column] if column >= 0 else [])
    for block in range(len(file)):
        keys = checked_column(file, block) if column >= 0 else pa.nulls(0)
        if not pa.types.is_list(keys.type) or not pa.types.is_string(keys.type.value_type):
            raise DatasetError(
                f"{folder.shown(shard)}: has no column {DOCUMENT_KEYS} of lists of keys; "
                f"{REPAIR_ADVICE}"
            )
        yield keys


MOST_COMMON = 20
NEVER_USED = 20
"""Tokens that are listed."""

LARGEST = 1 << 24
"""Numbers of tokens from which on they are only counted together: the largest vocabularies have a
million tokens."""

DECODED = 1 << 16
"""Tokens of all blocks together that are decoded to count the bytes of their text."""

_DECODED_TOGETHER = 512
"""Tokens that are decoded at a time: some from many places say more than many from a few."""

_LEAST_DECODED = 16
"""Tokens of each block that are decoded, however many blocks there are."""

TOKENIZE = "tokenize"
"""The step whose counts say how many bytes of text the tokens were made of."""


@dataclass(frozen=True)
class TokenCount:
    """A token, how people read it (None if the tokenizer cannot be used, or has none of this
    number), how often it occurs."""

    token: int
    text: str | None
    count: int


@dataclass(frozen=True)
class TokenStatistics:
    """What was found in a column of tokens, in `samples` samples of `blocks` blocks. Padding counts
    nowhere but in `padding`.

    `documents` are those that begin in these samples, and `lengths` says how many tokens they have;
    where tokens are not packed, each sample counts as one, and so does each piece of a document
    that was cut into several. Of packed ones there are `padding` (tokens), `cut` (documents of
    which a part is in another block), and `per_block`, the documents in a block. `loss_tokens` is
    the number of tokens whose loss counts, None without a loss mask. `used` is how many different
    tokens occur, `coverage` their share of the vocabulary. `outside` counts tokens that are not in
    the vocabulary. `text_bytes` of text were found in `text_tokens` tokens: all (`exact`, as the
    step that made them counted), or some that were decoded. `faults` says of blocks that cannot be
    read why, and `why_numbers` why tokens have no text.
    """

    samples: int
    blocks: int
    tokens: int
    documents: int
    lengths: Distribution
    packed: bool
    padding: int | None
    cut: int | None
    per_block: Distribution | None
    loss_tokens: int | None
    vocabulary: int | None
    used: int
    outside: int
    most_common: tuple[TokenCount, ...]
    never_used: tuple[TokenCount, ...]
    text_bytes: int
    text_tokens: int
    exact: bool
    faults: tuple[str, ...]
    why_numbers: str | None

    @property
    def coverage(self) -> float | None:
        """The share of the vocabulary that occurs."""
        return self.used / self.vocabulary if self.vocabulary else None

    @property
    def unused(self) -> int | None:
        """How many tokens of the vocabulary do not occur."""
        return None if self.vocabulary is None else self.vocabulary - self.used

    @property
    def padding_share(self) -> float | None:
        """The share of all places in blocks that is padding."""
        return None if self.padding is None else self.padding / max(1, self.tokens + self.padding)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of text for each token."""
        return self.text_bytes / self.text_tokens if self.text_tokens else None

    def record(self) -> dict[str, Any]:
        """Return everything as plain data."""
        shares = {
            name: getattr(self, name)
            for name in ("coverage", "unused", "padding_share", "bytes_per_token")
        }
        return {
            **asdict(self),
            **{name: round(v, 6) if isinstance(v, float) else v for name, v in shares.items()},
        }


class _Tally:
    """What was counted so far in one column of tokens: `counts` by the names of
    TokenStatistics."""

    def __init__(self, role: Tokens) -> None:
        self.role = role
        self.counts, self.lengths, self.per_block = Counter[str](), Counter[int](), Counter[int]()
        self.occurs = np.zeros(0, np.int64)

    def add(
        self, columns: Mapping[str, pa.Array], name: str, decoder: Decoder, decode: int
    ) -> None:
        """Count a block, and decode up to `decode` of its tokens. Raises ValueError."""
        rows = token_rows(columns[name])
        mask = token_rows(columns[LOSS_MASK]).values if LOSS_MASK in columns else None
        if self.role.packed:
            ids = self._add_packed(rows, columns)
        else:
            ids = rows.values
            self.counts["documents"] += len(rows.lengths)
            add_numbers(self.lengths, rows.lengths)
        self.counts.update(samples=len(rows.lengths), blocks=1, tokens=len(ids))
        if mask is not None:
            self.counts["loss_tokens"] += int(np.count_nonzero(mask))
        self._decode(ids, decoder, decode)
        limit = min(self.role.vocabulary or LARGEST, LARGEST)
        if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
            inside = ids[(ids >= 0) & (ids < limit)]
            self.counts["outside"] += len(ids) - len(inside)
            ids = inside
        found = np.bincount(ids, minlength=len(self.occurs))
        found[: len(self.occurs)] += self.occurs
        self.occurs = found

    def _add_packed(self, rows: Rows, columns: Mapping[str, pa.Array]) -> Array:
        """Count the documents in blocks, and return their tokens without the padding."""
        found = documents_in(rows, columns)
        add_numbers(self.per_block, np.bincount(found.row, minlength=len(rows.lengths)))
        add_numbers(self.lengths, found.lengths(rows, self.role.eos))
        padding = rows.lengths - found.filled
        self.counts.update(
            documents=int((found.start == 0).sum()),
            cut=int(found.seconds(rows).sum()),
            padding=int(padding.sum()),
        )
        if not padding.any():
            return rows.values
        place = np.arange(len(rows.values)) - np.repeat(rows.offsets[:-1], rows.lengths)
        return np.asarray(rows.values[place < np.repeat(found.filled, rows.lengths)])

    def _decode(self, ids: Array, decoder: Decoder, most: int) -> None:
        """Decode some tokens, evenly spaced, and count the bytes of their text; special tokens
        stand for none."""
        tokenizer = decoder.use(self.role)
        if tokenizer is None:
            return
        ends = [token for token in (self.role.eos, self.role.pad) if token is not None]
        special = np.array([*tokenizer.special.values(), *ends], np.int64)
        together = min(_DECODED_TOGETHER, most)
        firsts, length = (
            (evenly_spaced(len(ids), most // together), together)
            if len(ids) > most
            else ([0], len(ids))
        )
        for first in firsts:
            some = ids[first : first + length]
            text = decoder.text(some[~np.isin(some, special)])
            if text is not None:
                self.counts.update(
                    text_bytes=len(text.encode("utf-8", "replace")), text_tokens=len(some)
                )

    def result(
        self, decoder: Decoder, faults: tuple[str, ...], text_bytes: int | None
    ) -> TokenStatistics:
        """Return all of it, with what was wrong with blocks; `text_bytes` is known where the step
        that made them counted."""
        role, count = self.role, self.counts
        decoder.use(role)
        size = min(role.vocabulary or len(self.occurs), LARGEST)
        occurs = np.append(self.occurs, np.zeros(max(0, size - len(self.occurs)), np.int64))
        ranked = np.argsort(-occurs, kind="stable")[:MOST_COMMON]
        unused = np.flatnonzero(occurs == 0)[:NEVER_USED] if role.vocabulary is not None else ()

        def counted(numbers: Iterable[int]) -> tuple[TokenCount, ...]:
            return tuple(
                TokenCount(int(n), decoder.name_of(int(n)), int(occurs[n])) for n in numbers
            )

        exact = text_bytes is not None and not faults
        per_block = spread_of_counts("documents in a block", self.per_block)
        return TokenStatistics(
            **{
                name: count[name]
                for name in ("samples", "blocks", "tokens", "documents", "outside")
            },
            lengths=spread_of_counts(
                f"tokens of a {'document' if role.packed else 'sample'}", self.lengths
            ),
            packed=role.packed,
            padding=count["padding"] if role.packed else None,
            cut=count["cut"] if role.packed else None,
            per_block=per_block if role.packed else None,
            loss_tokens=count.get("loss_tokens"),
            vocabulary=role.vocabulary,
            used=int(np.count_nonzero(occurs)),
            most_common=counted(ranked[occurs[ranked] > 0]),
            never_used=counted(unused),
            text_bytes=text_bytes if exact and text_bytes is not None else count["text_bytes"],
            text_tokens=count["tokens" if exact else "text_tokens"],
            exact=exact,
            faults=faults,
            why_numbers=decoder.why_not,
        )


def token_statistics(
    place: DatasetLocation, blocks: int = ALL, split: str | None = None
) -> dict[str, TokenStatistics]:
    """Count the tokens of up to `blocks` blocks of a dataset, or of a split, by the name of the
    column.

    Raises DatasetError if not even the tables can be read, UsageError for a split that there is
    not.
    """
    tallies: dict[str, _Tally] = {}
    decoder = Decoder(place.folder)
    everything = int(ShardTable(place.folder).block_counts.sum())
    decode = max(_LEAST_DECODED, DECODED // max(1, min(everything, blocks)))

    def count(block: StoredBlock) -> None:
        roles, there = block.shard.roles, set(block.reader.schema.names)
        main = main_tokens(roles)
        for name, role in roles.tokens.items():
            tally = tallies.setdefault(name, _Tally(role))
            beside = [DOCUMENT_LENGTHS, DOCUMENT_STARTS] if role.packed else []
            if main is not None and name == main[0] and LOSS_MASK in there:
                beside.append(LOSS_MASK)
            if missing := [column for column in beside if column not in there]:
                raise ValueError(f"its tokens are packed, and it has no column {missing[0]}")
            batch = checked_columns(block, [name, *beside])
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            tally.add(columns, name, decoder, decode)

    faults = count_blocks(some_blocks(place, split, blocks), count)
    known = _text_bytes(place.folder) if blocks == ALL and split is None else None
    return {name: tally.result(decoder, faults, known) for name, tally in tallies.items()}


def _text_bytes(folder: Folder) -> int | None:
    """Return the bytes of the texts that a dataset's tokens were made of, all together; None if
    that was not counted.

    Pieces of documents that overlap have more tokens than their text.
    """
    manifest = Manifest.load(folder)
    counts = next((step for step in manifest.steps or () if step["name"] == TOKENIZE), None)
    if (
        counts is None
        or not counts.get("bytes")
        or any(name == "variant" for name, _ in manifest.schema)
    ):
        return None
    rejected: dict[str, list[int]] = counts.get("rejected", {})
    return int(counts["bytes"]) - sum(size for _, size in rejected.values())
