"""``holdfast repair``: damaged checkpoints made whole from another copy of the run directory."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.repair import CountBytes, MendResult, mend_step
from holdfast.runtime.commands.command import PATH, Documented, run_dir_argument
from holdfast.runtime.commands.terminal import ByteProgress
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.stored_run import StoredRun


@click.command(
    cls=Documented,
    place=("Checkpoints", 4),
    examples=(
        "repair --from /backup/holdfast-train",
        "repair holdfast-train --from /backup/holdfast-train --step 200",
    ),
)
@run_dir_argument
@click.option(
    "--from",
    "other_dir",
    type=PATH,
    required=True,
    help="Another copy of the run directory: a mirror or a backup.",
)
@click.option("--step", type=int, help="Only this step, even if RUN_DIR has lost it altogether.")
def repair(run_dir: Path, other_dir: Path, step: int | None) -> None:
    """Put the damaged files of checkpoints in RUN_DIR back from a copy; exit 1 if one cannot be.

    No job may run there meanwhile.
    """
    run, other = StoredRun.open(run_dir), StoredRun.open(other_dir)
    if run_dir.resolve() == other_dir.resolve():
        raise UsageError(f"{other_dir} is {run_dir} itself; give another copy of it")
    if None not in (run.run_id, other.run_id) and run.run_id != other.run_id:
        raise UsageError(
            f"{other_dir} holds run {other.run_id}, and {run_dir} is run {run.run_id}; give a copy "
            "of this run"
        )
    if step is None:
        steps = run.steps()
    else:  # one of the two has it
        steps = (step if step in run.store.steps() else other.step(step),)
    lease = RunDirectory(run_dir).acquire_lease(takes_orders=False)
    try:
        with ByteProgress("reading", 0) as bar:
            results = [_mend_one(run, other, known, bar) for known in steps]
    finally:
        lease.end()
        lease.release()
    sys.exit(ExitCode.DONE if all(results) else ExitCode.PROGRAM_FAILED)


def _mend_one(run: StoredRun, other: StoredRun, step: int, bar: CountBytes) -> bool:
    """Mend a step and print the outcome; return whether it is whole."""
    try:
        result = mend_step(run.store, other.store, step, run_id=run.run_id, progress=bar)
    except CheckpointError as error:
        click.echo(f"step {step}: not mended: {error}")
        return False
    click.echo(f"step {step}: {_result_in_words(result, other.path)}")
    return True


def _result_in_words(result: MendResult, other_dir: Path) -> str:
    if result.fault is None:
        return "whole, nothing to do"
    source = f"{', '.join(result.files)} from {other_dir}" if result.files else "by what was aside"
    aside = f"; the damaged one is now {result.bad_name}" if result.bad_name else ""
    return f"mended and verified, {source}{aside}; it had: {result.fault}"
