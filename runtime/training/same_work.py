"""The check that all do the same work, on the same data: all workers, and a run that goes on.

Every worker runs the whole script.  A script may draw its data from an unseeded generator.  It has
other data on each worker then, and trains on a mixture that no run would give again.

A run is begun by one model on some samples.  A script with other ones is refused when it resumes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from holdfast.checkpoint.format.layout import TensorSpec
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.training.training_job import FIRST_EPOCH, TrainingJob
from holdfast.runtime.worker.context import WorkerContext

_PARTS = {
    "weights": "model",
    "optimizer": "optimizer",
    "companion": "callbacks",
    "cursor": "metrics",
}
"""What the script has, by the first part of the names of its tensors; the first that differs is
told, because the others follow from it."""

_OTHER_PART = "state"
_MOST_TOLD = 3
_WAYS_OUT = "begin a new run with --fresh, or choose another --run-dir"
_MAY_BE_LEFT_OUT = ("shuffle", "steps per epoch", "learning rate")
"""Parts of a job's identity that only some jobs have."""


def check_same_work(membership: Membership, job: TrainingJob) -> None:
    """Compare the job of all workers of the world with that of rank 0.

    Raises:
        ProgramError: they differ; raised on all workers alike.
        WorldBroken: a member died.
    """
    cards = membership.communicator.allgather_bytes(json.dumps(job.card).encode())
    everyones = [json.loads(card) for card in cards]
    workers = membership.world.workers
    for worker, theirs in zip(workers, everyones, strict=True):
        name = _first_difference(everyones[0], theirs)
        if name is not None:
            raise ProgramError(
                f"{name} of worker {worker} is {theirs.get(name)}, and that of worker "
                f"{workers[0]} is {everyones[0].get(name)}: every worker runs the whole script, so "
                "all must see the same; seed every random generator, and sort lists of files"
            )


def _first_difference(mine: Mapping[str, object], theirs: Mapping[str, object]) -> str | None:
    names = [*mine, *(name for name in theirs if name not in mine)]
    return next((name for name in names if mine.get(name) != theirs.get(name)), None)


def check_same_run(
    context: WorkerContext, job: TrainingJob, specs: Iterable[TensorSpec], saved: Manifest
) -> None:
    """Refuse to go on with a checkpoint of another model, or of other samples.

    Raises:
        UsageError: one sentence tells the difference, and both ways out.
    """
    difference = model_difference(saved.specs, specs)
    if difference is not None:
        raise UsageError(
            f"the run in {context.run_dir} and the script differ in the {difference}; {_WAYS_OUT}"
        )
    _check_identity(context, job.identity, saved.cursor)
    _check_first_epoch(context, job.work_plan.first_epoch, saved.cursor)
    before, now = saved.cursor.get("data"), job.data_fingerprint
    if before is not None and now is not None and before != now:
        raise UsageError(
            f"the run in {context.run_dir} was begun with other samples (digest {before}, now "
            f"{now}): if they are random, seed every generator of the script; else {_WAYS_OUT}"
        )


def _check_identity(
    context: WorkerContext, mine: Mapping[str, int | str], saved: Mapping[str, object]
) -> None:
    for name in (*mine, *_MAY_BE_LEFT_OUT):
        before, now = saved.get(name), mine.get(name)
        if before != now:
            raise UsageError(
                f"the run in {context.run_dir} was begun with {_said(name, before)}, and the "
                f"script has {_said(name, now)}: go back to that, {_WAYS_OUT}"
            )


def _check_first_epoch(context: WorkerContext, mine: int, saved: Mapping[str, object]) -> None:
    """Refuse epochs that are counted from elsewhere; older checkpoints do not tell."""
    before = saved.get(FIRST_EPOCH, mine)
    if before != mine:
        raise UsageError(
            f"the run in {context.run_dir} was begun with initial_epoch={before}, and the script "
            f"has initial_epoch={mine}: go back to that, {_WAYS_OUT}"
        )


def _said(name: str, value: object) -> str:
    if name == "shuffle":
        return f"shuffle={value is None}"
    return f"no {name}" if value is None else f"{name} {value}"


def model_difference(saved: Iterable[TensorSpec], mine: Iterable[TensorSpec]) -> str | None:
    """Return what a checkpoint and the script's model differ in, None for nothing."""
    then, now = set(saved), set(mine)
    parts = {_part_of(spec) for spec in then ^ now}
    noun = next((noun for noun in (*_PARTS.values(), _OTHER_PART) if noun in parts), None)
    if noun is None:
        return None
    gone, new = ([s for s in specs if _part_of(s) == noun] for specs in (then - now, now - then))
    return f"{noun}: {_sides(_described(gone, new), _described(new, gone))}"


def _part_of(spec: TensorSpec) -> str:
    prefix, slash, _ = spec.name.partition("/")
    return _PARTS.get(prefix, _OTHER_PART) if slash else _OTHER_PART


def _described(specs: Iterable[TensorSpec], others: Iterable[TensorSpec]) -> list[str]:
    """Return tensors in words, kernels before biases; their types if only these differ."""
    shapes = {spec.name: spec.shape for spec in others}
    return [
        f"{_short(spec.name)} {spec.shape}"
        + (f" {spec.dtype}" if shapes.get(spec.name) == spec.shape else "")
        for spec in sorted(specs, key=lambda spec: (len(spec.shape) < 2, spec.name))
    ]


def _short(name: str) -> str:
    prefix, _, rest = name.partition("/")
    return rest if prefix in _PARTS and rest else name


def _sides(gone: Sequence[str], new: Sequence[str]) -> str:
    if not new:
        return f"the checkpoint has {_listed(gone)}, which the script does not have"
    if not gone:
        return f"the script has {_listed(new)}, which the checkpoint does not have"
    return f"the checkpoint has {_listed(gone)}; the script has {_listed(new)}"


def _listed(tensors: Sequence[str]) -> str:
    more = len(tensors) - _MOST_TOLD
    return ", ".join(tensors[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")
