"""``holdfast verify``, ``repair`` and ``inspect``: commands over a run's checkpoints.

``verify`` tells whether every byte is as it was saved.  ``repair`` makes damaged checkpoints whole
from another copy of the run directory.  ``inspect`` shows what they hold, or in what two of them
differ.
"""

from __future__ import annotations

import math
import sys
import time
from datetime import datetime
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from holdfast.checkpoint.comparison import Comparison, Difference, Opened, compare_steps
from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.repair import (
    CountBytes,
    MendResult,
    StepCheck,
    mend_step,
    verify_step,
)
from holdfast.checkpoint.tensor import TensorSpec
from holdfast.runtime.commands.help import Documented
from holdfast.runtime.commands.inspection import (
    Inspection,
    StepSummary,
    comparison_json,
    contents_of,
    inspect_run,
    inspection_json,
    training_of,
)
from holdfast.runtime.commands.option_flags import PATH, run_dir_argument
from holdfast.runtime.commands.terminal import ByteProgress, grid, output
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.run import progress
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.stored_run import StoredRun

_MOST_ITEMS = 4
"""Of a longer list, such as the state of a random generator, people see the first; JSON has all."""


@click.command(cls=Documented)
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


@click.command(cls=Documented)
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


@click.command(cls=Documented)
@run_dir_argument
@click.option("--step", type=int, help="The step to show in full.  [default: the newest]")
@click.option(
    "--diff",
    nargs=2,
    metavar="A B",
    help="Compare two steps; a directory stands for the newest step of the run in it.",
)
@click.option("--full", is_flag=True, help="Show also cursor and numerics, as they are stored.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def inspect(
    run_dir: Path,
    step: int | None,
    diff: tuple[str, str] | None,
    **shown: bool,
) -> None:
    """Show the checkpoints in RUN_DIR, and of one its contents and soundness; or compare two."""
    console = output()
    if diff is None:
        run = StoredRun.open(run_dir)
        _show(run, step, None if shown["as_json"] else console, is_full=shown["full"])
        return
    if step is not None:
        raise UsageError("--diff and --step exclude each other; give one of them")
    found = compare_steps(*(_open(run_dir, text) for text in diff))
    if shown["as_json"]:
        click.echo(comparison_json(found))
    else:
        _print_comparison(found, diff, console)


def _show(run: StoredRun, step: int | None, console: Console | None, *, is_full: bool) -> None:
    """Print all steps and one in full, on a console or as JSON."""
    wanted = run.step(step)
    found = inspect_run(run, wanted)
    if console is None:
        click.echo(inspection_json(found))
    else:
        _print(found, console, is_full=is_full)
    if found.manifest is None:
        it = next(summary for summary in found.steps if summary.step == wanted)
        if it.damage is None:
            raise CheckpointUnreadable(wanted, it.unread or "its manifest could not be read")
        raise CheckpointInvalid(wanted, it.damage)


def _open(run_dir: Path, text: str) -> Opened:
    """Return a step of the run, or the newest one of another run directory."""
    is_step = text.isascii() and text.isdigit()
    run = StoredRun.open(run_dir if is_step else Path(text))
    scan = run.store.scan(run.step(int(text) if is_step else None))
    return Opened(scan, scan.manifest())


def _print(found: Inspection, console: Console, *, is_full: bool) -> None:
    table, now = Table("step", "saved", "size", "state", box=box.SIMPLE_HEAD), time.time()
    for summary in found.steps:
        table.add_row(*_cells(summary, now))
    console.print(table)
    for summary in found.steps:
        if fault := summary.damage or summary.unread:
            console.print(f"step {summary.step}: {fault}", markup=False)
    if found.others:
        console.print(f"beside them: {', '.join(found.others)}", markup=False)
    if found.manifest is not None:
        console.print(_facts(found, found.manifest, is_full=is_full))
        console.print(_tree(found.manifest))


