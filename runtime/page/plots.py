"""The plots of a page, as plotly's JSON.

A plot is data and layout; plotly checks both here and draws them in the browser.  Texts in a plot
may hold a few tags of HTML, so what a script has named is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.runtime.errors import UsageError
from holdfast.runtime.tools.course import Course, Return
from holdfast.runtime.tools.report import EpochReport, describe_failure

INK, GREY, LINES = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, AMBER, RED = "#2667a8", "#d48a1c", "#c0392b"

PARTS = {
    **{"training": BLUE, "starting": "#9fb3c8", "ending": "#bcccdc", "paused": "#d9e2ec"},
    **{"repair": RED, "relaunch": "#d9776b", "repeated work": "#ecb2a9"},
    **{"saving stall": AMBER, "renewal": "#f0c987"},
}
"""A colour for each part of the wall time: what a death has cost is red."""

PHASES = {
    "failure noticed": GREY,
    "others told": "#bcccdc",
    "world without the dead": "#62a0d8",
    "agreed on the state": BLUE,
    "state adopted": "#9a6fb0",
    "workers started, state restored": "#9fb3c8",
    "next step applied": AMBER,
}
"""A colour for each phase of a recovery or a relaunch."""

_HOSTS = (BLUE, AMBER, GREY, RED, "#9a6fb0", "#62a0d8", "#2f8f5b", "#9fb3c8")
_MOST_POINTS, _MOST_MARKS = 1000, 300

_APART = "\u200b"
"""A letter that is not seen: rows of one name are different rows."""

MOST_RETURNS = 20
"""Bars of recoveries or relaunches: the longest of them are shown."""


def plotly_script() -> str:
    """Return plotly's own script.

    Raises:
        UsageError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError(
            "the page needs plotly, which is not installed: pip install plotly"
        ) from error
    return str(get_plotlyjs())


def metric_plot(name: str, runs: Mapping[str, Sequence[EpochReport]]) -> str:
    """Return a metric over the epochs, in training and in validation, of one run or two."""
    figure, is_one = _figure(260, xaxis_title_text="epoch"), len(runs) == 1
    for (run, epochs), color in zip(runs.items(), (BLUE, AMBER), strict=False):
        for kind, words, of_one, dash in (
            ("metrics", "training", BLUE, "solid"),
            ("validation", "validation", AMBER, "dot"),
        ):
            x, y = _thinned([(epoch.epoch, getattr(epoch, kind).get(name)) for epoch in epochs])
            if x:
                figure.add_scatter(
                    **{"x": x, "y": y, "mode": "lines+markers" if len(x) <= 60 else "lines"},
                    name=words if is_one else html.escape(f"{run}, {words}"),
                    line={"color": of_one} if is_one else {"color": color, "dash": dash},
                    marker_size=5,
                )
    return _json(figure)


def speed_plot(course: Course) -> str:
    """Return samples per second, and below it the workers that train, with each death."""
    most, scale = max([many for _, many in course.workers], default=0), _scale(course)
    figure = _figure(
        380,
        **_time_axis(course, "y2"),
        yaxis={"title_text": "samples/s", "domain": [0.4, 1], "rangemode": "tozero"},
        yaxis2={"title_text": "workers", "domain": [0, 0.3], "range": [0, most + 1.2], "nticks": 4},
    )
    step = {"mode": "lines", "fill": "tozeroy", "showlegend": False, "line_shape": "hv"}
    edges = [index * course.bin_s / scale for index in range(len(course.samples_per_s) + 1)]
    rates = [*course.samples_per_s, *course.samples_per_s[-1:]]
    figure.add_scatter(x=edges, y=rates, name="samples/s", line_color=BLUE, line_width=1.5, **step)
    moments, many = [at / scale for at, _ in course.workers], [many for _, many in course.workers]
    figure.add_scatter(x=moments, y=many, name="workers", line_color=GREY, yaxis="y2", **step)
    if course.deaths:
        figure.add_scatter(
            x=[at / scale for at, _ in course.deaths],
            y=[most + 0.6] * len(course.deaths),
            text=[html.escape(describe_failure(failure)) for _, failure in course.deaths],
            hovertemplate="%{text}<extra></extra>",
            marker={"symbol": "x", "size": 8, "color": RED},
            **{"mode": "markers", "name": "death of a worker", "yaxis": "y2"},
        )
    marks = [(at, RED, "dot") for at, _ in course.deaths[:_MOST_MARKS]]
    marks += [(at, GREY, "solid") for at in course.starts_s[1 : _MOST_MARKS + 1]]
    across = {"type": "line", "y0": 0, "y1": 1, "yref": "paper"}
    figure.layout.shapes = [
        {**across, "x0": at / scale, "x1": at / scale, "line": {"color": c, "width": 1, "dash": d}}
        for at, c, d in marks
    ]
    return _json(figure)


