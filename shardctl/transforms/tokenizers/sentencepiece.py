"""SentencePiece models (`.model`). It needs the extra `sentencepiece`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.arrays import Bools
from shardctl.system.packages import needed
from shardctl.transforms.tokenizers.base import (
    MOST,
    Encoded,
    Ids,
    Tokenizer,
    joined,
    longer_than,
)

FILE = "tokenizer.model"


class SentencePiece(Tokenizer):
    """A model of SentencePiece: unigram or BPE. Most of them change whitespace, so that texts do
    not come back exactly."""

    kept_as = FILE

    def __init__(self, data: bytes, where: str) -> None:
        sentencepiece = needed("sentencepiece", "sentencepiece", f"{where}: it")
        self._model: Any = sentencepiece.SentencePieceProcessor()
        try:
            loaded = bool(data) and self._model.LoadFromSerializedProto(data)
        except (RuntimeError, ValueError):
            loaded = False
        if not loaded or not self._model.GetPieceSize():
            raise InputError(
                f"{where}: not a SentencePiece model; it is what spm_train writes, such as "
                "tokenizer.model"
            )
        self.files = {FILE: data}
        self.versions = (f"sentencepiece {sentencepiece.__version__}",)
        self.vocabulary = self._model.GetPieceSize()
        control = (
            number
            for number in range(self.vocabulary)
            if self._model.IsControl(number) or self._model.IsUnknown(number)
        )
        self.special = {self._model.IdToPiece(number): number for number in control}
        ids = self._model.eos_id(), self._model.bos_id(), self._model.pad_id()
        self.eos, self.bos, self.pad = (number if number >= 0 else None for number in ids)

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the numbers of the pieces. The package gives lists: a Python number for each
        token."""
        return joined(
            self._model.EncodeAsIds(texts.to_pylist(), num_threads=1) if len(texts) else []
        )

    def too_long(self, texts: pa.Array) -> Bools:
        """Return which of the texts are above the limit: it is not known where they could be
        cut."""
        return longer_than(texts, MOST)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of pieces."""
        return str(self._model.DecodeIds(np.asarray(ids).tolist()))

    def _token(self, number: int) -> str:
        """Return a piece; a space is shown as U+2581."""
        return str(self._model.IdToPiece(number))

    def number(self, token: str) -> int | None:
        """Return the number of a piece."""
        number = int(self._model.PieceToId(token))
        return number if self._model.IdToPiece(number) == token else None
