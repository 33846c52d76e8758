"""``holdfast save``: ask a running job for a checkpoint now."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.runtime.commands.save_request import order_save
from holdfast.runtime.run.run_directory import RunDirectory


@click.command(context_settings={"show_default": True})
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--wait/--no-wait", default=True, help="Whether to wait until it is committed.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="Give up after this long.",
)
def save(run_dir: Path, *, wait: bool, timeout: float) -> None:
    """Ask the job that runs in RUN_DIR for a checkpoint now, and wait until it is committed.

    Exits with 0 when it is, with 75 when no job runs there (yet) or it could not be saved.
    """
    saved = order_save(RunDirectory(run_dir.absolute()), timeout_s=timeout, is_waiting=wait)
    if saved is None:
        click.echo("asked for a checkpoint")
    else:
        click.echo(f"saved step {saved.step} in {saved.seconds:.2f} s")
