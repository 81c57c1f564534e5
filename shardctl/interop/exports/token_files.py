"""Files of bare tokens: the documents of a split one behind the other, as trainers map them into memory."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.roles import Tokens
from shardctl.format.token_columns import LOSS_MASK
from shardctl.interop.exports.base import Column, ColumnEncoding, Export, ExportPart, Progress, parts_by_split, refuse_choices
from shardctl.interop.exports.documents import TokenField, ended
from shardctl.interop.exports.source import Source
from shardctl.system.arguments import truth
from shardctl.system.dataclass import dataclass
from shardctl.system.files import FileFacts, StreamedFile, replacing

Lengths = Callable[[npt.NDArray[np.int64]], None]
"""Is told the lengths of the documents that were written, in order."""

WRITES_AHEAD = 2
"""Blocks of tokens that wait to be written."""


@dataclass(frozen=True)
class TokenCounts:
    """The documents and tokens of a file. `empty` documents, which have no token, were left out of it."""

    documents: int
    tokens: int
    empty: int


@dataclass(frozen=True)
class TokenForm:
    """How tokens are written: as `dtype`, little-endian, and with `eos` behind each document, None for as it is stored."""

    field: TokenField
    eos: int | None
    dtype: np.dtype[Any]

    @property
    def facts(self) -> dict[str, Any]:
        """What a reader of the files needs to know of the tokens."""
        role = self.field.role
        return {"dtype": self.dtype.name, "vocabulary": role.vocabulary, "eos": role.eos, "tokenizer": role.tokenizer}

    def write(
        self, path: Path, source: Source, split: str, progress: Progress, lengths: Lengths = lambda _: None
    ) -> tuple[FileFacts, TokenCounts]:
        """Write the documents of a split, and return what the file is and has."""
        documents = tokens = empty = 0
        # Hashing and writing take as long as the rest, and beside it in a thread they take none of its time.
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
        """Return tokens in the type of the file, none changed. Raises DatasetError for one that cannot be there."""
        if not len(tokens):
            return tokens
        least, most, vocabulary = int(tokens.min()), int(tokens.max()), self.field.role.vocabulary
        if least < 0 or (vocabulary is not None and most >= vocabulary):
            odd, below = (least, "") if least < 0 else (most, f" and below {vocabulary}, their vocabulary")
            raise DatasetError(f"{shown}: has a token {odd}; tokens are numbers from 0 on{below}; `shardctl verify` tells more")
        if most > np.iinfo(self.dtype).max:
            raise InputError(f"{shown}: has a token {most}, which {self.dtype.name} does not hold, and the files have no other")
        return tokens.astype(self.dtype, copy=False)


@dataclass(frozen=True)
class TokenExport(Export):
    """Files of bare tokens. With `eos`, the end-of-text token is put behind each document that lacks it."""

    eos: bool = True

    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if there are no tokens, or none that ends them, or the files cannot hold them."""
        refuse_choices(source, self.name)
        self.form(source)

    def place(self, column: Column) -> ColumnEncoding | None:
        """Say how a column is written: the files have the tokens of all columns, and none as it is."""
        return None

    def parts(self, source: Source) -> Sequence[ExportPart]:
        """Return what is written at a time: every split, since a document may begin in one shard and end in another."""
        return parts_by_split(source)

    def facts(self, source: Source) -> dict[str, Any]:
        """Return what a reader of the files needs to know of the tokens."""
        return self.form(source).facts

    def notes(self, source: Source) -> tuple[str, ...]:
        """Return what is lost in such files."""
        if LOSS_MASK in source.layout.columns.names:
            return (f"{LOSS_MASK} was left out: these files have tokens only, so that the loss counts on all of them",)
        return ()

    def form(self, source: Source) -> TokenForm:
        """Return how the tokens are written. Raises as `check` does."""
        field = TokenField.of(source)
        return TokenForm(field, _end_of(field, truth("eos", self.eos), source.shown), self.dtype(field.role, source.shown))

    @abstractmethod
    def dtype(self, role: Tokens, shown: str) -> np.dtype[Any]:
        """Return the type of the tokens in the files. Raises InputError for a vocabulary that it does not hold."""


def _end_of(field: TokenField, wanted: bool, shown: str) -> int | None:
    """Return the token to put behind documents; None for none. Raises UsageError if it is wanted and not known."""
    if not wanted:
        return None
    if field.role.eos is None:
        raise UsageError(f"{shown}: has no end-of-text token to put behind each document; --no-eos exports them without")
    return field.role.eos
