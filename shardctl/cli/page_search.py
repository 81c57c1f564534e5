"""Sections of pages: by the names of their headings, and by words.

docs/words.json has the words that stand for others, and how much pages count. The search of the
site reads it, too (docs/site/search.js).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from shardctl.errors import UsageError
from shardctl.format.names import Json
from shardctl.system.packages import documents, pages

_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

_CHINESE = re.compile(r"([\u4e00-\u9fff])")
"""A character, which counts as a word."""

_IN_HEADING, _IN_TITLE = 4, 3
"""How often a word of a heading, and one of the page's title, counts."""


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
    words of its heading. None where several pages have that heading, or none has.

    The page that is named comes first, then those in the folder of its name, then the others.
    """
    stem, _, anchor = named.rpartition("#")
    page = stem.rpartition("/")[2].removesuffix(".md")
    wanted = (anchor or named).strip().lower().rstrip("?").replace(" ", "-")
    found = [each for each in sections() if each.level > 1 and each.anchor == wanted]
    there = [each for each in found if page in (each.page, each.folder)] or found
    return there[0] if len(there) == 1 else None


def search(asked: str) -> list[Section]:
    """Return the best section of each page about some words, the best one first: those with all of
    the words, then those with any. Raises UsageError where Python has no SQLite that can."""
    table = json.loads((documents() / "words.json").read_text(encoding="utf-8"))
    every, terms = list(sections()), _terms(asked, table)
    index, found = _index(every), dict[str, Section]()
    for wanted in (" AND ".join(terms), " OR ".join(terms)):
        ranks = index.execute(
            "SELECT bm25(section, ?, ?, 1), rowid FROM section WHERE section MATCH ?",
            (_IN_TITLE, _IN_HEADING, wanted),
        )
        scores = []
        for rank, number in ranks:  # the best rank is the lowest: they are below 0
            page, folder, weights = every[number].page, every[number].folder, table["weights"]
            # Chinese pages say the same of an English word as the English ones
            if folder != "zh" or not asked.isascii():
                weight = weights.get(page, weights.get(folder, 1))
                scores.append((rank * weight * weights.get(every[number].anchor, 1), number))
        for _, number in sorted(scores):
            found.setdefault(every[number].page, every[number])
    return list(found.values())


def _index(every: Sequence[Section]) -> Any:
    """Return a connection to SQLite that has the table `section`, of whose rows the ids are the
    places of the sections."""
    try:
        import sqlite3

        index = sqlite3.connect(":memory:")
        index.execute(
            "CREATE VIRTUAL TABLE section USING fts5(title, heading, text, tokenize=porter)"
        )
    except Exception as error:  # it has no base that is known without it
        raise UsageError(
            f"words of pages cannot be found: {error}; `shardctl help` lists the pages"
        ) from error
    texts = ((f"{each.page} {each.title}", each.heading, each.text) for each in every)
    rows = [(number, *map(_spaced, each)) for number, each in enumerate(texts)]
    index.executemany("INSERT INTO section(rowid, title, heading, text) VALUES (?, ?, ?, ?)", rows)
    return index


def _spaced(text: str) -> str:
    return _CHINESE.sub(r" \1 ", text)


def _terms(asked: str, table: Json) -> list[str]:
    """Return what to look for, as SQLite reads it: for each term, any of the words that stand for
    it."""
    left = " ".join(["", *re.findall(r"\w+", asked.lower()), ""])
    terms = []
    for words in sorted(table["stand_for"], key=len, reverse=True):
        # no spaces are between Chinese words
        if (f" {words} " if words.isascii() else words) in left:
            terms.append([words, *table["stand_for"][words]])
            left = left.replace(words, " ")
    ignored = table["ignored"].split()
    terms += [[each] for each in left.split() if each not in ignored]
    quoted = ([f'"{_spaced(form)}"' for form in forms] for forms in terms or [left.split() or [""]])
    return [f"({' OR '.join(forms)})" for forms in quoted]
