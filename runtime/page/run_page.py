"""The page of a run: its sections in the order in which a reader wants them; and that of two runs.

What a run lacks is told in a sentence.  A plot without data is not there.  Two runs side by side
are called A and B.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from xml.etree.ElementTree import Element

from holdfast.runtime.page.html import document, element, plot, table
from holdfast.runtime.page.plots import (
    GREY,
    MOST_RETURNS,
    PARTS,
    PHASES,
    memory_plot,
    metric_plot,
    plotly_script,
    return_plot,
    save_plot,
    speed_plot,
)
from holdfast.runtime.run import progress
from holdfast.runtime.tools.comparison import OUTCOME, Comparison
from holdfast.runtime.tools.report import (
    EpochReport,
    describe_evidence,
    describe_failure,
    describe_journal,
    describe_ledger,
    describe_lost_lines,
    describe_time,
    describe_troubles,
    epoch_table,
    metric_names,
)
from holdfast.runtime.tools.reported_run import ReportedRun
from holdfast.runtime.tools.summary import parts_of

_FACTS = ("wall time", "goodput", "samples/s", "deaths", "saves")
_MOST_PLOTS = 12
_MOST_ROWS, _MOST_COMPARED = 50, 200
_MOST_DEATHS = 200
_words = functools.partial(element, "p")


def page_of(run: ReportedRun, now: str) -> str:
    """Return the page of a run as it was ``now``, a moment as people read it.

    Raises:
        UsageError: plotly is not installed.
    """
    sections: Sequence[tuple[str, Callable[[ReportedRun], list[Element]]]] = (
        ("Loss and metrics", _metrics),
        ("Speed and workers", _speed),
        ("Where the time went", _time),
        ("Saves", _saves),
        ("Memory", _memory),
        ("Deaths", _deaths_of),
        ("Events", _events),
        ("Options and numerics", _options),
        ("Proof", _proof),
    )
    script = plotly_script()
    body = _head(run, now)
    for title, section in sections:
        body += [element("h2", title), *section(run)]
    return document(f"{run.name}: {run.state}", body, script)


def _head(run: ReportedRun, now: str) -> list[Element]:
    facts = [(name, text_of(run)) for name, text_of in OUTCOME if name in _FACTS]
    run_id = run.report.run_id or "without an id"
    made = f"run {run_id} in {run.path.absolute()}, as of {now}"
    digest = run.report.final_sha256
    return [
        element("h1", run.name),
        element("p", made, class_="quiet path"),
        element("p", element("b", run.state), ": ", run.verdict, class_=f"verdict {run.state}"),
        element(
            "dl",
            *(element("div", element("dt", name), element("dd", text)) for name, text in facts),
            class_="facts",
        ),
        *([element("p", "State sha256 ", element("code", digest))] if digest else []),
    ]


def _metrics(run: ReportedRun) -> list[Element]:
    epochs = run.report.epochs
    names = metric_names(epochs)
    if not epochs:
        return [_words("No epoch has ended yet.")]
    if not names:
        return [_words("The script has told no metrics.")]
    plots = _metric_plots(names[:_MOST_PLOTS], {run.name: epochs})
    more = len(names) - len(plots)
    heads, rows = epoch_table(epochs)
    made = table(heads, rows[-_MOST_ROWS:], range(len(heads)))
    if len(rows) > _MOST_ROWS:
        made.append(_words(f"The last {_MOST_ROWS} of {len(rows)} epochs; all are in --json."))
    return [
        element("div", *plots, class_="two"),
        *([_words(f"{more} more metrics are in the table.")] if more else []),
        element("details", element("summary", "All epochs as a table"), made),
    ]


def _metric_plots(names: Sequence[str], runs: Mapping[str, Sequence[EpochReport]]) -> list[Element]:
    """Return a plot of each metric below its name, for which an axis has no room."""
    return [
        element("div", element("h3", name), plot(metric_plot(name, runs), f"{name} over epochs"))
        for name in names
    ]


def _speed(run: ReportedRun) -> list[Element]:
    course = run.course
    if not course.samples_per_s:
        return [_words("No step is applied yet.")]
    found = [plot(speed_plot(course), "samples per second and workers over time")]
    for title, returns in (
        ("Recoveries in place", course.recoveries),
        ("Relaunches", course.relaunches),
    ):
        if returns:
            longest = progress.brief(max(one.length_s for one in returns))
            many = len(returns)
            shown = f", the {MOST_RETURNS} longest below" if many > MOST_RETURNS else ""
            found += [
                element("h3", f"{title}: {many}{shown}; the longest took {longest}"),
                _legend(PHASES, dict.fromkeys(name for one in returns for name in one.phases_s)),
                plot(return_plot(returns), f"{title} by their phases"),
            ]
    return found


def _time(run: ReportedRun) -> list[Element]:
    if not run.report.parts_s:
        return [_words("The journal tells no begin of a job, so no time is known.")]
    parts, wall = parts_of(run.report.parts_s)
    rows = [
        (
            element("span", _swatch(PARTS, part.name), part.name),
            part.seconds,
            f"{part.share:.1%}",
            part.meaning,
        )
        for part in parts
    ]
    rows.append((element("b", "wall time"), wall, "100.0%", "the sum of the parts"))
    return [
        _words("Goodput is the share of the wall time that went into steps that count."),
        _time_bar(run),
        table(("", "time", "share", "what it is"), rows, (1, 2)),
    ]


def _time_bar(run: ReportedRun, width: float = 1.0) -> Element:
    """Return the parts of the wall time as a bar of so much of the page's ``width``."""
    pieces = [
        element(
            "div",
            style=f"flex-grow:{part.share:.6f};background:{PARTS.get(part.name, GREY)}",
            title=f"{part.name}: {part.seconds}",
        )
        for part in parts_of(run.report.parts_s)[0]
    ]
    return element("div", *pieces, class_="bar", style=f"width:{width:.2%}")


