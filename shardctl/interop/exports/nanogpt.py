"""What nanoGPT trains on: train.bin and val.bin, bare uint16 tokens without a header, which it
opens with np.memmap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardctl.errors import InputError
from shardctl.format.roles import Tokens
from shardctl.interop.exports.base import ExportPart, PartResult, Progress
from shardctl.interop.exports.source import Source
from shardctl.interop.exports.token_files import TokenExport
from shardctl.sources.export_description import Field
from shardctl.transforms.tokenizers.base import UINT16_VOCABULARY

UINT16 = np.dtype("<u2")


class NanoGpt(TokenExport):
    """A file for each split."""

    name: ClassVar[str] = "nanogpt"

    def dtype(self, role: Tokens, shown: str) -> np.dtype[Any]:
        """Return uint16. Raises InputError for a vocabulary that it does not hold."""
        if (role.vocabulary or 0) > UINT16_VOCABULARY:
            raise InputError(
                f"{shown}: has a vocabulary of {role.vocabulary:,}, and nanoGPT's files hold "
                "numbers below"
                f" {UINT16_VOCABULARY:,}; use a smaller tokenizer, or export to megatron"
            )
        return UINT16

    def write(
        self,
        source: Source,
        fields: Sequence[Field],
        part: ExportPart,
        folder: Path,
        progress: Progress,
    ) -> PartResult:
        """Write SPLIT.bin."""
        path = folder / f"{part.split}.bin"
        facts, counts = self.form(source).write(path, source, part.split, progress)
        return PartResult(counts.documents, {path.name: facts}, asdict(counts))
