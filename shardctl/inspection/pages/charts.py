"""Charts as SVG: a browser shows them without a script. Their colours are variables of the page,
light and dark.

A chart is WIDTH units wide, and is as wide on the page as its frame. What font a browser has is not
known here: the width of a text is estimated, rather too large than too small, so that no label
reaches another one or leaves the picture.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardctl.system.html import Html, table, text
from shardctl.system.text import format_bytes

WIDTH = 480
"""Units from left to right: pixels where a frame is as wide."""

MOST_BARS = 30
"""Bars that are drawn where there are more; the table below the chart has all."""

STYLE = """
:root { --c0: #4c78d8; --c1: #c2661a; --c2: #23835f; --c3: #a14cb5; --c4: #c9403c; --c5: #737982; --c6: #927b00; }
@media (prefers-color-scheme: dark) { :root { --c0: #7aa2ff; --c1: #f0a04b; --c2: #4fc79c; --c3: #d084e0; --c4: #ff8078;
  --c5: #a9b0ba; --c6: #dcc030; } }
.chart svg { display: block; width: 100%; max-width: 36rem; height: auto; margin-top: .3rem; }
.chart text { font: 12px system-ui, sans-serif; fill: var(--ink); } .chart .unit, .chart .value { fill: var(--soft); }
.chart .grid { stroke: var(--rule); stroke-width: 1; } .chart path { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .alone { paint-order: stroke; stroke: var(--panel); stroke-width: 4px; }
.chart rect:hover, .chart circle:hover { stroke: var(--ink); stroke-width: 1.5; }
.chart details { font-size: .8rem; padding: .2rem .3rem 0; } .chart summary { color: var(--soft); cursor: pointer; }
.chart details .scroll { max-height: 16rem; overflow: auto; }
""" + "".join(
    f".chart .c{n} {{ fill: var(--c{n}); }} .chart path.c{n} "
    f"{{ fill: none; stroke: var(--c{n}); }}\n"
    for n in range(7)
)
"""How a page shows charts."""

_COLOURS = 7
_FONT, _LINE, _GAP = 12, 16, 12
"""Height of letters, height of a line, and the least distance between labels on an axis."""

_HEIGHT = 150
"""Height of what is drawn between the axes."""

_LOOK_OF_BARS = 18, 11, 5
"""Heights of a single bar, of one of several beside each other, and of the gap between bars."""

_LABELS, _RIGHT = 170, 14
"""The most that the names of bars take on the left, and what stays free on the right."""

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Points by the name of what they show: (xs, ys)."""

Bars = Mapping[str, tuple[Sequence[str], Sequence[float]]]
"""Bars by the name of what they show: (names, lengths); all have the same names."""


def number(value: float) -> str:
    """Return a number for people: 1,250, 0.25, 1.5 M; - for one that is not finite."""
    if not math.isfinite(value):
        return "-"
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= unit and (unit > 1e6 or abs(value) >= 1e8 or value % 1e5 == 0):
            return f"{value / unit:,.4g} {name}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """Return a share for people: 0.5% where it is small, else 12%. Only nothing is 0%, and only all
    is 100%."""
    value = round(value, 9)  # sums of shares are a little off
    if 0 < value < 0.0005:
        return "under 0.1%"
    if 0.995 <= value < 1:
        return "over 99%"
    return (
        f"{value:.1%}"
        if 0 < value < 0.0995 and round(value * 100, 1) != round(value * 100)
        else f"{value:.0%}"
    )


def size(value: float) -> str:
    """Return a number of bytes for people: 10 KiB, 1.5 MiB."""
    return format_bytes(value).replace(".0 ", " ")


class Axis(NamedTuple):
    """What an axis shows: its title, how its numbers are written, the least step between them, and
    the base of their units."""

    title: str = ""
    written: Callable[[float], str] = number
    least: float = 0.0
    base: int = 10


def counts(what: str) -> Axis:
    """Return an axis of whole numbers."""
    return Axis(what, number, 1.0)


SHARES = Axis("", percent, 0.01)
BYTES = Axis("", size, 1.0, 1024)


def bars(title: str, series: Bars, axis: Axis, stacked: bool = False, total: int = 0) -> Html:
    """Return bars from left to right, each with its name: several series beside each other, or in a
    row if `stacked`.

    `total` is the number of all bars, if `series` has only some of them.
    """
    names = list(next(iter(series.values()))[0]) if series else []
    values = {name: list(lengths) for name, (_, lengths) in series.items()}
    if max(total, len(names)) > MOST_BARS:
        title = f"{title} (the first {MOST_BARS} of {max(total, len(names)):,})"
    drawn = {name: lengths[:MOST_BARS] for name, lengths in values.items()}
    header = ("", *(name or axis.title for name in values))
    rows = [
        (name, *(axis.written(values[each][at]) for each in values))
        for at, name in enumerate(names)
    ]
    return _figure(title, _lying(names[:MOST_BARS], drawn, axis, stacked, None), header, rows)


def shares(title: str, stacks: Mapping[str, Mapping[str, float]]) -> Html:
    """Return bars of a whole (1), each cut into named parts."""
    parts = list(
        dict.fromkeys(part for each in stacks.values() for part, share in each.items() if share > 0)
    )
    values = {part: [each.get(part, 0.0) for each in stacks.values()] for part in parts}
    rows = [(part, *(percent(value) for value in values[part])) for part in parts]
    return _figure(title, _lying(list(stacks), values, SHARES, True, 1.0), ("", *stacks), rows)


def columns(title: str, series: Bars, x: str, y: Axis) -> Html:
    """Return upright bars for values in an order, such as numbers of threads; those of several
    series beside each other."""
    names = list(next(iter(series.values()))[0]) if series else []
    values = {name: list(heights) for name, (_, heights) in series.items()}
    slot = 1 / max(1, len(names))
    wide = slot * 0.8 / max(1, len(values))
    boxes = [
        _Box(
            at * slot + slot * 0.1 + place * wide,
            wide,
            value,
            place,
            _said(names[at], name, y.written(value), y.title),
        )
        for place, (name, heights) in enumerate(values.items())
        for at, value in enumerate(heights)
    ]
    ticks = [((at + 0.5) * slot, name) for at, name in enumerate(names)]
    header = (x, *(name or y.title for name in values))
    rows = [
        (name, *(y.written(values[each][at]) for each in values)) for at, name in enumerate(names)
    ]
    return _figure(title, _upright(boxes, _thinned(ticks), x, y, list(values)), header, rows)


def histogram(
    title: str, edges: Sequence[float], numbers: Sequence[int], x: Axis, y: str, log: bool = False
) -> Html:
    """Return a histogram: edges (n + 1), numbers (n). `log` makes equal steps of equal ratios."""
    axis = counts(y)
    place = _places(edges[0], edges[-1], log) if len(edges) > 1 else _places(0, 1, False)
    names = [f"{x.written(low)} to {x.written(high)}" for low, high in itertools.pairwise(edges)]
    boxes = [
        _Box(
            place(low),
            (place(high) - place(low)) * 0.96,
            count,
            0,
            _said(name, "", number(count), y),
        )
        for (low, high), count, name in zip(itertools.pairwise(edges), numbers, names, strict=True)
    ]
    ticks = (
        [(place(value), x.written(value)) for value in _fitting_ticks(edges[0], edges[-1], x, log)]
        if names
        else []
    )
    rows = list(zip(names, map(number, numbers), strict=True))
    return _figure(title, _upright(boxes, ticks, x.title, axis, []), (x.title, y), rows)


def lines(title: str, series: Series, x: Axis, y: Axis, top: float | None = None) -> Html:
    """Return lines with points by name, each (xs, ys). A point alone has its value beside it; `top`
    ends the y axis."""
    everything = [value for xs, _ in series.values() for value in xs] or [0.0]
    low, high = min(everything), max(everything)
    across = _places(low, high if high > low else low + 1, False)
    steps = _steps(
        0.0,
        max([1e-9, *(v for _, ys in series.values() for v in ys)]) if top is None else top,
        5,
        y,
    )
    frame = _Frame(steps, y, list(series) if len(series) > 1 else [], x.title)
    drawn = list(frame.grid())
    for place, (name, (xs, ys)) in enumerate(series.items()):
        points = [(frame.x(across(a)), frame.y(b)) for a, b in zip(xs, ys, strict=True)]
        colour = f"c{place % _COLOURS}"
        if len(points) > 1:
            drawn.append(
                f'<path class="{colour}" d="M{" L".join(f"{a:.1f} {b:.1f}" for a, b in points)}"/>'
            )
        for (a, b), at, value in zip(points, xs, ys, strict=True):
            said = _said(_with_unit(x.written(at), x.title), name, y.written(value), y.title)
            radius = 5 if len(points) == 1 else 2.5
            drawn.append(
                f'<circle class="{colour}" cx="{a:.1f}" cy="{b:.1f}" '
                f'r="{radius}">{_hover(said)}</circle>'
            )
            if len(points) == 1:
                drawn.append(
                    _label(
                        a,
                        b - 10 if b > frame.top + 14 else b + 20,
                        y.written(value),
                        "middle",
                        "alone",
                    )
                )
    ticks = [(across(value), x.written(value)) for value in _fitting_ticks(low, high, x, False)]
    drawn += frame.across(ticks)
    header = ("", x.title or "x", y.title or title)
    rows = [
        (name, x.written(a), y.written(b))
        for name, (xs, ys) in series.items()
        for a, b in zip(xs, ys, strict=True)
    ]
    return _figure(title, (frame.height, drawn), header, rows)


def heat_map(title: str, cells: Sequence[Sequence[int]], what: str) -> Html:
    """Return a map of numbers over an image: rows from its top, each from its left; the axes are
    shares of its sides."""
    side, left, top = 250.0, 60.0, 8.0
    across, down, most = len(cells[0]), len(cells), max(1, max(map(max, cells)))
    wide, high = side / across, side / down
    drawn = []
    for row, numbers in enumerate(cells):
        for column, count in enumerate(numbers):
            place = (
                f'x="{left + column * wide:.1f}" y="{top + row * high:.1f}" '
                f'width="{wide - 1:.1f}" height="{high - 1:.1f}"'
            )
            said = _hover(
                f"{_with_unit(f'{count:,}', what)}, {column / across:.0%} from the left, "
                f"{row / down:.0%} from the top"
            )
            drawn.append(
                f'<rect class="c0 cell" {place} '
                f'fill-opacity="{0.06 + 0.94 * count / most:.2f}">{said}</rect>'
            )
    for share in (0.0, 0.5, 1.0):
        drawn.append(_label(left + share * side, top + side + _LINE, percent(share), "middle"))
        drawn.append(_label(left - 6, top + share * side + 4, percent(share), "end"))
    drawn.append(_label(left + side / 2, top + side + 2 * _LINE, "from the left", "middle", "unit"))
    drawn.append(_label(left - 6, top + side / 4 + 4, "from top", "end", "unit"))
    for step in range(5):  # what the colours mean
        at = top + step * 22
        drawn.append(f'<rect class="c0" x="{left + side + 24}" y="{at}" width="20" height="20"')
        drawn[-1] += f' fill-opacity="{0.06 + 0.94 * (4 - step) / 4:.2f}"/>'
        if step in (0, 4):
            drawn.append(_label(left + side + 50, at + 14, f"{most if step == 0 else 0:,} {what}"))
    header = ("", *(f"{column / across:.0%}" for column in range(across)))
    rows = [(f"{row / down:.0%} from the top", *numbers) for row, numbers in enumerate(cells)]
    return _figure(title, (top + side + 2 * _LINE + 6, drawn), header, rows)


class _Box(NamedTuple):
    """An upright bar: its left side and its width as shares of the axis, its height, its colour,
    and what is said of it."""

    left: float
    wide: float
    value: float
    colour: int
    said: str


_Drawn = tuple[float, list[str]]
"""The height of a drawing, and its parts."""


class _Frame:
    """The place between the axes of upright bars and lines, with the legend above it and the axis
    below."""

    def __init__(self, steps: Sequence[float], y: Axis, legend: Sequence[str], x: str) -> None:
        self._steps, self._y, self._x = steps, y, x
        self.left = max([24.0, *(_wide(y.written(step)) + 10 for step in steps)])
        self._legend, self._legend_height = _legend(legend, 4)
        self.top = self._legend_height + (_LINE + 8 if y.title else 10)
        self.bottom = self.top + _HEIGHT
        self.height = self.bottom + _LINE + (_LINE if x else 0) + 6

    def x(self, share: float) -> float:
        return self.left + share * (WIDTH - _RIGHT - self.left)

    def y(self, value: float) -> float:
        return self.bottom - value / (self._steps[-1] or 1) * _HEIGHT

    def grid(self) -> Iterator[str]:
        """Yield the legend, the lines across, their numbers, and what they are."""
        yield from self._legend
        if self._y.title:
            yield _label(0, self._legend_height + _FONT, self._y.title, kind="unit")
        for step in self._steps:
            at = self.y(step)
            yield (
                f'<line class="grid" x1="{self.left:.1f}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" '
                f'y2="{at:.1f}"/>'
            )
            yield _label(self.left - 6, at + 4, self._y.written(step), "end", "ytick")

    def across(self, ticks: Iterable[tuple[float, str]]) -> Iterator[str]:
        """Yield the labels of the axis below, and its title."""
        for share, name in ticks:
            half = _wide(name) / 2
            yield _label(
                min(max(self.x(share), half), WIDTH - half),
                self.bottom + _LINE,
                name,
                "middle",
                "xtick",
            )
        if self._x:
            yield _label(self.x(0.5), self.bottom + 2 * _LINE, self._x, "middle", "unit")


def _upright(
    boxes: Sequence[_Box],
    ticks: Iterable[tuple[float, str]],
    x: str,
    y: Axis,
    legend: Sequence[str],
) -> _Drawn:
    frame = _Frame(
        _steps(0.0, max([0.0, *(box.value for box in boxes)]), 5, y),
        y,
        legend if len(legend) > 1 else [],
        x,
    )
    drawn = list(frame.grid())
    for box in boxes:
        left, top = frame.x(box.left), frame.y(box.value)
        wide = max(0.5, frame.x(box.left + box.wide) - left)
        drawn.append(
            f'<rect class="bar c{box.colour % _COLOURS}" x="{left:.1f}" y="{top:.1f}" '
            f'width="{wide:.1f}"'
            f' height="{frame.bottom - top:.1f}">{_hover(box.said)}</rect>'
        )
    return frame.height, [*drawn, *frame.across(ticks)]


def _lying(
    names: Sequence[str],
    values: Mapping[str, Sequence[float]],
    axis: Axis,
    stacked: bool,
    end: float | None,
) -> _Drawn:
    """Draw bars from left to right. `end` is the end of the axis, else it is that of the longest
    bar."""
    legend, top = _legend([*values] if len(values) > 1 else [], 4)
    single, beside, gap = _LOOK_OF_BARS
    high = single if stacked or len(values) == 1 else beside
    totals = [sum(each[at] for each in values.values()) for at in range(len(names))]
    tips = (
        [axis.written(total) for total in totals]
        if stacked
        else [axis.written(v) for each in values.values() for v in each]
    )
    left = min(_LABELS, max([0.0, *(_wide(name) for name in names)])) + 8
    room = (
        WIDTH - left - (0 if end is not None else max([0.0, *(_wide(tip) for tip in tips)]) + 8) - 2
    )
    longest = max(
        [0.0, *totals] if stacked else [0.0, *(v for each in values.values() for v in each)]
    )
    scale = room / ((longest if end is None else end) or 1)
    drawn, y = list(legend), top
    for at, name in enumerate(names):
        rows = 1 if stacked else len(values)
        drawn.append(
            _label(left - 8, y + rows * high / 2 + 4, _cut(name, _LABELS), "end", "name", name)
        )
        x = left
        for place, (of, lengths) in enumerate(values.items()):
            value = lengths[at]
            said = _said(name, of, axis.written(value), axis.title)
            if value:
                drawn.append(
                    f'<rect class="bar c{place % _COLOURS}" x="{x:.1f}" y="{y:.1f}" '
                    f'width="{max(0.5, value * scale):.1f}"'
                    f' height="{high - 1}">{_hover(said)}</rect>'
                )
            if stacked:
                x += value * scale
            else:
                drawn.append(
                    _label(
                        x + value * scale + 4, y + high / 2 + 4, axis.written(value), kind="value"
                    )
                )
                y += high
        if stacked:
            if end is None:
                drawn.append(
                    _label(x + 4, y + high / 2 + 4, axis.written(totals[at]), kind="value")
                )
            y += high
        y += gap
    if axis.title:
        drawn.append(_label(left, y + _FONT, axis.title, kind="unit"))
        y += _LINE + 4
    return y, drawn


def _figure(
    title: str, drawing: _Drawn, header: Sequence[str], rows: Sequence[Sequence[object]]
) -> Html:
    """Return a drawing with its title above it, and its numbers as a table that can be opened below
    it."""
    height, drawn = drawing
    said = text(title)
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {math.ceil(height)}" role="img" '
        f'aria-label="{said}">{"".join(drawn)}</svg>'
    )
    numbers = (
        f"<details><summary>as a table</summary>{table(rows, header).text}</details>"
        if rows
        else ""
    )
    return Html(f'<figure class="chart"><figcaption>{said}</figcaption>{svg}{numbers}</figure>')


def _said(name: str, series: str, value: str, unit: str) -> str:
    return f"{', '.join(part for part in (name, series) if part)}: {_with_unit(value, unit)}"


def _with_unit(value: str, unit: str) -> str:
    """Return "3 samples", "1 sample" or "2.5 samples/s"."""
    if value == "1" and unit.isalpha():
        unit = unit.removesuffix("es") if unit.endswith("ches") else unit.removesuffix("s")
    return f"{value} {unit}".rstrip()


def _hover(said: str) -> str:
    return f"<title>{text(said)}</title>"


def _label(
    x: float, y: float, said: str, anchor: str = "start", kind: str = "", whole: str = ""
) -> str:
    """Return a text; where it was cut, the whole of it is shown on hover."""
    hover = _hover(whole) if whole and whole != said else ""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" '
        f'text-anchor="{anchor}">{text(said)}{hover}</text>'
    )


def _legend(names: Sequence[str], top: float) -> tuple[list[str], float]:
    """Return the names with their colours, in as many lines as it takes, and where they end."""
    if not names:
        return [], top
    drawn, x, y = [], 0.0, top
    for place, name in enumerate(names):
        shown = _cut(name, WIDTH - 30)
        if x and x + 16 + _wide(shown) > WIDTH:
            x, y = 0.0, y + _LINE
        drawn.append(
            f'<rect class="c{place % _COLOURS}" x="{x:.1f}" y="{y + 1:.1f}" width="10" '
            'height="10"/>'
        )
        drawn.append(_label(x + 15, y + 11, shown, kind="legend", whole=name))
        x += 15 + _wide(shown) + 16
    return drawn, y + _LINE + 6


def _places(low: float, high: float, log: bool) -> Callable[[float], float]:
    """Return what gives a value its place between two others, from 0 to 1."""
    if log and low > 0:
        return lambda value: math.log(max(value, low) / low) / (math.log(high / low) or 1)
    return lambda value: (value - low) / ((high - low) or 1)


def _steps(low: float, high: float, most: int, axis: Axis) -> list[float]:
    """Return round numbers from `low` up to `high` or just above it, at most `most` steps."""
    step = _step((high - low) / most, axis)
    last = math.ceil(high / step - 1e-9)
    return [number * step for number in range(math.floor(low / step), max(1, last) + 1)]


def _step(least: float, axis: Axis) -> float:
    """Return the next round step: 1, 2 or 5 times a power of 10, of bytes that many of a unit."""
    unit = (
        axis.base ** math.floor(math.log(least, axis.base)) if axis.base != 10 and least >= 1 else 1
    )
    power = 10.0 ** math.floor(math.log10(max(least / unit, 1e-12)))
    step = next(
        factor * power for factor in (1, 2, 5, 10) if factor * power >= least / unit * (1 - 1e-9)
    )
    if axis.base != 10 and step >= 1000:  # the next unit begins at 1024 of this one
        step = axis.base
    return max(step * unit, axis.least)


def _fitting_ticks(low: float, high: float, axis: Axis, log: bool) -> list[float]:
    """Return as many round numbers between two others as there is room for their labels."""
    room = WIDTH - 60.0
    for most in range(8, 0, -1):
        ticks = (
            _powers(low, high, most)
            if log and low > 0
            else [v for v in _steps(low, high, most, axis) if low <= v <= high]
        )
        if len(ticks) < 2:  # no round numbers in so narrow a range
            ticks = [low, high]
        place = _places(low, high, log)
        labels = [axis.written(tick) for tick in ticks]
        ends = [
            (place(tick) * room, _wide(label) / 2)
            for tick, label in zip(ticks, labels, strict=True)
        ]
        are_apart = all(
            b - a >= half + other + _GAP for (a, half), (b, other) in itertools.pairwise(ends)
        )
        if are_apart and len(set(labels)) == len(labels):
            return ticks
    return ticks[:1]


def _powers(low: float, high: float, most: int) -> list[float]:
    """Return powers of 10 between two numbers, with 2 and 5 times each while these are not too
    many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [
            factor * 10.0**power
            for power in powers
            for factor in factors
            if low <= factor * 10.0**power <= high
        ]
        if len(ticks) <= max(most, 2):
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def _thinned(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return each label of an axis, or each second, third … where more would overlap."""
    room = WIDTH - 60.0
    for every in range(1, max(2, len(ticks))):
        kept = list(ticks[::every])
        if all(
            (b - a) * room >= (_wide(x) + _wide(y)) / 2 + _GAP / 2
            for (a, x), (b, y) in itertools.pairwise(kept)
        ):
            return kept
    return list(ticks[:1])


def _wide(said: str) -> float:
    """Return about how wide a text is: as in DejaVu Sans, which is wider than most."""
    return _FONT * sum(_em(letter) for letter in said)


def _em(letter: str) -> float:
    if letter in "fijlrtI.,:;|'!()[]-/ ":
        return 0.42
    if letter in "mwMW%@—…" or unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    return 0.0 if unicodedata.combining(letter) else 0.7 if letter.isupper() else 0.65


def _cut(said: str, room: float) -> str:
    """Return as much of the beginning of a text as fits."""
    if _wide(said) <= room:
        return said
    kept = next(length for length in range(len(said), -1, -1) if _wide(said[:length] + "…") <= room)
    return said[:kept].rstrip() + "…"
