"""``holdfast export``: a checkpoint as a file of NumPy or Keras."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.checkpoint.reader import restore
from holdfast.runtime.commands.exporting import (
    ExportRequest,
    ModelSource,
    export_state,
    format_of,
    refuse_existing,
)
from holdfast.runtime.commands.help import Documented
from holdfast.runtime.commands.option_flags import PATH, run_dir_argument
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.stored_run import StoredRun


@click.command(cls=Documented)
@run_dir_argument
@click.option(
    "--to",
    "target",
    type=PATH,
    required=True,
    help="FILE.npz, FILE.weights.h5 or FILE.keras.",
)
@click.option("--step", type=int, help="The step to export.  [default: the newest]")
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
    source = _source(model["model"], model["input_shape"])
    request = ExportRequest(target, format_of(target), source, force)
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
