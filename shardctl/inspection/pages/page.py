"""The frame of a page: headings, figures, colours for light and for dark. Text and tables are those
of system/report.py."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from shardctl.format.tables import Reject, read_rejects
from shardctl.inspection.content.overview import Overview
from shardctl.system.files import OutputFileType
from shardctl.system.folders import Folder
from shardctl.system.locations import is_url
from shardctl.system.messages import entry_for
from shardctl.system.report import Figures, Html, Section, Table, Verdict, table, text
from shardctl.system.text import counted

STATIC = {
    each.name: each.read_text("utf-8")
    for each in Path(__file__).parent.iterdir()
    if each.suffix in (".css", ".js")
}
"""The style sheets and scripts beside this module. `copy.js` is what the buttons do: without scripts
they are hidden. `pictures.css` is for an element of the class `pictures`, larger with `marked`."""

COLOURS = 7
"""Colours of the series of a chart, in page.css, which can be seen on light and dark."""

_BEGIN = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" '
    'content="shardctl">'
)

PAGE = OutputFileType("page", lambda begin: begin.startswith(_BEGIN.encode()))
"""A page, as a file."""


def section(title: str, *parts: Html) -> Html:
    """Return a part of the page under a heading."""
    return Html(f"<section><h2>{text(title)}</h2>{''.join(parts)}</section>")


def paragraph(what: Any, kind: str = "") -> Html:
    """Return a paragraph; `kind` is a class of the style sheet. Code is between
    backticks."""
    inside = re.sub("`([^`]+)`", r"<code>\1</code>", text(what))
    return Html(f'<p class="{kind}">{inside}</p>')


def tiles(figures: Iterable[tuple[str, str]]) -> Html:
    """Return the figures that matter most, each with what it is."""
    made = (
        f'<div class="tile"><b>{text(figure)}</b><span>{text(what)}</span></div>'
        for figure, what in figures
    )
    return Html(f'<div class="tiles">{"".join(made)}</div>')


def figures(*charts: Html) -> Html:
    """Return charts beside each other, as far as there is room."""
    return Html(f'<div class="figures">{"".join(charts)}</div>')


def number(value: float) -> str:
    """Return a number for people: 1,250, 0.25; - for one that is not finite."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


percent = "{:.1%}".format
"""Returns a share for people."""


def bars(
    title: str,
    names: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str = "",
    written: Callable[[float], str] = number,
) -> Html:
    """Return a table of numbers with a bar behind each, a row for each name; None is no number.

    Several series have colours, and their bars are below each other.
    """
    values = list(zip(*series.values(), strict=True))
    lengths = [[value or 0.0 for value in row] for row in values]
    rows = [
        (name, *("" if value is None else written(value) for value in row))
        for name, row in zip(names, values, strict=True)
    ]
    several = f", {unit}" if unit and len(series) > 1 else ""
    heads = [Html(""), *(_head(name or unit, n, len(series)) for n, name in enumerate(series))]
    return _chart(f"{title}{several}", _with_bars(rows, heads, lengths, False))


def _head(name: str, number: int, of: int) -> Html:
    """Return the head of a column with bars, in their colour where there are several."""
    return Html(f'<i class="c{number % COLOURS}"></i> {text(name)}' if of > 1 else text(name))


def _with_bars(
    rows: Sequence[Sequence[Any]],
    header: Sequence[Any],
    lengths: Sequence[Sequence[float]],
    stacked: bool,
) -> Html:
    """Return a table with a bar behind each row, or several."""
    longest = max((sum(row) if stacked else max(row) for row in lengths), default=0.0) or 1.0

    def bar(row: Sequence[float]) -> Html:
        parts = [
            f'<i class="bar c{place % COLOURS}" style="width:{100 * length / longest:.2f}%"></i>'
            for place, length in enumerate(row)
            if length
        ]
        return Html("".join(parts if stacked else (f"<div>{part}</div>" for part in parts)))

    drawn = [(*row, bar(row_lengths)) for row, row_lengths in zip(rows, lengths, strict=True)]
    return table(drawn, (*header, Html("")))


def told(report: Section, *more: Html) -> Html:
    """Return a section of a report as a part of the page, with `more` charts."""
    others, charts = list[Html](), list[Html]()
    for part in report.parts:
        if isinstance(part, str):
            others.append(paragraph(part, "soft"))
        elif isinstance(part, Verdict):
            others.append(paragraph(f"{part.word}: {part.more}"))
        elif isinstance(part, Figures):
            others.append(table(part.rows))
        elif part.bars:
            charts.append(_chart_of(part))
        else:
            others.append(table(part.rows[:LISTED], part.header))
    charts += more
    return section(report.title.rstrip(":"), *others, *([figures(*charts)] if charts else []))


