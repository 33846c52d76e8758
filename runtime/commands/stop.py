"""``holdfast stop``: the end of a living job, with a checkpoint or at once."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from holdfast.runtime.commands.command import Documented, living_run_argument, timeout_option
from holdfast.runtime.commands.living_job import answers_to
from holdfast.runtime.head.visits import AskStop, JobDone
from holdfast.runtime.run.run_directory import RunDirectory


@click.command(
    cls=Documented,
    place=("Run", 3),
    examples=("stop", "stop holdfast-train --now"),
    context_settings={"show_default": True},
)
@living_run_argument
@click.option("--now", "is_urgent", is_flag=True, help="Stop at once, without a checkpoint.")
@click.option("--wait/--no-wait", default=True, help="Whether to wait until it has stopped.")
@timeout_option
def stop(run_dir: Path, *, is_urgent: bool, wait: bool, timeout: float) -> None:
    """Stop the job that runs in RUN_DIR at its next step, with a checkpoint, as SIGTERM does.

    Exits with 0 when it has stopped, with 75 when no job runs there or it goes on.
    """
    directory = RunDirectory(run_dir.absolute())
    order, until = AskStop(is_urgent), "has not stopped"
    with contextlib.closing(answers_to(directory, order, timeout, until)) as answers:
        answer = next(found for found in answers if isinstance(found, JobDone) or not wait)
    if wait and isinstance(answer, JobDone):
        click.echo(f"stopped: its exit code is {answer.exit_code}")
    else:
        click.echo("asked to stop")
