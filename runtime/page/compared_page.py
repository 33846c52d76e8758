"""The page of two runs side by side, called A and B."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from holdfast.runtime.page.html import document, element, plot, table
from holdfast.runtime.page.plots import PARTS, plotly_script, speed_plot
from holdfast.runtime.page.run_page import deaths_of, legend, metric_plots, time_bar, words
from holdfast.runtime.tools.comparison import Comparison
from holdfast.runtime.tools.report import metric_names
from holdfast.runtime.tools.reported_run import ReportedRun

_MOST_PLOTS = 12
_MOST_ROWS = 200


def compared_page_of(a: ReportedRun, b: ReportedRun, found: Comparison, now: str) -> str:
    """Return the page of two runs as they were ``now``.

    Raises:
        UsageError: plotly is not installed.
    """
    title = f"{a.name} and {b.name}" if a.name != b.name else f"{a.name}, twice"
    script = plotly_script()
    body = [
        element("h1", title),
        *(
            element("p", f"{letter}: run {run.report.run_id} in {run.path.absolute()}, as of {now}")
            for letter, run in zip("AB", (a, b), strict=True)
        ),
        table(("", "A", "B"), found.outcome),
        element("h2", "What was asked for"),
        *_options(found),
        element("h2", "Loss and metrics"),
        *_metrics(a, b, found),
        element("h2", "Speed and workers"),
        *_speeds(a, b),
        element("h2", "Where the time went"),
        *_times(a, b, found),
        *(
            part
            for letter, run in zip("AB", (a, b), strict=True)
            for part in (element("h2", f"Deaths of {letter}"), *deaths_of(run))
        ),
    ]
    return document(title, body, script)


def _options(found: Comparison) -> list[Element]:
    if not found.options:
        return [words("Options and numerics are the same.")]
    return [words("All else is the same."), table(("", "A", "B"), found.options)]


def _metrics(a: ReportedRun, b: ReportedRun, found: Comparison) -> list[Element]:
    runs = {"A": a.report.epochs, "B": b.report.epochs}
    names = metric_names([*runs["A"], *runs["B"]])
    if not names:
        return [words("Neither run has told a metric.")]
    plots = metric_plots(names[:_MOST_PLOTS], runs)
    cells = table(found.heads, found.epochs[-_MOST_ROWS:], range(len(found.heads)))
    summary = element("summary", "The epochs that both have ended, as a table (= is the same)")
    return [element("div", *plots, class_="two"), element("details", summary, cells)]


def _speeds(a: ReportedRun, b: ReportedRun) -> list[Element]:
    found: list[Element] = []
    for letter, run in zip("AB", (a, b), strict=True):
        found.append(element("h3", f"{letter}: {run.speed} samples/s"))
        if run.course.samples_per_s:
            found.append(plot(speed_plot(run.course), f"speed and workers of {letter}"))
        else:
            found.append(words("No step is applied yet."))
    return found


def _times(a: ReportedRun, b: ReportedRun, found: Comparison) -> list[Element]:
    longest = max(a.report.wall_s, b.report.wall_s) or 1.0
    bars: list[Element] = [legend(PARTS, (name for name, _, _ in found.times))]
    for letter, run in zip("AB", (a, b), strict=True):
        bars += [element("h3", letter), time_bar(run, run.report.wall_s / longest)]
    return [*bars, table(("", "A", "B"), found.times, (1, 2))]