def _swatch(colors: Mapping[str, str], name: str) -> Element:
    return element("span", class_="swatch", style=f"background:{colors.get(name, GREY)}")


def _legend(colors: Mapping[str, str], names: Iterable[str]) -> Element:
    """Return names with their colours."""
    return element("p", *(element("span", _swatch(colors, n), n) for n in names), class_="legend")


def _saves(run: ReportedRun) -> list[Element]:
    saves, close = run.course.saves, {pressure.text for pressure in run.report.pressures}
    troubles = [trouble for trouble in describe_troubles(run.report) if trouble not in close]
    told = [element("ul", *(element("li", trouble) for trouble in troubles))] if troubles else []
    if not saves:
        return [_words("No checkpoint is committed."), *told]
    stalls = [save.stall_s for save in saves if save.stall_s is not None] or [0.0]
    durable = [save.durable_s for save in saves]
    rows = [
        ("saves", str(len(saves)), ""),
        ("size", progress.memory(saves[-1].bytes), progress.memory(max(s.bytes for s in saves))),
        ("time until durable", f"{median(durable):.3f} s", f"{max(durable):.3f} s"),
        ("training waited", f"{median(stalls):.3f} s", f"{max(stalls):.3f} s"),
    ]
    return [
        table(("", "median", "most"), rows, (1, 2)),
        plot(save_plot(run.course), "time until each save was durable, and its stall"),
        *told,
    ]


def _memory(run: ReportedRun) -> list[Element]:
    found = [_words(pressure.text) for pressure in run.report.pressures]
    hosts = run.course.memory
    if not hosts:
        return found or [_words("The journal has no figures of memory.")]
    rows = [
        (
            host or "this host",
            memory.place,
            progress.memory(memory.most),
            progress.memory(memory.limit),
            f"{memory.share:.1%}",
        )
        for host, memory in list(hosts.items())[:_MOST_DEATHS]
    ]
    heads = ("host", "closest limit", "most in use", "limit", "share")
    if any(len(memory.peaks) > 1 for memory in hosts.values()):
        found.append(plot(memory_plot(run.course), "the most memory in use over time, by host"))
    return [*found, table(heads, rows, (2, 3, 4))]


