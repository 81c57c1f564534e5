"""Tokens as people read them: the texts of samples, the documents in a block, and the blocks that
have a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import DatasetError, ShardctlError
from shardctl.format.roles import Roles, Tokens
from shardctl.format.shard import BlockFile
from shardctl.format.stored import RecordPlace, StoredDataset, checked_column
from shardctl.format.tables import REPAIR_ADVICE
from shardctl.format.token_columns import DOCUMENT_COLUMNS, DOCUMENT_KEYS, list_offsets
from shardctl.inspection.content.blocks import Piece, StoredSample
from shardctl.system.locations.folder import Folder, FolderHere
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
        self, folder: FolderHere, most: int | None = None, columns: Sequence[str] | None = None
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
            yield self._decoded(record) if record.roles.tokens else record

    def _decoded(self, record: StoredSample) -> StoredSample:
        texts: dict[str, str | None] = {}
        documents: tuple[Piece, ...] = ()
        for name, role in record.roles.tokens.items():
            if not self._wants(name):
                continue
            tokenizer = self.use(role)
            ids = _numbers(record.values.get(name))
            if ids is not None and role.packed:
                documents = tuple(self._pieces(record.values, ids, role))
                ids = ids[: sum(piece.length for piece in documents)] if documents else ids
            if tokenizer is not None:
                texts[name] = None if ids is None else self.text(ids)
        return replace(record, texts=texts, documents=documents)

    def _wants(self, name: str) -> bool:
        return self._columns is None or name in self._columns or f"{name}_text" in self._columns

    def _pieces(
        self, values: dict[str, Any], ids: npt.NDArray[Any], role: Tokens
    ) -> Iterator[Piece]:
        """Yield the documents in a block, as far as their lengths and places can be."""
        columns = [list(_listed(values.get(name))) for name in DOCUMENT_COLUMNS]
        if len({len(column) for column in columns}) > 1:
            self.why_not = _NO_DOCUMENTS
            return
        place = 0
        for key, length, start in zip(*columns, strict=True):
            if (
                not (_is_count(length) and _is_count(start))
                or place + length > len(ids)
                or not length
            ):
                self.why_not = _NO_DOCUMENTS
                return
            tokens = ids[place : place + length]
            certain = place + length < len(ids)  # only a full block cuts a document
            ends = True if certain else None if role.eos is None else bool(tokens[-1] == role.eos)
            yield Piece(
                None if key is None else str(key),
                place,
                length,
                start,
                ends,
                self._beginning(tokens),
            )
            place += length

    def _beginning(self, tokens: npt.NDArray[Any]) -> str | None:
        text = self._text(tokens[:BEGINNING])
        return text if text is None or len(tokens) <= BEGINNING else f"{text.rstrip(REPLACEMENT)}…"

    def text(self, ids: npt.NDArray[Any]) -> str | None:
        """Return the text of tokens, up to the most that are wanted; None if they cannot be
        decoded."""
        if self._most is None or len(ids) <= self._most:
            return self._text(ids)
        text = self._text(ids[: self._most])
        return None if text is None else f"{text.rstrip(REPLACEMENT)}…"

    def _text(self, ids: npt.NDArray[Any]) -> str | None:
        tokenizer = self.tokenizer
        if tokenizer is None:
            return None
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocabulary:
            self.why_not = _NO_SUCH_TOKEN
            return None
        try:
            return tokenizer.decode(ids.astype(np.uint32))
        except (LookupError, ValueError, OverflowError):  # a vocabulary may have holes
            self.why_not = _NO_SUCH_TOKEN
            return None

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


def _numbers(values: Any) -> npt.NDArray[Any] | None:
    """Return the tokens of a sample, (n,); None if there are none or they are no whole numbers."""
    if values is None:
        return None
    try:
        ids = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    return ids if ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids)) else None


def _listed(values: Any) -> Iterable[Any]:
    if isinstance(values, np.ndarray):
        return values.tolist()  # type: ignore[no-any-return]  # numpy's lists are of any type
    return values if isinstance(values, list) else ()


def _is_count(number: Any) -> bool:
    return type(number) is int and number >= 0


def blocks_of_document(
    stored: StoredDataset, key: str, places: Iterable[RecordPlace] | None
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
            for row in np.unique(_rows_with(keys, key)).tolist():
                yield shard, first + row
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


def _rows_with(keys: pa.ListArray, key: str) -> npt.NDArray[np.int64]:
    found = np.from_dlpack(
        pc.indices_nonzero(pc.equal(keys.flatten(), key).fill_null(False))
    ).astype(np.int64)
    return np.searchsorted(list_offsets(keys), found, side="right") - 1
