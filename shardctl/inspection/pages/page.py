"""The frame of a page: headings, figures, colours for light and for dark. Text and tables are those
of system/report.py."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from shardctl.format.tables import Reject, read_rejects
from shardctl.inspection.content.overview import Overview
from shardctl.system.files import OutputFileType
from shardctl.system.folders import FolderHere
from shardctl.system.locations import is_url
from shardctl.system.messages import entry_for
from shardctl.system.report import Html, Section, table, text
from shardctl.system.text import counted

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5c6370; --paper: #ffffff; --panel: #f5f6f8; --rule: #d9dce1;
  --good: #1a7f37; --bad: #c4302b; --link: #2f5fd0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3af; --paper: #15171a; --panel: #1e2125;
  --rule: #343941; --good: #4ac26b; --bad: #ff7b72; --link: #8ab4ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.verdict { font-size: 1.15rem; font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.tile { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; } .tile b { display: block; font-size: 1.25rem; }
.tile span { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--rule); vertical-align: top;
  overflow-wrap: break-word; max-width: 60rem; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--panel); border-radius: .5rem; padding: .6rem; min-width: 0; }
figcaption { font-weight: 600; padding: .1rem .3rem; } .figures { align-items: start; margin: 1rem 0; }
.scroll + .figures { margin-top: 1.6rem; }
.command { display: flex; gap: .6rem; align-items: start; flex-wrap: wrap; }
.command code { background: var(--panel); border-radius: .4rem; padding: .35rem .6rem; overflow-wrap: anywhere; min-width: 0; }
button { font: inherit; font-size: .85rem; padding: .3rem .7rem; color: var(--link); background: none; cursor: pointer;
  border: 1px solid var(--rule); border-radius: .4rem; }
.tall .scroll { max-height: 19rem; overflow: auto; } summary { color: var(--soft); cursor: pointer; }
details .scroll { max-height: 24rem; overflow: auto; }
.reason { margin: .6rem 0; overflow-wrap: anywhere; } .reason b { font-size: 1rem; }
code { font: .85rem/1.5 ui-monospace, monospace; }
.chart .scroll { max-height: 24rem; overflow: auto; } .chart table { width: 100%; }
.chart th, .chart td { text-align: right; white-space: nowrap; padding: .1rem .5rem .1rem 0; border: 0; }
.chart th:first-child, .chart td:first-child { text-align: left; overflow-wrap: anywhere; white-space: normal; min-width: 7rem; }
.chart td:last-child { text-align: left; width: 50%; min-width: 6rem; padding: 0; }
.chart i { display: inline-block; width: .8em; height: .8em; } .chart .bar { height: .9em; vertical-align: middle; }
.chart .map td { width: auto; height: 1.2rem; padding: 0; }
""" + "".join(
    f".c{number} {{ background: {colour}; }}\n"
    for number, colour in enumerate(
        ("#4c78d8", "#c2661a", "#23835f", "#a14cb5", "#c9403c", "#737982", "#927b00")
    )
)

COLOURS = 7
"""Colours of the series of a chart, which can be seen on light and dark."""

_COPY = """
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const line = button.previousElementSibling;
    try { await navigator.clipboard.writeText(line.textContent); }
    catch { getSelection().selectAllChildren(line); document.execCommand("copy"); }
    button.textContent = "copied";
  });
}
"""
"""What the buttons do. Without scripts they are hidden."""

_BEGIN = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" '
    'content="shardctl">'
)

PAGE = OutputFileType("page", lambda begin: begin.startswith(_BEGIN.encode()))
"""A page, as a file."""


def section(title: str, *parts: Html) -> Html:
    """Return a part of the page under a heading."""
    return Html(f"<section><h2>{text(title)}</h2>{''.join(part.text for part in parts)}</section>")


def paragraph(what: Any, kind: str = "") -> Html:
    """Return a paragraph; `kind` is a class of the style sheet."""
    return Html(f'<p class="{kind}">{text(what)}</p>')


def tiles(figures: Iterable[tuple[str, str]]) -> Html:
    """Return the figures that matter most, each with what it is."""
    made = (
        f'<div class="tile"><b>{text(figure)}</b><span>{text(what)}</span></div>'
        for figure, what in figures
    )
    return Html(f'<div class="tiles">{"".join(made)}</div>')


