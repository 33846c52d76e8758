"""``holdfast verify`` and ``repair``: checkpoints whose bytes are as they were saved.

`StoredRun` is what all commands over checkpoints open.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from rich.text import Text

from holdfast.checkpoint.errors import (
    TRANSIENT,
    CheckpointError,
    CheckpointInvalid,
    StorageFailed,
)
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.repair import CountBytes, StepCheck, mend_step, verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.commands.command import PATH, Documented, run_dir_argument
from holdfast.runtime.commands.terminal import ByteProgress, output, ruled
from holdfast.runtime.errors import ExitCode, RunUnreadable, UsageError
from holdfast.runtime.run import progress
from holdfast.runtime.run.checkpoint_events import Checkpoint
from holdfast.runtime.run.entries import entries_of, last_of
from holdfast.runtime.run.find_run import refuse_no_run
from holdfast.runtime.run.journal import TAIL_BYTES, JournalReader
from holdfast.runtime.run.place_url import PlacePath
from holdfast.runtime.run.run_directory import RunDirectory

_MOST_STEPS = 10


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The checkpoints of a run directory; a copy without ``RUN.json`` has no ``run_id``."""

    path: Path
    store: CheckpointStore
    run_id: str | None

    @staticmethod
    def open(path: Path) -> StoredRun:
        """Return the run in a directory.

        Raises:
            UsageError: it is no run, or its record cannot be read.
        """
        if isinstance(path, PlacePath):
            return StoredRun._of_place(path)
        refuse_no_run(path)
        record = RunDirectory(path).load_record()
        return StoredRun(path, CheckpointStore(path), record.run_id if record else None)

    @staticmethod
    def _of_place(path: PlacePath) -> StoredRun:
        """Return the run whose copies are in a place."""
        from holdfast.runtime.run.place import Place  # few commands ask

        place = Place(str(path))
        try:
            record = place.record()
        except OSError as error:
            kind = RunUnreadable if error.errno in TRANSIENT else UsageError
            raise kind(f"{path} cannot be read: {error.strerror or error}") from error
        if record is None and not place.store.steps():
            raise UsageError(f"{path} is no place of copies: it has no RUN.json, and no checkpoint")
        return StoredRun(path, place.store, record.run_id if record else None)

    def steps(self) -> tuple[int, ...]:
        """Return the committed steps, newest first.

        Raises:
            UsageError: there is no step, or the steps cannot be listed.
            RunUnreadable: they cannot be listed just now.
        """
        try:
            steps = self.store.steps()
        except StorageFailed as error:
            kind = RunUnreadable if error.errno in TRANSIENT else UsageError
            raise kind(str(error)) from error
        if not steps:
            why = "its run has saved none yet"
            journal = JournalReader(RunDirectory(self.path).journal_path, tail_bytes=TAIL_BYTES)
            with contextlib.suppress(OSError):
                if saved := last_of(entries_of(journal.read()), Checkpoint):
                    why = f"its journal knows of step {saved.event.step}, which was removed"
            raise UsageError(f"{self.path} holds no checkpoint: {why}")
        return steps

    def step(self, wanted: int | None) -> int:
        """Return ``wanted`` if the run has that step; None means the newest step.

        Raises:
            UsageError: there is no such step.
        """
        steps = self.steps()
        if wanted is None:
            return steps[0]
        if wanted not in steps:
            shown = ", ".join(map(str, steps[:_MOST_STEPS]))
            more = " and older ones" if len(steps) > _MOST_STEPS else ""
            raise UsageError(f"{self.path} has no step {wanted}; it has {shown}{more}")
        return wanted


@click.command(
    cls=Documented,
    examples=("verify", "verify holdfast-train --step 200"),
)
@run_dir_argument
@click.option("--step", type=int, help="Only this step.")
@click.option("--all", "all_steps", is_flag=True, help="All steps.  [the default]")
def verify(run_dir: Path, step: int | None, *, all_steps: bool) -> None:
    """Compare every digest of the checkpoints in RUN_DIR; exit 1 if any does not verify.

    RUN_DIR may be the URL of a place of copies, as --copy-to takes it.

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
    gone = f"remove {run.store.directory / step_name(damaged[0])}"
    mend = (
        f"mend damaged steps with {RunDirectory(run_dir).command('repair', '--from', 'COPY')}, or"
    )
    way = f"{mend} {gone}"
    if isinstance(run_dir, PlacePath):
        way = f"{gone}; the next job with --copy-to copies the step anew, if it still has it"
    click.echo(f"holdfast: {way}", err=True)
    sys.exit(ExitCode.PROGRAM_FAILED)


def _tell(run: StoredRun, step: int, bar: CountBytes) -> StepCheck:
    verdict = verify_step(run.store, step, run_id=run.run_id, progress=bar)
    words = f"valid, {progress.memory(verdict.nbytes)}"
    if verdict.is_unread:
        words = f"could not be read, and is not known to be damaged: {verdict.reason}"
    elif not verdict.is_valid:
        words = f"not valid: {verdict.reason}"
        if step not in run.store.steps():  # the job keeps the newest ones
            verdict, words = StepCheck(step, 0), "removed meanwhile"
    click.echo(f"step {step}: {words}")
    return verdict


def list_place(path: PlacePath, *, as_json: bool) -> None:
    """Print the runs whose copies are in a place, and below it."""
    from holdfast.runtime.run.place import Place  # few commands ask

    try:
        runs = [Place(str(found)) for found in Place(str(path)).runs()]
        found = [(run.url, run.record(), run.store.steps()) for run in runs]
    except OSError as error:
        raise StorageFailed("list", path, error) from error
    if as_json:
        names = ("url", "run_id", "script", "steps")
        rows = [(url, r and r.run_id, r and r.script, steps) for url, r, steps in found]
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
        return
    if not found:
        click.echo(f"no copies of a run are in {path} or below it")
        return
    table = ruled("place", "run", "script", "steps, newest first")
    for url, record, steps in found:
        script = Path((record and record.script) or "-").name
        told = ", ".join(map(str, steps)) or "-"
        table.add_row(*map(Text, (url, record.run_id if record else "-", script, told)))
    output().print(table)


def _total(run: StoredRun, steps: tuple[int, ...]) -> int:
    """Return the bytes that will be read, as far as the manifests say."""
    total = 0
    for step in steps:
        try:
            total += run.store.scan(step).manifest_alone().nbytes
        except CheckpointInvalid:
            continue  # none of its bytes will be read
    return total


@click.command(
    cls=Documented,
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
    help="Another copy of the run directory: a mirror, a backup, or the URL of a place of copies.",
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
    words = "whole, nothing to do"
    if result.fault is not None:
        files = ", ".join(result.files)
        source = f"{files} from {other.path}" if files else "by what was aside"
        aside = f"; the damaged one is now {result.bad_name}" if result.bad_name else ""
        words = f"mended and verified, {source}{aside}; it had: {result.fault}"
    click.echo(f"step {step}: {words}")
    return True
