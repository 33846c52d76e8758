"""``holdfast inspect``: what checkpoints hold, or in what two of them differ.

Of all steps only manifests and the sizes of shards are read.  A step without a fault there is
complete.  The bytes of one step are compared with its digests, if it is small enough not to wait
for; ``verify`` does so for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from holdfast.checkpoint.errors import CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.manifest import EpochMetrics, Manifest
from holdfast.checkpoint.names import MANIFEST_NAME, step_name
from holdfast.checkpoint.repair import StepCheck, verify_step
from holdfast.checkpoint.scan import Comparison, Difference, Scan, compare_steps
from holdfast.checkpoint.tensor import TensorSpec
from holdfast.runtime.commands.checkpoints import StoredRun
from holdfast.runtime.commands.command import Documented, run_dir_argument
from holdfast.runtime.commands.terminal import grid, moment, output, ruled
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run import progress
from holdfast.runtime.run.place_url import PlacePath

_READ_AT_ONCE_BYTES = 1 << 30
"""A disk and a core take about a second for so many."""
_MOST_ITEMS = 4
"""Of a longer list, such as the state of a random generator, people see the first; JSON has all."""


@click.command(
    cls=Documented,
    examples=("inspect", "inspect holdfast-train --diff 100 200"),
)
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
    """Show the checkpoints in RUN_DIR, and of one its contents and soundness; or compare two.

    RUN_DIR may be the URL of a place of copies, as --copy-to takes it.
    """
    console = output()
    if diff is not None:
        if step is not None:
            raise UsageError("--diff and --step exclude each other; give one of them")
        compared = compare_steps(*(_open(run_dir, text) for text in diff))
        if shown["as_json"]:
            click.echo(_comparison_json(compared))
            return
        for difference in compared.differences:  # a name has its own line, and can be copied whole
            words = _difference(difference, diff)
            console.print(f"{difference.name}\n    {words}", markup=False)
        console.print(f"{compared.same} tensors are the same, {len(compared.differences)} are not")
        return
    run = StoredRun.open(run_dir)
    wanted = run.step(step)
    found = _inspect(run, wanted)
    if shown["as_json"]:
        click.echo(_inspection_json(found))
    else:
        _print(found, console, is_full=shown["full"])
    if found.manifest is None:
        it = next(summary for summary in found.steps if summary.step == wanted)
        if it.damage is None:
            raise CheckpointUnreadable(wanted, it.unread or "its manifest could not be read")
        raise CheckpointInvalid(wanted, it.damage)


def _open(run_dir: Path, text: str) -> Scan:
    """Return a step of the run, or the newest one of another run directory."""
    is_step = text.isascii() and text.isdigit()
    run = StoredRun.open(run_dir if is_step else Path(text))
    return run.store.scan(run.step(int(text) if is_step else None))


def _print(found: Inspection, console: Console, *, is_full: bool) -> None:
    table, now = ruled("step", "saved", "size", "state"), time.time()
    for summary in found.steps:
        when, state = "-", "complete"  # its bytes are read for the shown step, and by `verify`
        if summary.completed is not None:
            ago = progress.duration(now - summary.completed)
            when = f"{moment(summary.completed)}, {ago} ago"
        if summary.fault:
            state = "damaged" if summary.damage else "could not be read"
        size = "-" if summary.nbytes is None else progress.memory(summary.nbytes)
        table.add_row(*map(Text, (str(summary.step), when, size, state)))
    console.print(table)
    for summary in found.steps:
        if summary.fault:
            console.print(f"step {summary.step}: {summary.fault}", markup=False)
    if found.others:
        console.print(f"beside them: {', '.join(found.others)}", markup=False)
    if found.manifest is not None:
        console.print(_facts(found, found.manifest, is_full=is_full))
        console.print(_tree(found.manifest))


def _facts(found: Inspection, manifest: Manifest, *, is_full: bool) -> Table:
    stored = {"cursor": manifest.cursor, "numerics": manifest.numerics} if is_full else {}
    rows = (
        ("step", str(manifest.step)),
        ("training", _training(manifest)),
        ("contents", _contents(manifest)),
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


def _difference(difference: Difference, names: tuple[str, str]) -> str:
    spec, largest = difference.left, difference.largest
    if difference.elements is None or spec is None:
        left, right = _describe(spec), _describe(difference.right)
        return f"{left} in {names[0]}, {right} in {names[1]}"
    words = f"{_describe(spec)}: {difference.elements} of {spec.size} elements differ"
    if largest is None:
        return words
    return f"{words}, {'nan on one side' if math.isnan(largest) else f'by at most {largest:.3g}'}"


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A committed step; ``completed`` is in seconds since 1970, ``damage`` a known fault.

    ``unread`` is why it could not be read just now; nothing is known of it then.
    """

    step: int
    nbytes: int | None
    shards: int | None
    completed: float | None
    damage: str | None
    unread: str | None = None

    @property
    def fault(self) -> str | None:
        """What is wrong with it."""
        return self.damage or self.unread