def _deaths_of(run: ReportedRun) -> list[Element]:
    """Return the deaths of workers with their evidence."""
    failures = run.report.failures
    if not failures:
        return [_words("No worker has died.")]
    rows = []
    for failure in failures[-_MOST_DEATHS:]:
        evidence = "\n".join(describe_evidence(failure))
        folded = element("details", element("summary", "evidence"), element("pre", evidence))
        cause = element("span", describe_failure(failure), *([folded] if evidence else []))
        host = element("span", failure.host or "-", class_="whole")
        rows.append((describe_time(failure), cause, host))
    left_out = len(failures) - len(rows)
    columns = 3 if any(failure.host for failure in failures) else 2
    heads = ("when", "worker and cause", "host")
    found = [table(heads[:columns], [row[:columns] for row in rows])]
    if left_out:
        found.append(_words(f"{left_out} older deaths are in --json."))
    hosts = Counter(failure.host for failure in failures if failure.host)
    if hosts:
        counts = ", ".join(f"{many} on {host}" for host, many in hosts.most_common(_MOST_ROWS))
        found.insert(0, _words(f"Of {len(failures)} deaths {counts}."))
    return [*(_words(sentence) for sentence in run.report.repeated), *found]


def _events(run: ReportedRun) -> list[Element]:
    events = run.course.events
    rows = [(progress.brief(at_s), text) for at_s, text in events[-_MOST_DEATHS:]]
    title = f"The last {len(rows)} of {len(events)}, by the wall time of the run"
    return [element("details", element("summary", title), table(("", ""), rows))]


def _options(run: ReportedRun) -> list[Element]:
    rows = run.options
    lacks = [] if run.record else [_words("RUN.json is missing, or makes no sense.")]
    return [*lacks, table(("", ""), rows)]


def _proof(run: ReportedRun) -> list[Element]:
    report = run.report
    samples = sum(epoch.samples for epoch in report.epochs)
    rows: list[tuple[str, Element | str]] = [
        ("state sha256", element("code", report.final_sha256 or "not complete yet")),
        ("epochs", f"{len(report.epochs)}: {describe_ledger(report)}"),
        ("samples by the ledger", f"{samples:,}"),
        ("journal", describe_journal(report, run.life)),
        ("output", describe_lost_lines(report)),
    ]
    return [
        table(("", ""), rows),
        _words(
            "The digest is of the whole final state. A run of the same script, data, seed and "
            "numerics ends with the same digest, whatever dies."
        ),
    ]


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
        *_compared_options(found),
        element("h2", "Loss and metrics"),
        *_compared_metrics(a, b, found),
        element("h2", "Speed and workers"),
        *_speeds(a, b),
        element("h2", "Where the time went"),
        *_compared_times(a, b, found),
        *(
            part
            for letter, run in zip("AB", (a, b), strict=True)
            for part in (element("h2", f"Deaths of {letter}"), *_deaths_of(run))
        ),
    ]
    return document(title, body, script)


def _compared_options(found: Comparison) -> list[Element]:
    if not found.options:
        return [_words("Options and numerics are the same.")]
    return [_words("All else is the same."), table(("", "A", "B"), found.options)]


def _compared_metrics(a: ReportedRun, b: ReportedRun, found: Comparison) -> list[Element]:
    runs = {"A": a.report.epochs, "B": b.report.epochs}
    names = metric_names([*runs["A"], *runs["B"]])
    if not names:
        return [_words("Neither run has told a metric.")]
    plots = _metric_plots(names[:_MOST_PLOTS], runs)
    cells = table(found.heads, found.epochs[-_MOST_COMPARED:], range(len(found.heads)))
    summary = element("summary", "The epochs that both have ended, as a table (= is the same)")
    return [element("div", *plots, class_="two"), element("details", summary, cells)]


def _speeds(a: ReportedRun, b: ReportedRun) -> list[Element]:
    found: list[Element] = []
    for letter, run in zip("AB", (a, b), strict=True):
        found.append(element("h3", f"{letter}: {run.speed} samples/s"))
        if run.course.samples_per_s:
            found.append(plot(speed_plot(run.course), f"speed and workers of {letter}"))
        else:
            found.append(_words("No step is applied yet."))
    return found


def _compared_times(a: ReportedRun, b: ReportedRun, found: Comparison) -> list[Element]:
    longest = max(a.report.wall_s, b.report.wall_s) or 1.0
    bars: list[Element] = [_legend(PARTS, (name for name, _, _ in found.times))]
    for letter, run in zip("AB", (a, b), strict=True):
        bars += [element("h3", letter), _time_bar(run, run.report.wall_s / longest)]
    return [*bars, table(("", "A", "B"), found.times, (1, 2))]
