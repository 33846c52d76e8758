"""The contents of a run's checkpoints, from their manifests: as values and as JSON.

Of all steps only manifests and the sizes of shards are read.  A step without a fault there is
complete.  The bytes of one step are compared with its digests, if it is small enough not to wait
for; ``verify`` does so for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.comparison import Comparison, Difference
from holdfast.checkpoint.errors import CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import MANIFEST_NAME, step_name
from holdfast.checkpoint.repair import StepCheck, verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import TensorSpec
from holdfast.runtime.run import progress
from holdfast.runtime.run.stored_run import StoredRun

_READ_AT_ONCE_BYTES = 1 << 30
"""A disk and a core take about a second for so many."""


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


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a step in the samples: whole epochs, and updates of the next epoch."""

    epochs: int
    updates: int
    updates_per_epoch: int

    def __str__(self) -> str:
        begun = f", {self.updates} of {self.updates_per_epoch} updates of the next"
        return f"epochs complete: {self.epochs}{begun if self.updates else ''}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """The steps of a run, newest first, other names beside them, and one step in full."""

    run_id: str | None
    steps: tuple[StepSummary, ...]
    others: tuple[str, ...]
    manifest: Manifest | None
    check: StepCheck | None = None
    """Whether the bytes of that step are as they were saved; None if they were not read."""


def inspect_run(run: StoredRun, step: int) -> Inspection:
    """Look at all steps of a run and, if its manifest is valid, at one of them in full."""
    steps = run.steps()
    names = {step_name(known) for known in steps}
    others = tuple(name for name in run.store.names() if name not in names)
    manifest = None
    with contextlib.suppress(CheckpointInvalid):
        manifest = run.store.scan(step).manifest_alone()
    summaries = tuple(_summary(run, known) for known in steps)
    check = None
    if manifest is not None and manifest.nbytes <= _READ_AT_ONCE_BYTES:
        check = verify_step(run.store, step, run_id=run.run_id)
    if check is not None and not check.is_valid and not check.is_unread:
        summaries = tuple(
            dataclasses.replace(found, damage=found.damage or check.reason)
            if found.step == step
            else found
            for found in summaries
        )
    return Inspection(run.run_id, summaries, others, manifest, check)


def training_of(manifest: Manifest) -> str:
    """Return how far the training had come at a step, in words."""
    epoch = manifest.cursor.get("epoch")
    if not isinstance(epoch, dict) or not isinstance(epoch.get("step"), int):
        position = position_of(manifest.cursor)
        return "-" if position is None else str(position)
    more = manifest.step - epoch["step"]
    begun = f", {progress.count(more, 'update')} of the next" if more > 0 else ""
    values = epoch.get("metrics")
    told = ", ".join(progress.metrics(values)) if progress.is_metrics(values) else ""
    return f"epoch {epoch.get('number')} complete{begun}{f'; {told}' if told else ''}"


def contents_of(manifest: Manifest) -> str:
    """Return what a step holds, in words: tensors and bytes below each first part of a name."""
    parts: dict[str, list[int]] = {}
    for spec in manifest.specs:
        parts.setdefault(spec.name.partition("/")[0], []).append(spec.nbytes)
    largest = sorted(parts, key=lambda name: -sum(parts[name]))
    return ", ".join(
        f"{name} {progress.memory(sum(parts[name]))} ({progress.count(len(parts[name]), 'tensor')})"
        for name in largest
    )


def position_of(cursor: Mapping[str, object]) -> Position | None:
    """Return the position of a manifest's cursor, None if the cursor does not tell it."""
    step, samples, batch = (cursor.get(name) for name in ("step", "samples", "global batch"))
    if not (isinstance(step, int) and isinstance(samples, int) and isinstance(batch, int)):
        return None
    if min(samples, batch) < 1:
        return None
    length = -(-samples // batch)
    return Position(step // length, step % length, length)


def inspection_json(found: Inspection) -> str:
    """Return an inspection as one JSON object."""
    manifest = found.manifest
    document = {
        "run_id": found.run_id,
        "steps": [dataclasses.asdict(summary) for summary in found.steps],
        "others": found.others,
        "step": None if manifest is None else _manifest_json(manifest),
        "sound": None if found.check is None or found.check.is_unread else found.check.is_valid,
    }
    return json.dumps(document, indent=2)


def comparison_json(found: Comparison) -> str:
    """Return a comparison as one JSON object; numbers that JSON lacks become texts."""
    document = {
        "is_same": not found.differences,
        "same": found.same,
        "differences": [_difference_json(difference) for difference in found.differences],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _summary(run: StoredRun, step: int) -> StepSummary:
    nbytes = shards = damage = unread = None
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
    return StepSummary(step, nbytes, shards, _completed(run.store, step), damage, unread)


def _completed(store: CheckpointStore, step: int) -> float | None:
    """Return the time of the manifest, the last file to be written before the step is visible."""
    try:
        return (store.directory / step_name(step) / MANIFEST_NAME).stat().st_mtime
    except OSError:
        return None


def _manifest_json(manifest: Manifest) -> dict[str, Any]:
    position = position_of(manifest.cursor)
    return {
        "step": manifest.step,
        "generation": manifest.generation,
        "bytes": manifest.nbytes,
        "shards": manifest.writers,
        "cursor": manifest.cursor,
        "position": None if position is None else dataclasses.asdict(position),
        "numerics": manifest.numerics,
        "tensors": [
            _spec_json(tensor.spec) | {"pieces": len(tensor.pieces)} for tensor in manifest.tensors
        ],
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    largest = difference.largest
    is_plain = largest is None or math.isfinite(largest)
    return {
        "name": difference.name,
        "left": None if difference.left is None else _spec_json(difference.left),
        "right": None if difference.right is None else _spec_json(difference.right),
        "elements": difference.elements,
        "largest": largest if is_plain else str(largest),
    }


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": spec.dtype,
        "shape": spec.shape,
        "bytes": spec.nbytes,
    }
