"""Rules about texts: a value of each text, and the limits that it must keep to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardctl.errors import InputError
from shardctl.format.arrays import (
    Bools,
    Floats,
    Numbers,
    TextBytes,
    edges_of,
    owners_of,
    sums_of,
    texts_from,
)
from shardctl.format.token_columns import TOKENS, is_list_of_whole_numbers, list_lengths
from shardctl.system.options import Flag, Number, Whole, setting
from shardctl.transforms.base import (
    BatchTransform,
    Counts,
    Limited,
    Records,
    RejectRow,
    type_of,
)
from shardctl.transforms.settings import NAMES, PROBABILITY, NumberList
from shardctl.transforms.text.base import (
    Rule,
    TextFilter,
    TextStep,
    broken_by,
    require_text,
    texts_of,
)
from shardctl.transforms.text.words import (
    Words,
    are_first,
    dense,
    duplicate_shares,
    is_ascii,
    parts_of_words,
    shares,
)


def whole_numbers(values: pa.Array) -> Numbers:
    """Return counts that Arrow made, (n,) without nulls."""
    return values.to_numpy().astype(np.int64)  # type: ignore[no-any-return]  # pyarrow has no types


COUNT = Whole(0, 2**40)


class FilterLength(Limited, BatchTransform, step="filter_length"):
    """Keeps texts whose number of characters, words or tokens is within limits. A missing text has
    none."""

    min_chars: int | None = setting(COUNT, None, "Fewest characters (code points).")
    max_chars: int | None = setting(COUNT, None, "Most characters.")
    min_words: int | None = setting(COUNT, None, "Fewest words: characters between white space.")
    max_words: int | None = setting(COUNT, None, "Most words.")
    min_tokens: int | None = setting(COUNT, None, "Fewest tokens, after the step tokenize.")
    max_tokens: int | None = setting(COUNT, None, "Most tokens.")

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the same columns."""
        if self._limits(TOKENS) and not is_list_of_whole_numbers(type_of(given, TOKENS)):
            raise InputError(
                f"{self.name} min_tokens, max_tokens: there are no tokens; put it after tokenize"
            )
        if self._limits("chars") or self._limits("words"):
            require_text(given, self.name)
        return given

    def _limits(self, what: str) -> bool:
        return getattr(self, f"min_{what}") is not None or getattr(self, f"max_{what}") is not None

    def made(self, records: Records, reject: RejectRow, counts: Counts) -> Iterable[Records]:
        """Return the records that keep to the limits."""
        return (records.without(broken_by(self._rules(records)), reject),)

    def _rules(self, records: Records) -> Iterator[Rule]:
        if self._limits("chars"):
            yield Rule(
                "chars",
                "characters",
                whole_numbers(pc.utf8_length(texts_of(records))),
                self.min_chars,
                self.max_chars,
            )
        if self._limits("words"):
            yield Rule(
                "words", "words", Words(texts_of(records)).count, self.min_words, self.max_words
            )
        if self._limits(TOKENS):
            lengths = list_lengths(records.batch.column(TOKENS))
            yield Rule("tokens", "tokens", lengths, self.min_tokens, self.max_tokens)


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


