"""Steps for stop words: the words of a language that are in every text. The lists are those of the
package stopwordsiso."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.format.arrays import Bools, Numbers, bytes_of, edges_of, texts_from
from shardctl.system.options import Flag, Text, Word, setting
from shardctl.system.packages import needed
from shardctl.transforms.base import Limited
from shardctl.transforms.settings import NAMES, PROBABILITY, SettingError
from shardctl.transforms.text.base import (
    Rule,
    TextFilter,
    TextStep,
    TextTransform,
    each_changed,
    where,
)
from shardctl.transforms.text.words import (
    parts_of_words,
    shares,
    spaces,
    stretches,
    texts_of_kept,
)

LANGUAGE = setting(Text(), help="The language, by its code of ISO 639-1: en, de, zh, …")
ALSO = setting(NAMES, (), "More words that count as stop words.")
INSIDE = (b"'", "’".encode())
"""What may be inside of a word, between two letters: don't."""


class _Listed(TextStep):
    """A step with the list of a language."""

    language: str

    made_by = ("stopwordsiso", "unidata")

    def prepare(self) -> None:
        """Find the words. Raises SettingError for an unknown language, InstallError."""
        stop_words(self.language, self.name)


class StopWords(_Listed, TextTransform, step="stop_words"):
    """Removes the stop words of a language, and the spaces after each. Chinese and Japanese need
    words first: see segment."""

    language: str = LANGUAGE
    also: tuple[str, ...] = ALSO
    keep: tuple[str, ...] = setting(NAMES, (), "Words of the list that stay, such as not.")

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts without the words."""
        wanted = (stop_words(self.language, self.name) | _plain(self.also)) - _plain(self.keep)
        starts, ends, stops = _find(texts, wanted)
        if not stops.any():
            return texts
        data, offsets = bytes_of(texts)
        blank = spaces(data)
        blank[(data == 0x0A) | (data == 0x0D)] = False
        # Each word goes with the white space after it, up to the end of its line.
        solid = np.append(np.flatnonzero(~blank), len(data))
        starts, ends = starts[stops], solid[np.searchsorted(solid, ends[stops])]
        text = np.searchsorted(offsets, starts, side="right") - 1
        ends = np.minimum(ends, offsets[text + 1])
        depth = np.zeros(len(data) + 1, np.int8)
        depth[starts] += 1
        depth[ends] -= 1
        keep = np.cumsum(depth[:-1], dtype=np.int8) == 0
        return texts_of_kept(data, keep, offsets)


class FilterStopWords(Limited, _Listed, TextFilter, step="filter_stop_words"):
    """Rejects texts by the share of their words that are stop words of a language: little of it, or
    lists of keywords."""

    language: str = LANGUAGE
    min_share: float | None = setting(PROBABILITY, None, "Least share of the words.")
    max_share: float | None = setting(PROBABILITY, None, "Largest share of the words.")
    also: tuple[str, ...] = ALSO

    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rule with the shares. A text without words has the share 0."""
        wanted = stop_words(self.language, self.name) | _plain(self.also)
        starts, _, stops = _find(texts, wanted)
        of_text = np.searchsorted(starts, bytes_of(texts).offsets)
        share = shares(np.diff(edges_of(stops)[of_text]), np.diff(of_text))
        yield Rule(
            "stop-words",
            f"share of stop words ({self.language})",
            share,
            self.min_share,
            self.max_share,
        )


def _find(texts: pa.Array, wanted: frozenset[str]) -> tuple[Numbers, Numbers, Bools]:
    """Return where the words of texts begin, where they end, and which of them are stop words:
    (words,) each. A word is letters, digits and marks that follow each other, with apostrophes
    between two of them."""

    data, offsets = bytes_of(texts)
    inner = parts_of_words(data)
    for mark in INSIDE:
        size = len(mark)
        places = np.flatnonzero(data[1 : max(1, len(data) - size)] == mark[0]) + 1
        for place in range(1, size):
            places = places[data[places + place] == mark[place]]
        places = places[inner[places - 1] & inner[places + size]]
        before, after = (
            np.searchsorted(offsets, each, side="right") for each in (places - 1, places + size)
        )
        places = places[before == after]  # both in one text
        for place in range(size):
            inner[places + place] = True
    first, end = stretches(inner, offsets)
    named = texts_from(data[inner], edges_of(end - first)).dictionary_encode()
    names = named.dictionary.to_pylist()
    is_stop = np.fromiter((_same(name) in wanted for name in names), bool, len(names))
    return first, end, is_stop[named.indices.to_numpy()]


def _same(word: str) -> str:
    return word.lower().replace("’", "'")


def _plain(words: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_same, words))


@cache
def stop_words(language: str, who: str) -> frozenset[str]:
    """Return the stop words of a language. Raises SettingError if there is no list of it,
    InstallError."""
    stopwordsiso = needed("stopwordsiso", "text", f"the step {who}")
    known = sorted(stopwordsiso.langs())
    if language not in known:
        raise SettingError(
            f"there are no stop words of {language!r}; give one of the {len(known)} codes such "
            "as en, de, fr or zh",
            "language",
        )
    return _plain(stopwordsiso.stopwords(language))


LANGUAGES = ("zh",)
HAN = r"\p{Han}"
NOT_BLANK = r"[^\s\x0b\x1c-\x1f\x{85}\p{Z}]"
PRIVATE = range(0xF0000, 0xFFFFE)
"""Code points for private use: one that is not in the texts marks the ends of words while they are
looked at."""


class Segment(TextTransform, step="segment"):
    """Puts a space between the words of Chinese texts, as jieba finds them.

    Only where a Chinese character is on at least one side, and white space on none: other languages
    stay what they are, and no character is lost. With a separator that is not in a text, taking it
    out gives the text back.
    """

    language: str = setting(Word(*LANGUAGES), "zh", "The language.")
    new_words: bool = setting(
        Flag(), True, "Find words outside of the dictionary too (a hidden Markov model)."
    )
    separator: str = setting(Text(), " ", "What is put between words.")

    def __post_init__(self) -> None:
        if not self.separator:
            raise SettingError("separator must not be empty", "separator")

    def prepare(self) -> None:
        """Find the package. Raises InstallError."""
        _rjieba()

    made_by = ("rjieba",)

    def changed(self, texts: pa.Array) -> pa.Array:
        """Return the texts with spaces between words."""
        return where(texts, pc.match_substring_regex(texts, HAN), self._divided)

    def _divided(self, given: pa.Array) -> pa.Array:
        cut, marks = _rjieba().cut, map(chr, PRIVATE)
        mark = next(mark for mark in marks if not pc.match_substring(given, mark).true_count)
        divided = each_changed(given, lambda text: mark.join(cut(text, self.new_words)))
        # A mark stays at first where no white space is beside it, then where a Chinese character
        # is. Twice each: a word of one character has two marks.
        separator = self.separator.replace("\\", r"\\")
        patterns = rf"({HAN}){mark}({NOT_BLANK})", rf"({NOT_BLANK}){mark}({HAN})"
        for pattern in (patterns[0], *patterns, patterns[1]):
            divided = pc.replace_substring_regex(divided, pattern, rf"\1{separator}\2")
        return pc.replace_substring(divided, mark, "")


def _rjieba() -> Any:
    return needed("rjieba", "chinese", "the step segment")
