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
    "training": BLUE,
    "starting": "#9fb3c8",
    "ending": "#bcccdc",
    "saving stall": AMBER,
    "repair": RED,
    "relaunch": "#d9776b",
    "repeated work": "#ecb2a9",
    "renewal": "#f0c987",
    "paused": "#d9e2ec",
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
_MOST_POINTS = 1000
_APART = "\u200b"
"""A letter that is not seen: rows of one name are different rows."""
MOST_RETURNS = 20
"""Bars of recoveries or relaunches: the longest of them are shown."""

_MOST_MARKS = 300


def plotly_script() -> str:
    """Return plotly's own script.

    Raises:
        UsageError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError(
            "the page needs plotly, which is not installed: pip install 'holdfast-mpi[report]'"
        ) from error
    return str(get_plotlyjs())


def metric_plot(name: str, runs: Mapping[str, Sequence[EpochReport]]) -> str:
    """Return a metric over the epochs, in training and in validation, of one run or two."""
    traces = []
    for (run, epochs), color in zip(runs.items(), (BLUE, AMBER), strict=False):
        for kind in ("metrics", "validation"):
            points = [(e.epoch, getattr(e, kind)[name]) for e in epochs if name in getattr(e, kind)]
            if not points:
                continue
            words = "training" if kind == "metrics" else "validation"
            x, y = zip(*_thinned(points), strict=True)
            is_val, is_one = kind == "validation", len(runs) == 1
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(x) <= 60 else "lines",
                    "x": x,
                    "y": y,
                    "name": words if is_one else html.escape(f"{run}, {words}"),
                    "line": {
                        "color": AMBER if is_val and is_one else color,
                        "dash": "dot" if is_val and not is_one else "solid",
                        "width": 2,
                    },
                    "marker": {"size": 5},
                }
            )
    return _figure(traces, 260, xaxis={"title": "epoch"}, yaxis={})


def speed_plot(course: Course) -> str:
    """Return samples per second, and below it the workers that train, with each death."""
    scale, _ = _unit(course.wall_s)
    edges = [index * course.bin_s / scale for index in range(len(course.samples_per_s) + 1)]
    rates = [*course.samples_per_s, *course.samples_per_s[-1:]]
    most = max([many for _, many in course.workers], default=0)
    step = {"type": "scatter", "mode": "lines", "fill": "tozeroy", "showlegend": False}
    deaths = course.deaths
    traces: list[dict[str, Any]] = [
        {**step, "x": edges, "y": rates, "name": "samples/s", "line": _line(BLUE)},
        {
            **step,
            "x": [at / scale for at, _ in course.workers],
            "y": [many for _, many in course.workers],
            "name": "workers",
            "line": _line(GREY),
            "yaxis": "y2",
        },
    ]
    if deaths:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [death.at_s / scale for death in deaths],
                "y": [most + 0.6] * len(deaths),
                "text": [html.escape(describe_failure(death.failure)) for death in deaths],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"symbol": "x", "size": 8, "color": RED},
                "name": "death of a worker",
                "yaxis": "y2",
            }
        )
    marks = [(death.at_s, RED, "dot") for death in deaths[:_MOST_MARKS]]
    marks += [(at, GREY, "solid") for at in course.starts_s[1 : _MOST_MARKS + 1]]
    return _figure(
        traces,
        380,
        xaxis=_time_axis(course, "y2"),
        yaxis={"title": "samples/s", "domain": [0.4, 1], "rangemode": "tozero"},
        yaxis2={"title": "workers", "domain": [0, 0.3], "range": [0, most + 1.2], "nticks": 4},
        shapes=[
            {
                "type": "line",
                "x0": at / scale,
                "x1": at / scale,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": color, "width": 1, "dash": dash},
            }
            for at, color, dash in marks
        ],
    )


def return_plot(returns: Sequence[Return]) -> str:
    """Return the phases of recoveries or relaunches as bars, the longest if there are many."""
    longest = sorted(returns, key=lambda one: sum(one.phases_s.values()))[-MOST_RETURNS:]
    shown = [one for one in returns if one in longest][::-1]
    is_short = max(sum(one.phases_s.values()) for one in shown) < 1
    scale, unit = (0.001, "ms") if is_short else (1.0, "s")
    names = list(dict.fromkeys(name for one in shown for name in one.phases_s))
    rows = [f"{html.escape(one.title)}{_APART * index}" for index, one in enumerate(shown)]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": rows,
            "x": [one.phases_s.get(name, 0.0) / scale for one in shown],
            "name": name,
            "marker": {"color": PHASES.get(name, GREY)},
            "hovertemplate": f"{name}: %{{x:.3g}} {unit}<extra></extra>",
        }
        for name in names
    ]
    return _figure(
        traces,
        70 + 28 * len(shown),
        barmode="stack",
        showlegend=False,
        margin={"l": 64, "r": 16, "t": 6, "b": 48},
        xaxis={"title": f"time since the death ({unit})"},
        yaxis={"automargin": True, "showgrid": False},
    )


def save_plot(course: Course) -> str:
    """Return, for each save, the time until it was durable, and what training waited for it."""
    scale, _ = _unit(course.wall_s)
    durable = [(save.at_s / scale, save.durable_s) for save in course.saves]
    stalls = [
        (save.at_s / scale, save.stall_s) for save in course.saves if save.stall_s is not None
    ]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [x for x, _ in _thinned(points)],
            "y": [y for _, y in _thinned(points)],
            "name": name,
            "marker": {"color": color, "size": 7, "symbol": symbol},
        }
        for name, points, color, symbol in (
            ("until durable", durable, BLUE, "circle"),
            ("training waited", stalls, AMBER, "diamond"),
        )
    ]
    return _figure(
        traces,
        250,
        xaxis=_time_axis(course, "y"),
        yaxis={"title": "seconds", "rangemode": "tozero"},
    )


def memory_plot(course: Course) -> str:
    """Return the memory in use of the hosts that come closest to their limits."""
    scale, _ = _unit(course.wall_s)
    hosts = sorted(course.memory.items(), key=lambda item: item[1].most / (item[1].limit or 1))
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": [at / scale for at, _ in memory.peaks] + [course.wall_s / scale],
            "y": [used / (1 << 30) for _, used in memory.peaks] + [memory.most / (1 << 30)],
            "name": html.escape(host or "memory in use"),
            "line": {"color": color, "width": 2, "shape": "hv"},
            "marker": {"size": 4},
            "showlegend": True,
        }
        for (host, memory), color in zip(reversed(hosts), _HOSTS, strict=False)
    ]
    most = max(memory.most for memory in course.memory.values()) / (1 << 30)
    return _figure(
        traces,
        260,
        xaxis=_time_axis(course, "y"),
        yaxis={"title": "most in use (GiB)", "range": [0, 1.1 * most]},
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most ``_MOST_POINTS``: of each piece of the line its lowest and highest point."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    pieces, kept = _MOST_POINTS // 2, []
    for index in range(pieces):
        begin, end = index * len(points) // pieces, (index + 1) * len(points) // pieces
        piece = range(begin, end)
        ends = {min(piece, key=lambda i: points[i][1]), max(piece, key=lambda i: points[i][1])}
        kept += [points[i] for i in sorted(ends)]
    return kept


def _unit(wall_s: float) -> tuple[float, str]:
    """Return the seconds of a unit that suits a length of time, and its name."""
    return (1.0, "s") if wall_s < 300 else (60.0, "min") if wall_s < 3 * 3600 else (3600.0, "h")


def _time_axis(course: Course, anchor: str) -> dict[str, Any]:
    scale, unit = _unit(course.wall_s)
    title = f"wall time of the run ({unit})"
    return {"title": title, "range": [0, course.wall_s / scale], "anchor": anchor}


def _line(color: str) -> dict[str, Any]:
    return {"color": color, "width": 1.5, "shape": "hv"}


def _figure(traces: Sequence[Mapping[str, Any]], height: int, **layout: Any) -> str:
    import plotly.graph_objects as go

    axis = {"gridcolor": LINES, "zerolinecolor": LINES, "linecolor": GREY, "ticks": "outside"}
    axes = {name: {**axis, **value} for name, value in layout.items() if "axis" in name}
    for value in axes.values():
        if "title" in value:
            value["title"] = {"text": value["title"], "standoff": 8}
    look = {
        "template": "none",
        "height": height,
        "margin": {"l": 64, "r": 16, "t": 24, "b": 48},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "hovermode": "closest",
    }
    text = go.Figure(data=list(traces), layout={**look, **layout, **axes}).to_json()
    return str(text).replace("<", "\\u003c")  # a script ends at the first "</script"