class FilterC4(TextStep, step="filter_c4"):
    """Removes lines, and rejects texts, by the rules of C4 (arXiv:1910.10683, section 2.2).

    The lines that are left are joined by newlines. Rules about whole texts look at all of their
    lines, as in the paper; its code looks at those that are left. A sentence ends at a mark that
    the end of the line or white space follows.
    """

    endings: tuple[str, ...] = setting(
        NAMES,
        tuple('.?!"”'),
        "A line must end with one of these, and no ellipsis (...).",
    )
    min_line_words: int = setting(
        COUNT, 5, "Fewest words of a line; another version of the paper, and datatrove: 3."
    )
    min_sentences: int = setting(
        COUNT, 3, "Fewest sentences left of a text; that version, and datatrove: 5."
    )
    max_word_length: int = setting(
        COUNT, 1000, "Lines with a longer word are removed (in the code, not the paper)."
    )
    line_phrases: tuple[str, ...] = setting(
        NAMES,
        ("javascript", *POLICY),
        "Lines with one of these are removed, in any case; in the paper javascript alone.",
    )
    text_phrases: tuple[str, ...] = setting(
        NAMES,
        ("lorem ipsum", "{"),
        "Texts with one of these are rejected, in any case.",
    )
    citations: bool = setting(
        Flag(), True, "Remove [1], [edit] and [citation needed] (in the code, not the paper)."
    )

    def work(self, texts: pa.Array, reject: RejectRow) -> pa.Array:
        """Return what is left of the texts, and reject those that break a rule."""
        lists = pc.split_pattern(texts, "\n")
        lines = pc.utf8_trim_whitespace(lists.flatten())
        of_text = owners_of(whole_numbers(pc.list_value_length(lists)))
        if self.citations:
            lines = pc.utf8_trim_whitespace(pc.replace_substring_regex(lines, CITATIONS, ""))
        kept = self._kept(lines)
        lines, of_text = lines.filter(pa.array(kept)), of_text[kept]
        for fault in broken_by(self._rules(texts, lines, of_text)):
            reject(*fault)
        offsets = edges_of(np.bincount(of_text, minlength=len(texts)))
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), lines), "\n")

    def _kept(self, lines: pa.Array) -> Bools:
        """Return which lines stay, (lines,)."""
        kept = np.zeros(len(lines), bool)
        for ending in self.endings:
            kept |= np.asarray(pc.ends_with(lines, ending))
        kept &= ~np.asarray(pc.ends_with(lines, ELLIPSIS))
        places = np.flatnonzero(kept)
        some = lines.take(pa.array(places))
        words = Words(some)
        good = words.count >= self.min_line_words
        good &= words.per_text(words.characters > self.max_word_length) == 0
        for phrase in self.line_phrases:
            good &= ~np.asarray(pc.match_substring(some, phrase, ignore_case=True))
        kept[places] = good
        return kept

    def _rules(self, texts: pa.Array, lines: pa.Array, of_text: Numbers) -> Iterator[Rule]:
        for phrase in self.text_phrases:
            name = "c4-" + ("curly-bracket" if phrase == "{" else phrase.replace(" ", "-"))
            times = whole_numbers(
                pc.count_substring(texts, phrase, ignore_case=phrase.lower() != phrase.upper())
            )
            yield Rule(name, f"number of {phrase!r}", times, most=0)
        ends = np.maximum(1, whole_numbers(pc.count_substring_regex(lines, SENTENCE_END)))
        sentences = sums_of(ends, of_text, len(texts))
        yield Rule("c4-sentences", "sentences", sentences, self.min_sentences)


