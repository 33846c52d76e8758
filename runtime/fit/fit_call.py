"""The arguments of a call of ``fit``, as Keras names them and as the run began it.

Many scripts load the newest file that they have saved, and give ``fit`` its epoch as
``initial_epoch``.  In a relaunch such a script asks for the epochs that are left.  But the run has
them in its checkpoint already: it goes on in the middle of the epochs that it began with.

``holdfast.fit`` is Keras's for scripts that also run without ``holdfast run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.checkpoint.errors import CheckpointInvalid, StorageFailed
from holdfast.checkpoint.reader import StateReader
from holdfast.runtime.data.feed import check_steps
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.training.stages import Stages
from holdfast.runtime.training.training_job import FIRST_EPOCH

_BATCH = 32
"""Keras's own default."""


@dataclass(frozen=True, slots=True)
class FitCall:
    """One call of ``fit``; every field has Keras's name, default and meaning.

    ``batch_size`` is the global batch, over all workers.  ``per_execution`` is no argument of
    ``fit``, but ``compile``'s ``steps_per_execution``.
    """

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool = True
    class_weight: Any = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | Sequence[int] = 1
    per_execution: int = field(default=1, kw_only=True)

    @staticmethod
    def of(*args: Any, **arguments: Any) -> FitCall:
        """Return the call with the arguments of a script.

        Raises:
            TypeError: they are not those of ``keras.Model.fit``.
        """
        try:
            return FitCall(*args, **arguments)
        except TypeError as error:
            words = str(error).replace(f"{FitCall.__name__}.__init__()", "Model.fit()")
            raise TypeError(words) from None

    def within(self, epochs: int | None, steps: int | None) -> FitCall:
        """Return the call with at most so many epochs, and steps of an epoch or a validation.

        These are the limits of ``keras.config``, None for none.
        """
        return replace(
            self,
            epochs=min(self.epochs, epochs or self.epochs),
            steps_per_epoch=_fewer(self.steps_per_epoch, steps),
            validation_steps=_fewer(self.validation_steps, steps),
        )

    def in_executions(self, steps: int | None) -> int | None:
        """Return so many steps of an epoch, or of a validation, in whole executions.

        Keras looks at the number between two executions only: an epoch of 5 has 6 with 2 of each.
        """
        return steps and -(-steps // self.per_execution) * self.per_execution

    def global_batch(self, samples: int) -> int:
        """Return the samples of one update; without a size the steps divide all samples."""
        return self.batch_size or _batch_of(samples, self.steps_per_epoch)

    def validation_batch(self, samples: int) -> int:
        """Return the samples of one batch of so many validation samples."""
        size = self.validation_batch_size or self.batch_size
        return size or _batch_of(samples, self.validation_steps)

    def steps_of_samples(self, factor: int) -> int | None:
        """Return ``steps_per_epoch`` for batches that are larger by a factor, None for a pass.

        Raises:
            ProgramError: it is less than 1.
        """
        if self.steps_per_epoch is None:
            return None
        check_steps("steps_per_epoch", self.steps_per_epoch)
        steps = self.in_executions(self.steps_per_epoch)
        assert steps is not None
        return -(-steps // factor)

    @property
    def shown(self) -> int:
        """What people see of the training: 0 for nothing, 1 for a live line, 2 for lines only."""
        return 1 if self.verbose == "auto" else int(self.verbose)

    @property
    def validated(self) -> int | tuple[int, ...]:
        """Every so many epochs are validated, or these, counted from 1."""
        if isinstance(self.validation_freq, int):
            return self.validation_freq
        return tuple(sorted(self.validation_freq))

    @property
    def epochs_to_train(self) -> int:
        """Epochs from ``initial_epoch`` to ``epochs``; 0 if there are none."""
        return max(self.epochs - self.initial_epoch, 0)


def _fewer(asked: int | None, most: int | None) -> int | None:
    """Return the smaller count; None is no limit, and 0 of ``most`` neither, as in Keras."""
    return min(asked or most, most) if most else asked


def _batch_of(samples: int, steps: int | None) -> int:
    """Return the size that Keras gives a batch; a pipeline has its own batches, and 0 samples."""
    return -(-samples // steps) if samples and steps else _BATCH


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
            cursor = StateReader.of(store, step, context.config.run_id).manifest.cursor
        except CheckpointInvalid:
            continue
        if stage.is_of(cursor):
            found = cursor.get(FIRST_EPOCH)
            return found if isinstance(found, int) else None
    return None


def fit(model: Any, *args: Any, **arguments: Any) -> Any:
    """Train a compiled Keras model on all workers of the job and return its ``History``.

    The arguments are those of ``keras.Model.fit``.  ``batch_size`` is the global batch.  Under
    ``holdfast run`` every ``model.fit`` does this; without it the script ends with the command that
    starts it.

    Raises:
        ProgramError: an argument is not valid.
        JobError: the job cannot go on; one sentence gives the reason.
        StopRequested: the job was asked to stop.  It is no ``Exception``.
    """
    from holdfast.runtime.fit import keras_fit

    try:
        call = FitCall.of(*args, **arguments)
    except TypeError as error:
        raise ProgramError(f"holdfast.fit() takes the arguments of Keras: {error}") from error
    return keras_fit.fit(model, call)
