"""The page of a run: one file of HTML, with its metrics, deaths, and where its time went.

What a run lacks is told in a sentence.  A page is made of elements, so every text is escaped, and
plots are SVG.  It has no script, and its policy lets a browser load nothing from anywhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from holdfast.runtime.commands.goodput import parts_of
from holdfast.runtime.commands.reported_run import (
    ReportedRun,
    describe_evidence,
    describe_failure,
    describe_metric,
    describe_time,
    describe_troubles,
    epoch_table,
    facts_of,
    metric_columns,
    metric_names,
)
from holdfast.runtime.commands.summary import EpochReport
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.head.living_job import LIVES
from holdfast.runtime.run import progress
from holdfast.runtime.run.files import refusal, write_whole

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_TRAINING, _VALIDATION, _GREY = "#2667a8", "#d48a1c", "#7b8794"
_PARTS = {
    **{"training": _TRAINING, "starting": "#9fb3c8", "ending": "#bcccdc", "paused": "#d9e2ec"},
    **{"repair": "#c0392b", "relaunch": "#d9776b", "repeated work": "#ecb2a9"},
    **{"saving stall": _VALIDATION, "renewal": "#f0c987"},
}
"""A colour for each part of the wall time: what a death has cost is red."""

_ELSEWHERE = ("run", "outcome", "metrics")
"""Facts that stand above, in other words."""

_LOWEST_IS_BEST = ("loss", "error", "mae", "mse", "mape", "msle", "divergence", "perplexity")
_MOST_PLOTS, _MOST_POINTS = 12, 500
_MOST_EPOCHS, _MOST_DEATHS = 50, 200
_WIDE, _HIGH, _LEFT, _BELOW = 460, 190, 62, 22
"""Of a plot, with the room that its numbers take."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; margin: 0 auto; max-width: 1000px;
  padding: 20px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 6px; padding-top: 10px; border-top: 1px solid #e4e7eb; }
