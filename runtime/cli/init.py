"""``holdfast init``: a script and its options to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.runtime.cli.help import Documented
from holdfast.runtime.cli.option_flags import PATH
from holdfast.runtime.launch.starter_files import write_starter_files


@click.command(cls=Documented)
@click.argument("directory", metavar="[DIR]", type=PATH, default=Path())
def init(directory: Path) -> None:
    """Write a train.py and a holdfast.toml to begin with into DIR, and overwrite nothing."""
    for path in write_starter_files(directory):
        click.echo(f"wrote {path}")
    enter = "" if directory == Path() else f"cd {directory} && "
    click.echo(f"run it: {enter}holdfast run -n 2 train.py")
