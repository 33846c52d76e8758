"""``holdfast attach``: take a job over whose client is gone."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.runtime.commands.command import Documented, living_run_argument


@click.command(
    cls=Documented,
    place=("Run", 2),
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
