"""Charts by Plotly, whose code goes into the page. Colours of text and lines are the page's, so that they turn with it.

Plotly, not Matplotlib: that needs Pillow, which excludes Pillow-SIMD.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from shardctl.errors import InstallError
from shardctl.system.html import Html, text

COLOURS = ("#4c78d8", "#e08a2b", "#2f9e78", "#b15bc4", "#d0504c", "#8a8f98", "#c2a400")
"""Legible on white and on black."""

Series = Mapping[str, tuple[Sequence[Any], Sequence[float]]]
"""Points by the name of what they show: (xs, ys)."""

_DRAW = """
for (const place of document.querySelectorAll(".plot")) {
  const figure = JSON.parse(place.querySelector("script").textContent);
  place.replaceChildren();
  Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displayModeBar: false});
}
"""


def require_plotly() -> None:
    """Raise InstallError if Plotly is missing: before anything is measured for a page that cannot be made."""
    try:
        import plotly.graph_objects  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise InstallError("an HTML report needs Plotly: pip install 'shardctl[plot]'") from error


def drawing() -> Html:
    """Return the code that draws the charts of a page. It must be at the end of the page, after the layout."""
    from plotly.offline import get_plotlyjs

    return Html(f"<script>{get_plotlyjs()}</script><script>{_DRAW}</script>")


def lines(title: str, series: Series, x: str, y: str, **axes: Any) -> Html:
    """Return lines by name, each (xs, ys). `axes` goes to Plotly's layout."""
    import plotly.graph_objects as go

    traces = [
        go.Scatter(
            x=list(xs),
            y=list(ys),
            name=name,
            mode="lines+markers",
            line={"color": colour},
            marker={"size": 4 if len(xs) > 1 else 10},
        )
        for (name, (xs, ys)), colour in zip(series.items(), itertools.cycle(COLOURS), strict=False)
    ]
    return _chart(title, traces, x, y, showlegend=len(series) > 1, **axes)


def bars(title: str, series: Series, x: str, y: str, **axes: Any) -> Html:
    """Return bars by name beside each other, each (xs, heights)."""
    import plotly.graph_objects as go

    traces = [
        go.Bar(x=list(xs), y=list(ys), name=name, marker={"color": colour})
        for (name, (xs, ys)), colour in zip(series.items(), itertools.cycle(COLOURS), strict=False)
    ]
    return _chart(title, traces, x, y, showlegend=len(series) > 1, **axes)


def histogram(title: str, edges: Sequence[float], counts: Sequence[int], x: str, log: bool = False) -> Html:
    """Return a histogram: edges (n + 1), counts (n)."""
    import plotly.graph_objects as go

    labels = [f"{low:,.4g} to {high:,.4g}" for low, high in itertools.pairwise(edges)]
    trace = go.Bar(
        x=[(low + high) / 2 for low, high in itertools.pairwise(edges)],
        y=list(counts),
        width=[high - low for low, high in itertools.pairwise(edges)],
        customdata=labels,
        hovertemplate="%{customdata}: %{y:,}<extra></extra>",
        marker={"color": COLOURS[0]},
    )
    return _chart(title, [trace], x, "", xaxis_type="log" if log else "linear")


def heat_map(title: str, cells: Sequence[Sequence[int]], what: str) -> Html:
    """Return a map of numbers over an image: rows from its top, each from its left; the axes are shares of its sides."""
    import plotly.graph_objects as go

    across, down = len(cells[0]), len(cells)
    trace = go.Heatmap(
        z=[list(row) for row in cells],
        x=[(place + 0.5) / across for place in range(across)],
        y=[(place + 0.5) / down for place in range(down)],
        colorscale=[[0.0, "rgba(76,120,216,0.06)"], [1.0, COLOURS[0]]],
        colorbar={"title": {"text": what}, "thickness": 12},
        hovertemplate=f"%{{z:,}} {what}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    axes = {"range": [0, 1], "tickformat": ".0%", "showgrid": False, "constrain": "domain"}
    upside_down = {**axes, "range": [1, 0], "scaleanchor": "x", "rangemode": "normal"}
    return _chart(title, [trace], "from the left", "from the top", xaxis=axes, yaxis=upside_down)


def shares(title: str, stacks: dict[str, dict[str, float]]) -> Html:
    """Return horizontal bars of a whole (1), each cut into named parts."""
    import plotly.graph_objects as go

    names = list(dict.fromkeys(name for parts in stacks.values() for name, share in parts.items() if share > 0))
    traces = [
        go.Bar(
            y=list(stacks),
            x=[parts.get(name, 0.0) for parts in stacks.values()],
            name=name,
            orientation="h",
            marker={"color": colour},
            hovertemplate=f"{name}: %{{x:.1%}}<extra></extra>",
        )
        for name, colour in zip(names, itertools.cycle(COLOURS), strict=False)
    ]
    return _chart(title, traces, "", "", barmode="stack", xaxis_tickformat=".0%", showlegend=True)


def _chart(title: str, traces: list[Any], x: str, y: str, **layout: Any) -> Html:
    import plotly.graph_objects as go

    figure = go.Figure(traces)
    figure.update_layout(
        template="none",
        margin={"l": 60, "r": 15, "t": 25, "b": 45},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        xaxis_title=x,
        yaxis_title=y,
        font={"family": "system-ui, sans-serif", "size": 12},
        bargap=0.25,
    )
    figure.update_xaxes(gridcolor="#888", zeroline=False, automargin=True)
    figure.update_yaxes(gridcolor="#888", rangemode="tozero", automargin=True)
    figure.update_layout(**layout)
    drawn = str(figure.to_json()).replace("<", "\\u003c")
    place = f'<div class="plot"><script type="application/json">{drawn}</script></div>'
    return Html(f"<figure><figcaption>{text(title)}</figcaption>{place}</figure>")
