"""Markdown for a terminal: what the pages of docs/ use of it, in lines of a width. Code stays as it is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

import click

_FENCE = re.compile(r"\s*```")
_HEADING = re.compile(r"(#+) (.*)")
_ITEM = re.compile(r"(\s*(?:[-*]|\d+\.) )(.*)")
_ALONE = re.compile(r"\s*$|\s*```|#+ |\||<!--|\s*(?:[-*]|\d+\.) ")
"""What no line of a paragraph begins with."""

_CODE = re.compile(r"(`+[^`]+`+)")
_IMAGE = re.compile(r"(?:<br>)?!\[[^]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
_PAGE = re.compile(r"(?:[\w.-]+/)*([\w-]+)\.md(?:#.*)?")
_SITE = re.compile(r"<(https?:[^>]*)>")
_CELL = re.compile(r"(?<!\\)\|")

_UNDERLINES = {1: "=", 2: "-"}
_GAP = "  "
_LONGEST_WORD = 30
"""A column of a table is at least as wide as its longest word, up to this many characters."""


def terminal_text(markdown: str, width: int) -> str:
    """Return a page for a terminal. Only headings are styled, and click takes that out where it prints to no terminal."""
    return "\n\n".join(block for block in _blocks(markdown.splitlines(), width) if block) + "\n"


def headings(markdown: str) -> list[str]:
    """Return the headings of a page. Lines of code that look like headings are left out."""
    prose = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return [_plain(text) for _, text in re.findall(r"^(#+) (.*)$", prose, re.MULTILINE)]


def _blocks(lines: list[str], width: int) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line, begin = lines[at], at
        at += 1
        if _FENCE.match(line):
            while at < len(lines) and not _FENCE.match(lines[at]):
                at += 1
            yield textwrap.indent("\n".join(lines[begin + 1 : at]), "    ")
            at += 1
        elif line.startswith("    ") and line.strip():
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            yield "\n".join(lines[begin:at]).rstrip()
        elif heading := _HEADING.match(line):
            yield _heading(_plain(heading[2]), len(heading[1]))
        elif line.startswith("|"):
            while at < len(lines) and lines[at].startswith("|"):
                at += 1
            yield _table([_cells(row) for row in lines[begin:at]], width)
        elif _ITEM.match(line):
            while at < len(lines) and (_ITEM.match(lines[at]) or not _ALONE.match(lines[at])):
                at += 1
            yield "\n".join(_items(lines[begin:at], width))
        elif line.strip() and not line.startswith("<!--"):
            while at < len(lines) and not _ALONE.match(lines[at]):
                at += 1
            yield "\n".join(_wrapped(_plain(" ".join(lines[begin:at])), width))


def _heading(text: str, level: int) -> str:
    underline = _UNDERLINES.get(level, "")
    return click.style(text, bold=True) + (f"\n{underline * len(text)}" if underline else "")


def _items(lines: Sequence[str], width: int) -> Iterator[str]:
    """Yield the lines of a list. The lines of an item are indented as its first line is."""
    items: list[tuple[str, str]] = []
    for line in lines:
        if found := _ITEM.match(line):
            items.append((found[1], found[2]))
        else:
            mark, text = items[-1]
            items[-1] = (mark, f"{text} {line.strip()}")
    for mark, text in items:
        first, *others = _wrapped(_plain(text), width - len(mark))
        yield "\n".join([mark + first, *(" " * len(mark) + line for line in others)])


def _table(rows: list[list[str]], width: int) -> str:
    """Return a table: in columns where each is as wide as its longest word, else each row as a paragraph of its own."""
    header, *body = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    columns = list(zip(*_even([header, *body]), strict=True))
    widths = [max(map(len, column)) for column in columns]
    least = [min(_LONGEST_WORD, max(len(word) for cell in column for word in cell.split() or [""])) for column in columns]
    room = width - len(_GAP) * (len(columns) - 1)
    if sum(least) > room:
        return "\n\n".join(_record(header, row, width) for row in body)
    is_wide = sum(widths) > room
    while sum(widths) > room:
        widest = max((at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__)
        widths[widest] -= 1
    lines = [_row(row, widths) for row in body]
    head = [_row(header, widths), _row(["-" * size for size in widths], widths)] if any(header) else []
    return "\n".join([*head, ("\n\n" if is_wide else "\n").join(lines)])


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    wrapped = [_wrapped(cell, size, broken=True) for cell, size in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, wrapped))):
        parts = [cell[number] if number < len(cell) else "" for cell in wrapped]
        lines.append(_GAP.join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def _record(header: Sequence[str], row: Sequence[str], width: int) -> str:
    """Return a row of a table that is too wide: its first cell, and the others below it, with their headers."""
    first, *others = zip(header, row, strict=True)
    lines = _wrapped(first[1], width)
    for name, cell in others:
        if cell:
            lines += [_GAP + line for line in _wrapped(f"{name}: {cell}" if name else cell, width - len(_GAP))]
    return "\n".join(lines)


def _cells(line: str) -> list[str]:
    return [_plain(cell.strip().replace(r"\|", "|")) for cell in _CELL.split(line.strip().strip("|"))]


def _even(rows: Sequence[list[str]]) -> list[list[str]]:
    """Return rows of as many cells as the first."""
    size = len(rows[0])
    return [(row + [""] * size)[:size] for row in rows]


def _wrapped(text: str, width: int, broken: bool = False) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=broken, break_on_hyphens=False) or [""]


def _plain(text: str) -> str:
    """Return text without the marks of pictures, links and bold words. Code keeps its marks."""
    text = _LINK.sub(_link, _IMAGE.sub("", text))
    parts = _CODE.split(" ".join(text.split()))
    parts[::2] = [_SITE.sub(r"\1", part).replace("<br>", " ").replace("**", "") for part in parts[::2]]
    return "".join(parts).strip()


def _link(found: re.Match[str]) -> str:
    """Return the text of a link, and where it leads if the text does not say it: to a page, or to a site."""
    text, target = found[1], found[2]
    page = _PAGE.fullmatch(target)
    if page is not None:
        return page[1] if text.endswith(".md") else text if page[1] in text.lower() else f"{text} (help {page[1]})"
    return f"{text} ({target})" if target.startswith("http") and target != text else text
