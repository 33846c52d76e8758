"""``holdfast attach``: take over a job that lives without its supervisor."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.runtime.cli.option_flags import PATH, SETTINGS
from holdfast.runtime.cli.run import painter


@click.command(context_settings=SETTINGS)
@click.argument("run_dir", type=PATH)
def attach(run_dir: Path) -> None:
    """Go on with the job in RUN_DIR whose supervisor is gone: its output, relaunches, exit code."""
    from holdfast.runtime.supervisor.job_run import attach as take_over

    sys.exit(take_over(run_dir.absolute(), paint=painter()))
