"""``holdfast run``: start a job."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.runtime.batch.schedulers import (
    find_allocation,
    options_of,
    refuse_copies,
    refuse_mpi_copies,
)
from holdfast.runtime.commands.command import OfScript, flags_of, given_flags
from holdfast.runtime.options.option import RUN
from holdfast.runtime.options.sources import Sources, build_options


@click.command(
    cls=OfScript,
    examples=(
        "run -n 4 train.py --epochs 20",
        "run --hosts a:4,b:4 --save-every 10min train.py",
    ),
)
@flags_of(RUN)
@click.option(
    "--show-config",
    is_flag=True,
    help="Print each option with its origin, as a holdfast.toml, and run nothing.",
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("argv", metavar="[ARGS]...", nargs=-1)
@click.pass_context
def run(
    context: click.Context, /, script: Path, argv: tuple[str, ...], *, show_config: bool, **_: Any
) -> None:
    """Train SCRIPT with N workers through deaths of workers, and resume it when run again."""
    refuse_mpi_copies(os.environ)
    allocation = find_allocation(os.environ)
    table = (context.find_object(dict) or {}).get(RUN, {})
    settled = options_of(allocation)
    sources = Sources(given_flags(context), os.environ, table, Path.cwd(), allocation=settled)
    built = build_options(script, argv, sources)
    if show_config:
        click.echo("\n".join(built.lines()))
        return
    if allocation is None:
        from holdfast.runtime.head.client import run_job

        sys.exit(run_job(built.options))
    from holdfast.runtime.head.client import run_batch_job

    refuse_copies(allocation)
    sys.exit(run_batch_job(built.options, allocation))