@dataclass(frozen=True, slots=True)
class Inspection:
    """The steps of a run, newest first, other names beside them, and one step in full."""

    run_id: str | None
    steps: tuple[StepSummary, ...]
    others: tuple[str, ...]
    manifest: Manifest | None
    check: StepCheck | None = None
    """Whether the bytes of that step are as they were saved; None if they were not read."""


def _inspect(run: StoredRun, step: int) -> Inspection:
    """Look at all steps of a run and, if its manifest is valid, at one of them in full."""
    steps = run.steps()
    names = {step_name(known) for known in steps}
    others = tuple(name for name in run.store.names() if name not in names)
    manifest = None
    with contextlib.suppress(CheckpointInvalid):
        manifest = run.store.scan(step).manifest_alone()
    summaries = {known: _summary(run, known) for known in steps}
    check = None
    most = _READ_AT_ONCE_BYTES // (16 if isinstance(run.path, PlacePath) else 1)  # by a network
    if manifest is not None and manifest.nbytes <= most:
        check = verify_step(run.store, step, run_id=run.run_id)
    if check is not None and not check.is_valid and not check.is_unread:
        damage = summaries[step].damage or check.reason
        summaries[step] = dataclasses.replace(summaries[step], damage=damage)
    return Inspection(run.run_id, tuple(summaries.values()), others, manifest, check)


def _training(manifest: Manifest) -> str:
    """Return how far the training had come at a step, in words."""
    measured = EpochMetrics.of(manifest.cursor)
    if measured is None:
        position = position_of(manifest.cursor)
        if position is None:
            return "-"
        begun = ", {updates} of {updates_per_epoch} updates of the next".format_map(position)
        return f"epochs complete: {position['epochs']}{begun if position['updates'] else ''}"
    more = manifest.step - measured.step
    begun = f", {progress.count(more, 'update')} of the next" if more > 0 else ""
    told = ", ".join(progress.metrics(measured.values))
    return f"epoch {measured.epoch} complete{begun}{f'; {told}' if told else ''}"


def _contents(manifest: Manifest) -> str:
    """Return what a step holds, in words: tensors and bytes below each first part of a name."""
    parts: dict[str, list[int]] = {}
    for spec in manifest.specs:
        parts.setdefault(spec.name.partition("/")[0], []).append(spec.nbytes)
    largest = sorted(parts, key=lambda name: -sum(parts[name]))
    return ", ".join(
        f"{name} {progress.memory(sum(parts[name]))} ({progress.count(len(parts[name]), 'tensor')})"
        for name in largest
    )


def position_of(cursor: Mapping[str, object]) -> dict[str, int] | None:
    """Return whole epochs and updates of the next, None if a manifest's cursor does not tell it."""
    step, samples, batch = (cursor.get(name) for name in ("step", "samples", "global batch"))
    if not (isinstance(step, int) and isinstance(samples, int) and isinstance(batch, int)):
        return None
    if min(samples, batch) < 1:
        return None
    length = -(-samples // batch)
    return {"epochs": step // length, "updates": step % length, "updates_per_epoch": length}


def _inspection_json(found: Inspection) -> str:
    manifest = found.manifest
    document = {
        "run_id": found.run_id,
        "steps": [dataclasses.asdict(summary) for summary in found.steps],
        "others": found.others,
        "step": manifest and _manifest_json(manifest),
        "sound": None if found.check is None or found.check.is_unread else found.check.is_valid,
    }
    return json.dumps(document, indent=2)


def _comparison_json(found: Comparison) -> str:
    """Return a comparison as one JSON object; numbers that JSON lacks become texts."""
    differences = []
    for one in found.differences:
        is_plain = one.largest is None or math.isfinite(one.largest)
        differences.append(
            {
                "name": one.name,
                "left": one.left and _spec_json(one.left),
                "right": one.right and _spec_json(one.right),
                "elements": one.elements,
                "largest": one.largest if is_plain else str(one.largest),
            }
        )
    document = {"is_same": not differences, "same": found.same, "differences": differences}
    return json.dumps(document, indent=2, allow_nan=False)


def _summary(run: StoredRun, step: int) -> StepSummary:
    nbytes = shards = damage = unread = completed = None
    with contextlib.suppress(OSError):  # the last file to be written before the step is visible
        path = run.store.directory / step_name(step) / MANIFEST_NAME
        completed = path.stat().st_mtime
    try:
        scan = run.store.scan(step)
        manifest = scan.manifest_alone()
        nbytes, shards = manifest.nbytes, manifest.writers
        manifest.refuse_other_run(run.run_id)
        scan.manifest()
    except CheckpointUnreadable as error:
        unread = error.reason
    except CheckpointInvalid as error:
        damage = error.reason
    return StepSummary(step, nbytes, shards, completed, damage, unread)


def _manifest_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "step": manifest.step,
        "generation": manifest.generation,
        "bytes": manifest.nbytes,
        "shards": manifest.writers,
        "cursor": manifest.cursor,
        "position": position_of(manifest.cursor),
        "numerics": manifest.numerics,
        "tensors": [
            _spec_json(tensor.spec) | {"pieces": len(tensor.pieces)} for tensor in manifest.tensors
        ],
    }


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    return {**dataclasses.asdict(spec), "bytes": spec.nbytes}
