"""Options of every command that starts a job of a training script."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.runtime.options.config import DEFAULT_PRELOAD

PATH = click.Path(path_type=Path)

SETTINGS = {
    # Without this the variables would be HOLDFAST_RUN_* and the like.
    "auto_envvar_prefix": "HOLDFAST",
    # Everything after the script's name is the script's own.
    "allow_interspersed_args": False,
    "show_default": True,
}


def _split_names(_: click.Context, __: click.Parameter, value: str | list[str]) -> tuple[str, ...]:
    """Return the names of a list, or of a text between its commas; an empty text holds none."""
    if not isinstance(value, str):
        return tuple(value)
    return tuple(name.strip() for name in value.split(",") if name.strip())


run_dir = click.option(
    "--run-dir", type=PATH, help="Where the run lives.  [default: ./holdfast-<script's name>]"
)
microbatches = click.option(
    "--microbatches",
    type=int,
    help="Equal parts of the global batch, fixed for the life of the run.  [default: N of -n]",
)
threads = click.option(
    "--threads",
    type=int,
    help="Threads of each worker, fixed for the life of the run.  [default: cores / N]",
)
seed = click.option("--seed", type=int, help="Seed of everything random in the run.  [default: 0]")
key_file = click.option(
    "--key-file",
    type=PATH,
    help="A secret that checkpoints are signed with; nothing else is resumed from.",
)
fresh = click.option("--fresh", is_flag=True, help="Set an existing run aside and begin a new one.")
preload = click.option(
    "--preload",
    type=click.UNPROCESSED,
    callback=_split_names,
    default=",".join(DEFAULT_PRELOAD),
    metavar="MODULES",
    help="Modules that warm processes import ahead of becoming workers.",
)
mpiexec = click.option(
    "--mpiexec", type=PATH, help="The mpiexec to use.  [default: Python's, then PATH's]"
)
verbose = click.option("-v", "--verbose", is_flag=True, help="Show Open MPI's own messages too.")


key_option = click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    envvar="HOLDFAST_KEY_FILE",
    help="The key of the run: what is not signed with it is not valid.",
)
