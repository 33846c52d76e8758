"""``holdfast export``: a checkpoint in the formats of NumPy and Keras."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.checkpoint.format.signature import Signature
from holdfast.checkpoint.store.reader import restore
from holdfast.runtime.cli.option_flags import key_option
from holdfast.runtime.commands.exporting import ExportFormat, ExportRequest, export_state, format_of
from holdfast.runtime.commands.model_source import ModelSource
from holdfast.runtime.commands.publishing import refuse_existing
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.stored_run import StoredRun

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run_dir", type=_PATH)
@click.option(
    "--to",
    "target",
    type=_PATH,
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
@key_option
def export(
    run_dir: Path,
    target: Path,
    step: int | None,
    key_file: Path | None,
    *,
    force: bool,
    **model: str | None,
) -> None:
    """Write a verified checkpoint in RUN_DIR as a file for NumPy or Keras."""
    kind = format_of(target, model["wanted"])
    request = ExportRequest(target, kind, _source(model["model"], model["input_shape"]), force)
    refuse_existing(target, is_forced=force)
    run = StoredRun.open(run_dir, key_file)
    restored = restore(run.store, run.step(step), run_id=run.run_id)
    export_state(restored, request, RunDirectory(run_dir).load_record())
    signature = restored.manifest.signature
    signed = "" if signature is Signature.NONE else f", signature {signature.value}"
    click.echo(f"step {restored.manifest.step}, verified{signed}, is now {target}")


def _source(text: str | None, sizes: str | None) -> ModelSource | None:
    if text is None:
        return None
    try:
        shape = None if sizes is None else tuple(int(size) for size in sizes.split(",") if size)
    except ValueError as error:
        raise UsageError(f"--input-shape is {sizes!r}; give sizes, as in 28,28,1") from error
    return ModelSource.parse(text, shape)