class FilterFineweb(TextFilter, step="filter_fineweb"):
    """Rejects texts by the rules of FineWeb (arXiv:2406.17557, section 3.6): to come after Gopher
    and C4."""

    min_punctuated: float = setting(
        PROBABILITY, 0.12, "The share of lines that end with punctuation must be over this."
    )
    punctuation: tuple[str, ...] = setting(
        NAMES,
        tuple(".?!\"'”’。？！"),
        "What a line may end with; the first five are those of the code.",
    )
    max_short_lines: float = setting(
        PROBABILITY, 0.67, "The share of short lines must be under this."
    )
    short_line_length: int = setting(Whole(0, 10_000), 30, "Most characters of a short line.")
    max_duplicate_line_chars: float = setting(
        PROBABILITY,
        0.1,
        "The share of characters in duplicate lines must be under this: 0.01 in the code, 0.1 "
        "in the paper.",
    )
    max_newlines: float = setting(
        Number(0.0), 0.3, "Most newlines per word (in the code, not the paper)."
    )

    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rules with their values."""
        words = Words(texts)
        lines = words.lines()
        yield Rule(
            "fineweb-punctuated",
            "share of lines that end with punctuation",
            lines.share(words.having(lines, self.punctuation, at_end=True)),
            self.min_punctuated,
            exclusive=True,
        )
        length = words.between(words.starts[lines.first], words.ends[lines.end - 1])
        yield Rule(
            "fineweb-short-lines",
            "share of short lines",
            lines.share(length <= self.short_line_length),
            most=self.max_short_lines,
            exclusive=True,
        )
        _, characters = duplicate_shares(words, lines)
        yield Rule(
            "fineweb-duplicate-line-chars",
            "share of characters in duplicate lines",
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


RATIO = Number(0.0)
ELLIPSES = ("...", "…")


class FilterGopher(TextFilter, step="filter_gopher"):
    """Rejects texts by the quality rules of Gopher (arXiv:2112.11446, appendix A.1.1)."""

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
        NAMES, ("•", "-"), "What a bullet is, as in datatrove; the paper does not say."
    )
    max_ellipsis_lines: float = setting(
        PROBABILITY, 0.3, "Largest share of lines that end with an ellipsis."
    )
    min_alphabetic: float = setting(PROBABILITY, 0.8, "Least share of words with a letter.")
    min_stop_words: int = setting(
        COUNT, 2, "How many different stop_words a text must have; 0 for any language."
    )
    stop_words: tuple[str, ...] = setting(
        NAMES,
        tuple("the,be,to,of,and,that,have,with".split(",")),
        "These words, in lower or upper case.",
    )

    made_by = ("unidata",)

    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rules with their values."""
        words = Words(texts)
        count = words.count
        yield Rule("gopher-words", "words", count, self.min_words, self.max_words)
        yield Rule(
            "gopher-word-length",
            "mean word length",
            shares(words.text_characters, count),
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
        yield Rule(
            "gopher-bullet-lines",
            "share of lines that start with a bullet",
            lines.share(words.having(lines, self.bullets, at_end=False)),
            most=self.max_bullet_lines,
        )
        yield Rule(
            "gopher-ellipsis-lines",
            "share of lines that end with an ellipsis",
            lines.share(words.having(lines, ELLIPSES, at_end=True)),
            most=self.max_ellipsis_lines,
        )
        alphabetic = words.share(words.with_letters())
        yield Rule(
            "gopher-alphabetic", "share of words with a letter", alphabetic, self.min_alphabetic
        )
        if self.min_stop_words:
            found = _different_words(texts, words, self.stop_words, self.min_stop_words)
            yield Rule("gopher-stop-words", "different stop words", found, self.min_stop_words)


def _different_words(texts: pa.Array, words: Words, wanted: Sequence[str], enough: int) -> Numbers:
    """Return how many of some words are in each text, (n,), in any case; not more are looked for
    where it is enough."""
    before, after = r"(?:^|[^\p{L}\p{M}\p{N}_])", r"(?:$|[^\p{L}\p{M}\p{N}_])"
    if all(word.isascii() and word.isalnum() for word in wanted):
        # a pattern with classes of Unicode takes 10 ms to compile, and \b knows ASCII alone
        texts, before, after = _in_ascii(words.bytes), r"\b", r"\b"
    found = np.zeros(len(texts), np.int64)
    for word in dict.fromkeys(wanted):
        rows = np.flatnonzero(found < enough)
        if not len(rows):
            break
        some = texts.take(pa.array(rows)) if len(rows) < len(texts) else texts
        has = pc.match_substring_regex(some, f"(?i){before}{_quoted(word)}{after}")
        found[rows] += np.asarray(has)
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


class FilterGopherRepetition(TextFilter, step="filter_gopher_repetition"):
    """Rejects texts that repeat themselves, by the rules of Gopher (arXiv:2112.11446, table A1).

    A line, paragraph or n-gram is a duplicate where it has been in the text before: its first
    occurrence is none. A character in several n-grams counts once. A most common n-gram that occurs
    once is no repetition.
    """

    max_duplicate_lines: float = setting(
        PROBABILITY, 0.3, "Largest share of lines that are duplicates."
    )
    max_duplicate_paragraphs: float = setting(
        PROBABILITY, 0.3, "Largest share of paragraphs that are duplicates."
    )
    max_duplicate_line_chars: float = setting(
        PROBABILITY, 0.2, "Largest share of characters in duplicate lines."
    )
    max_duplicate_paragraph_chars: float = setting(
        PROBABILITY, 0.2, "Largest share of characters in duplicate paragraphs."
    )
    top_ngrams: tuple[float, ...] = setting(
        NumberList(3, 0.0, 1.0),
        (0.2, 0.18, 0.16),
        "Largest share of characters in the most common 2-, 3- and 4-gram.",
    )
    duplicate_ngrams: tuple[float, ...] = setting(
        NumberList(6, 0.0, 1.0),
        (0.15, 0.14, 0.13, 0.12, 0.11, 0.1),
        "And in duplicate 5-, 6-, …, 10-grams.",
    )

    def rules(self, texts: pa.Array) -> Iterator[Rule]:
        """Yield the rules with their values."""
        words = Words(texts)
        # texts whose n-grams matter: no rule before has rejected them
        open_ = np.ones(len(texts), bool)
        for what, spans in (("line", words.lines()), ("paragraph", words.paragraphs())):
            count, characters = duplicate_shares(words, spans)
            for said, kind, values in (
                ("share of", f"{what}s", count),
                ("share of characters in", f"{what}_chars", characters),
            ):
                rule = Rule(
                    f"gopher-duplicate-{kind.replace('_', '-')}",
                    f"{said} duplicate {what}s",
                    values,
                    most=getattr(self, f"max_duplicate_{kind}"),
                )
                open_ &= ~rule.broken()
                yield rule
        limits = dict(zip(N_GRAMS, (*self.top_ngrams, *self.duplicate_ngrams), strict=True))
        for n, covered in _covered_by_n_grams(words, open_):
            kind, what = ("top", "the most common") if n < 5 else ("duplicate", "duplicate")
            said = f"share of characters in {what} {n}-gram{'s' * (n > 4)}"
            rule = Rule(f"gopher-{kind}-{n}-gram", said, covered, most=limits[n])
            open_ &= ~rule.broken()
            yield rule


def _covered_by_n_grams(words: Words, open_: Bools) -> Iterator[tuple[int, Floats]]:
    """Yield n and the share of characters, (texts,), that are in the most common n-gram (n below 5)
    or in duplicate ones.

    An n-gram that is there twice begins with an (n - 1)-gram that is, so that few words are left to
    be looked at. `open_` says which texts matter; the caller changes it.
    """
    word_ids = words.ids()
    grams = word_ids.copy()
    places = np.flatnonzero(np.bincount(word_ids, minlength=1)[word_ids] > 1)
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


def _most_common(words: Words, places: Numbers, ids: Numbers, counts: Numbers, n: int) -> Numbers:
    """Return the places of the most common n-gram of each text; of several the longest, and of
    those the first."""
    before = words.packed.offsets
    sizes = before[places + n] - before[places]
    text = words.text[places]
    best = np.lexsort((places, -sizes, -counts[ids], text))  # in each text the best one is first
    first = best[np.diff(text[best], prepend=-1) > 0]
    wanted = np.zeros(len(counts), bool)
    wanted[ids[first]] = True
    return places[wanted[ids]]


def _covered(words: Words, places: Numbers, n: int) -> Floats:
    """Return the share of the characters of each text, (texts,), that are in the n-grams at some
    places."""
    if not len(places):
        return np.zeros(words.texts)
    count = len(words) + 1
    depth = np.cumsum(
        np.bincount(places, minlength=count) - np.bincount(places + n, minlength=count)
    )
    return shares(words.per_text(words.characters * (depth[:-1] > 0)), words.text_characters)
