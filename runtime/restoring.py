"""The newest valid checkpoint of a run, checked against the job that wants to go on from it."""

from __future__ import annotations

from holdfast.checkpoint.layout import specs_of
from holdfast.checkpoint.reader import Restored, compare_specs, restore_newest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.cursor import Cursor
from holdfast.runtime.catch_up import load_state, whole_state
from holdfast.runtime.context import WorkerContext
from holdfast.runtime.errors import RecoveryImpossible, UsageError
from holdfast.runtime.numerics import Numerics
from holdfast.runtime.numerics_check import check_resumed
from holdfast.runtime.replica import Replica
from holdfast.runtime.training_job import TrainingJob


def restore_job(
    context: WorkerContext, job: TrainingJob, replica: Replica, fresh: Cursor
) -> Cursor:
    """Load the newest valid checkpoint into ``replica`` and return its cursor.

    Returns ``fresh`` and leaves the replica alone when the run has no checkpoint.

    Raises:
        UsageError: the checkpoint belongs to another model, job or (if strict)
            other numerics; the message names what differs.
        RecoveryImpossible: there are checkpoints, and none of them is valid.
    """
    store = CheckpointStore(context.run_dir)
    store.clean_staging(context.config.generation)
    restored, rejections = restore_newest(store, run_id=context.config.run_id)
    for rejection in rejections:
        context.journal.record("rejected", step=rejection.step, reason=rejection.reason)
        text = f"checkpoint step {rejection.step} was skipped: {rejection.reason}"
        context.tell_agent({"kind": "notice", "text": text})
    if restored is None:
        if rejections:
            raise RecoveryImpossible(
                f"none of the {len(rejections)} checkpoints in {context.run_dir} is valid; "
                "restore one from a backup, or start over with --fresh"
            )
        return fresh
    _check_model(context, replica, fresh, restored)
    _check_identity(context, job, restored)
    check_resumed(context, _numerics_of(restored), job.numerics)
    cursor = load_state(replica, restored.state)
    context.journal.record("restored", step=cursor.step, generation=context.config.generation)
    return cursor


def _check_model(
    context: WorkerContext, replica: Replica, fresh: Cursor, restored: Restored
) -> None:
    expected = specs_of(whole_state(replica, fresh))
    difference = compare_specs(expected, restored.manifest.specs)
    if difference is not None:
        raise UsageError(
            f"{context.run_dir} holds another model's run: {difference}; "
            "choose another --run-dir, or start over with --fresh"
        )


def _check_identity(context: WorkerContext, job: TrainingJob, restored: Restored) -> None:
    found = restored.manifest.cursor
    for name, wanted in job.identity.items():
        if found.get(name) != wanted:
            raise UsageError(
                f"the run in {context.run_dir} was begun with {name} {found.get(name)}, "
                f"this job has {wanted}; ask for the same, or choose another --run-dir"
            )


def _numerics_of(restored: Restored) -> Numerics:
    try:
        return Numerics.from_json(dict(restored.manifest.numerics))
    except ValueError as error:
        raise UsageError(f"checkpoint step {restored.manifest.step}: {error}") from error
