"""``holdfast status`` and ``list``: how a job stands, and how those below a directory do."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from holdfast.runtime.commands.command import PATH, Documented, living_run_argument
from holdfast.runtime.commands.goodput import Bucket
from holdfast.runtime.commands.job_status import (
    JobStatus,
    StatusSource,
    saved_in_words,
    shares_in_words,
    slowest_in_words,
    to_json,
)
from holdfast.runtime.commands.terminal import fitted, grid, moment, output, ruled
from holdfast.runtime.errors import ExitCode, JobError, UsageError
from holdfast.runtime.head.screen import say
from holdfast.runtime.run import progress
from holdfast.runtime.run.files import answering
from holdfast.runtime.run.find_run import runs_below
from holdfast.runtime.run.place_url import PlacePath
from holdfast.runtime.run.run_directory import RunDirectory

_LOOK_S = 1.0
_SHOWN_FROM_S = 0.05
_WIDEST = 1 << 16


@click.command(cls=Documented, examples=("status", "status holdfast-train --watch"))
@living_run_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a look instead.")
@click.option("--watch", is_flag=True, help="Look again each second, until the job has ended.")
def status(run_dir: Path, *, as_json: bool, watch: bool) -> None:
    """Show how the job in RUN_DIR stands: its workers, epoch, saves, goodput and last events.

    The job may run anywhere on this host, or have ended.  Looking changes nothing.
    """
    with contextlib.closing(StatusSource(run_dir.absolute())) as source:
        try:
            _show(_looks(source, run_dir, is_watching=watch), as_json=as_json, is_watching=watch)
        except KeyboardInterrupt:
            if not watch:
                raise


def _looks(source: StatusSource, run_dir: Path, *, is_watching: bool) -> Iterator[JobStatus]:
    """Yield a status now, and if asked to one each second until the job has ended."""
    while True:
        with answering(run_dir, say):
            found = source.poll(time.time())
        yield found
        if found.is_over or not is_watching:
            return
        time.sleep(_LOOK_S)


def _show(looks: Iterator[JobStatus], *, as_json: bool, is_watching: bool) -> None:
    console = output()
    if as_json:
        for found in looks:
            click.echo(json.dumps(to_json(found), indent=None if is_watching else 2))
    elif is_watching and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for found in looks:
                live.update(page_of(found, console), refresh=True)
    else:
        for found in looks:
            console.print(page_of(found, console))


def page_of(found: JobStatus, console: Console) -> RenderableType:
    """Return everything that is known of a job, for a terminal or a file."""
    parts: list[RenderableType] = [_facts(found, console)]
    if found.workers:
        parts += [Text(), _workers(found)]
    if any(worker.spent_s for worker in found.workers):
        parts += [_shares(found)]
    if found.events:
        events = ((moment(event.time), fitted(event.text, console)) for event in found.events)
        parts += [Text(), grid(events)]
    return Group(*parts)


def _facts(found: JobStatus, console: Console) -> Table:
    metrics = {} if found.progress is None or found.is_over else found.progress.metrics
    next_save = f"; next {found.next_save}" if found.next_save and not found.is_over else ""
    rows = (
        ("run", found.run_id or "-"),
        ("job", _job(found)),
        ("command", "" if found.pid is None else f"pid {found.pid}: {found.command or '-'}"),
        ("state", found.outcome),
        ("progress", _progress(found)),
        ("waiting", _waiting(found)),
        ("slowest", slowest_in_words(found.workers)),
        ("metrics", ", ".join(progress.metrics(metrics))),
        ("last epoch", "" if found.epoch is None else found.epoch.line),
        ("saves", saved_in_words(found.last_save) + next_save),
        ("copies", "" if found.last_copy is None else saved_in_words(found.last_copy)),
        ("goodput", _goodput(found)),
    )
    return grid((name, fitted(text, console)) for name, text in rows if text)


def _job(found: JobStatus) -> str:
    script = "-" if found.script is None else Path(found.script).name
    if not found.launched:
        return script
    launched = progress.count(found.launched, "worker")
    living = sum(worker.pid is not None for worker in found.workers)
    if found.is_over or not found.workers:
        return f"{script}, launched on {launched}"
    of = "" if living == found.launched else f"{living} of "
    return f"{script} on {of}{launched}"


def _progress(found: JobStatus) -> str:
    report, parts = found.progress, [f"step {found.step}"]
    if report is not None:
        parts[0] += f" of {report.steps}" if report.steps else ""
        fit = f"fit {report.stage}, " if report.stage > 1 else ""
        parts.insert(0, f"{fit}epoch {report.epoch} of {report.epochs}")
        of = f" of {report.steps_per_epoch}" if report.steps_per_epoch else ""
        parts.insert(1, f"{report.step_of_epoch}{of} in it")
    if found.steps_per_s and not _waiting(found):
        parts.append(progress.rate(found.steps_per_s))
        if report is not None and report.steps > report.step:
            left_s = (report.steps - report.step) / found.steps_per_s
            parts.append(f"{progress.duration(left_s)} left")
    return ", ".join(parts)


def _waiting(found: JobStatus) -> str:
    """Return for which workers all wait, for how long, and where these are."""
    them = [worker for worker in found.workers if worker.standing_s is not None]
    if not them:
        return ""
    places = [f"worker {one.worker}" + (f" in {one.where}" if one.where else "") for one in them]
    seconds = max(one.standing_s or 0.0 for one in them)
    return f"{progress.duration(seconds)} for {', '.join(places)}"


def _goodput(found: JobStatus) -> str:
    goodput = found.goodput
    if goodput is None or not goodput.wall_s:
        return ""
    lost = {
        name: seconds
        for name, seconds in goodput.parts_s.items()
        if seconds >= _SHOWN_FROM_S and name != Bucket.TRAINING.label
    }
    parts = [f"{name} {seconds:.1f} s" for name, seconds in lost.items()]
    of_time = f"{goodput.share:.1%} of {progress.duration(goodput.wall_s)}"
    of_time += f" in {goodput.jobs} jobs" if goodput.jobs > 1 else ""
    return f"{of_time} ({', '.join(parts)})" if parts else of_time


def _workers(found: JobStatus) -> Table:
    has_hosts = any(worker.host for worker in found.workers)
    columns = ("worker", *(("host",) if has_hosts else ()), "pid", "phase", "step", "memory")
    table = ruled(*columns, "last heartbeat", pad_edge=False)
    for worker in sorted(found.workers, key=lambda worker: worker.worker):
        size, silent = worker.resident_bytes, worker.silent_s
        table.add_row(
            str(worker.worker),
            *((worker.host,) if has_hosts else ()),
            "-" if worker.pid is None else str(worker.pid),
            progress.phase(worker.phase),
            str(worker.step),
            "-" if size is None else progress.memory(size),
            "-" if silent is None else f"{silent:.1f} s ago",
        )
    return table


def _shares(found: JobStatus) -> Table:
    """Return what each worker has spent its steps on, since it began."""
    table = ruled("worker", "time of its steps", pad_edge=False)
    for worker in sorted(found.workers, key=lambda worker: worker.worker):
        table.add_row(str(worker.worker), shares_in_words(worker) or "-")
    return table


@click.command("list", cls=Documented, examples=("list", "list /scratch/runs"))
@click.argument("directory", type=PATH, default=Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead.")
def list_runs(directory: Path, *, as_json: bool) -> None:
    """List the runs in DIRECTORY and below it, the living ones first: script, state, and steps.

    Without DIRECTORY it is the working directory.  A URL lists places of copies with their steps.
    Looking changes nothing.
    """
    if isinstance(directory, PlacePath):
        from holdfast.runtime.commands.checkpoints import list_place  # with NumPy

        list_place(directory, as_json=as_json)
        return
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory; give one that holds runs")
    found: list[tuple[Path, JobStatus]] = []
    for run in runs_below(directory):
        with contextlib.closing(StatusSource(run.absolute())) as source:
            try:
                found.append((run, source.poll(time.time())))
            except JobError as error:
                say(str(error))
    found.sort(key=lambda each: each[1].is_over)
    if as_json:
        click.echo(json.dumps([{"run_dir": str(run), **to_json(look)} for run, look in found]))
        return
    if not found:
        click.echo(f"no run is in {directory.absolute()} or below it")
        return
    table = ruled("run directory", "script", "state", "step", "newest checkpoint")
    previous = [RunDirectory(run).previous_runs for run, _ in found]
    if any(previous):
        table.add_column("previous")
    for (run, look), kept in zip(found, previous, strict=True):
        script = "-" if look.script is None else Path(look.script).name
        cells = (
            str(run),
            script,
            _state(look),
            str(look.step),
            saved_in_words(look.last_save),
            str(kept),
        )
        table.add_row(*map(Text, cells[: len(table.columns)]))
    console = output()
    at_any_width = console.options.update(max_width=_WIDEST)  # a path that is cut cannot be copied
    wanted = Measurement.get(console, at_any_width, table).maximum
    console.width = max(console.width, wanted)
    console.print(table)
    if any(previous):
        console.print(
            "previous: runs that --fresh has set aside; `rm -r RUN_DIR/previous-*` removes them"
        )


def _state(found: JobStatus) -> str:
    """Return how a job stands in few words; `holdfast status` has all of them."""
    words: dict[int | None, str] = {ExitCode.DONE: "complete", ExitCode.STOPPED_EARLY: "stopped"}
    first_words: str = re.split("[:;]", found.outcome)[0]
    return words.get(found.exit_code, first_words) if found.is_over else first_words
