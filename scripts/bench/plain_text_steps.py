"""The steps that clean and judge texts in plain Python, one text at a time: what tests and
measurements compare with."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from typing import Any

import regex
import stopwordsiso

GOPHER_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
FINEWEB_ENDS = (".", "?", "!", '"', "'", "”", "’", "。", "？", "！")
POLICY = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
EMAIL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+-]*@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}")


def normalize(text: str, form: str = "NFC") -> str:
    return unicodedata.normalize(form, text)


def whitespace(text: str, blank_lines: int = 1, one_line: bool = False) -> str:
    if one_line:
        return " ".join(text.split())
    lines = [" ".join(line.split()) for line in re.sub("\r\n?", "\n", text).split("\n")]
    return re.sub(rf"\n{{{blank_lines + 2},}}", "\n" * (blank_lines + 1), "\n".join(lines)).strip(
        "\n"
    )


_CONTROLS = {point: None for point in (*range(32), *range(0x7F, 0xA0)) if point not in (9, 10)}


def control_characters(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)


def redact(text: str) -> str:
    return EMAIL.sub("[EMAIL]", text)


_WORD = regex.compile(r"[\p{L}\p{N}\p{M}_]+(?:['’][\p{L}\p{N}\p{M}_]+)*")
_WORD_AND_SPACE = regex.compile(rf"({_WORD.pattern})((?:(?![\n\r])[\s\x1c-\x1f])*)")


def stop_words(text: str, language: str = "en") -> str:
    words = _stop_words(language)
    return _WORD_AND_SPACE.sub(
        lambda found: "" if found[1].lower().replace("’", "'") in words else found[0], text
    )


def share_of_stop_words(text: str, language: str = "en") -> float:
    words, known = _WORD.findall(text), _stop_words(language)
    return (
        sum(word.lower().replace("’", "'") in known for word in words) / len(words)
        if words
        else 0.0
    )


_KNOWN: dict[str, frozenset[str]] = {}


def _stop_words(language: str) -> frozenset[str]:
    if language not in _KNOWN:
        _KNOWN[language] = frozenset(
            word.lower().replace("’", "'") for word in stopwordsiso.stopwords(language)
        )
    return _KNOWN[language]


def lines_of(text: str) -> list[list[str]]:
    """Return the words of each line that has some."""
    return [words for line in text.split("\n") if (words := line.split())]


def paragraphs_of(text: str) -> list[list[str]]:
    found: list[list[str]] = []
    blank = True
    for line in text.split("\n"):
        words = line.split()
        if words and blank:
            found.append([])
        if words:
            found[-1] += words
        blank = not words
    return found


def size(words: list[str]) -> int:
    return sum(map(len, words))


def gopher(text: str, **limits: Any) -> str | None:
    """Return the first rule of Gopher's that a text breaks: Rae et al. 2021, appendix A.1.1,
    "Quality Filtering"."""
    limit = {
        "min_words": 50,
        "max_words": 100_000,
        "min_word_length": 3,
        "max_word_length": 10,
        **limits,
    }
    words = text.split()
    count = len(words)
    if not limit["min_words"] <= count <= limit["max_words"]:
        return "gopher-words"
    if (
        not limit["min_word_length"]
        <= (size(words) / count if count else 0)
        <= limit["max_word_length"]
    ):
        return "gopher-word-length"
    if count and text.count("#") / count > 0.1:
        return "gopher-hashes"
    if count and (text.count("...") + text.count("…")) / count > 0.1:
        return "gopher-ellipses"
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if lines and sum(line.startswith(("•", "-")) for line in lines) / len(lines) > 0.9:
        return "gopher-bullet-lines"
    if lines and sum(line.endswith(("...", "…")) for line in lines) / len(lines) > 0.3:
        return "gopher-ellipsis-lines"
    if (sum(any(map(str.isalpha, word)) for word in words) / count if count else 0) < 0.8:
        return "gopher-alphabetic"
    if (
        sum(
            re.search(rf"(?<!\w){word}(?!\w)", text, re.IGNORECASE) is not None
            for word in GOPHER_WORDS
        )
        < 2
    ):
        return "gopher-stop-words"
    return None


def duplicates(parts: list[list[str]]) -> tuple[int, int]:
    """Return how many parts have been there before, and their characters."""
    seen: set[str] = set()
    count = characters = 0
    for words in parts:
        whole = "".join(words)
        if whole in seen:
            count, characters = count + 1, characters + len(whole)
        seen.add(whole)
    return count, characters


TOP = {2: 0.2, 3: 0.18, 4: 0.16}
DUPLICATE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}


def gopher_repetition(text: str) -> str | None:
    """Return the first rule of Gopher's table A1 that a text breaks."""
    words = text.split()
    total = size(words)
    if not total:
        return None
    for what, parts in (("line", lines_of(text)), ("paragraph", paragraphs_of(text))):
        count, characters = duplicates(parts)
        if count / len(parts) > 0.3:
            return f"gopher-duplicate-{what}s"
        if characters / total > 0.2:
            return f"gopher-duplicate-{what}-chars"
    for n, most in {**TOP, **DUPLICATE}.items():
        if covered(words, n) / total > most:
            return f"gopher-{'top' if n in TOP else 'duplicate'}-{n}-gram"
    return None


