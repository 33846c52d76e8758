"""The trainer: the object that a training script calls.

A script names the model and the data.  It does not know the machines and the number of
workers, and need not handle a death.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.runtime.data.samples import Data, check_data, read_microbatch
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.replica import Replica, make_model
from holdfast.runtime.training.stages import stages_of_script
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest
from holdfast.runtime.worker.context import WorkerContext, is_refused


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a training run; except for ``is_first`` the same on every worker.

    ``metrics`` and ``validation`` are those of the last epoch that ended since
    the job was launched; ``sha256`` is the digest of the whole final state
    (weights, optimizer, cursor).  ``is_first`` is true on exactly one worker:
    the one that should print, or write a file.
    """

    step: int
    sha256: str
    is_first: bool
    metrics: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)


class Trainer:
    """Trains a model in step with all other workers of the job.

    Args:
        model: a compiled Keras model, a ``Replica``, or a function that returns one.  The
            function is called after the seeds are set, so its initial weights are the same
            in every worker and every run.
        data: the samples to train on.
        global_batch: samples of one update, over all workers.
        epochs: passes over the data.
        validation: samples to evaluate on at the end of each epoch.
        save_every: a number of updates (100), a time ("90s", "10min", "2h"), the end of each
            epoch ("epoch"), or "auto".  "auto" measures the cost of a save and the failures
            of the job, and chooses the interval that loses the least time.  Saves then take
            at most 3.5 % of the time.  The end of the job always has a checkpoint.
        keep: newest checkpoints to keep, at least 2.
        verify_every: updates between comparisons of the workers' states, which find a
            worker whose memory is wrong; 0 for none.  Every save begins with one too.
        initial: the source of a new run's weights, None for the model's own: a
            ``.weights.h5``, ``.keras`` or ``.npz`` file, the prefix or directory of a
            TensorFlow checkpoint, or another run's directory.  ``holdfast run --initial``
            overrides it; a run that resumes ignores both.
        keep_every: updates between checkpoints that are made and kept for ever.
        keep_best: a metric and "min" or "max", such as ("val_loss", "min"): the checkpoint
            of the training's epoch with the best value is kept too, for ever.  Each epoch's
            end then has a checkpoint.
        accept_batch_mixing: train also a loss that mixes the samples of a batch, such as a
            contrastive one.  Each microbatch then has its own loss.
        callbacks: not taken; ``holdfast.fit`` takes Keras's callbacks.
    """

    def __init__(  # noqa: PLR0913  (each is one plain wish of the user's)
        self,
        model: Any,
        data: Data,
        *,
        global_batch: int,
        epochs: int,
        validation: Data | None = None,
        save_every: int | str = "auto",
        keep: int = 3,
        verify_every: int = 0,
        initial: str | os.PathLike[str] | None = None,
        keep_every: int | None = None,
        keep_best: tuple[str, str] | None = None,
        accept_batch_mixing: bool = False,
        callbacks: None = None,
    ) -> None:
        if callbacks is not None:
            raise ProgramError(
                "Trainer takes no callbacks: train with model.fit(..., callbacks=...) under "
                "holdfast run, or with holdfast.fit(model, ..., callbacks=...)"
            )
        self._model = model
        self._data = data
        self._accepts_mixing = accept_batch_mixing
        check_data("data", data)
        if validation is not None:
            check_data("validation", validation)
        begin = None if initial is None else Path(initial)
        self._request = TrainingRequest(
            data,
            validation,
            global_batch,
            epochs,
            save_every=save_every,
            keep=keep,
            verify_every=verify_every,
            initial=begin,
            keep_every=keep_every,
            keep_best=keep_best,
        )
        self._replica: Replica | None = None

    @property
    def replica(self) -> Replica:
        """The replica that was trained; for a Keras model, its ``model`` is the Keras model."""
        assert self._replica is not None, "run() makes the replica"
        return self._replica

    def run(self) -> Result:
        """Train to the end, through deaths of workers, and return the result.

        Raises:
            JobError: the job cannot go on; one sentence gives the reason.
            StopRequested: the job was asked to stop.  It is no ``Exception``.
        """
        if is_refused(self._model, self._first_inputs):
            return Result(0, "", is_first=True)
        end = stages_of_script().train(self._request, self._build)
        if end.error is not None:
            raise end.error
        return Result(end.cursor.step, end.sha256, end.is_first, end.metrics, end.validation)

    def _first_inputs(self) -> Any:
        return read_microbatch(self._data, np.arange(1), seed=0).x

    def _build(self, job: TrainingJob, context: WorkerContext) -> Replica:
        options = context.config.options
        is_accepted = self._accepts_mixing or options.accept_batch_mixing
        self._replica = _build_replica(self._model, job, context, accepts_mixing=is_accepted)
        return self._replica


def _build_replica(
    model: Any, job: TrainingJob, context: WorkerContext, *, accepts_mixing: bool
) -> Replica:
    """Return the replica of ``model``, built with the job's seeds."""
    if isinstance(model, Replica) and not isinstance(model, type):
        return model
    uses_keras = "keras" in sys.modules or "tensorflow" in sys.modules
    if not uses_keras:
        made = make_model(model)
        if isinstance(made, Replica):
            return made
        raise ProgramError(
            f"the trainer's model is a {type(made).__name__}, which is neither a compiled Keras "
            "model nor a Replica; pass one of them, or a function that returns one"
        )
    return _build_keras(model, job, context, accepts_mixing=accepts_mixing)


def _build_keras(
    model: Any, job: TrainingJob, context: WorkerContext, *, accepts_mixing: bool
) -> Replica:
    """Build a Keras model, or a replica of the user's own that uses TensorFlow."""
    from holdfast.runtime.model import batch_mixing, graphs
    from holdfast.runtime.model.choose import replica_of_keras

    config = context.config
    graphs.set_numerics(job.numerics, config.seed)
    made = make_model(model)
    if isinstance(made, Replica):
        return made
    mixing = batch_mixing.BatchMixing.of(
        job.microbatches, len(config.workers), is_accepted=accepts_mixing
    )
    return replica_of_keras(made, job.first_microbatch, mixing, lambda: job.first_of_validation)
