"""``holdfast repair``: make damaged checkpoints whole from another copy of the run directory."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.upkeep.inventory import CountBytes
from holdfast.checkpoint.upkeep.mend import Holders, MendResult, mend_step
from holdfast.runtime.cli.option_flags import key_option
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.stored_run import StoredRun
from holdfast.runtime.terminal.byte_progress import ByteProgress


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "other_dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Another copy of the run directory: a mirror or a backup.",
)
@click.option("--step", type=int, help="Only this step, even if RUN_DIR has lost it altogether.")
@key_option
def repair(run_dir: Path, other_dir: Path, step: int | None, key_file: Path | None) -> None:
    """Make the damaged steps in RUN_DIR whole from a second holder; exit 1 if one cannot be."""
    run, other = StoredRun.open(run_dir, key_file), StoredRun.open(other_dir, key_file)
    if run_dir.resolve() == other_dir.resolve():
        raise UsageError(f"{other_dir} is {run_dir} itself; give another copy of it")
    if None not in (run.run_id, other.run_id) and run.run_id != other.run_id:
        raise UsageError(
            f"{other_dir} holds run {other.run_id}, and {run_dir} is run {run.run_id}; give a copy "
            "of this run"
        )
    steps = run.steps() if step is None else (_known(run, other, step),)
    lease = RunDirectory(run_dir).acquire_lease(takes_orders=False)
    try:
        with ByteProgress("reading", 0) as progress:
            results = [_mend_one(run, other, known, progress) for known in steps]
    finally:
        lease.end()
        lease.release()
    sys.exit(ExitCode.DONE if all(results) else ExitCode.PROGRAM_FAILED)


def _known(run: StoredRun, other: StoredRun, step: int) -> int:
    """Return the step if one of the holders has it."""
    return step if step in run.store.steps() else other.step(step)


def _mend_one(run: StoredRun, other: StoredRun, step: int, progress: CountBytes) -> bool:
    """Mend a step and print the outcome; return whether it is whole."""
    try:
        holders = Holders(run.store, other.store)
        result = mend_step(holders, step, run_id=run.run_id, progress=progress)
    except CheckpointError as error:
        click.echo(f"step {step}: not mended: {error}")
        return False
    click.echo(f"step {step}: {_describe(result, other.path)}")
    return True


def _describe(result: MendResult, other_dir: Path) -> str:
    if not result.faults:
        return "whole, nothing to do"
    aside = f"; the damaged one is now {result.bad_name}" if result.bad_name else ""
    return (
        f"mended and verified, {result.taken} of {result.parts} parts from {other_dir}{aside}; "
        f"it had: {'; '.join(result.faults)}"
    )
