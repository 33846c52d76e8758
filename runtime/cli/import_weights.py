"""``holdfast import``: make a run that begins with given weights, and train nothing."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.runtime.cli.option_flags import EPILOG, PATH, SETTINGS, flags_of, given_flags
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import IMPORT, RUN
from holdfast.runtime.options.sources import Sources, build_options, default_run_dir

_WORKERS = "Workers that the run is meant for: what --microbatches and --threads follow from."


@click.command("import", context_settings=SETTINGS, epilog=EPILOG)
@flags_of(IMPORT, workers=_WORKERS)
@click.argument("weights", type=PATH)
@click.argument("script", type=PATH)
@click.argument("argv", metavar="[ARGS]...", nargs=-1)
@click.pass_context
def import_weights(
    context: click.Context, /, weights: Path, script: Path, argv: tuple[str, ...], **_: Any
) -> None:
    """Make WEIGHTS step 0 of a run of SCRIPT, as a checkpoint that `holdfast run` resumes.

    WEIGHTS is a .weights.h5, .keras or .npz file, the prefix or directory of a
    TensorFlow checkpoint, or the directory of another run.  SCRIPT says what they
    are to be trained on; it is run up to its first step.
    """
    from holdfast.runtime.commands.importing import run_import

    if script.name.startswith("-"):
        raise UsageError(f"{script} stands behind {weights}; options come before both")
    tables = context.find_object(dict) or {}
    # The run is made on the terms on which it will be resumed.
    table = tables.get(RUN, {}) | tables.get(IMPORT, {})
    flags = given_flags(context) | {"initial": weights}
    sources = Sources(flags, os.environ, table, Path.cwd(), IMPORT)
    options = build_options(script, argv, sources).options
    code = run_import(options)
    if code is ExitCode.DONE:
        _tell(options, weights)
    sys.exit(code)


def _tell(options: JobOptions, weights: Path) -> None:
    """Say what the run begins with, as it was read back, and how to go on."""
    from holdfast.runtime.commands.importing import imported_state

    state = imported_state(options.run_dir, options.key_file)
    click.echo(f"step 0 of {options.run_dir} has the weights of {weights}, verified")
    click.echo(f"{state.tensors} tensors, {state.weights} of them weights, {state.nbytes} B")
    click.echo(f"sha256 {state.sha256}")
    click.echo(f"go on with: {_next_command(options)}")


def _next_command(options: JobOptions) -> str:
    """Return the command line that resumes the run; what is fixed by now is left out."""
    workers = ("-n", str(options.workers)) if options.workers > 1 else ()
    is_default = options.run_dir == default_run_dir(options.script, Path.cwd())
    run_dir = () if is_default else ("--run-dir", _short(options.run_dir))
    key = () if options.key_file is None else ("--key-file", _short(options.key_file))
    words = ("holdfast", "run", *workers, *run_dir, *key, _short(options.script), *options.argv)
    return shlex.join(words)


def _short(path: Path) -> str:
    """Return a path as one would type it in the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
