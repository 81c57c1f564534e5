"""The filter of FineWeb: Penedo et al., "The FineWeb Datasets: Decanting the Web for the Finest
Text Data at Scale" (2024, arXiv:2406.17557), section 3.6, and its code in datatrove.

Lines without words do not count, and white space counts as no character but in the length of a
line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from shardctl.transforms.settings import PROBABILITY, Names, Number, Whole, setting
from shardctl.transforms.text.rules import Rule, RuleFilter, whole_numbers
from shardctl.transforms.text.words import Words, duplicate_shares, shares


@dataclass(frozen=True)
class FilterFineweb(RuleFilter):
    """Rejects texts by the rules of FineWeb (arXiv:2406.17557, section 3.6): to come after Gopher
    and C4."""

    name: ClassVar[str] = "filter_fineweb"
    min_punctuated: float = setting(
        PROBABILITY, 0.12, "The share of lines that end with punctuation must be over this."
    )
    punctuation: tuple[str, ...] = setting(
        Names(),
        (".", "?", "!", '"', "'", "”", "’", "。", "？", "！"),
        "What a line may end with; the first five are those of the code.",
    )
    max_short_lines: float = setting(
        PROBABILITY, 0.67, "The share of short lines must be under this."
    )
    short_line_length: int = setting(Whole(0, 10_000), 30, "Most characters of a short line.")
    max_duplicate_line_chars: float = setting(
        PROBABILITY,
        0.1,
        "The share of the characters in duplicate lines must be under this. The code has 0.01, not "
        "the paper's 0.1.",
    )
    max_newlines: float = setting(
        Number(0.0), 0.3, "Most newlines per word (in the code, not in the paper)."
    )

    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rules with their values."""
        import pyarrow.compute as pc

        words = Words(texts)
        lines = words.lines()
        ended = shares(lines.per_text(words.ending(lines, self.punctuation)), lines.count)
        yield Rule(
            "fineweb-punctuated",
            "share of lines that end with punctuation",
            ended,
            self.min_punctuated,
            exclusive=True,
        )
        length = words.between(words.starts[lines.first], words.ends[lines.end - 1])
        short = shares(lines.per_text(length <= self.short_line_length), lines.count)
        yield Rule(
            "fineweb-short-lines",
            "share of short lines",
            short,
            most=self.max_short_lines,
            exclusive=True,
        )
        _, characters = duplicate_shares(words, lines)
        name = "share of characters in duplicate lines"
        yield Rule(
            "fineweb-duplicate-line-chars",
            name,
            characters,
            most=self.max_duplicate_line_chars,
            exclusive=True,
        )
        newlines = whole_numbers(pc.count_substring(texts, "\n"))
        yield Rule(
            "fineweb-newlines",
            "newlines per word",
            shares(newlines, words.count),
            most=self.max_newlines,
        )
