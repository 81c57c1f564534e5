"""What nanoGPT trains on: train.bin and val.bin, bare uint16 tokens without a header, which it opens with np.memmap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardctl.arguments import truth
from shardctl.errors import InputError
from shardctl.exports.base import Column, Export, Part, Place, Progress, Written, parts_by_split, refuse_choices
from shardctl.exports.documents import TokenField
from shardctl.exports.source import Source
from shardctl.exports.token_files import TokenForm, end_of, notes_on
from shardctl.sources.exported import Field
from shardctl.tokenizers.base import UINT16_VOCABULARY

UINT16 = np.dtype("<u2")


@dataclass(frozen=True)
class NanoGpt(Export):
    """A file for each split. With `eos`, the end-of-text token is put behind each document that lacks it."""

    eos: bool = True
    name: ClassVar[str] = "nanogpt"

    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if there are no tokens, no token that ends them, or more than uint16 can tell."""
        refuse_choices(source, self.name)
        self._form(source)

    def place(self, column: Column) -> Place | None:
        """Say how a column is written: the files have the tokens of all columns, and none as it is."""
        return None

    def parts(self, source: Source) -> Sequence[Part]:
        """Return what is written at a time: every split, since a document may begin in one shard and end in another."""
        return parts_by_split(source)

    def facts(self, source: Source) -> dict[str, Any]:
        """Return what a reader of the files needs to know of the tokens."""
        return self._form(source).facts

    def notes(self, source: Source) -> tuple[str, ...]:
        """Return what is lost in such files."""
        return notes_on(source)

    def _form(self, source: Source) -> TokenForm:
        wanted = truth("eos", self.eos)
        field = TokenField.of(source)
        if (field.role.vocabulary or 0) > UINT16_VOCABULARY:
            raise InputError(
                f"{source.shown}: has a vocabulary of {field.role.vocabulary:,}, and nanoGPT's files hold numbers below"
                f" {UINT16_VOCABULARY:,}; use a smaller tokeniser, or export to megatron"
            )
        return TokenForm(field, end_of(field, wanted, source.shown), UINT16)

    def write(self, source: Source, fields: Sequence[Field], part: Part, folder: Path, progress: Progress) -> Written:
        """Write SPLIT.bin."""
        path = folder / f"{part.split}.bin"
        facts, counts = self._form(source).write(path, source, part.split, progress)
        return Written(counts.documents, {path.name: facts}, asdict(counts))
