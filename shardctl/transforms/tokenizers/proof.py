"""Strings on which tokenizers are tried when they are opened: is an engine equal to another, is a
text given back exactly?"""

# ruff: noqa: RUF001 - characters that look like others are what is tried

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice, product

import numpy as np
import pyarrow as pa

from shardctl.transforms.tokenizers.base import Tokenizer

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
    spaces = [
        chr(code)
        for code in (
            *range(0x2000, 0x2070),
            0x1680,
            0x180E,
            0x3000,
            0xFEFF,
            0xFFFD,
            0xFFFF,
            0x10FFFF,
        )
    ]
    others = [chr(code) for code in range(0x370, 0x32000, 31) if not 0xD800 <= code < 0xE000]
    made += [f"a{c}{c}1 {c} b" for c in low[:0xC0] + spaces]
    rest = low[0xC0:] + others
    groups = (rest[start : start + 8] for start in range(0, len(rest), 8))
    made += ["".join(f"a{c}{c}1 {c}." for c in group) for group in groups]
    made += [
        space * count + end
        for space in " \n\t"
        for count in (2, 3, 7, 40, 300)
        for end in ("", "x", " x", "\n", "!")
    ]
    made += [
        "a" * 3_000,
        "ab" * 700,
        "文" * 700,
        "1" * 700,
        "!?" * 300,
        "👍" * 200,
        "\u0301" * 200,
        "z\u0300" * 300,
    ]
    return tuple(made)


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
        ids = encoded.ids[encoded.offsets[number] : encoded.offsets[number + 1]]
        if tokenizer.decode(ids[~np.isin(ids, special)] if len(special) else ids) != text:
            return text
    return None
