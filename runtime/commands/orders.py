"""``holdfast attach``, ``save``, ``scale`` and ``stop``: what a living job is asked for."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from holdfast.runtime.commands.command import PATH, Documented, living_run_argument, timeout_option
from holdfast.runtime.errors import NotSaved
from holdfast.runtime.head.living_job import answers_to
from holdfast.runtime.head.visits import (
    AskSave,
    AskScale,
    AskStop,
    JobDone,
    SaveAsked,
    SaveDone,
    SaveRefused,
    ScaleAnswered,
)
from holdfast.runtime.run.progress import count
from holdfast.runtime.run.run_directory import RunDirectory


@click.command(
    cls=Documented,
    examples=("attach", "attach holdfast-train"),
    context_settings={"allow_interspersed_args": False},
)
@living_run_argument
def attach(run_dir: Path) -> None:
    """Show the job in RUN_DIR whose client is gone: its output, its live line, its exit code.

    Ctrl-C stops the job, as it does for `holdfast run`.
    """
    from holdfast.runtime.head.client import attach as show

    sys.exit(show(run_dir.absolute()))


@click.command(
    cls=Documented,
    examples=("save", "save holdfast-train --timeout 60"),
    context_settings={"show_default": True},
)
@living_run_argument
@click.option("--wait/--no-wait", default=True, help="Whether to wait until it is committed.")
@timeout_option
def save(run_dir: Path, *, wait: bool, timeout: float) -> None:
    """Ask the job that runs in RUN_DIR for a checkpoint now, and wait until it is committed.

    Exits with 0 when it is, with 75 when no job runs there (yet) or it could not be saved.
    """
    directory = RunDirectory(run_dir.absolute())
    until = "has not committed a checkpoint"
    with contextlib.closing(answers_to(directory, AskSave(wait), timeout, until)) as answers:
        answer = next(found for found in answers if not (wait and isinstance(found, SaveAsked)))
    match answer:
        case SaveAsked():
            click.echo("asked for a checkpoint")
        case SaveDone(step, seconds):
            click.echo(f"saved step {step} in {seconds:.2f} s")
        case SaveRefused(reason) if reason:
            raise NotSaved(f"the job in {directory.path} goes on but cannot save: {reason}")
        case _:
            raise NotSaved(
                f"the job in {directory.path} ended without another checkpoint; run it again"
            )


@click.command(
    cls=Documented,
    examples=("scale holdfast-train 8", "scale /scratch/run 2 --timeout 60"),
    context_settings={"show_default": True},
)
@click.argument("run_dir", type=PATH)  # a number alone would be read as a directory
@click.argument("workers", type=click.IntRange(min=1))
@timeout_option
def scale(run_dir: Path, *, workers: int, timeout: float) -> None:
    """Let the job that runs in RUN_DIR go on with this number of WORKERS.

    They are prepared beside the training. Then those that train save and make room for them.
    Another number of workers changes no byte of the result. Exits with 75 when the job cannot.
    """
    directory = RunDirectory(run_dir.absolute())
    until = "has not answered"
    with contextlib.closing(answers_to(directory, AskScale(workers), timeout, until)) as answers:
        answer = next(found for found in answers if isinstance(found, ScaleAnswered))
    if answer.refusal:
        raise NotSaved(f"the job in {directory.path} does not scale: {answer.refusal}")
    click.echo(f"the job goes on with {count(workers, 'worker')} as soon as all are ready")


@click.command(
    cls=Documented,
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
