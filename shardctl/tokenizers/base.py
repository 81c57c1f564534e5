"""What every tokeniser can do: turn texts into the numbers of tokens, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Encoded:
    """The tokens of some texts: those of text n are `ids[offsets[n] : offsets[n + 1]]`.

    `ids` is (total,) uint32, `offsets` is (n + 1,) int64 and begins with 0.
    """

    offsets: npt.NDArray[np.int64]
    ids: Ids


class Tokenizer(Protocol):
    """Turns texts into the numbers of tokens, all of which are below `vocabulary`.

    `eos`, `bos` and `pad` are the numbers of the tokens that end a document, begin one, and fill up; None where the tokeniser
    has none. `files` are those that it is made of, by the names that they get in a dataset (`tokenizer.json` and the like):
    whoever loads them again gets the same tokeniser.
    """

    @property
    def vocabulary(self) -> int:
        """The number of different tokens, special ones included."""
        ...

    @property
    def eos(self) -> int | None:
        """The token that ends a document."""
        ...

    @property
    def bos(self) -> int | None:
        """The token that begins a document."""
        ...

    @property
    def pad(self) -> int | None:
        """The token that fills up."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files that it is made of, by name."""
        ...

    @property
    def versions(self) -> tuple[str, ...]:
        """The packages that decide the tokens, with their versions: "tokenizers 0.23.3"."""
        ...

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the tokens of texts, (n,) string without nulls; special tokens are added as the tokeniser says (no EOS)."""
        ...

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of tokens. Bytes that are no UTF-8, as where a text was cut, become U+FFFD."""
        ...

    def token(self, number: int) -> str:
        """Return a token as people read it. Raises IndexError if there is none of this number."""
        ...
