"""``holdfast inspect``: the contents of a run's checkpoints, and the differences of two."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from holdfast.checkpoint.errors import CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.format.layout import TensorSpec
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.upkeep.comparison import Comparison, Difference, Opened, compare_steps
from holdfast.runtime.cli.option_flags import key_option
from holdfast.runtime.commands.inspection import (
    Inspection,
    StepSummary,
    comparison_json,
    inspect_run,
    inspection_json,
    position_of,
)
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.stored_run import StoredRun
from holdfast.runtime.terminal.output import output

_MOST_ITEMS = 4
"""Of a longer list, such as the state of a random generator, people see the first; JSON has all."""


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="The step to show in full.  [default: the newest]")
@click.option(
    "--diff",
    nargs=2,
    metavar="A B",
    help="Compare two steps; a directory stands for the newest step of the run in it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@key_option
def inspect(
    run_dir: Path,
    step: int | None,
    diff: tuple[str, str] | None,
    key_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Show the checkpoints in RUN_DIR and the tensors of one, or compare two."""
    console = output()
    if diff is None:
        _show(StoredRun.open(run_dir, key_file), step, None if as_json else console)
        return
    if step is not None:
        raise UsageError("--diff and --step exclude each other; give one of them")
    found = compare_steps(*(_open(run_dir, text, key_file) for text in diff))
    if as_json:
        click.echo(comparison_json(found))
    else:
        _print_comparison(found, diff, console)


def _show(run: StoredRun, step: int | None, console: Console | None) -> None:
    """Print all steps and one in full, on a console or as JSON."""
    wanted = run.step(step)
    found = inspect_run(run, wanted)
    if console is None:
        click.echo(inspection_json(found))
    else:
        _print(found, console)
    if found.manifest is None:
        it = next(summary for summary in found.steps if summary.step == wanted)
        if it.damage is None:
            raise CheckpointUnreadable(wanted, it.unread or "its manifest could not be read")
        raise CheckpointInvalid(wanted, it.damage)


def _open(run_dir: Path, text: str, key_file: Path | None) -> Opened:
    """Return a step of the run, or the newest one of another run directory."""
    is_step = text.isascii() and text.isdigit()
    run = StoredRun.open(run_dir if is_step else Path(text), key_file)
    scan = run.store.scan(run.step(int(text) if is_step else None))
    return Opened(scan, scan.manifest())


def _print(found: Inspection, console: Console) -> None:
    table = Table("step", "bytes", "shards", "complete since", "state")
    for summary in found.steps:
        table.add_row(*_cells(summary))
    console.print(table)
    for summary in found.steps:
        if fault := summary.damage or summary.unread:
            console.print(f"step {summary.step}: {fault}", markup=False)
    if found.others:
        console.print(f"beside them: {', '.join(found.others)}", markup=False)
    if found.manifest is not None:
        console.print(_facts(found.manifest))
        console.print(_tree(found.manifest))


def _cells(summary: StepSummary) -> tuple[Text, ...]:
    when = "-"
    if summary.completed is not None:
        moment = datetime.fromtimestamp(summary.completed).astimezone()
        when = moment.isoformat(sep=" ", timespec="seconds")
    size = "-" if summary.nbytes is None else decimal(summary.nbytes)
    shards = "-" if summary.shards is None else str(summary.shards)
    state = "not verified"  # which takes reading the data
    if summary.damage or summary.unread:
        state = "damaged" if summary.damage else "could not be read"
    return tuple(map(Text, (str(summary.step), size, shards, when, state)))


def _facts(manifest: Manifest) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    position = position_of(manifest.cursor)
    for name, text in (
        ("step", str(manifest.step)),
        ("run", f"{manifest.run_id}, saved by generation {manifest.generation}"),
        ("signature", _signed(manifest)),
        ("position", "-" if position is None else str(position)),
        ("cursor", _pairs(manifest.cursor)),
        ("numerics", _pairs(manifest.numerics)),
    ):
        table.add_row(name, Text(text))
    return table


def _signed(manifest: Manifest) -> str:
    key = "" if manifest.signed_by is None else f", key {manifest.signed_by}"
    return f"{manifest.signature.value}{key}"


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
    root = Tree(f"{len(manifest.specs)} tensors, {decimal(total)}")
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
    return f"{spec.dtype}{list(spec.shape)}  {decimal(spec.nbytes)}"


def _print_comparison(found: Comparison, names: tuple[str, str], console: Console) -> None:
    if found.differences:
        columns = ("tensor", *map(escape, names), "elements that differ", "largest difference")
        table = Table(*(Column(name, overflow="fold") for name in columns))
        for difference in found.differences:
            table.add_row(*_difference_cells(difference))
        console.print(table)
    console.print(f"{found.same} tensors are the same, {len(found.differences)} are not")


def _difference_cells(difference: Difference) -> tuple[Text, ...]:
    spec, largest = difference.left, difference.largest
    elements = "-"
    if difference.elements is not None and spec is not None:
        elements = f"{difference.elements} of {spec.size}"
    distance = "-" if largest is None else f"{largest:.3g}"
    if largest is not None and math.isnan(largest):
        distance = "nan on one side"
    sides = (_describe(difference.left), _describe(difference.right))
    return tuple(map(Text, (difference.name, *sides, elements, distance)))
