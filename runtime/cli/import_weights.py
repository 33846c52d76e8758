"""``holdfast import``: make a run that begins with given weights, and train nothing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.runtime.cli import job_options
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.options.config import RunConfig, default_run_dir


@click.command("import", context_settings=job_options.SETTINGS)
@click.option(
    "-n",
    "-np",
    "--workers",
    type=int,
    default=1,
    help="Workers that the run is meant for: what --microbatches and --threads follow from.",
)
@job_options.run_dir
@click.option("--step", type=int, help="The step of another run.  [default: its newest]")
@job_options.microbatches
@job_options.threads
@job_options.seed
@job_options.key_file
@job_options.fresh
@job_options.preload
@job_options.mpiexec
@job_options.verbose
@click.argument("weights", type=job_options.PATH)
@click.argument("script", type=job_options.PATH)
@click.argument("argv", metavar="[ARGS]...", nargs=-1)
def import_weights(weights: Path, script: Path, argv: tuple[str, ...], **options: Any) -> None:
    """Make WEIGHTS step 0 of a run of SCRIPT, as a checkpoint that `holdfast run` resumes.

    WEIGHTS is a .weights.h5, .keras or .npz file, the prefix or directory of a
    TensorFlow checkpoint, or the directory of another run.  SCRIPT says what they
    are to be trained on; it is run up to its first step.
    """
    from holdfast.runtime.commands.importing import imported_state, run_import

    config = _config(weights, script, argv, options)
    code = run_import(config)
    if code is ExitCode.DONE:
        state = imported_state(config.run_dir, config.key_file)
        click.echo(f"step 0 of {config.run_dir} has the weights of {weights}, verified")
        click.echo(f"{state.tensors} tensors, {state.weights} of them weights, {state.nbytes} B")
        click.echo(f"sha256 {state.sha256}")
        click.echo(f"go on with: {_next_command(config)}")
    sys.exit(code)


def _config(
    weights: Path, script: Path, argv: tuple[str, ...], options: dict[str, Any]
) -> RunConfig:
    """Build the configuration of the run that is to be made."""
    if script.name.startswith("-"):
        raise UsageError(f"{script} stands behind {weights}; options come before both")
    run_dir: Path = options.pop("run_dir") or default_run_dir(script)
    key_file: Path | None = options.pop("key_file")
    return RunConfig(
        script=script.absolute(),
        run_dir=run_dir.absolute(),
        argv=argv,
        initial=weights.absolute(),
        initial_step=options.pop("step"),
        key_file=None if key_file is None else key_file.absolute(),
        **options,
    )


def _next_command(config: RunConfig) -> str:
    """Return the command line that resumes the run; what is fixed by now is left out."""
    workers = ("-n", str(config.workers)) if config.workers > 1 else ()
    is_default = config.run_dir == default_run_dir(config.script)
    run_dir = () if is_default else ("--run-dir", _short(config.run_dir))
    key = () if config.key_file is None else ("--key-file", _short(config.key_file))
    words = ("holdfast", "run", *workers, *run_dir, *key, _short(config.script), *config.argv)
    return shlex.join(words)


def _short(path: Path) -> str:
    """Return a path as one would type it in the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