def figures(*charts: Html) -> Html:
    """Return charts beside each other, as far as there is room."""
    return Html(f'<div class="figures">{"".join(chart.text for chart in charts)}</div>')


def number(value: float) -> str:
    """Return a number for people: 1,250, 0.25; - for one that is not finite."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """Return a share for people."""
    return f"{value:.1%}"


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


def told(report: Section) -> Html:
    """Return a section of a report as a part of the page."""
    others, charts = [], []
    for part in report.parts:
        if isinstance(part, str):
            others.append(paragraph(part, "soft"))
            continue
        rows = part.rows[:LISTED]
        if not part.bars:
            others.append(table(rows, part.header))
            continue
        heads: list[Any] = list(part.header or [""] * len(rows[0]))
        for number, column in enumerate(part.bars):
            heads[column] = _head(heads[column], number, len(part.bars))
        lengths = [[row[column] for column in part.bars] for row in rows]
        some = f"the first {LISTED} of {len(part.rows):,}" if len(part.rows) > LISTED else ""
        charts.append(_chart(part.line or some, _with_bars(rows, heads, lengths, True)))
    return section(report.title.rstrip(":"), *others, *([figures(*charts)] if charts else []))


LISTED = 500
"""Rows of a table that a page has."""


def histogram(title: str, edges: Sequence[float], counts: Sequence[int], unit: str) -> Html:
    """Return a histogram: edges (n + 1), counts (n)."""
    names = [f"{number(low)} to {number(high)}" for low, high in itertools.pairwise(edges)]
    return bars(title, names, {"": counts}, unit)


def heat_map(title: str, cells: Sequence[Sequence[int]], what: str) -> Html:
    """Return a map of numbers over an image: rows from its top, each from its left."""
    most = max(1, max(map(max, cells)))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td style="background:rgb(76 120 216 / {0.06 + 0.94 * count / most:.2f})" '
            f'title="{count:,} {text(what)}"></td>'
            for count in row
        )
        + "</tr>"
        for row in cells
    )
    return _chart(f"{title}, up to {most:,} {what}", Html(f'<table class="map">{rows}</table>'))


def _chart(title: str, drawn: Html) -> Html:
    caption = f"<figcaption>{text(title)}</figcaption>"
    return Html(f'<figure class="chart">{caption}{drawn.text}</figure>')


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


def folded(summary: str, part: Html) -> Html:
    """Return a part of the page that is shown when it is asked for."""
    return Html(f"<details><summary>{text(summary)}</summary>{part.text}</details>")


def absolute(place: str) -> str:
    """Return a path with the folders that it is in, which a page is read without. URLs stay."""
    return place if is_url(place) else os.path.normpath(Path(place).absolute())


def page(title: str, *parts: Html, script: str = "") -> str:
    """Return the whole page. It may load nothing from anywhere, and run nothing but its own
    scripts: its policy forbids it."""
    body = "".join(part.text for part in parts)
    scripts = [each for each in (_COPY if 'class="copy"' in body else "", script) if each]
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
        f"<style>{_STYLE}</style></head><body><h1>{text(title)}</h1>{body}"
        f"{''.join(f'<script>{each}</script>' for each in scripts)}</body></html>\n"
    )


def write_page(path: Path, content: str) -> None:
    """Write a page. Raises StorageError, also if another file is there: only a page of before is
    replaced."""
    PAGE.write(path, content.encode())


MOST = 200
"""Rejected inputs that are listed one by one."""


def rejects(folder: FolderHere, found: Overview) -> Iterator[Html]:
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
    yield section(
        "Rejected inputs",
        *reasons,
        folded(more, table(rows, ("key", "reason", "message"))),
        paragraph(f"rejects.jsonl in the dataset lists them all{where}.", "soft"),
    )


def _reason(reason: str, count: int, example: Reject) -> Html:
    entry = entry_for(example.message)
    what = f"<p>What to do: {text(entry.do)}</p>" if entry else ""
    said = f"<p>for instance {text(example.key)}: {text(example.message)}</p>"
    return Html(
        f'<div class="tile reason"><b>{counted(count, "input")}, '
        f"{text(reason)}</b>{said}{what}</div>"
    )