def _cells(summary: StepSummary, now: float) -> tuple[Text, ...]:
    when = "-"
    if summary.completed is not None:
        moment = datetime.fromtimestamp(summary.completed).astimezone()
        when = f"{moment:%Y-%m-%d %H:%M:%S}, {progress.duration(now - summary.completed)} ago"
    size = "-" if summary.nbytes is None else progress.memory(summary.nbytes)
    state = "complete"  # its bytes are read for the step that is shown, and by `verify`
    if summary.damage or summary.unread:
        state = "damaged" if summary.damage else "could not be read"
    return tuple(map(Text, (str(summary.step), when, size, state)))


def _facts(found: Inspection, manifest: Manifest, *, is_full: bool) -> Table:
    stored = {"cursor": manifest.cursor, "numerics": manifest.numerics} if is_full else {}
    rows = (
        ("step", str(manifest.step)),
        ("training", training_of(manifest)),
        ("contents", contents_of(manifest)),
        ("sound", _soundness(found, manifest)),
        ("files", progress.count(manifest.writers, "shard")),
        ("run", f"{manifest.run_id}, saved by generation {manifest.generation}"),
        *((name, _pairs(fields)) for name, fields in stored.items()),
    )
    return grid(rows)


def _soundness(found: Inspection, manifest: Manifest) -> str:
    """Return whether every byte is as it was saved, in words."""
    if found.check is None:
        size = progress.memory(manifest.nbytes)
        return f"not known: `holdfast verify` reads its {size}, `inspect` reads small steps only"
    if found.check.is_valid:
        return f"yes: all {progress.memory(manifest.nbytes)} are as they were saved"
    return f"{'not known' if found.check.is_unread else 'no'}: {found.check.reason}"


def _pairs(fields: object) -> str:
    assert isinstance(fields, dict)
    return ", ".join(f"{name}={_value(value)}" for name, value in fields.items()) or "-"


def _value(value: object) -> str:
    """Return a value of a cursor in words: no quotes and braces of Python's own."""
    if isinstance(value, dict):
        return f"({_pairs(value)})"
    if isinstance(value, (list, tuple)):
        shown = [_value(item) for item in value[:_MOST_ITEMS]]
        if len(value) > _MOST_ITEMS:
            shown.append(f"and {len(value) - _MOST_ITEMS} more")
        return f"({', '.join(shown)})"
    return "-" if value is None else str(value)


def _tree(manifest: Manifest) -> Tree:
    """Return the tensors, with the slashes of their names as branches."""
    total = sum(spec.nbytes for spec in manifest.specs)
    root = Tree(f"{len(manifest.specs)} tensors, {progress.memory(total)}")
    branches: dict[tuple[str, ...], Tree] = {(): root}
    for tensor in manifest.tensors:
        *path, leaf = tensor.spec.name.split("/")
        for depth in range(1, len(path) + 1):
            if tuple(path[:depth]) not in branches:
                branch = branches[tuple(path[: depth - 1])].add(Text(path[depth - 1]))
                branches[tuple(path[:depth])] = branch
        branches[tuple(path)].add(Text(f"{leaf}  {_describe(tensor.spec)}"))
    return root


def _describe(spec: TensorSpec | None) -> str:
    if spec is None:
        return "missing"
    return f"{spec.dtype}{list(spec.shape)}  {progress.memory(spec.nbytes)}"


def _print_comparison(found: Comparison, names: tuple[str, str], console: Console) -> None:
    for difference in found.differences:  # a name has its own line, and can be copied whole
        console.print(f"{difference.name}\n    {_difference(difference, names)}", markup=False)
    console.print(f"{found.same} tensors are the same, {len(found.differences)} are not")


def _difference(difference: Difference, names: tuple[str, str]) -> str:
    spec, largest = difference.left, difference.largest
    if difference.elements is None or spec is None:
        left, right = _describe(spec), _describe(difference.right)
        return f"{left} in {names[0]}, {right} in {names[1]}"
    words = f"{_describe(spec)}: {difference.elements} of {spec.size} elements differ"
    if largest is None:
        return words
    return f"{words}, {'nan on one side' if math.isnan(largest) else f'by at most {largest:.3g}'}"
