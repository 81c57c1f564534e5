"""Faster engines for a `tokenizer.json`: gigatoken and tiktoken, where they are installed and give
the same tokens.

Whether they do is tried on the strings at the end of this file when a tokenizer is opened. This takes a tenth
of a second, and is remembered for this machine (huggingface.py).
"""

# ruff: noqa: RUF001 - characters that look like others are what is tried

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from shardctl.errors import InputError, first_line
from shardctl.system.packages import installed_version
from shardctl.transforms.tokenizers.base import Encoded, Tokenizer, joined
from shardctl.transforms.tokenizers.tiktoken import encode_by, open_core

LOOK = 4 << 20
"""Bytes of text after which it is looked at how much memory gigatoken takes."""

MOST_KEPT = 256 << 20
"""Bytes by which the process may grow before gigatoken is opened anew: it keeps every word that it
has seen, some 7 bytes for a byte of text of which every word is another one. Opening it takes 0.03
s with 16,384 tokens."""


class UnfitError(Exception):
    """An engine is not installed, or cannot do this tokenizer. The message says why; `extra` is
    what to install."""

    def __init__(self, message: str, extra: str = "") -> None:
        super().__init__(message)
        self.extra = extra


class Gigatoken:
    """The engine gigatoken, on the calling thread. Raises UnfitError where it is missing; in
    `encode` where it refuses the tokenizer, which it opens for the first texts.

    Each text is a call of its own: its calls for many texts need awkward, which takes up to a
    second to import, and are faster for texts of under 100 bytes only.
    """

    code: ClassVar[tuple[str, ...]] = ("gigatoken.gigatoken_rs",)

    def __init__(self, data: bytes) -> None:
        try:
            from gigatoken.gigatoken_rs import load_hf_json

            self.version = f"gigatoken {installed_version('gigatoken')}"
        except ImportError as error:
            raise UnfitError(f"it cannot be imported ({error})", extra="gigatoken") from None
        self._load: Callable[[], Any] = lambda: load_hf_json(data)
        self._core: Any = None
        self._seen = self._first = 0

    def _open(self) -> None:
        self._core = None  # its memory is free for the next one
        self._first = resident()
        try:
            self._core = self._load()
        except Exception as error:  # noqa: BLE001 - ValueError, NotImplementedError and others
            raise UnfitError(f"it does not take this tokenizer ({first_line(error)})") from None

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the tokens of texts."""
        if self._core is None:
            self._open()
        self._seen += texts.nbytes
        if self._seen > LOOK:
            self._seen = 0
            if resident() - self._first > MOST_KEPT:
                self._open()
        return joined([self._core.encode(text) for text in texts.to_pylist()])


def resident() -> int:
    """Return the bytes of memory that this process has; where Linux does not say it, those that it
    had at most."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class TiktokenEngine:
    """The engine tiktoken, for byte-level BPE whose merges are in the order of the tokens. Raises
    UnfitError for others."""

    code: ClassVar[tuple[str, ...]] = ("tiktoken._tiktoken", "tiktoken.core")

    def __init__(self, data: bytes) -> None:
        try:
            import tiktoken  # noqa: F401 - is it there?
        except ImportError as error:
            raise UnfitError(f"it cannot be imported ({error})", extra="tiktoken") from None
        parts = _parts_for_tiktoken(json.loads(data))
        try:
            self._core, (self.version,) = open_core("tokenizer.json", *parts, "it")
        except InputError as error:
            raise UnfitError(str(error).removeprefix("it: ")) from None

    def encode(self, texts: pa.Array) -> Encoded:
        """Return the tokens of texts."""
        return encode_by(self._core, texts)


Engine = Gigatoken | TiktokenEngine
"""Encodes texts, with special tokens found and none added. `code` names the modules that decide the
tokens."""

ENGINES: dict[str, Callable[[bytes], Engine]] = {"gigatoken": Gigatoken, "tiktoken": TiktokenEngine}
"""The engines by their names, the fastest first."""


def byte_symbols() -> dict[str, int]:
    """Return the bytes that the characters of byte-level tokens stand for, as GPT-2 has them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }


GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""The pattern of the pre-tokenizer ByteLevel."""


def word_pattern(said: dict[str, Any]) -> str | None:
    """Return the pattern by which a byte-level pre-tokenizer cuts texts into words; None for other
    pre-tokenizers."""
    steps = (
        said.get("pretokenizers", [said]) if said.get("type") in ("Sequence", "ByteLevel") else []
    )
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space", True):
        return None
    if len(steps) == 1 and steps[0].get("use_regex", True):
        return GPT2
    if len(steps) != 2 or steps[1].get("use_regex", True):
        return None
    split = steps[0]
    if split.get("type") != "Split" or split.get("behavior") != "Isolated" or split.get("invert"):
        return None
    pattern = split.get("pattern", {}).get("Regex")
    return pattern if isinstance(pattern, str) else None


