"""What every tokenizer can do: turn texts into the numbers of tokens, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.arrays import Bools, Numbers, bytes_of, edges_of

Ids = npt.NDArray[np.uint32]

MOST = 8 << 20
"""Bytes of a text, or of a piece of one, that may be encoded in one go where that takes a hundred
times as much memory."""

UINT16_VOCABULARY = 1 << 16
"""The largest vocabulary whose numbers fit in uint16."""

END_NAMES = "<|endoftext|>,<|end_of_text|>,</s>,<eos>,<|eos|>,[EOS]".split(",")
BEGIN_NAMES = "<|begin_of_text|>,<s>,<bos>,<|bos|>,[BOS]".split(",")
PAD_NAMES = "<|pad|>,<pad>,[PAD],<|padding|>,<|finetune_right_pad_id|>".split(",")
UNKNOWN_NAMES = "<unk>,<|unk|>,[UNK]".split(",")
"""What special tokens are called, for tokenizers that do not say what theirs are for."""


@dataclass(frozen=True)
class Encoded:
    """The tokens of some texts: those of text n are `ids[offsets[n] : offsets[n + 1]]`.

    `ids` is (total,) uint32, `offsets` is (n + 1,) int64 and begins with 0.
    """

    offsets: Numbers
    ids: Ids

    def of(self, text: int) -> Ids:
        """Return the tokens of one text, by its number."""
        return self.ids[self.offsets[text] : self.offsets[text + 1]]


class Tokenizer(ABC):
    """Turns texts into the numbers of tokens. All numbers are below `vocabulary`.

    `eos`, `bos` and `pad` are the numbers of the tokens that end a document, begin one, and fill
    up. They are None if the tokenizer lacks it. `special` has the special tokens, which do not
    stand for text, under their names. `versions` has the packages that decide the tokens, for
    instance "tokenizers 0.23.3". `files` has the files of the tokenizer under their names in a
    dataset, such as `tokenizer.json`. If you load them again, you get the same tokenizer. `kept_as`
    opens it: the name of the first file, or a name such as `bytes`.
    """

    kept_as: str
    vocabulary: int
    eos: int | None
    bos: int | None
    pad: int | None
    special: Mapping[str, int]
    files: Mapping[str, bytes]
    versions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return what it was loaded from, and its size, for display."""
        return f"<{type(self).__name__} tokenizer {self.kept_as!r}: {self.vocabulary:,} tokens>"

    @abstractmethod
    def encode(self, texts: pa.Array) -> Encoded:
        """Return the tokens of texts, (n,) string without nulls; special tokens are added as the
        tokenizer says (no EOS)."""

    def too_long(self, texts: pa.Array) -> Bools:
        """Return which of the texts, (n,), would take too much memory. Some tokenizers need a
        hundred times the bytes of a text."""
        return np.zeros(len(texts), bool)

    @abstractmethod
    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of tokens. Bytes that are not UTF-8, for instance at the cut of a text,
        become U+FFFD."""

    def token(self, number: int) -> str:
        """Return a token as people read it. Raises IndexError if there is none of this number."""
        found = self._token(number) if 0 <= number < self.vocabulary else None
        if found is None:
            raise IndexError(f"there is no token {number}")
        return found

    @abstractmethod
    def _token(self, number: int) -> str | None:
        """Return a token by a number below `vocabulary`; None where there is none."""

    @abstractmethod
    def number(self, token: str) -> int | None:
        """Return the number of a token; None for an unknown token."""


@dataclass(frozen=True)
class TokensInText:
    """The tokens of one text, with their places in it: token n is made of the characters
    `starts[n]` to `ends[n]`.

    All are (n,): `ids` uint32, `starts` and `ends` int64, in characters. Several tokens of one
    character have its place.
    """

    ids: Ids
    starts: Numbers
    ends: Numbers


class WithOffsets(Tokenizer):
    """A tokenizer that knows the places of tokens, which a loss mask needs."""

    @property
    def template(self) -> str | None:
        """Its chat template, in the language of Jinja, if it has one."""
        return None

    @abstractmethod
    def with_offsets(self, texts: Sequence[str]) -> Iterable[TokensInText]:
        """Yield the tokens of each text, with their places. Special tokens are found in the texts,
        and none is added."""


def longer_than(texts: pa.Array, most: int) -> Bools:
    """Return which of the texts, (n,), have more than so many bytes."""
    longer: Bools = bytes_of(texts).sizes > most
    return longer


def joined(parts: Sequence[Sequence[int] | Ids]) -> Encoded:
    """Return the tokens of texts that were encoded one by one."""
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    ids = [np.asarray(part, np.uint32) for part in parts]
    return Encoded(edges_of(lengths), np.concatenate([np.empty(0, np.uint32), *ids]))


def of_names(special: Mapping[str, int], names: Sequence[str]) -> int | None:
    """Return the number of the first of some names that is a special token."""
    return next((special[name] for name in names if name in special), None)
