"""``holdfast save``: a checkpoint of a living job now."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from holdfast.runtime.commands.command import Documented, living_run_argument, timeout_option
from holdfast.runtime.commands.living_job import answers_to
from holdfast.runtime.errors import NotSaved
from holdfast.runtime.head.visits import AskSave, SaveAsked, SaveDone, SaveRefused
from holdfast.runtime.run.run_directory import RunDirectory


@click.command(
    cls=Documented,
    place=("Checkpoints", 1),
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
