"""``holdfast report``: the history and outcome of the run in a directory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.runtime.commands.command import Documented, run_dir_argument
from holdfast.runtime.commands.goodput import parts_of
from holdfast.runtime.commands.page import page_of, write_page
from holdfast.runtime.commands.reported_run import (
    ReportedRun,
    describe_evidence,
    describe_failure,
    describe_time,
    describe_troubles,
    epoch_table,
    facts_of,
    read_reported_run,
)
from holdfast.runtime.commands.summary import Report, to_json
from holdfast.runtime.commands.terminal import fitted, grid, output
from holdfast.runtime.run import progress
from holdfast.runtime.run.entries import sentence_of
from holdfast.runtime.run.events import named_workers
from holdfast.runtime.run.run_directory import RunDirectory

Row: TypeAlias = tuple[str, ...]

_MOST_EVIDENCE = 10
_FIRST_EPOCHS, _MOST_EPOCHS = 3, 20

_IN_RUN_DIR = "\0"
"""What no shell can give as a name: --html without FILE."""


@click.command(cls=Documented, examples=("report", "report holdfast-train --html"))
@run_dir_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.option(
    "--html",
    "page",
    is_flag=False,
    flag_value=_IN_RUN_DIR,
    metavar="[FILE]",
    help="Write the report as a page that needs no network, to RUN_DIR/report.html without FILE.",
)
def report(run_dir: Path, *, as_json: bool, page: str | None) -> None:
    """Summarize the run in RUN_DIR from its journal."""
    run = read_reported_run(run_dir)
    if as_json:
        click.echo(to_json(run.report))
    if page is not None:
        path = RunDirectory(run.path).page_path if page == _IN_RUN_DIR else Path(page)
        write_page(path, page_of(run, f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"))
        click.echo(f"wrote {path} ({progress.memory(path.stat().st_size)}): open it in a browser")
    elif not as_json:
        _print(run, output())


def _print(run: ReportedRun, console: Console) -> None:
    summary = run.report
    facts = facts_of(run)
    facts["outcome"] = fitted(facts["outcome"], console)
    console.print(grid(facts.items()))
    for wide in (_table(*epoch_table(run.report.epochs), console.width), _time(run)):
        if wide.row_count:
            console.print(wide)
    for heads, rows in _lists(summary):
        if rows:
            console.print(_filled(heads, rows))
    for line in _evidence(summary):
        console.print(Text(line))  # no markup: [w0] is the user's


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return the first and the last epochs, with as many metrics as fit into a line."""
    widths = [max(map(len, column)) + 3 for column in zip(heads, *rows, strict=True)]
    fit = max(3, sum(end < width for end in itertools.accumulate(widths)))
    table = Table()
    for head in heads[:fit]:
        table.add_column(Text(head), justify="right", no_wrap=True)  # a name is the script's
    left_out = len(rows) - _MOST_EPOCHS
    first = _FIRST_EPOCHS if left_out > 0 else len(rows)
    for row in rows[:first]:
        table.add_row(*row[:fit])
    if left_out > 0:
        table.add_row(*["…"] * fit)
        for row in rows[first - _MOST_EPOCHS :]:
            table.add_row(*row[:fit])
    unseen = [f"{len(heads) - fit} more columns"] if fit < len(heads) else []
    unseen += [f"{left_out} more epochs"] if left_out > 0 else []
    if unseen:
        table.caption = f"{' and '.join(unseen)}: see --html or --json"
    return table


def _time(run: ReportedRun) -> Table:
    parts, wall = parts_of(run.report.parts_s)
    table = Table("wall time", "", "share", "what it is", show_footer=bool(parts))
    for column, footer in zip(table.columns, ("sum", wall, "100.0%", ""), strict=True):
        column.footer = footer
    for column in table.columns[1:3]:
        column.justify = "right"
    for part in parts:
        table.add_row(part.name, part.seconds, f"{part.share:.1%}", part.meaning)
    return table


def _evidence(summary: Report) -> list[str]:
    """Return what was found out of the workers that died last, in lines."""
    told = [(failure, describe_evidence(failure)) for failure in summary.failures]
    told = [(failure, evidence) for failure, evidence in told if evidence]
    lines = []
    for failure, evidence in told[-_MOST_EVIDENCE:]:
        lines += ["", f"worker {failure.worker}", *(f"  {line}" for line in evidence)]
    if len(told) > _MOST_EVIDENCE:
        left_out = len(told) - _MOST_EVIDENCE
        lines += ["", f"the evidence of {left_out} older failures is in --json"]
    return lines


def _lists(summary: Report) -> Iterator[tuple[Row, list[Row]]]:
    """Yield the heads and the rows of each list of what went wrong and how the run went on."""
    yield (
        ("failures", "time"),
        [(describe_failure(death), describe_time(death)) for death in summary.failures],
    )
    yield ("deaths by host and cause",), [(sentence,) for sentence in summary.death_counts]
    yield ("workers without progress",), [(sentence_of(one),) for one in summary.suspected]
    yield (
        ("recovered at step", "lost", "survivors", "attempts", "death to next step"),
        [
            (
                *(str(one.step), named_workers(one.lost), named_workers(one.survivors)),
                *(str(one.attempts), _since_death(one.since_failure_ms)),
            )
            for one in summary.recoveries
        ],
    )
    yield (
        ("relaunched because", "workers", "from step", "from death or stop to next step"),
        [
            (
                *(one.reason, named_workers(one.workers)),
                "-" if one.restored_step is None else str(one.restored_step),
                _since_death(one.since_failure_ms),
            )
            for one in summary.relaunches
        ],
    )
    yield ("checkpoints and memory",), [(trouble,) for trouble in describe_troubles(summary)]


def _filled(heads: Row, rows: Iterable[Row]) -> Table:
    table = Table(*heads)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _since_death(milliseconds: float | None) -> str:
    """Return a duration with its unit, or a dash for one that never ended."""
    return "-" if milliseconds is None else progress.brief(milliseconds / 1000)
