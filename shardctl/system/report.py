"""What is told of something: sections of lines and tables, which a terminal, a page and a notebook
show; and small pieces of HTML, escaped."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from operator import attrgetter
from typing import Any

from shardctl.system.text import printable


class Html(str):
    """Text that is HTML already; all other text is escaped."""

    @property
    def text(self) -> str:
        """The same."""
        return self


def text(value: Any) -> str:
    """Return a value as HTML: escaped, with control characters shown, numbers with separators."""
    if isinstance(value, Html):
        return value
    if isinstance(value, bool) or value is None:
        return "" if value is None else "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(printable(value))


@dataclass(frozen=True)
class Look:
    """The attributes of what is around a table, of the table, and of its cells: with text, and with
    numbers."""

    around: str
    table: str
    cell: str
    number: str


ON_A_PAGE = Look(' class="scroll"', "", "", " class=number")
"""The style sheet of a page does the rest."""

_LINE = (
    "padding:.15em 1em .15em 0;vertical-align:top;border:0;border-bottom:1px solid "
    "rgba(128,128,128,.35);background:none"
)
IN_A_NOTEBOOK = Look(
    ' style="overflow-x:auto"',
    ' style="border-collapse:collapse;margin:.4em 0;font-size:.9em"',
    f' style="text-align:left;max-width:40em;overflow-wrap:break-word;{_LINE}"',
    f' style="text-align:right;white-space:nowrap;{_LINE}"',
)
"""A notebook has no style sheet of ours. Text has the colour that the notebook gives it, light or
dark."""


def table(
    rows: Iterable[Sequence[Any]], header: Sequence[Any] = (), look: Look = ON_A_PAGE
) -> Html:
    """Return a table; a column of numbers is set to the right."""
    body = [list(row) for row in rows]
    numeric = [
        all(isinstance(v, int | float) and not isinstance(v, bool) for v in column)
        for column in zip(*body, strict=True)
    ]
    head = "".join(
        _cell("th", name, right, look) for name, right in zip(header, numeric, strict=False)
    )
    lines = (
        "".join(_cell("td", v, right, look) for v, right in zip(row, numeric, strict=True))
        for row in body
    )
    rows_html = "".join(f"<tr>{line}</tr>" for line in lines)
    head_html = f"<thead><tr>{head}</tr></thead>" if header else ""
    return Html(
        f"<div{look.around}><table{look.table}>{head_html}<tbody>{rows_html}</tbody></table></div>"
    )


def _cell(tag: str, value: Any, right: bool, look: Look) -> str:
    return f"<{tag}{look.number if right else look.cell}>{text(value)}</{tag}>"


def image(data: bytes, what: str, kind: str = "jpeg", style: str = "") -> Html:
    """Return an encoded image as a part of the page itself; `what` is said where it cannot be
    seen, and `style` is a class of the style sheet."""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    of_class = f'class="{style}" ' if style else ""
    return Html(f'<img {of_class}src="{source}" alt="{text(what)}">')


MOST_ROWS = 20
"""Rows of a table in a notebook: the objects have all."""

GOOD, WARNING, BAD = "#1a7f37", "#8a5a00", "#b3261e"
"""Colours behind white text, which can be read on light and dark."""


def in_notebook(line: Any, *parts: Html) -> str:
    """Return what a notebook shows of an object: a line, and what is below it."""
    return f"<div><div><b>{text(line)}</b></div>{''.join(parts)}</div>"


def marked(word: str, colour: str) -> Html:
    """Return a word on a colour."""
    style = (
        f"background:{colour};color:#ffffff;border-radius:.3em;padding:.05em "
        ".45em;white-space:nowrap"
    )
    return Html(f'<span style="{style}">{text(word)}</span>')


def rows_in_notebook(title: str, rows: Sequence[Sequence[Any]], header: Sequence[str] = ()) -> Html:
    """Return the first rows of a table below its title, and how many more there are; nothing
    without rows."""
    if not rows:
        return Html("")
    more = len(rows) - len(rows[:MOST_ROWS])
    below = lines_in_notebook([f"and {more:,} more"]) if more else ""
    above = f'<div style="margin-top:.6em">{text(title)}</div>' if title else ""
    return Html(f"{above}{table(rows[:MOST_ROWS], header, IN_A_NOTEBOOK)}{below}")


def lines_in_notebook(lines: Iterable[Any], word: Html | None = None) -> Html:
    """Return lines, each behind the same word."""
    before = f"{word} " if word is not None else ""
    return Html(
        "".join(
            f'<div style="margin:.15em 0;overflow-wrap:anywhere">{before}{text(line)}</div>'
            for line in lines
        )
    )


@dataclass(frozen=True)
class Table:
    """Rows of values under a header; a terminal shows `most` of them.

    `bars` are the numbers of the columns that have bars where these can be drawn. With a `line`, a
    terminal shows that, and the last column as bars behind it.
    """

    rows: Sequence[Sequence[Any]]
    header: Sequence[str] = ()
    most: int | None = None
    bars: Sequence[int] = ()
    line: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures, each with what it is."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Verdict:
    """A word that is good or bad to hear, and what more there is to say of it."""

    word: str
    is_good: bool
    more: str


@dataclass(frozen=True)
class Section:
    """Lines and tables under a title."""

    title: str
    parts: Sequence[str | Figures | Verdict | Table] = ()


def lines_of(
    sections: Iterable[Section], word_of: Callable[[Verdict], str] = attrgetter("word")
) -> Iterator[str]:
    """Yield the lines that a terminal shows, with the words of verdicts as `word_of` shows them."""
    for section in sections:
        yield section.title
        for part in section.parts:
            if isinstance(part, str):
                yield f"  {part}"
            elif isinstance(part, Verdict):
                yield f"  {word_of(part)}: {part.more}"
            elif isinstance(part, Figures):
                yield from (f"  {figure:<28} {what}" for figure, what in part.rows)
            elif part.line:
                yield f"  {part.line}  {spark([row[-1] for row in part.rows])}"
            else:
                yield from table_lines(part.rows[: part.most], part.header)
                more = len(part.rows) - len(part.rows[: part.most])
                if more:
                    yield f"  and {more:,} more (--json has all)"


def in_a_notebook(sections: Iterable[Section]) -> str:
    """Return the HTML that a notebook shows."""
    made = []
    for section in sections:
        made.append(f"<div><b>{lines_in_notebook([section.title])}</b></div>")
        for part in section.parts:
            if isinstance(part, str):
                shown = lines_in_notebook([part])
            elif isinstance(part, Verdict):
                colour = GOOD if part.is_good else BAD
                shown = lines_in_notebook([part.more], marked(part.word, colour))
            elif isinstance(part, Figures):
                shown = rows_in_notebook("", part.rows)
            elif part.line:
                shown = lines_in_notebook([part.line])
            else:
                shown = rows_in_notebook("", part.rows, part.header)
            made.append(shown)
    return f"<div>{''.join(made)}</div>"


def table_lines(rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table; a column of numbers is set to the right."""
    listed = list(rows)
    lines = [list(header)] if header else []
    lines += [[_plain_cell(value) for value in row] for row in listed]
    numeric = [
        bool(listed) and all(isinstance(value, int | float) for value in column)
        for column in zip(*listed, strict=True)
    ] or [False] * len(header)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        yield ("  " + "  ".join(cells)).rstrip()


def _plain_cell(value: Any) -> str:
    return (
        f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(value)
    )


_BARS = " ▁▂▃▄▅▆▇█"


def spark(counts: Sequence[int]) -> str:
    """Return a histogram as a line of bars, the highest for the largest number; only an empty bin
    has none."""
    most = max(1, max(counts, default=0))
    return "".join(_BARS[-(-8 * count // most)] for count in counts)
