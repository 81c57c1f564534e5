"""What a command or a function tells of something: sections of lines and tables, which a terminal, a
page and a notebook show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardctl.system.html import lines_in_notebook, rows_in_notebook
from shardctl.system.text import printable


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
class Section:
    """Lines and tables under a title."""

    title: str
    parts: Sequence[str | Table] = ()


def lines_of(sections: Iterable[Section]) -> Iterator[str]:
    """Yield the lines that a terminal shows."""
    for section in sections:
        yield section.title
        for part in section.parts:
            if isinstance(part, str):
                yield f"  {part}"
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
        made.append(f"<div><b>{lines_in_notebook([section.title]).text}</b></div>")
        for part in section.parts:
            if isinstance(part, str) or part.line:
                line = part if isinstance(part, str) else part.line
                made.append(lines_in_notebook([line]).text)
            else:
                made.append(rows_in_notebook("", part.rows, part.header).text)
    return f"<div>{''.join(made)}</div>"


def table_lines(rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table; a column of numbers is set to the right."""
    listed = list(rows)
    lines = [list(header)] if header else []
    lines += [[_cell(value) for value in row] for row in listed]
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


def _cell(value: Any) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else printable(str(value))
    )


_BARS = " ▁▂▃▄▅▆▇█"


def spark(counts: Sequence[int]) -> str:
    """Return a histogram as a line of bars, the highest for the largest number; only an empty bin
    has none."""
    most = max(1, max(counts, default=0))
    return "".join(_BARS[-(-8 * count // most)] for count in counts)
