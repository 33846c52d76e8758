"""A call of ``fit`` as the run began it: a script may count its epochs anew at each start.

Many scripts load the newest file that they have saved, and give ``fit`` its epoch as
``initial_epoch``.  In a relaunch such a script asks for the epochs that are left.  But the run
has them in its checkpoint already: it goes on in the middle of the epochs that it began with.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.checkpoint.errors import CheckpointInvalid, StorageFailed
from holdfast.checkpoint.store.state_reader import StateReader
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.training.stages import Stages
from holdfast.runtime.training.training_job import FIRST_EPOCH


def as_begun(call: FitCall, stages: Stages) -> FitCall:
    """Return ``call`` with the ``initial_epoch`` of the next stage's checkpoints, if it has any."""
    begun = _first_epoch_of(stages)
    if begun is None or begun == call.initial_epoch:
        return call
    stages.context.notify(
        f"training {stages.stage.number} of the script began with initial_epoch={begun} and goes "
        f"on from its checkpoint: initial_epoch={call.initial_epoch}, which the script has now, "
        f"has no effect, and epochs={call.epochs} is the end"
    )
    return replace(call, initial_epoch=begun)


def _first_epoch_of(stages: Stages) -> int | None:
    """Return the first epoch of the next stage, None if no checkpoint tells it.

    All checkpoints of a stage tell the same, so it does not matter which one a worker finds.
    """
    context, stage = stages.context, stages.stage
    store = context.open_store()
    try:
        steps = store.steps()
    except StorageFailed:  # then the restore, which waits for the disk, refuses other epochs
        return None
    for step in reversed(steps):
        if not stage.may_have(step):
            return None
        try:
            cursor = StateReader(store, step, context.config.run_id).manifest.cursor
        except CheckpointInvalid:
            continue
        if stage.is_of(cursor):
            found = cursor.get(FIRST_EPOCH)
            return found if isinstance(found, int) else None
    return None
