"""The page of a run: its sections in the order in which a reader wants them.

What a run lacks is told in a sentence.  A plot without data is not there.
"""

from __future__ import annotations

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
from holdfast.runtime.tools.report import (
    EpochReport,
    describe_evidence,
    describe_failure,
    describe_journal,
    describe_ledger,
    describe_lost_lines,
    describe_s,
    describe_time,
    describe_troubles,
    epoch_table,
    metric_names,
)
from holdfast.runtime.tools.reported_run import ReportedRun
from holdfast.runtime.tools.summary import parts_of

_MOST_PLOTS = 12
_MOST_ROWS = 50
_MOST_DEATHS = 200


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
        ("Deaths", deaths_of),
        ("Events", _events),
        ("Options and numerics", _options),
        ("Proof", _proof),
    )
    script = plotly_script()
    body = _head(run, now)
    for title, section in sections:
        body += [element("h2", title), *section(run)]
    return document(f"{run.name}: {run.state}", body, script)


def words(text: str) -> Element:
    """Return a paragraph."""
    return element("p", text)


def _head(run: ReportedRun, now: str) -> list[Element]:
    report = run.report
    facts = [
        ("wall time", describe_s(report.wall_s)),
        ("goodput", f"{report.goodput:.1%}"),
        ("samples/s", run.speed),
        ("deaths", str(len(report.failures))),
        ("saves", str(len(report.checkpoints))),
    ]
    run_id = report.run_id or "without an id"
    made = f"run {run_id} in {run.path.absolute()}, as of {now}"
    digest = report.final_sha256
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
        return [words("No epoch has ended yet.")]
    if not names:
        return [words("The script has told no metrics.")]
    shown = names[:_MOST_PLOTS]
    plots = metric_plots(shown, {run.name: epochs})
    more = len(names) - len(shown)
    return [
        element("div", *plots, class_="two"),
        *([words(f"{more} more metrics are in the table.")] if more else []),
        element("details", element("summary", "All epochs as a table"), _epoch_table(epochs)),
    ]


def metric_plots(names: Sequence[str], runs: Mapping[str, Sequence[EpochReport]]) -> list[Element]:
    """Return a plot of each metric below its name, for which an axis has no room."""
    return [
        element("div", element("h3", name), plot(metric_plot(name, runs), f"{name} over epochs"))
        for name in names
    ]


def _epoch_table(epochs: Sequence[EpochReport]) -> Element:
    heads, rows = epoch_table(epochs)
    made = table(heads, rows[-_MOST_ROWS:], range(len(heads)))
    if len(rows) > _MOST_ROWS:
        made.append(words(f"The last {_MOST_ROWS} of {len(rows)} epochs; all are in --json."))
    return made


def _speed(run: ReportedRun) -> list[Element]:
    course = run.course
    if not course.samples_per_s:
        return [words("No step is applied yet.")]
    found = [plot(speed_plot(course), "samples per second and workers over time")]
    for title, returns in (
        ("Recoveries in place", course.recoveries),
        ("Relaunches", course.relaunches),
    ):
        if returns:
            longest = describe_s(max(one.length_s for one in returns))
            many = len(returns)
            shown = f", the {MOST_RETURNS} longest below" if many > MOST_RETURNS else ""
            found += [
                element("h3", f"{title}: {many}{shown}; the longest took {longest}"),
                legend(PHASES, dict.fromkeys(name for one in returns for name in one.phases_s)),
                plot(return_plot(returns), f"{title} by their phases"),
            ]
    return found


def _time(run: ReportedRun) -> list[Element]:
    if not run.report.parts_s:
        return [words("The journal tells no begin of a job, so no time is known.")]
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
        words("Goodput is the share of the wall time that went into steps that count."),
        time_bar(run),
        table(("", "time", "share", "what it is"), rows, (1, 2)),
    ]


def time_bar(run: ReportedRun, width: float = 1.0) -> Element:
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


def legend(colors: Mapping[str, str], names: Iterable[str]) -> Element:
    """Return names with their colours."""
    return element("p", *(element("span", _swatch(colors, n), n) for n in names), class_="legend")


def _saves(run: ReportedRun) -> list[Element]:
    saves, close = run.course.saves, {pressure.text for pressure in run.report.pressures}
    troubles = [trouble for trouble in describe_troubles(run.report) if trouble not in close]
    told = [element("ul", *(element("li", trouble) for trouble in troubles))] if troubles else []
    if not saves:
        return [words("No checkpoint is committed."), *told]
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
    found = [words(pressure.text) for pressure in run.report.pressures]
    hosts = run.course.memory
    if not hosts:
        return found or [words("The journal has no figures of memory.")]
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


def deaths_of(run: ReportedRun) -> list[Element]:
    """Return the deaths of workers with their evidence."""
    failures = run.report.failures
    if not failures:
        return [words("No worker has died.")]
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
        found.append(words(f"{left_out} older deaths are in --json."))
    hosts = Counter(failure.host for failure in failures if failure.host)
    if hosts:
        counts = ", ".join(f"{many} on {host}" for host, many in hosts.most_common(_MOST_ROWS))
        found.insert(0, words(f"Of {len(failures)} deaths {counts}."))
    return [*(words(sentence) for sentence in run.report.repeated), *found]


def _events(run: ReportedRun) -> list[Element]:
    events = run.course.events
    rows = [(describe_s(at_s), words) for at_s, words in events[-_MOST_DEATHS:]]
    title = f"The last {len(rows)} of {len(events)}, by the wall time of the run"
    return [element("details", element("summary", title), table(("", ""), rows))]


def _options(run: ReportedRun) -> list[Element]:
    rows = run.options
    lacks = [] if run.record else [words("RUN.json is missing, or makes no sense.")]
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
        words(
            "The digest is of the whole final state. A run of the same script, data, seed and "
            "numerics ends with the same digest, whatever dies."
        ),
    ]
