"""Sections of pages: by the names of their headings, and by words.

The site finds pages in the same way (docs/site/search.js). docs/words.json has the words that stand
for others, and how much pages count, for both.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from shardctl.system.packages import documents, pages

_WORD = re.compile(r"[\u4e00-\u9fff]|[^\W_\u4e00-\u9fff]+")
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_ENDINGS = (
    ("ies", "y", 3),
    ("ing", "", 4),
    ("ed", "", 4),
    ("es", "", 3),
    ("s", "", 3),
    ("e", "", 3),
)
"""Of English words: what takes their place, and how many letters must be before it."""

_DOUBLED = {"bb", "gg", "mm", "nn", "pp", "tt"}

LESS = 0.8
"""A word that stands for the one that was asked for counts so much."""

LEAST = 0.05
"""Sections with less than this share of the best score are not named."""


class Section(NamedTuple):
    """A part of a page from a heading to the next one."""

    page: str
    folder: str
    title: str
    """Of the page."""
    heading: str
    level: int
    text: str
    whole: str
    """With the sections below it, and the heading."""

    @property
    def anchor(self) -> str:
        """The name of the heading in links."""
        return re.sub(r"[^\w\- ]", "", self.heading.lower()).strip().replace(" ", "-")

    @property
    def name(self) -> str:
        """What shows it: PAGE#ANCHOR, and PAGE for the beginning of a page."""
        return self.page if self.level == 1 else f"{self.page}#{self.anchor}"


def sections() -> Iterator[Section]:
    """Yield the sections of all pages."""
    for name, path in pages().items():
        page = path.read_text(encoding="utf-8")
        # comments of code are no headings
        plain = _CODE.sub(lambda code: " " * len(code[0]), page)
        found = [
            (each.start(), len(each[1]), re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", each[2]).strip())
            for each in _HEADING.finditer(plain)
        ]
        title = found[0][2]
        folder = path.parent.relative_to(documents()).as_posix()
        for number, ((start, level, heading), (end, *_)) in enumerate(
            pairwise([*found, (len(page), 0, "")])
        ):
            below = next((at for at, deep, _ in found[number + 1 :] if deep <= level), len(page))
            text = page[start:end].partition("\n")[2]
            yield Section(name, folder, title, heading, level, text, page[start:below].rstrip())


def section_called(named: str) -> Section | None:
    """Return the section that is meant by resize, recipes#resize, docs/recipes.md#resize or the
    words of its heading: of that page, of a page in the folder of its name, or of any page. None
    where several have that heading, or none has."""
    stem, _, anchor = named.rpartition("#")
    page = stem.rpartition("/")[2].removesuffix(".md")
    wanted = (anchor or named).strip().lower().rstrip("?").replace(" ", "-")
    found = [each for each in sections() if each.level > 1 and each.anchor == wanted]
    there = [each for each in found if page in (each.page, each.folder)] or found
    return there[0] if len(there) == 1 else None


def search(asked: str) -> list[Section]:
    """Return the best section of each page that has any of the words, the best one first.

    A word counts by how rare it is and how often it is there, and more in a heading and in the
    title. A section without some of the words loses the square of their share.
    """
    table = json.loads((documents() / "words.json").read_text(encoding="utf-8"))
    terms = _terms(asked, table)
    every = _normal_sections()
    usual = sum(len(text) for _, text, *_ in every) / len(every)
    values = [
        [_value(term, parts[0].level, *parts[1:], usual) for term in terms] for parts in every
    ]
    rarity = [
        math.log(1 + len(every) / (1 + sum(each[number] > 0 for each in values)))
        for number in range(len(terms))
    ]
    best: dict[str, tuple[float, Section]] = {}
    for (section, _, heading, _), each in zip(every, values, strict=True):
        score = sum(map(float.__mul__, each, rarity))
        if not score or (section.page.endswith(".zh") and asked.isascii()):
            continue  # Chinese pages say the same of an English word as the English ones
        covered = sum(weight for value, weight in zip(each, rarity, strict=True) if value)
        score *= (covered / sum(rarity)) ** 2 * _share(heading, terms, table["ignored"])
        score *= table["weights"].get(section.page, table["weights"].get(section.folder, 1))
        score *= 2 if section.page.endswith(".zh") else 1
        exact = (
            _normal(section.page) == _normal(asked)
            if section.level == 1
            else section.heading.lower() == asked.strip().lower()
        )
        score *= 2.5 if exact else 1
        if section.page not in best or score > best[section.page][0]:
            best[section.page] = score, section
    least = LEAST * max((score for score, _ in best.values()), default=0)
    found = sorted(best.values(), key=lambda each: -each[0])
    return [section for score, section in found if score >= least]


@cache
def _normal_sections() -> list[tuple[Section, str, str, str]]:
    """Return the sections with the words of their text, of their heading, and of their page's
    title."""
    return [
        (each, _normal(each.text), _normal(each.heading), _normal(f"{each.page} {each.title}"))
        for each in sections()
    ]


def _normal(text: str) -> str:
    """Return the words of a text without their endings, between spaces. A Chinese character is a
    word."""
    return f" {' '.join(map(_stem, _WORD.findall(text.lower())))} "


def _stem(word: str) -> str:
    for ending, instead, least in _ENDINGS:
        before = word.removesuffix(ending)
        if before != word and len(before) >= least and not word.endswith("ss"):
            doubled = ending in ("ing", "ed") and before[-2:] in _DOUBLED
            return before[:-1] if doubled else before + instead
    return word


def _terms(asked: str, table: dict[str, Any]) -> list[list[str]]:
    """Return what to look for: for each term, the forms that count, the one that was asked for
    first."""
    left, terms = _normal(asked), []
    for words, instead in sorted(table["stand_for"].items(), key=lambda each: -len(each[0])):
        if (known := _normal(words)) in left:
            terms.append([known.strip(), *(_normal(each).strip() for each in instead)])
            left = left.replace(known, " | ")
    ignored = _normal(table["ignored"]).split()
    for run in re.findall(r"[\u4e00-\u9fff](?: [\u4e00-\u9fff])*|[^\s|]+", left):
        pairs = [" ".join(pair) for pair in pairwise(run.split())]
        terms += [[each] for each in pairs or [run] if each not in ignored]
    return terms or [[each] for each in left.replace("|", "").split()]


def _value(term: list[str], level: int, text: str, heading: str, title: str, usual: float) -> float:
    """Return how much of a term a section has."""
    found = 0.0
    for number, words in enumerate(term):
        often = _count(words, text)
        value = often / (often + 0.5 + len(text) / usual)
        value += 2.5 * min(_count(words, title if level == 1 else heading), 1)
        value += min(_count(words, title), 1)
        found = max(found, value * (LESS if number else 1))
    return found


def _count(words: str, text: str) -> float:
    """Return how often words are in a text. As the beginning of a longer word they count half."""
    whole = text.count(f" {words} ")
    return whole + (0.5 * (text.count(f" {words}") - whole) if len(words) > 2 else 0)


def _share(heading: str, terms: list[list[str]], ignored: str) -> float:
    """Return 1 to 2: how much of a heading was asked for."""
    words = [each for each in heading.split() if each not in _normal(ignored).split()]
    asked = {word for term in terms for form in term for word in form.split()}
    return 1 + sum(any(each.startswith(word) for word in asked) for each in words) / max(
        len(words), 1
    )
