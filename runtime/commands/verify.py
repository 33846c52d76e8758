"""``holdfast verify``: whether every byte of the checkpoints is as it was saved."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.checkpoint.errors import CheckpointInvalid
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.repair import CountBytes, StepCheck, verify_step
from holdfast.runtime.commands.command import Documented, run_dir_argument
from holdfast.runtime.commands.terminal import ByteProgress
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.run import progress
from holdfast.runtime.run.stored_run import StoredRun


@click.command(
    cls=Documented,
    place=("Checkpoints", 3),
    examples=("verify", "verify holdfast-train --step 200"),
)
@run_dir_argument
@click.option("--step", type=int, help="Only this step.")
@click.option("--all", "all_steps", is_flag=True, help="All steps.  [the default]")
def verify(run_dir: Path, step: int | None, *, all_steps: bool) -> None:
    """Compare every digest of the checkpoints in RUN_DIR; exit 1 if any does not verify.

    Exit 75 if none is known to be damaged, and some could not be read just now.
    """
    if all_steps and step is not None:
        raise UsageError("--all and --step exclude each other; give one of them")
    run = StoredRun.open(run_dir)
    steps = run.steps() if step is None else (run.step(step),)
    with ByteProgress("verifying", _total(run, steps)) as bar:
        verdicts = [_tell(run, known, bar) for known in steps]
    bad = [verdict for verdict in verdicts if not verdict.is_valid]
    damaged = [verdict.step for verdict in bad if not verdict.is_unread]
    if not damaged:
        sys.exit(ExitCode.STOPPED_EARLY if bad else ExitCode.DONE)
    click.echo(
        f"holdfast: mend damaged steps with `holdfast repair {run_dir} --from COPY`, or "
        f"remove {run.store.directory / step_name(damaged[0])}",
        err=True,
    )
    sys.exit(ExitCode.PROGRAM_FAILED)


def _tell(run: StoredRun, step: int, bar: CountBytes) -> StepCheck:
    verdict = verify_step(run.store, step, run_id=run.run_id, progress=bar)
    if not verdict.is_valid and not verdict.is_unread and step not in run.store.steps():
        click.echo(f"step {step}: removed meanwhile")  # by the job, which keeps the newest ones
        return StepCheck(step, 0)
    click.echo(f"step {step}: {_verdict_in_words(verdict)}")
    return verdict


def _verdict_in_words(verdict: StepCheck) -> str:
    if verdict.is_unread:
        return f"could not be read, and is not known to be damaged: {verdict.reason}"
    if not verdict.is_valid:
        return f"not valid: {verdict.reason}"
    return f"valid, {progress.memory(verdict.nbytes)}"


def _total(run: StoredRun, steps: tuple[int, ...]) -> int:
    """Return the bytes that will be read, as far as the manifests say."""
    total = 0
    for step in steps:
        try:
            total += run.store.scan(step).manifest_alone().nbytes
        except CheckpointInvalid:
            continue  # none of its bytes will be read
    return total