def return_plot(returns: Sequence[Return]) -> str:
    """Return the phases of recoveries or relaunches as bars, the longest if there are many."""
    longest = sorted(returns, key=lambda one: one.length_s)[-MOST_RETURNS:]
    shown = [one for one in returns if one in longest][::-1]
    scale, unit = (0.001, "ms") if longest[-1].length_s < 1 else (1.0, "s")
    figure = _figure(
        70 + 28 * len(shown),
        **{"barmode": "stack", "showlegend": False, "margin_t": 6},
        xaxis_title_text=f"time since the death ({unit})",
        yaxis={"automargin": True, "showgrid": False},
    )
    for name in dict.fromkeys(name for one in shown for name in one.phases_s):
        figure.add_bar(
            y=[f"{html.escape(one.title)}{_APART * index}" for index, one in enumerate(shown)],
            x=[one.phases_s.get(name, 0.0) / scale for one in shown],
            marker_color=PHASES.get(name, GREY),
            hovertemplate=f"{name}: %{{x:.3g}} {unit}<extra></extra>",
            orientation="h",
        )
    return _json(figure)


def save_plot(course: Course) -> str:
    """Return, for each save, the time until it was durable, and what training waited for it."""
    figure = _figure(250, **_time_axis(course), yaxis_title_text="seconds")
    figure.update_layout(yaxis_rangemode="tozero")
    for name, what, color, symbol in (
        ("until durable", "durable_s", BLUE, "circle"),
        ("training waited", "stall_s", AMBER, "diamond"),
    ):
        x, y = _thinned([(one.at_s / _scale(course), getattr(one, what)) for one in course.saves])
        marker = {"color": color, "size": 7, "symbol": symbol}
        figure.add_scatter(x=x, y=y, name=name, mode="markers", marker=marker)
    return _json(figure)


def memory_plot(course: Course) -> str:
    """Return the memory in use of the hosts that come closest to their limits."""
    hosts = sorted(course.memory.items(), key=lambda item: -item[1].share)
    figure = _figure(260, **_time_axis(course), yaxis_title_text="most in use (GiB)")
    figure.update_layout(yaxis_rangemode="tozero", showlegend=True)
    for (host, memory), color in zip(hosts, _HOSTS, strict=False):
        moments, used = zip(*memory.peaks, (course.wall_s, memory.peaks[-1][1]), strict=True)
        figure.add_scatter(
            x=[at / _scale(course) for at in moments],
            y=[size / (1 << 30) for size in used],
            name=html.escape(host or "memory in use"),
            line={"color": color, "shape": "hv"},
        )
    return _json(figure)


def _thinned(told: Sequence[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    """Return places and values of at most ``_MOST_POINTS`` points, without those of no value.

    Of each piece of a longer line the lowest and the highest point stay.
    """
    points = kept = [(x, y) for x, y in told if y is not None]
    if len(points) > _MOST_POINTS:
        pieces, kept = _MOST_POINTS // 2, []
        for index in range(pieces):
            piece = range(index * len(points) // pieces, (index + 1) * len(points) // pieces)
            ends = {f(piece, key=lambda i: points[i][1]) for f in (min, max)}
            kept += [points[i] for i in sorted(ends)]
    return [x for x, _ in kept], [y for _, y in kept]


def _scale(course: Course) -> float:
    """Return the seconds of a unit that suits the length of a run."""
    return 1.0 if course.wall_s < 300 else 60.0 if course.wall_s < 3 * 3600 else 3600.0


def _time_axis(course: Course, anchor: str = "y") -> dict[str, Any]:
    unit = {1.0: "s", 60.0: "min", 3600.0: "h"}[_scale(course)]
    end = course.wall_s / _scale(course)
    title = f"wall time of the run ({unit})"
    return {"xaxis": {"title_text": title, "range": [0, end], "anchor": anchor}}


def _figure(height: int, **layout: Any) -> Any:
    import plotly.graph_objects as go

    axis = {"gridcolor": LINES, "zerolinecolor": LINES, "linecolor": GREY, "ticks": "outside"}
    axes = {f"{name}axis": {**axis, "title_standoff": 8} for name in "xy"}
    legend = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}
    font = {"family": "system-ui, sans-serif", "size": 13, "color": INK}
    margin = {"l": 64, "r": 16, "t": 24, "b": 48}
    figure = go.Figure(layout={"template": "none", "height": height, "font": font, **axes})
    if "yaxis2" in layout:
        figure.update_layout(yaxis2={**axis, "title_standoff": 8})
    return figure.update_layout(margin=margin, legend=legend, hovermode="closest", **layout)


def _json(figure: Any) -> str:
    return str(figure.to_json()).replace("<", "\\u003c")  # a script ends at the first "</script"
