"""``holdfast import`` and ``export``: weights into a run, and out of one.

``import`` makes a run that begins with given weights, and trains nothing.  ``export`` writes a
checkpoint in the formats of NumPy and Keras.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.checkpoint.reader import restore
from holdfast.runtime.cli.help import Documented
from holdfast.runtime.cli.option_flags import (
    PATH,
    OfScript,
    flags_of,
    given_flags,
    run_dir_argument,
    stray_words,
)
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import IMPORT, RUN
from holdfast.runtime.options.sources import Sources, build_options, default_run_dir
from holdfast.runtime.run.progress import memory
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.stored_run import StoredRun
from holdfast.runtime.tools.exporting import (
    ExportFormat,
    ExportRequest,
    ModelSource,
    export_state,
    format_of,
    refuse_existing,
)

_WORKERS = "Workers that the run is meant for: what --microbatches and --threads follow from."


@click.command("import", cls=OfScript)
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
    from holdfast.runtime.tools.importing import run_import

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
    from holdfast.runtime.tools.importing import imported_state

    state = imported_state(options.run_dir)
    click.echo(f"step 0 of {options.run_dir} has the weights of {weights}, verified")
    click.echo(f"{state.tensors} tensors, {state.weights} of them weights, {memory(state.nbytes)}")
    click.echo(f"sha256 {state.sha256}")
    click.echo(f"go on with: {_next_command(options)}")


def _next_command(options: JobOptions) -> str:
    """Return the command line that resumes the run; what is fixed by now is left out."""
    workers = ("-n", str(options.workers)) if options.workers > 1 else ()
    is_default = options.run_dir == default_run_dir(options.script, Path.cwd())
    run_dir = () if is_default else ("--run-dir", _short(options.run_dir))
    mark = ("--",) if stray_words(options.script, options.argv)[0] else ()
    script = (_short(options.script), *options.argv)
    return shlex.join(("holdfast", "run", *workers, *run_dir, *mark, *script))


def _short(path: Path) -> str:
    """Return a path as one would type it in the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@click.command(cls=Documented)
@run_dir_argument
@click.option(
    "--to",
    "target",
    type=PATH,
    required=True,
    help="FILE.npz, FILE.weights.h5, FILE.keras, or a directory for a SavedModel.",
)
@click.option("--step", type=int, help="The step to export.  [default: the newest]")
@click.option(
    "--format",
    "wanted",
    type=click.Choice([kind.value for kind in ExportFormat]),
    help="The format.  [default: by the name]",
)
@click.option("--model", metavar="SCRIPT[:FUNCTION]", help="Source of your model; not for npz.")
@click.option(
    "--input-shape", metavar="SIZES", help="Shape of one sample, as in 28,28,1, if needed."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def export(
    run_dir: Path,
    target: Path,
    step: int | None,
    *,
    force: bool,
    **model: str | None,
) -> None:
    """Write a verified checkpoint in RUN_DIR as a file for NumPy or Keras."""
    kind = format_of(target, model["wanted"])
    request = ExportRequest(target, kind, _source(model["model"], model["input_shape"]), force)
    refuse_existing(target, is_forced=force)
    run = StoredRun.open(run_dir)
    restored = restore(run.store, run.step(step), run_id=run.run_id)
    export_state(restored, request, RunDirectory(run_dir).load_record())
    click.echo(f"step {restored.manifest.step}, verified, is now {target}")


def _source(text: str | None, sizes: str | None) -> ModelSource | None:
    if text is None:
        return None
    try:
        shape = None if sizes is None else tuple(int(size) for size in sizes.split(",") if size)
    except ValueError as error:
        raise UsageError(f"--input-shape is {sizes!r}; give sizes, as in 28,28,1") from error
    return ModelSource.parse(text, shape)
