"""``holdfast logs``: what the workers of a run have printed."""

from __future__ import annotations

import time
from pathlib import Path

import click

from holdfast.runtime.commands.command import Documented, living_run_argument
from holdfast.runtime.head.living_job import LIVES, life_of
from holdfast.runtime.head.screen import say
from holdfast.runtime.run.files import answering
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.worker_logs import LogReader

_FOLLOWED_S = 0.5


@click.command(cls=Documented, examples=("logs -f", "logs holdfast-train --worker 2"))
@living_run_argument
@click.option(
    "-w", "--worker", type=click.IntRange(min=0), metavar="ID", help="Show this worker alone."
)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
def logs(run_dir: Path, *, worker: int | None, follow: bool) -> None:
    """Show what all workers of the run in RUN_DIR have printed, shown on the screen or not.

    Without a worker the lines of all come in their order, each behind its worker, with those of
    holdfast.  The files are RUN_DIR/logs/worker-ID.log.
    """
    directory = RunDirectory(run_dir.absolute())
    with answering(directory.path, say):
        reader = LogReader(directory, worker)
    is_last = not follow
    while True:
        for piece in reader.read():
            click.echo(piece, nl=False)
        if is_last:
            return
        is_last = life_of(directory) not in LIVES
        time.sleep(_FOLLOWED_S)
