"""The filters of Gopher: Rae et al., "Scaling Language Models: Methods, Analysis & Insights from
Training Gopher" (2021, arXiv:2112.11446), appendix A.1.1, "Quality Filtering" and "Repetition
Removal" (table A1).

The paper leaves open what words and lines are. Here words are what is between white space; lines
without words do not count, and white space counts as no character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardctl.format.arrays import Places, TextBytes, texts_from
from shardctl.transforms.settings import PROBABILITY, Names, Number, Numbers, Whole, setting
from shardctl.transforms.text.characters import Mask, is_ascii, parts_of_words
from shardctl.transforms.text.packages import unidata
from shardctl.transforms.text.rules import Rule, RuleFilter, whole_numbers
from shardctl.transforms.text.words import Words, are_first, dense, duplicate_shares, shares

COUNT = Whole(0, 2**40)
RATIO = Number(0.0)
ELLIPSES = ("...", "…")


@dataclass(frozen=True)
class FilterGopher(RuleFilter):
    """Rejects texts by the quality rules of Gopher (arXiv:2112.11446, appendix A.1.1)."""

    name: ClassVar[str] = "filter_gopher"
    min_words: int = setting(COUNT, 50, "Fewest words.")
    max_words: int = setting(COUNT, 100_000, "Most words.")
    min_word_length: float = setting(RATIO, 3.0, "Least mean length of words, in characters.")
    max_word_length: float = setting(RATIO, 10.0, "Largest mean length of words.")
    max_symbols: float = setting(
        RATIO, 0.1, "Most hash signs per word, and most ellipses (... or …) per word."
    )
    max_bullet_lines: float = setting(
        PROBABILITY, 0.9, "Largest share of lines that start with a bullet."
    )
    bullets: tuple[str, ...] = setting(
        Names(), ("•", "-"), "What a bullet is. The paper does not say; datatrove has these."
    )
    max_ellipsis_lines: float = setting(
        PROBABILITY, 0.3, "Largest share of lines that end with an ellipsis."
    )
    min_alphabetic: float = setting(PROBABILITY, 0.8, "Least share of words with a letter.")
    min_stop_words: int = setting(
        COUNT, 2, "How many of stop_words a text must have, each counted once; 0 for any language."
    )
    stop_words: tuple[str, ...] = setting(
        Names(),
        ("the", "be", "to", "of", "and", "that", "have", "with"),
        "These words, in lower or upper case.",
    )

    def versions(self) -> tuple[str, ...]:
        """Return that of Python's tables of Unicode, which say what letters are."""
        return (unidata(),)

    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rules with their values."""
        import pyarrow.compute as pc

        words = Words(texts)
        count = words.count
        yield Rule("gopher-words", "words", count, self.min_words, self.max_words)
        length = shares(words.text_characters, count)
        yield Rule(
            "gopher-word-length",
            "mean word length",
            length,
            self.min_word_length,
            self.max_word_length,
        )
        ellipses = sum(whole_numbers(pc.count_substring(texts, each)) for each in ELLIPSES)
        hashes = whole_numbers(pc.count_substring(texts, "#"))
        yield Rule(
            "gopher-hashes", "hash signs per word", shares(hashes, count), most=self.max_symbols
        )
        yield Rule(
            "gopher-ellipses",
            "ellipses per word",
            shares(np.asarray(ellipses), count),
            most=self.max_symbols,
        )
        lines = words.lines()
        bullets = shares(lines.per_text(words.starting(lines, self.bullets)), lines.count)
        yield Rule(
            "gopher-bullet-lines",
            "share of lines that start with a bullet",
            bullets,
            most=self.max_bullet_lines,
        )
        ends = shares(lines.per_text(words.ending(lines, ELLIPSES)), lines.count)
        yield Rule(
            "gopher-ellipsis-lines",
            "share of lines that end with an ellipsis",
            ends,
            most=self.max_ellipsis_lines,
        )
        alphabetic = shares(words.per_text(words.with_letters()), count)
        yield Rule(
            "gopher-alphabetic", "share of words with a letter", alphabetic, self.min_alphabetic
        )
        if self.min_stop_words:
            found = _different_words(texts, words, self.stop_words, self.min_stop_words)
            yield Rule("gopher-stop-words", "different stop words", found, self.min_stop_words)


def _different_words(
    texts: pa.Array, words: Words, wanted: Sequence[str], enough: int
) -> npt.NDArray[np.int64]:
    """Return how many of some words are in each text, (n,), in any case; not more are looked for
    where it is enough."""
    import pyarrow.compute as pc

    # A pattern with classes of Unicode takes 10 ms to compile, and \b knows ASCII alone.
    plain = (
        _in_ascii(words.bytes)
        if all(word.isascii() and word.isalnum() for word in wanted)
        else None
    )
    found = np.zeros(len(texts), np.int64)
    for word in dict.fromkeys(wanted):
        rows = np.flatnonzero(found < enough)
        if not len(rows):
            break
        some = texts if plain is None else plain
        if len(rows) < len(texts):
            some = some.take(pa.array(rows))
        pattern = rf"(?:^|[^\p{{L}}\p{{M}}\p{{N}}_]){_quoted(word)}(?:$|[^\p{{L}}\p{{M}}\p{{N}}_])"
        has = pc.match_substring_regex(
            some, rf"(?i){pattern}" if plain is None else rf"(?i)\b{_quoted(word)}\b"
        )
        found[rows] += has.to_numpy(zero_copy_only=False)
    return found


def _in_ascii(texts: TextBytes) -> pa.Array:
    """Return texts with bytes of ASCII in the place of others: a letter where they are part of a
    word, else a space."""
    data, offsets = texts
    if not is_ascii(data):
        plain = np.where(parts_of_words(data), np.uint8(ord("a")), np.uint8(ord(" ")))
        data = np.where(data < 0x80, data, plain)
    return texts_from(data, offsets)


def _quoted(word: str) -> str:
    """Return a pattern of RE2 that finds this word. Unlike `re.escape`, it leaves characters that
    are not ASCII."""
    return "".join(
        f"\\{each}" if each.isascii() and not each.isalnum() and each != "_" else each
        for each in word
    )


N_GRAMS = range(2, 11)


@dataclass(frozen=True)
class FilterGopherRepetition(RuleFilter):
    """Rejects texts that repeat themselves, by the rules of Gopher (arXiv:2112.11446, table A1).

    A line, paragraph or n-gram is a duplicate where it has been in the text before: its first
    occurrence is none. A character in several n-grams counts once. A most common n-gram that occurs
    once is no repetition.
    """

    name: ClassVar[str] = "filter_gopher_repetition"
    max_duplicate_lines: float = setting(
        PROBABILITY, 0.3, "Largest share of lines that are duplicates."
    )
    max_duplicate_paragraphs: float = setting(
        PROBABILITY, 0.3, "Largest share of paragraphs that are duplicates."
    )
    max_duplicate_line_chars: float = setting(
        PROBABILITY, 0.2, "Largest share of the characters that are in duplicate lines."
    )
    max_duplicate_paragraph_chars: float = setting(
        PROBABILITY, 0.2, "Largest share of the characters that are in duplicate paragraphs."
    )
    top_ngrams: tuple[float, ...] = setting(
        Numbers(3, 0.0, 1.0),
        (0.2, 0.18, 0.16),
        "Largest share of the characters in the most common 2-, 3- and 4-gram.",
    )
    duplicate_ngrams: tuple[float, ...] = setting(
        Numbers(6, 0.0, 1.0),
        (0.15, 0.14, 0.13, 0.12, 0.11, 0.1),
        "And in duplicate 5-, 6-, …, 10-grams.",
    )

    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rules with their values."""
        words = Words(texts)
        # texts whose n-grams matter: no rule before has rejected them
        open_ = np.ones(len(texts), bool)
        kinds = (
            ("line", words.lines(), self.max_duplicate_lines, self.max_duplicate_line_chars),
            (
                "paragraph",
                words.paragraphs(),
                self.max_duplicate_paragraphs,
                self.max_duplicate_paragraph_chars,
            ),
        )
        for what, spans, most, most_chars in kinds:
            count, characters = duplicate_shares(words, spans)
            rules = (
                Rule(f"gopher-duplicate-{what}s", f"share of duplicate {what}s", count, most=most),
                Rule(
                    f"gopher-duplicate-{what}-chars",
                    f"share of characters in duplicate {what}s",
                    characters,
                    most=most_chars,
                ),
            )
            for rule in rules:
                open_ &= ~rule.broken()
                yield rule
        limits = dict(zip(N_GRAMS, (*self.top_ngrams, *self.duplicate_ngrams), strict=True))
        for n, covered in _covered_by_n_grams(words, open_):
            what = "the most common" if n < 5 else "duplicate"
            name = f"gopher-{'top' if n < 5 else 'duplicate'}-{n}-gram"
            rule = Rule(
                name,
                f"share of characters in {what} {n}-gram{'s' * (n > 4)}",
                covered,
                most=limits[n],
            )
            open_ &= ~rule.broken()
            yield rule