def _chart_of(part: Table) -> Html:
    rows = part.rows[:LISTED]
    heads: list[Any] = list(part.header or [""] * len(rows[0]))
    for number, column in enumerate(part.bars):
        heads[column] = _head(heads[column], number, len(part.bars))
    lengths = [[row[column] for column in part.bars] for row in rows]
    some = f"the first {LISTED} of {len(part.rows):,}" if len(part.rows) > LISTED else ""
    return _chart(part.line or some, _with_bars(rows, heads, lengths, True))


LISTED = 500
"""Rows of a table that a page has."""


def heat_map(title: str, cells: Sequence[Sequence[int]]) -> Html:
    """Return a map of numbers of boxes over an image: rows from its top, each from its left."""
    most = max(1, max(map(max, cells)))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td style="background:rgb(76 120 216 / {0.06 + 0.94 * count / most:.2f})" '
            f'title="{count:,} boxes"></td>'
            for count in row
        )
        + "</tr>"
        for row in cells
    )
    return _chart(f"{title}, up to {most:,} boxes", Html(f'<table class="map">{rows}</table>'))


def _chart(title: str, drawn: Html) -> Html:
    caption = f"<figcaption>{text(title)}</figcaption>"
    return Html(f'<figure class="chart">{caption}{drawn}</figure>')


def data(name: str, record: Any) -> Html:
    """Return plain data for scripts to find, under an id."""
    plain = json.dumps(record, default=str).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{name}">{plain}</script>')


def command(line: str, name: str = "", begin: str = "") -> Html:
    """Return a line for the shell, with a button that copies it; `name` is its id, and `begin` what
    a script leaves of it."""
    button = '<button type="button" class="copy" hidden>copy the command</button>'
    known = f' id="{name}" data-begin="{text(begin)}"' if name else ""
    return Html(f'<div class="command"><code{known}>{text(line)}</code>{button}</div>')


def command_here(line: str) -> Html:
    """Return a line for the shell whose paths are those that were typed, and the folder where they
    mean the same."""
    return Html(f"{paragraph(f'In {Path.cwd()}:', 'soft')}{command(line)}")


def absolute(place: str) -> str:
    """Return a path with the folders that it is in, which a page is read without. URLs stay."""
    return place if is_url(place) else os.path.normpath(Path(place).absolute())


def page(title: str, *parts: Html, script: str = "") -> str:
    """Return the whole page. It may load nothing from anywhere, and run nothing but its own
    scripts: its policy forbids it."""
    body = "".join(parts)
    copying = f"\n{STATIC['copy.js']}" if 'class="copy"' in body else ""
    scripts = list(filter(None, (copying, script)))
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()) for each in scripts)
    run = " ".join(f"'sha256-{digest.decode()}'" for digest in digests) or "'none'"
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {run}; img-src data:; "
        "base-uri 'none'"
    )
    return (
        f"{_BEGIN}<title>{text(title)}</title>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" '
        'href="data:,">'
        f"<style>\n{STATIC['page.css']}</style></head><body><h1>{text(title)}</h1>{body}"
        f"{''.join(f'<script>{each}</script>' for each in scripts)}</body></html>\n"
    )


MOST = 200
"""Rejected inputs that are listed one by one."""


def rejects(folder: Folder, found: Overview) -> Iterator[Html]:
    """Yield the part of the page, if there are rejects. Raises DatasetError."""
    if not found.manifest.rejected:
        return
    examples = zip(found.reject_reasons.items(), found.reject_examples, strict=True)
    reasons = [_reason(reason, count, example) for (reason, count), example in examples]
    rows = [
        (each.key, f"{each.stage}: {each.error}", each.message)
        for each in islice(read_rejects(folder), MOST)
    ]
    some = found.manifest.rejected > len(rows)
    more = f"the first {len(rows)} of them" if some else "all of them"
    where = ", of all splits" if found.split else ""
    listed = table(rows, ("key", "reason", "message"))
    yield section(
        "Rejected inputs",
        *reasons,
        Html(f"<details><summary>{text(more)}</summary>{listed}</details>"),
        paragraph(f"rejects.jsonl lists them all{where}.", "soft"),
    )


def _reason(reason: str, count: int, example: Reject) -> Html:
    entry = entry_for(example.message)
    what = f"<p>What to do: {text(entry.do)}</p>" if entry else ""
    said = f"<p>for instance {text(example.key)}: {text(example.message)}</p>"
    return Html(
        f'<div class="tile reason"><b>{counted(count, "input")}, '
        f"{text(reason)}</b>{said}{what}</div>"
    )
