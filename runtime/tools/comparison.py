"""Two runs side by side: what differs in what was asked for, and in what came of it; pure.

The runs are called A and B.  A value of B that is A's is written as ``=``.  So two runs with the
same bytes show one column of figures, and any other figure meets the eye.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.runtime.run import progress
from holdfast.runtime.tools.report import (
    describe_ledger,
    describe_metric,
    metric_columns,
)
from holdfast.runtime.tools.reported_run import ReportedRun
from holdfast.runtime.tools.summary import Bucket

SAME = "="
_LACKS = "-"

Row = tuple[str, str, str]
"""A name, and the texts of A and of B."""

OUTCOME: tuple[tuple[str, Callable[[ReportedRun], str]], ...] = (
    ("state", lambda run: run.state),
    ("steps", lambda run: str(run.report.steps)),
    ("epochs", lambda run: f"{len(run.report.epochs)}: {describe_ledger(run.report)}"),
    ("wall time", lambda run: progress.brief(run.report.wall_s)),
    ("goodput", lambda run: f"{run.report.goodput:.1%}"),
    ("samples/s", lambda run: run.speed),
    ("deaths", lambda run: str(len(run.report.failures))),
    ("recoveries in place", lambda run: str(len(run.report.recoveries))),
    ("relaunches", lambda run: str(len(run.report.relaunches))),
    ("saves", lambda run: str(len(run.report.checkpoints))),
    ("state sha256", lambda run: run.report.final_sha256 or _LACKS),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two runs compare; ``heads`` and ``epochs`` are the table of their metrics."""

    outcome: tuple[Row, ...]
    options: tuple[Row, ...]
    """Those that differ."""
    times: tuple[Row, ...]
    heads: tuple[str, ...]
    epochs: tuple[tuple[str, ...], ...]
    """The epochs that both have ended."""


def compare(a: ReportedRun, b: ReportedRun) -> Comparison:
    """Return how two runs compare."""
    heads, epochs = _epochs(a, b)
    asked = (dict(a.options), dict(b.options))
    names = list(dict.fromkeys([*asked[0], *asked[1]]))
    options = (
        (name, asked[0].get(name, _LACKS), asked[1].get(name, _LACKS))
        for name in names
        if asked[0].get(name) != asked[1].get(name)
    )
    return Comparison(
        outcome=tuple(_row(name, text_of(a), text_of(b)) for name, text_of in OUTCOME),
        options=tuple(options),
        times=tuple(_times(a, b)),
        heads=heads,
        epochs=epochs,
    )


def _row(name: str, a: str, b: str) -> Row:
    return name, a, SAME if a == b else b


def _times(a: ReportedRun, b: ReportedRun) -> Iterator[Row]:
    """Yield what each run has spent on each part of its wall time."""
    one, other = a.report.parts_s, b.report.parts_s
    for name in (bucket.value for bucket in Bucket):
        if one.get(name) or other.get(name):
            yield name, _length(one.get(name)), _length(other.get(name))


def _length(seconds: float | None) -> str:
    return progress.brief(seconds) if seconds else _LACKS


def _epochs(a: ReportedRun, b: ReportedRun) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the metrics that both runs have, at the epochs that both have ended."""
    both = {e.epoch for e in a.report.epochs} & {e.epoch for e in b.report.epochs}
    columns = [
        metric_columns([epoch for epoch in run.report.epochs if epoch.epoch in both])
        for run in (a, b)
    ]
    shared = [head for head in columns[0] if head in columns[1]]
    cells = []
    for head in shared:
        pairs = list(zip(columns[0][head], columns[1][head], strict=True))
        cells.append([describe_metric(one) for one, _ in pairs])
        cells.append([SAME if one == other else describe_metric(other) for one, other in pairs])
    heads = ("epoch", *(f"{head} {run}" for head in shared for run in "AB"))
    return heads, tuple(zip(map(str, sorted(both)), *cells, strict=True))