def _covered_by_n_grams(words: Words, open_: Mask) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Yield n and the share of characters, (texts,), that are in the most common n-gram (n below 5)
    or in duplicate ones.

    An n-gram that is there twice begins with an (n - 1)-gram that is, so that few words are left to
    be looked at. `open_` says which texts matter; the caller changes it.
    """
    word_ids = words.ids()
    grams = word_ids.copy()
    places = np.flatnonzero(
        (np.bincount(word_ids, minlength=1)[word_ids] > 1) if len(word_ids) else np.zeros(0, bool)
    )
    last_word = words.of_text[1:] - 1
    for n in N_GRAMS:
        texts = words.text[places]
        inside = (places + n - 1 <= last_word[texts]) & open_[texts]
        places = places[inside]
        # The key is exact: both numbers are below the number of words.
        keys = grams[places] * np.int64(len(words) + 1) + word_ids[places + n - 1]
        ids = dense(keys)
        counts = np.bincount(ids, minlength=1)
        twice = counts[ids] > 1
        places, ids = places[twice], ids[twice]
        grams[places] = ids
        chosen = (
            _most_common(words, places, ids, counts, n) if n < 5 else places[~are_first(dense(ids))]
        )
        yield n, _covered(words, chosen, n)


def _most_common(words: Words, places: Places, ids: Places, counts: Places, n: int) -> Places:
    """Return the places of the most common n-gram of each text; of several the longest, and of
    those the first."""
    if not len(places):
        return places
    before = words.packed.offsets
    sizes = before[places + n] - before[places]
    text = words.text[places]
    best = np.lexsort((places, -sizes, -counts[ids], text))  # in each text the best one is first
    first = best[np.diff(text[best], prepend=-1) > 0]
    wanted = np.zeros(len(counts), bool)
    wanted[ids[first]] = True
    return places[wanted[ids]]


def _covered(words: Words, places: Places, n: int) -> npt.NDArray[np.float64]:
    """Return the share of the characters of each text, (texts,), that are in the n-grams at some
    places."""
    if not len(places):
        return np.zeros(words.texts)
    count = len(words) + 1
    depth = np.cumsum(
        np.bincount(places, minlength=count) - np.bincount(places + n, minlength=count)
    )
    return shares(words.per_text(words.characters * (depth[:-1] > 0)), words.text_characters)
