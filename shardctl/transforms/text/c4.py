"""The filter of C4: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
Text-to-Text Transformer" (JMLR 21, 2020, arXiv:1910.10683), section 2.2, and its code,
tensorflow_datasets/text/c4_utils.py.

The code has the line rules that the paper does not name: words of over 1,000 characters, phrases
about cookies and terms of use, and marks of citations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from shardctl.format.arrays import Places
from shardctl.transforms.settings import Flag, Names, Whole, setting
from shardctl.transforms.text.base import Report, TextStep
from shardctl.transforms.text.characters import Mask
from shardctl.transforms.text.rules import Rule, broken_by, whole_numbers
from shardctl.transforms.text.words import Words

COUNT = Whole(0, 2**40)
ELLIPSIS = "..."
CITATIONS = r"\[\d*\]|\[edit\]|\[citation needed\]"
SENTENCE_END = r"[.?!。！？]+[\"”'’)\]]*(?:\s|$)"
POLICY = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


@dataclass(frozen=True)
class FilterC4(TextStep):
    """Removes lines, and rejects texts, by the rules of C4 (arXiv:1910.10683, section 2.2).

    The lines that are left are joined by newlines. Rules about whole texts look at all of their
    lines, as in the paper; its code looks at those that are left. A sentence ends at a mark that
    the end of the line or white space follows.
    """

    name: ClassVar[str] = "filter_c4"
    endings: tuple[str, ...] = setting(
        Names(),
        (".", "?", "!", '"', "”"),
        "A line must end with one of these, and not with an ellipsis (...).",
    )
    min_line_words: int = setting(
        COUNT, 5, "Fewest words of a line. Another version of the paper, and datatrove, have 3."
    )
    min_sentences: int = setting(
        COUNT, 3, "Fewest sentences of what is left of a text. That version, and datatrove: 5."
    )
    max_word_length: int = setting(
        COUNT, 1000, "A line with a longer word is removed (in the code, not in the paper)."
    )
    line_phrases: tuple[str, ...] = setting(
        Names(),
        ("javascript", *POLICY),
        "A line with one of these is removed, in any case. The paper has javascript alone.",
    )
    text_phrases: tuple[str, ...] = setting(
        Names(),
        ("lorem ipsum", "{"),
        "A text with one of these is rejected, in any case: add words that you do not want.",
    )
    citations: bool = setting(
        Flag(), True, "Remove [1], [edit] and [citation needed] (in the code, not in the paper)."
    )

    def work(self, texts: pa.Array, report: Report) -> pa.Array:
        """Return what is left of the texts, and reject those that break a rule."""
        import pyarrow.compute as pc

        lists = pc.split_pattern(texts, "\n")
        lines = pc.utf8_trim_whitespace(lists.flatten())
        of_text = np.repeat(np.arange(len(texts)), whole_numbers(pc.list_value_length(lists)))
        if self.citations:
            lines = pc.utf8_trim_whitespace(pc.replace_substring_regex(lines, CITATIONS, ""))
        kept = self._kept(lines)
        lines, of_text = lines.filter(pa.array(kept)), of_text[kept]
        for fault in broken_by(self._rules(texts, lines, of_text)):
            report(fault)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(of_text, minlength=len(texts)))])
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), lines), "\n")

    def _kept(self, lines: pa.Array) -> Mask:
        """Return which lines stay, (lines,)."""
        import pyarrow.compute as pc

        kept = np.zeros(len(lines), bool)
        for ending in self.endings:
            kept |= _flags(pc.ends_with(lines, ending))
        kept &= ~_flags(pc.ends_with(lines, ELLIPSIS))
        places = np.flatnonzero(kept)
        some = lines.take(pa.array(places))
        words = Words(some)
        good = words.count >= self.min_line_words
        good &= words.per_text(words.characters > self.max_word_length) == 0
        for phrase in self.line_phrases:
            good &= ~_flags(pc.match_substring(some, phrase, ignore_case=True))
        kept[places] = good
        return kept

    def _rules(self, texts: pa.Array, lines: pa.Array, of_text: Places) -> Iterator[Rule]:
        import pyarrow.compute as pc

        for phrase in self.text_phrases:
            name = "c4-" + ("curly-bracket" if phrase == "{" else phrase.replace(" ", "-"))
            times = whole_numbers(
                pc.count_substring(texts, phrase, ignore_case=phrase.lower() != phrase.upper())
            )
            yield Rule(name, f"number of {phrase!r}", times, most=0)
        ends = np.maximum(1, whole_numbers(pc.count_substring_regex(lines, SENTENCE_END)))
        sentences = np.bincount(of_text, ends, len(texts)).astype(np.int64)
        yield Rule("c4-sentences", "sentences", sentences, self.min_sentences)


def _flags(values: pa.Array) -> Mask:
    return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]  # pyarrow has no types
