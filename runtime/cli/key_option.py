"""``--key-file`` of the commands over checkpoints."""

from __future__ import annotations

from pathlib import Path

import click

key_option = click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    envvar="HOLDFAST_KEY_FILE",
    help="The key of the run: what is not signed with it is not valid.",
)
