"""Tokenizers that need no tokenizer.json: the bytes of a text, the words of a list, and models of
SentencePiece (`.model`), which need the extra `sentencepiece`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError
from shardctl.format.arrays import Bools, bytes_of, edges_of
from shardctl.system.packages import needed
from shardctl.transforms.tokenizers.base import (
    BEGIN_NAMES,
    END_NAMES,
    MOST,
    PAD_NAMES,
    UNKNOWN_NAMES,
    Encoded,
    Ids,
    Tokenizer,
    TokensInText,
    WithOffsets,
    joined,
    longer_than,
    of_names,
)

SPECIAL = {"<eos>": 256, "<pad>": 257, "<bos>": 258, "<|im_start|>": 259, "<|im_end|>": 260}

_PIECE = re.compile("|".join((*map(re.escape, SPECIAL), "(?s:.)")))


class Bytes(WithOffsets):
    """The bytes of a text are its tokens, which gives back every text: 0 to 255 are the bytes of
    UTF-8, 256 ends a document, 257 fills up. The names of special tokens in texts are bytes too."""

    kept_as = "bytes"
    vocabulary = 256 + len(SPECIAL)
    eos = SPECIAL["<eos>"]
    bos = SPECIAL["<bos>"]
    pad = SPECIAL["<pad>"]
    special = SPECIAL
    files: Mapping[str, bytes] = {}

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the bytes of texts."""
        data, offsets = bytes_of(texts)
        return Encoded(offsets, data.astype(np.uint32))

    def with_offsets(self, texts: Sequence[str]) -> Iterable[TokensInText]:
        """Yield the tokens of each text. The names of special tokens are found, which chats
        need."""
        for text in texts:
            ids: list[int] = []
            places: list[tuple[int, int]] = []
            for part in _PIECE.finditer(text):
                found = part[0]
                numbers = [SPECIAL[found]] if len(found) > 1 else list(found.encode())
                ids += numbers
                places += [part.span()] * len(numbers)
            starts, ends = np.array(places, np.int64).reshape(-1, 2).T
            yield TokensInText(np.array(ids, np.uint32), starts, ends)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of bytes, and the names of special tokens."""
        numbers = np.asarray(ids, np.uint32)
        names = {number: name.encode() for name, number in SPECIAL.items()}
        if not (numbers > 255).any():
            return numbers.astype(np.uint8).tobytes().decode(errors="replace")
        parts = (bytes((number,)) if number < 256 else names[number] for number in numbers.tolist())
        return b"".join(parts).decode(errors="replace")

    def _token(self, number: int) -> str:
        """Return a printable ASCII character, or the number of a byte as in 0x0A."""
        if number > 255:
            return next(name for name, special in SPECIAL.items() if special == number)
        return chr(number) if 32 < number < 127 else f"0x{number:02X}"

    def number(self, token: str) -> int | None:
        """Return the number of a special token."""
        return SPECIAL.get(token)


FILE = "tokenizer.txt"


class Words(Tokenizer):
    """What stands between whitespace is a token; a word that is not in the vocabulary is the
    unknown token, `<unk>`.

    The whitespace itself is lost: a text comes back with single spaces.
    """

    kept_as = FILE

    def __init__(self, data: bytes, where: str) -> None:
        try:
            words = data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{where}: a vocabulary is UTF-8, one word on each line ({error.reason} at byte "
                f"{error.start})"
            ) from None
        numbers = {word: number for number, word in enumerate(words)}
        if not words:
            raise InputError(f"{where}: it is empty; write a word on each line")
        for number, word in enumerate(words):
            if numbers[word] != number:
                raise InputError(f"{where}: the word {word!r} occurs twice")
        self.special = {
            name: numbers[name]
            for name in (*UNKNOWN_NAMES, *END_NAMES, *BEGIN_NAMES, *PAD_NAMES)
            if name in numbers
        }
        unknown = of_names(self.special, UNKNOWN_NAMES)
        if unknown is None:
            raise InputError(
                f"{where}: there is no unknown token, one of {', '.join(UNKNOWN_NAMES)}; add a "
                "line with it"
            )
        self._unknown = unknown
        self._words, self._numbers = words, numbers
        self.files = {FILE: data}
        self.vocabulary = len(words)
        self.eos, self.bos, self.pad = (
            of_names(self.special, names) for names in (END_NAMES, BEGIN_NAMES, PAD_NAMES)
        )

    @cached_property
    def _values(self) -> pa.Array:
        return pa.array(self._words, pa.string())

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the numbers of the words."""
        import pyarrow.compute as pc

        words = pc.utf8_split_whitespace(texts)
        offsets = np.asarray(words.offsets, np.int64)
        flat = words.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        # whitespace at an end gives ""
        kept = np.asarray(pc.not_equal(flat, ""), bool)
        found = np.asarray(pc.fill_null(pc.index_in(flat, value_set=self._values), self._unknown))
        before = edges_of(kept)
        return Encoded(before[offsets - offsets[0]], found[kept].astype(np.uint32))

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the words with a space between each two."""
        return " ".join(self.token(int(number)) for number in ids)

    def _token(self, number: int) -> str:
        """Return a word."""
        return self._words[number]

    def number(self, token: str) -> int | None:
        """Return the number of a word."""
        return self._numbers.get(token)


MODEL = "tokenizer.model"


class SentencePiece(Tokenizer):
    """A model of SentencePiece: unigram or BPE. Most of them change whitespace, so that texts do
    not come back exactly."""

    kept_as = MODEL

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
        self.files = {MODEL: data}
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
