"""What nanoGPT trains on: train.bin and val.bin, bare uint16 tokens without a header, which it opens with np.memmap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from shardctl.arguments import truth
from shardctl.errors import InputError
from shardctl.exports.base import Export, Progress, Source, Written
from shardctl.exports.documents import TokenField
from shardctl.exports.token_files import TokenForm, end_of, notes_on
from shardctl.tokenizers.base import UINT16_VOCABULARY

UINT16 = np.dtype("<u2")


@dataclass(frozen=True)
class NanoGpt(Export):
    """A file for each split. With `eos`, the end-of-text token is put behind each document that lacks it."""

    eos: bool = True
    name: ClassVar[str] = "nanogpt"

    def check(self, source: Source) -> None:
        """Raise InputError or UsageError if there are no tokens, no token that ends them, or more than uint16 can tell."""
        self._form(source)

    def _form(self, source: Source) -> TokenForm:
        wanted = truth("eos", self.eos)
        field = TokenField.of(source)
        if (field.role.vocabulary or 0) > UINT16_VOCABULARY:
            raise InputError(
                f"{source.shown}: has a vocabulary of {field.role.vocabulary:,}, and nanoGPT's files hold numbers below"
                f" {UINT16_VOCABULARY:,}; use a smaller tokeniser, or export to megatron"
            )
        return TokenForm(field, end_of(field, wanted, source.shown), UINT16)

    def write(self, source: Source, folder: Path, progress: Progress) -> Written:
        """Write SPLIT.bin."""
        form = self._form(source)
        files, counts = {}, {}
        for split in source.splits:
            path = folder / f"{split}.bin"
            files[path.name], counts[split] = form.write(path, source, split, progress)
        return Written(files, counts, form.facts, notes_on(source))
