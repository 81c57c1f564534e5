"""Bytes as tokens: 0 to 255 are the bytes of UTF-8, 256 ends a document, 257 fills up. No file, no
training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import bytes_of
from shardctl.transforms.tokenizers.base import Encoded, Ids, Placed, TokenizerKind, none_too_long

SPECIAL = {"<eos>": 256, "<pad>": 257, "<bos>": 258, "<|im_start|>": 259, "<|im_end|>": 260}

_PIECE = re.compile("|".join((*map(re.escape, SPECIAL), "(?s:.)")))


class Bytes:
    """The bytes of a text are its tokens, which gives back every text. The names of special tokens
    in texts are bytes too."""

    kept_as = "bytes"
    vocabulary = 256 + len(SPECIAL)
    eos: int | None = SPECIAL["<eos>"]
    bos: int | None = SPECIAL["<bos>"]
    pad: int | None = SPECIAL["<pad>"]
    special: Mapping[str, int] = SPECIAL
    files: Mapping[str, bytes] = {}
    versions: tuple[str, ...] = ()
    too_long = staticmethod(none_too_long)
    template: str | None = None

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the bytes of texts."""
        data, offsets = bytes_of(texts)
        return Encoded(offsets, data.astype(np.uint32))

    def place(self, texts: Sequence[str]) -> Iterable[Placed]:
        """Yield the tokens of each text. The names of special tokens are found, which chats
        need."""
        for text in texts:
            yield _placed(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of bytes, and the names of special tokens."""
        numbers = np.asarray(ids, np.uint32)
        names = {number: name.encode() for name, number in SPECIAL.items()}
        if not (numbers > 255).any():
            return numbers.astype(np.uint8).tobytes().decode(errors="replace")
        parts = (bytes((number,)) if number < 256 else names[number] for number in numbers.tolist())
        return b"".join(parts).decode(errors="replace")

    def token(self, number: int) -> str:
        """Return a printable ASCII character, or the number of a byte as in 0x0A."""
        if not 0 <= number < self.vocabulary:
            raise IndexError(f"there is no token {number}")
        if number > 255:
            return next(name for name, special in SPECIAL.items() if special == number)
        return chr(number) if 32 < number < 127 else f"0x{number:02X}"

    def number(self, token: str) -> int | None:
        """Return the number of a special token."""
        return SPECIAL.get(token)


def _placed(text: str) -> Placed:
    """Cut a text at special tokens; everything between them is bytes."""
    ids: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    for part in _PIECE.finditer(text):
        found = part.group()
        numbers = [SPECIAL[found]] if len(found) > 1 else list(found.encode())
        ids += numbers
        starts += [part.start()] * len(numbers)
        ends += [part.end()] * len(numbers)
    return Placed(np.array(ids, np.uint32), np.array(starts, np.int64), np.array(ends, np.int64))


KIND = TokenizerKind("bytes", prefix="bytes", open_named=lambda rest, folder: Bytes())