h3 { font-size: 15px; margin: 14px 0 2px; overflow-wrap: anywhere; }
.path, code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; color: #52606d; }
.verdict { border-left: 4px solid #7b8794; padding: 6px 12px; background: #f5f7fa; }
.complete { border-color: #2f8f5b; } .failed, .lost { border-color: #c0392b; }
.running { border-color: #2667a8; } .stopped { border-color: #d48a1c; }
.verdict b { text-transform: capitalize; }
.two { display: grid; gap: 4px 20px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
svg { width: 100%; display: block; } svg text { font-size: 12px; fill: #52606d; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 8px 0; font-variant-numeric: tabular-nums; }
th { text-align: left; color: #52606d; font-size: 13px; }
th, td { padding: 4px 18px 4px 0; vertical-align: top; border-bottom: 1px solid #e4e7eb; }
td { overflow-wrap: anywhere; } td:first-child { white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
.bar { display: flex; height: 32px; margin: 10px 0; } .bar div { min-width: 1px; }
.swatch { display: inline-block; width: 11px; height: 11px; margin-right: 7px; }
.bar, .swatch { print-color-adjust: exact; }
pre { font: 12px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  background: #f5f7fa; padding: 8px; margin: 4px 0; }
summary { cursor: pointer; color: #2667a8; }
"""


def page_of(run: ReportedRun, now: str) -> str:
    """Return the page of a run as it was ``now``, a moment as people read it."""
    body = _head(run, now)
    for title, section in (
        ("Epochs", _epochs),
        ("Deaths", _deaths),
        ("Where the time went", _time),
        ("Checkpoints and memory", _troubles),
        ("Options and numerics", _options),
    ):
        body += [_element("h2", title), *section(run)]
    head = _element(
        "head",
        _element("meta", charset="utf-8"),
        _element("meta", **{"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        _element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _element("title", f"{_name(run)}: {_state(run)}"),
        _element("style", _STYLE),
    )
    whole = _element("html", head, _element("body", *body), lang="en")
    return "<!DOCTYPE html>\n" + ElementTree.tostring(whole, "unicode", method="html") + "\n"


def write_page(path: Path, text: str) -> None:
    """Write a page, in the place of an older one; no link is followed there.

    A job neither reads nor lists a page, so it may lie in a run directory, without the lease.

    Raises:
        UsageError: the file cannot be written, or its name is that of something else.
    """
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "no regular file"
        raise UsageError(f"{path} is {kind}; give the page another name with --html FILE")
    try:
        write_whole(path, text.encode(), is_durable=True)
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "give the page another place with --html FILE"
        raise refusal(path, error, f"{path} cannot be written: {reason}; {advice}") from error


def _element(tag: str, *inside: Element | str, **attributes: str) -> Element:
    """Return an element with texts and elements in it; ``class_`` is ``class``."""
    made = Element(tag, {name.rstrip("_"): value for name, value in attributes.items()})
    last: Element | None = None
    for one in inside:
        if isinstance(one, Element):
            made.append(one)
            last = one
        elif last is None:
            made.text = (made.text or "") + one
        else:
            last.tail = (last.tail or "") + one
    return made


_words = functools.partial(_element, "p")


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[Element | str]], numbers: Iterable[int] = ()
) -> Element:
    """Return a table; the columns that ``numbers`` names stand to the right."""
    kinds = {index: {"class_": "number"} for index in numbers}

    def row(tag: str, cells: Sequence[Element | str]) -> Element:
        made = (_element(tag, cell, **kinds.get(index, {})) for index, cell in enumerate(cells))
        return _element("tr", *made)

    head = [_element("thead", row("th", heads))] if any(heads) else []
    body = _element("tbody", *(row("td", cells) for cells in rows))
    return _element("div", _element("table", *head, body), class_="scroll")


def _head(run: ReportedRun, now: str) -> list[Element]:
    report = run.report
    speed = f"{report.samples / report.step_s:,.0f}" if report.step_s else "-"
    told = {name: text for name, text in facts_of(run).items() if name not in _ELSEWHERE}
    facts = [*(told | {"speed": f"{speed} samples/s"}).items()]
    made = f"run {report.run_id or 'without an id'} in {run.path.absolute()}, as of {now}"
    metrics = [
        (name, *_final_and_best(name, column, report.epochs))
        for name, column in metric_columns(report.epochs).items()
    ]
    state = _state(run)
    return [
        _element("h1", _name(run)),
        _element("p", made, class_="path"),
        _element("p", _element("b", state), ": ", _verdict(run), class_=f"verdict {state}"),
        *([_table(("metric", "final", "best"), metrics, (1,))] if metrics else []),
        _table(("", ""), facts),
    ]


def _final_and_best(
    name: str, column: Sequence[float | None], epochs: Sequence[EpochReport]
) -> tuple[str, str]:
    """Return the newest value of a metric, and the best one with its epoch."""
    each = zip(column, epochs, strict=True)
    known = [(value, one.epoch) for value, one in each if value is not None]
    final = describe_metric(known[-1][0])
    finite = [(value, epoch) for value, epoch in known if math.isfinite(value)]
    if not finite:
        return final, "-"
    is_low = any(word in name for word in _LOWEST_IS_BEST)
    value, epoch = (min if is_low else max)(finite, key=lambda one: one[0])
    kind = "lowest" if is_low else "highest"
    return final, f"{describe_metric(value)}, the {kind}, in epoch {epoch}"


def _name(run: ReportedRun) -> str:
    """The name of its script, else of its directory."""
    script = run.started.script if run.started else None
    return (script or str(run.path.absolute())).rpartition("/")[2]


def _state(run: ReportedRun) -> str:
    """One word on how it stands: complete, running, stopped, failed or lost."""
    code = run.report.exit_code
    if code is None:
        return "running" if run.life in LIVES else "lost"
    words = {int(ExitCode.DONE): "complete", int(ExitCode.STOPPED_EARLY): "stopped"}
    return words.get(code, "failed")


def _verdict(run: ReportedRun) -> str:
    """How the run stands in one sentence, with what it has done."""
    report, counts = run.report, progress.count
    steps = f"{report.steps:,} {'step' if report.steps == 1 else 'steps'}"
    done = f"{steps} in {counts(len(report.epochs), 'epoch')}"
    if run.started is not None:
        done += f" on {counts(run.started.workers, 'worker')}"
    deaths = counts(len(report.failures), "death") + " of a worker" if report.failures else ""
    ways = [
        f"{len(report.recoveries)} recovered in place" if report.recoveries else "",
        counts(len(report.relaunches), "relaunch", "relaunches") if report.relaunches else "",
    ]
    came = ", ".join(way for way in ways if way)
    survived = f"; {deaths}" + (f" ({came})" if came else "") if deaths else "; no worker died"
    if _state(run) == "complete":
        return f"{done}{survived}."
    return f"{run.outcome}. {done}{survived}."


def _epochs(run: ReportedRun) -> list[Element]:
    epochs = run.report.epochs
    names = metric_names(epochs)
    if not epochs:
        return [_words("No epoch has ended yet.")]
    plots = [_plot(name, epochs) for name in names[:_MOST_PLOTS]]
    heads, rows = epoch_table(epochs)
    table = [_table(heads, rows[-_MOST_EPOCHS:], range(len(heads)))]
    if len(rows) > _MOST_EPOCHS:
        table.append(_words(f"The last {_MOST_EPOCHS} of {len(rows)} epochs; all are in --json."))
    more = [_words(f"{len(names) - len(plots)} more metrics are in the table.")]
    return [
        _element("div", *plots, class_="two"),
        *(more if len(names) > len(plots) else []),
        _element("details", _element("summary", "As a table"), *table),
    ]


def _plot(name: str, epochs: Sequence[EpochReport]) -> Element:
    """Return a metric over the epochs, in training and in validation."""
    step = math.ceil(len(epochs) / _MOST_POINTS)
    shown = [one for i, one in enumerate(epochs) if i % step == 0 or one is epochs[-1]]
    lines = {
        ("training", _TRAINING): [(one.epoch, one.metrics.get(name)) for one in shown],
        ("validation", _VALIDATION): [(one.epoch, one.validation.get(name)) for one in shown],
    }
    finite = {
        kind: [(x, y) for x, y in points if y is not None and math.isfinite(y)]
        for kind, points in lines.items()
    }
    values = [y for points in finite.values() for _, y in points]
    if not values:
        return _element("div", _element("h3", name), _words("It has no finite value."))
    low, high = min(values), max(values)
    first, last = shown[0].epoch, shown[-1].epoch

    def place(x: int, y: float) -> tuple[float, float]:
        right = (x - first) / (last - first) if last > first else 0.5
        up = (y - low) / (high - low) if high > low else 0.5
        return _LEFT + 6 + right * (_WIDE - _LEFT - 14), 8 + (1 - up) * (_HIGH - _BELOW - 16)

    def text(x: float, y: float, words: str, anchor: str, **more: str) -> Element:
        return _element("text", words, x=f"{x}", y=f"{y}", **{"text-anchor": anchor}, **more)

    frame = f"M{_LEFT} 2V{_HIGH - _BELOW}H{_WIDE - 2}"
    inside = [
        _element("path", d=frame, fill="none", stroke="#cbd2d9"),
        text(_LEFT - 6, place(first, high)[1] + 4, describe_metric(high), "end"),
        *([text(_LEFT - 6, place(first, low)[1] + 4, describe_metric(low), "end")] * (low < high)),
        text(place(first, low)[0], _HIGH - 6, f"epoch {first}", "start"),
        *([text(_WIDE - 4, _HIGH - 6, f"{last}", "end")] * (last > first)),
    ]
    for (kind, color), points in finite.items():
        places = [place(x, y) for x, y in points]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        inside.append(_element("polyline", points=drawn, fill="none", stroke=color))
        if len(places) <= 60:
            dots = ((f"{x:.1f}", f"{y:.1f}") for x, y in places)
            inside += [_element("circle", cx=x, cy=y, r="2.5", fill=color) for x, y in dots]
        if places:
            middle, below = (_WIDE - _LEFT) / 2 + _LEFT, _HIGH - 6
            where = middle - 40 if kind == "training" else middle + 50
            inside.append(text(where, below, kind, "middle", style=f"fill:{color}"))
    label = f"{name} over epochs {first} to {last}, from {describe_metric(low)} to "
    svg = _element(
        "svg", *inside, viewBox=f"0 0 {_WIDE} {_HIGH}", role="img",
        **{"aria-label": label + describe_metric(high)},
    )  # fmt: skip
    return _element("div", _element("h3", name), svg)


def _deaths(run: ReportedRun) -> list[Element]:
    """Return the deaths of workers with their evidence."""
    failures = run.report.failures
    if not failures:
        return [_words("No worker has died.")]
    rows = []
    for failure in failures[-_MOST_DEATHS:]:
        evidence = "\n".join(describe_evidence(failure))
        folded = _element("details", _element("summary", "evidence"), _element("pre", evidence))
        cause = _element("span", describe_failure(failure), *([folded] if evidence else []))
        rows.append((describe_time(failure), cause, failure.host or ""))
    columns = 3 if any(failure.host for failure in failures) else 2
    heads = ("when", "worker and cause", "host")
    found = [_words(sentence) for sentence in run.report.death_counts]
    found.append(_table(heads[:columns], [row[:columns] for row in rows]))
    if len(failures) > len(rows):
        found.append(_words(f"{len(failures) - len(rows)} older deaths are in --json."))
    return found


def _time(run: ReportedRun) -> list[Element]:
    if not run.report.parts_s:
        return [_words("The journal tells no begin of a job, so no time is known.")]
    parts, wall = parts_of(run.report.parts_s)
    rows: list[Sequence[Element | str]] = []
    pieces = []
    for part in parts:
        color = f"background:{_PARTS.get(part.name, _GREY)}"
        swatch = _element("span", class_="swatch", style=color)
        name = _element("span", swatch, part.name)
        rows.append((name, part.seconds, f"{part.share:.1%}", part.meaning))
        style, title = f"flex-grow:{part.share:.6f};{color}", f"{part.name}: {part.seconds}"
        pieces.append(_element("div", style=style, title=title))
    rows.append((_element("b", "wall time"), wall, "100.0%", "the sum of the parts"))
    heads = ("", "time", "share", "what it is")
    return [_element("div", *pieces, class_="bar"), _table(heads, rows, (1, 2))]


def _troubles(run: ReportedRun) -> list[Element]:
    saves, troubles = run.report.checkpoints, describe_troubles(run.report)
    told = "No checkpoint is committed."
    if saves:
        size, longest = progress.memory(saves[-1].bytes), max(one.seconds for one in saves)
        many = progress.count(len(saves), "checkpoint")
        told = f"{many} committed, the last of {size}; the longest took {progress.brief(longest)}."
    return [_words(told), *(_words(trouble) for trouble in troubles)]


def _options(run: ReportedRun) -> list[Element]:
    """Return what the run was asked for, and what its bits depend on."""
    rows: list[tuple[str, object]] = []
    if run.started is not None:
        started = run.started
        rows += [
            ("script", started.script),
            ("arguments", " ".join(started.argv or ())),
            ("workers", started.workers),
            ("spares", started.spares),
            ("hosts", " ".join(started.hosts or ())),
            *(option.partition(" ")[::2] for option in started.options or ()),
        ]
    if run.record is not None:
        record = run.record
        rows += [
            ("seed", record.seed),
            ("microbatches", record.microbatches),
            ("threads of a worker", record.threads),
            *(item for item in record.numerics.items() if item[0] != "threads"),
            ("script sha256", record.script_sha256),
        ]
    lacks = [] if run.record else [_words("RUN.json is missing, or makes no sense.")]
    told = [(name, str(value)) for name, value in rows if value not in (None, "")]
    return [*lacks, _table(("", ""), told)]
