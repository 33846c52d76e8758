"""``holdfast list``: the runs below a directory."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.measure import Measurement
from rich.text import Text

from holdfast.runtime.commands.command import PATH, Documented
from holdfast.runtime.commands.job_status import JobStatus, StatusSource, saved_in_words, to_json
from holdfast.runtime.commands.terminal import output, ruled
from holdfast.runtime.errors import ExitCode, JobError, UsageError
from holdfast.runtime.head.screen import say
from holdfast.runtime.run.find_run import runs_below
from holdfast.runtime.run.run_directory import RunDirectory

_WIDEST = 1 << 16


@click.command("list", cls=Documented, place=("Look", 4), examples=("list", "list /scratch/runs"))
@click.argument("directory", type=PATH, default=Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead.")
def list_runs(directory: Path, *, as_json: bool) -> None:
    """List the runs in DIRECTORY and below it, the living ones first: script, state, and steps.

    Without DIRECTORY it is the working directory.  Looking changes nothing.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory; give one that holds runs")
    found = sorted(_found_below(directory), key=lambda each: each[1].is_over)
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
        cells = (str(run), script, _state(look), str(look.step), saved_in_words(look), str(kept))
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


def _found_below(directory: Path) -> Iterator[tuple[Path, JobStatus]]:
    """Yield each run below a directory with its status; say which cannot be looked at."""
    for run in runs_below(directory):
        source = StatusSource(run.absolute())
        try:
            yield run, source.poll(time.time())
        except JobError as error:
            say(str(error))
        finally:
            source.close()
