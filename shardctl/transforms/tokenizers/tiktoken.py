"""Encodings of tiktoken: a file of ranks, with the pattern and the special tokens of a published
name. No network is used.

It needs the extra `tiktoken`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, UsageError
from shardctl.format.arrays import Numbers, edges_of
from shardctl.system.files import read_named
from shardctl.system.packages import needed
from shardctl.system.text import printable, unknown
from shardctl.transforms.tokenizers.base import (
    END_NAMES,
    PAD_NAMES,
    Encoded,
    Ids,
    TokensInText,
    WithOffsets,
    joined,
    of_names,
)

FILE = "tokenizer.tiktoken"
FACTS = "tokenizer_tiktoken.json"
"""The kept files: the ranks, and the name of the encoding."""

_R50K = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
_O200K = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"""
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"""
    r"""\p{N}{1,3}|"""
    r""" ?[^\s\p{L}\p{N}]+[\r\n/]*|"""
    r"""\s*[\r\n]+|"""
    r"""\s+(?!\S)|"""
    r"""\s+"""
)
_END = "<|endoftext|>"
_FILL_IN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_HARMONY = {
    "<|startoftext|>": 199998,
    _END: 199999,
    "<|endofprompt|>": 200018,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
}
_RESERVED = (200000, 200001, 200004, 200009, 200010, 200011, *range(200013, 201088))


ENCODINGS: dict[str, tuple[str, Mapping[str, int]]] = {
    "r50k_base": (_R50K, {_END: 50256}),
    "p50k_base": (_R50K, {_END: 50256}),
    "p50k_edit": (
        _R50K,
        {_END: 50256, **dict(zip(_FILL_IN, range(50281, 50284), strict=True))},
    ),
    "cl100k_base": (
        _CL100K,
        {
            _END: 100257,
            **dict(zip(_FILL_IN, range(100258, 100261), strict=True)),
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": (_O200K, {_END: 199999, "<|endofprompt|>": 200018}),
    "o200k_harmony": (
        _O200K,
        {**_HARMONY, **{f"<|reserved_{number}|>": number for number in _RESERVED}},
    ),
}
"""What a file of ranks does not say, by the names of encodings: the pattern that cuts texts into
words, and the special tokens with their numbers. They are as in tiktoken's own `openai_public`; a test compares them."""


class Tiktoken(WithOffsets):
    """An encoding of tiktoken. Special tokens in texts are found, as `tokenizers` does."""

    kept_as = FILE

    def __init__(self, name: str, data: bytes, where: str) -> None:
        if name not in ENCODINGS:
            raise UsageError(f"{where}: {unknown('the encoding', name, ENCODINGS)}")
        pattern, self.special = ENCODINGS[name]
        ranks = _ranks(data, where)
        taken = set(ranks.values())
        for token, number in self.special.items():
            if number in taken:
                raise InputError(
                    f"{where}: these are not the ranks of {name}: the number of {token} is taken"
                )
        self.files = {
            FILE: data,
            FACTS: json.dumps({"encoding": name}).encode(),
        }
        self.core, self.versions = open_core(name, pattern, ranks, self.special, where)
        self.vocabulary = max(*taken, *self.special.values()) + 1
        self.eos, self.pad = of_names(self.special, END_NAMES), of_names(self.special, PAD_NAMES)
        self.bos = self.special.get("<|startoftext|>")
        self._bytes = {number: token for token, number in ranks.items()}
        self._bytes |= {number: token.encode() for token, number in self.special.items()}
        self._numbers = ranks

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the tokens of texts."""
        return encode_by(self.core, texts)

    def with_offsets(self, texts: Sequence[str]) -> Iterable[TokensInText]:
        """Yield the tokens of each text, with the places of their bytes."""
        for text in texts:
            ids = self.core.encode_to_numpy(text, allowed_special="all", disallowed_special=())
            sizes = np.array([len(self._bytes[number]) for number in ids.tolist()], np.int64)
            yield TokensInText(ids, *places_of(text, sizes))

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of tokens."""
        return str(self.core.decode(np.asarray(ids).tolist()))

    def _token(self, number: int) -> str | None:
        """Return a token; bytes that are no UTF-8 are shown as in \\xe6."""
        found = self._bytes.get(number)
        return None if found is None else found.decode(errors="backslashreplace")

    def number(self, token: str) -> int | None:
        """Return the number of a token."""
        return self.special.get(token, self._numbers.get(token.encode()))


def open_named(rest: str, folder: Path) -> Tiktoken:
    """Open ENCODING:FILE. Raises UsageError for another form, OSError."""
    name, _, path = rest.partition(":")
    if not path:
        raise UsageError(
            f"tokenizer {printable(f'tiktoken:{rest}')!r} is not of the form tiktoken:ENCODING:FILE"
        )
    return Tiktoken(name, read_named(folder / path), printable(path))


def open_file(where: Path) -> Tiktoken:
    """Open a file of ranks that has the name of its encoding, as in cl100k_base.tiktoken, or one
    that a dataset has kept.

    Raises OSError.
    """
    shown = printable(where)
    if where.name != FILE:
        return Tiktoken(where.stem, where.read_bytes(), shown)
    try:
        name = json.loads(where.with_name(FACTS).read_bytes())["encoding"]
    except (OSError, KeyError, ValueError, TypeError):
        raise InputError(f"{shown}: {FACTS} beside it does not say which encoding it is") from None
    return Tiktoken(name, where.read_bytes(), shown)


def open_core(
    name: str, pattern: str, ranks: dict[bytes, int], special: Mapping[str, int], where: str
) -> tuple[Any, tuple[str, ...]]:
    """Return tiktoken's encoder, and its version. Raises InputError where it refuses, InstallError
    where it is missing."""
    tiktoken = needed("tiktoken", "tiktoken", f"{where}: it")
    try:
        core = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=dict(special)
        )
    except Exception as error:  # noqa: BLE001 - it raises ValueError, and panics as other types
        raise InputError(f"{where}: tiktoken refuses it ({error})") from None
    return core, (f"tiktoken {tiktoken.__version__}",)


def encode_by(core: Any, texts: pa.Array) -> Encoded:
    """Return the tokens of texts by tiktoken's encoder: numpy arrays, with no Python number for a
    token."""
    encode = core.encode_to_numpy
    return joined(
        [encode(text, allowed_special="all", disallowed_special=()) for text in texts.to_pylist()]
    )


def places_of(text: str, sizes: Numbers) -> tuple[Numbers, Numbers]:
    """Return where tokens of `sizes` bytes, (n,), begin and end in a text, in characters; a part of
    one counts as all of it."""
    data = np.frombuffer(text.encode(), np.uint8)
    begins = (data & 0xC0) != 0x80  # the bytes that begin a character
    number = edges_of(begins)
    ends = np.cumsum(sizes)
    return number[ends - sizes + (sizes > 0)] - (sizes > 0), number[ends]


def _ranks(data: bytes, where: str) -> dict[bytes, int]:
    """Read lines of a token in base 64 and its rank. Raises InputError, naming the line that is
    wrong."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise InputError(
                f"{where}: line {number} is not a token in base 64 and its rank"
            ) from None
    missing = [byte for byte in range(256) if bytes((byte,)) not in ranks]
    if missing or len(set(ranks.values())) < len(ranks):
        why = "two tokens have the same rank"
        if missing:
            why = f"there is no token for the byte {missing[0]}"
        raise InputError(f"{where}: not the ranks of an encoding: {why}")
    return ranks
