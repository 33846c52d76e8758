"""Our ``fit`` in the place of Keras's: it trains on all workers of the job.

The script calls ``model.fit``, on every worker alike.  The arguments become a training
request, the model becomes an exact replica, and the call is the next stage of the run
(`training.stages`).  Then the model has the weights of the end of the stage, on every
worker.  ``evaluate`` and ``predict`` stay Keras's own.
"""

from __future__ import annotations

from typing import Any

import keras

from holdfast.runtime.callbacks.callback_run import CallbackRun
from holdfast.runtime.custom.replica_of_keras import replica_of_keras
from holdfast.runtime.fit.callback_setup import callback_run, saves
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.fit.fit_pipelines import of_pipeline, supply_of
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.model.tensorflow_settings import set_numerics
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.progress.step_report import SILENT
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.training.companion import Companion
from holdfast.runtime.training.stages import stages_of_script
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest
from holdfast.runtime.worker.context import WorkerContext


def prepare(config: WorkerConfig) -> None:
    """Fix the numerics of Keras, and let every model's ``fit`` be ours."""
    numerics = Numerics.here(threads=config.threads)
    set_numerics(config.threads, config.seed, deterministic=numerics.deterministic)
    if config.options.fit:
        keras.Model.fit = _fit
        saves()


def _fit(model: Any, *args: Any, **arguments: Any) -> Any:
    """Train ``model`` on all workers; arguments and result are those of ``keras.Model.fit``."""
    return fit(model, FitCall(*args, **arguments))


def fit(model: Any, call: FitCall) -> Any:
    """Train a compiled model as the next stage of the run and return its ``History``.

    Raises:
        JobError: the job cannot go on, or was asked to stop; one sentence gives the reason.
    """
    stages = stages_of_script()
    seed = stages.stage.seed(stages.context.config.seed)
    data = supply_of(call, seed, stages.context.notify)
    request = TrainingRequest(
        data.training,
        data.validation,
        call.global_batch,
        call.epochs_to_train,
        is_shuffled=call.shuffle,
        validation_batch=call.validation_batch,
        validated=call.validated,
        first_epoch=call.initial_epoch,
        verbose=call.shown,
    )
    runs: list[CallbackRun] = []
    steps: list[int] = []

    def build(job: TrainingJob, context: WorkerContext) -> Replica:
        steps.append(job.work_plan.steps_per_epoch)
        if job.stage.number == 1 and call.shown != SILENT:
            context.notify(_announcement(model, job, len(context.config.workers)))
        return replica_of_keras(model, job.first_microbatch)

    def accompany(replica: Replica) -> Companion:
        runs.append(callback_run(model, call, replica, stages, steps[0]))
        return of_pipeline(runs[0], data.training)

    try:
        stages.train(request, build, accompany)
    finally:
        for run in runs:
            run.close()
    return runs[0].history


def _announcement(model: Any, job: TrainingJob, workers: int) -> str:
    """Say in one line that ``fit`` is not Keras's own, and how it trains."""
    steps = job.work_plan.steps_per_epoch
    several = f"{workers} workers train" if workers > 1 else "1 worker trains"
    return (
        f"{several} {model.name!r} by fit(): {job.step_in_words} in "
        f"{job.microbatches} microbatches, {steps} steps an epoch (--no-fit leaves fit() alone)"
    )