def _parts_for_tiktoken(
    said: dict[str, Any],
) -> tuple[str, dict[bytes, int], Mapping[str, int]]:
    """Return what tiktoken needs of a tokenizer.json: the pattern of words, ranks, special tokens.
    Raises UnfitError where it cannot do the same."""
    model = said.get("model") or {}
    pattern = word_pattern(said.get("pre_tokenizer") or {})
    added_tokens = said.get("added_tokens") or []
    added = {token["content"]: token["id"] for token in added_tokens}
    odd = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    has_odd = any(model.get(key) for key in odd) or any(
        token.get(key) for token in added_tokens for key in ("lstrip", "rstrip", "single_word")
    )
    if model.get("type", "BPE") != "BPE" or said.get("normalizer") or pattern is None or has_odd:
        raise UnfitError("it can do byte-level BPE without a normaliser and odd settings only")
    symbols = byte_symbols()
    vocabulary = {token: number for token, number in model["vocab"].items() if token not in added}
    try:
        ranks = {bytes(symbols[c] for c in token): number for token, number in vocabulary.items()}
    except KeyError:
        raise UnfitError("there is a token that is not made of bytes") from None
    merged = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    order = [vocabulary.get("".join(pair), -1) for pair in merged]
    singles = sum(len(token) == 1 for token in ranks)
    # strict: one more on the left
    if singles != 256 or any(a >= b for a, b in zip([-1, *order], order, strict=False)):
        raise UnfitError("its merges are not in the order of its tokens")
    if not model.get("ignore_merges") and set(order) != {
        number for token, number in ranks.items() if len(token) > 1
    }:
        # tiktoken takes a word that is a token as it is
        raise UnfitError("it has tokens that are not merged from others")
    return pattern, ranks, added


SOME = 1_000
"""Most tokens of a vocabulary that are tried."""

_PARTS = (
    *("a", "É", "文", "7", ".", "'", "'s", " ", "  ", "\t", "\n", "\r\n"),
    *("\u3000", "\u00a0", "\u200d", "👩\u200d🚀", "e\u0301"),
)
_WORDS = """
the The THE don't I'LL we'Ve they'd x'S ''s café naïve Straße ﬁne Ǆ İstanbul ᾳ
Ωμέγα Привет שלום مرحبا नमस्ते สวัสดี 日本語 中文，句子。 한국어 ᄒᆞᆫ 𐌰𐌱 𝔘𝔫𝔦 👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ½
² ① Ⅷ ٣٤٥ １２３ 1 12 123 1234 1234567890 3.14159 1,000,000 0x1F a1b2 foo_bar
__init__ C++ f(x)==y/z http://a.b/c?d=e&f#g user@example.com #tag @me $5.00 50%
«quote» “it’s” … — -- --- *** /* // \\n <b> </p> &amp; <|x|> <|endoftext [INST]
##ing ▁a Ġb
""".split()


@lru_cache(maxsize=1)
def strings() -> tuple[str, ...]:
    """Return strings of all kinds of Unicode: some 2,400, of 130 kB together, always the same."""
    made = ["", *_WORDS, *("".join(parts) for parts in product(_PARTS, repeat=2))]
    made += ["".join(parts) for parts in product(_PARTS[::2], repeat=3)]
    made += [" ".join(_WORDS), "\n".join(_WORDS), "".join(_WORDS)]
    low = [chr(code) for code in range(0x370)]
    spaces = [*map(chr, range(0x2000, 0x2070)), *"\u1680\u180e\u3000\ufeff\ufffd\uffff\U0010ffff"]
    others = [chr(code) for code in range(0x370, 0x32000, 31) if not 0xD800 <= code < 0xE000]
    rest = low[0xC0:] + others
    groups = (rest[start : start + 8] for start in range(0, len(rest), 8))
    made += ["".join(f"a{c}{c}1 {c} b." for c in each) for each in (*low[:0xC0], *spaces, *groups)]
    made += [
        space * count + end
        for space in " \n\t"
        for count in (2, 3, 7, 40, 300)
        for end in ("", "x", " x", "\n", "!")
    ]
    long = ("a", "ab", "文", "1", "!?", "👍", "\u0301", "z\u0300")
    return (*made, *(text * (3_000 // len(text)) for text in long))


def with_tokens(special: Sequence[str], tokens: Sequence[str]) -> list[str]:
    """Return the strings, those with special tokens inside of them, and some tokens of a
    vocabulary."""
    made = list(strings())
    for token in islice(special, 32):
        made += [token, token * 2, f"a{token}b", f" {token} ", f"文\n{token}\n\n", f"<{token}>"]
        made += [token[:-1], token[1:], token.upper()]
    made += ["x".join(islice(special, 32)), "".join(islice(special, 32))]
    chosen = tokens[:: max(1, len(tokens) // SOME)]
    return made + [
        between.join(chosen[start : start + 4])
        for start in range(0, len(chosen), 4)
        for between in ("", " ", "\n")
    ]


def not_given_back(tokenizer: Tokenizer) -> str | None:
    """Return a string that a tokenizer does not give back exactly; None if it gives back all that
    are tried.

    Special tokens that it adds do not count.
    """
    texts = strings()[:700]
    encoded = tokenizer.encode(pa.array(texts, pa.string()))
    special = np.array(sorted(tokenizer.special.values()), np.uint32)
    for number, text in enumerate(texts):
        ids = encoded.of(number)
        if tokenizer.decode(ids[~np.isin(ids, special)] if len(special) else ids) != text:
            return text
    return None