def covered(words: list[str], n: int) -> int:
    """Return how many characters are in the most common n-gram, or in n-grams that have been there
    before."""
    grams = [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]
    if n in TOP:
        counts = Counter(grams)
        most = max(counts.values(), default=0)
        if most < 2:
            return 0
        sizes = {
            gram: len("".join(gram).encode()) for gram, count in counts.items() if count == most
        }
        best = max(sizes, key=lambda gram: sizes[gram])
        places = [place for place, gram in enumerate(grams) if gram == best]
    else:
        seen: set[tuple[str, ...]] = set()
        places = []
        for place, gram in enumerate(grams):
            if gram in seen:
                places.append(place)
            seen.add(gram)
    inside = set(itertools.chain.from_iterable(range(place, place + n) for place in places))
    return sum(len(words[place]) for place in inside)


_CITATION = re.compile(r"\[[0-9]*\]|\[edit\]|\[citation needed\]")
_SENTENCE_END = re.compile(r"[.?!。！？]+[\"”'’)\]]*(?:[ \t\n\f\r]|$)")


def c4(text: str) -> tuple[str | None, str]:
    """Return the rule of C4 that a text breaks, and what is left of the text."""
    kept: list[str] = []
    sentences = 0
    for each in text.split("\n"):
        line = _CITATION.sub("", each.strip()).strip()
        if not line.endswith((".", "?", "!", '"', "”")) or line.endswith("..."):
            continue
        words = line.split()
        if len(words) < 5 or any(len(word) > 1000 for word in words):
            continue
        lower = line.lower()
        if "javascript" in lower or any(phrase in lower for phrase in POLICY):
            continue
        sentences += max(1, len(_SENTENCE_END.findall(line)))
        kept.append(line)
    rule = "c4-sentences" if sentences < 3 else None
    if "{" in text:
        rule = "c4-curly-bracket"
    if "lorem ipsum" in text.lower():
        rule = "c4-lorem-ipsum"
    return rule, "\n".join(kept)


def fineweb(text: str) -> str | None:
    """Return the first rule of FineWeb's that a text breaks."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    words = text.split()
    if (sum(line.endswith(FINEWEB_ENDS) for line in lines) / len(lines) if lines else 0) <= 0.12:
        return "fineweb-punctuated"
    if sum(len(line) <= 30 for line in lines) / len(lines) >= 0.67:
        return "fineweb-short-lines"
    if duplicates(lines_of(text))[1] / size(words) >= 0.1:
        return "fineweb-duplicate-line-chars"
    if text.count("\n") / len(words) > 0.3:
        return "fineweb-newlines"
    return None


def segment(text: str) -> str:
    """Return a Chinese text with a space between its words where a Chinese character is beside
    it."""
    import rjieba

    parts = rjieba.cut(text)
    found = parts[:1]
    for before, after in itertools.pairwise(parts):
        blank = before[-1].isspace() or after[0].isspace()
        if not blank and (_is_han(before[-1]) or _is_han(after[0])):
            found.append(" ")
        found.append(after)
    return "".join(found)


def _is_han(character: str) -> bool:
    return "CJK UNIFIED" in unicodedata.name(character, "") or character in "々〇"


def html(text: str) -> str:
    """Return a text without markup by the same parser, each text by itself."""
    from selectolax.lexbor import LexborHTMLParser

    if "<" not in text and "&" not in text:
        return text
    tree = LexborHTMLParser(text)
    tree.strip_tags(["script", "style", "noscript", "template", "iframe", "object", "svg", "math"])
    root = tree.root
    return root.text() if root is not None else ""
