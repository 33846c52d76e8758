"""Our ``fit`` in the place of Keras's: it trains on all workers of the job.

The script calls ``model.fit``, on every worker alike.  The arguments become a training
request, the model becomes an exact replica, and the call is the next stage of the run
(`training.stages`).  Then the model has the weights of the end of the stage, on every
worker.  ``evaluate`` and ``predict`` stay Keras's own.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from holdfast.recovery.order import SampleOrder
from holdfast.recovery.world import World
from holdfast.runtime.callbacks.callback_rules import ends_at_nan, flat, steps_per_execution
from holdfast.runtime.callbacks.callback_run import CallbackRun
from holdfast.runtime.custom.kept_replica import kept_replica
from holdfast.runtime.errors import UsageError
from holdfast.runtime.fit.begun_epoch import as_begun
from holdfast.runtime.fit.callback_setup import callback_run, saves
from holdfast.runtime.fit.directories import shared_directories
from holdfast.runtime.fit.downloads import take_turns
from holdfast.runtime.fit.fed_companion import of_pipeline
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.fit.fit_pipelines import leave_pipelines, supply_of
from holdfast.runtime.fit.own_loops import watch_loops
from holdfast.runtime.fit.part_advice import advice_on_few_samples, advice_on_parts
from holdfast.runtime.fit.scaled_rate import ScaledRate
from holdfast.runtime.fit.script_stores import words_on_stores
from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.data import Data, read_microbatch
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.model.tensorflow_settings import set_numerics
from holdfast.runtime.options.rate_scale import RateScaling
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.pipelines.feed import Feed
from holdfast.runtime.progress.step_report import SILENT
from holdfast.runtime.progress.words import count
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.training.companion import Companion
from holdfast.runtime.training.stages import stages_of_script
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest
from holdfast.runtime.worker.calling_script import during_training
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.random_states import go_on_from
from holdfast.runtime.worker.training_refusal import is_refused


def prepare(config: WorkerConfig) -> None:
    """Fix the numerics of Keras, and let every model's ``fit`` be ours."""
    numerics = Numerics.here(threads=config.threads)
    set_numerics(config.threads, config.seed, deterministic=numerics.deterministic)
    context = stages_of_script().context
    take_turns(RunDirectory(context.run_dir.resolve()).journal_path, context.inform)
    if config.options.fit:
        take_over()
        saves()
        watch_loops(lambda: stages_of_script().has_begun, context.notify)


def _fit(model: Any, *args: Any, **arguments: Any) -> Any:
    """Train ``model`` on all workers; arguments and result are those of ``keras.Model.fit``."""
    return fit(model, FitCall.of(*args, **arguments))


def fit(model: Any, call: FitCall) -> Any:
    """Train a compiled model as the next stage of the run and return its ``History``.

    Raises:
        JobError: the job cannot go on; one sentence gives the reason.
        StopRequested: the job was asked to stop.  It is no ``Exception``.
    """
    call = replace(_limited(call), per_execution=steps_per_execution(model))
    if not call.epochs_to_train:
        return _empty_history(model, call)
    if is_refused(model, lambda: _first_inputs(call)):
        return keras.callbacks.History()
    stages = stages_of_script()
    if not stages.is_first:
        for word in words_on_stores(len(stages.context.config.workers)):
            stages.context.notify(word)
    try:
        with during_training():
            return _Training(model, as_begun(call, stages_of_script())).run()
    finally:
        directories = shared_directories()
        if directories is not None:
            directories.temporary.gather()


def take_over() -> None:
    """Let every model's ``fit`` be ours from now on, with the signature of Keras's."""
    ours = functools.wraps(keras.Model.fit)(_fit)
    ours.__module__, ours.__qualname__ = keras.Model.__module__, f"{keras.Model.__qualname__}.fit"
    keras.Model.fit = ours


def _limited(call: FitCall) -> FitCall:
    """Return the call within the limits that ``keras.config`` sets, and tell of them."""
    limits = {"epochs": "max_epochs", "steps_per_epoch": "max_steps_per_epoch"}
    known = {name: getattr(keras.config, name, lambda: None)() for name in limits.values()}
    found = call.within(known["max_epochs"], known["max_steps_per_epoch"])
    for argument, name in limits.items():
        if getattr(found, argument) != getattr(call, argument):
            stages_of_script().context.inform(
                f"{argument} is limited to {known[name]} (keras.config.{name}())"
            )
    return found


def _empty_history(model: Any, call: FitCall) -> Any:
    """Return what Keras returns for a call without an epoch; it is no stage of the run."""
    stages_of_script().context.notify(
        f"fit(epochs={call.epochs}, initial_epoch={call.initial_epoch}) trains nothing: epochs is "
        "the number of the last epoch"
    )
    history = keras.callbacks.History()
    history.on_train_begin()
    history.set_model(model)
    history.set_params({"epochs": call.epochs, "steps": None})
    model.history = history
    return history


def _first_inputs(call: FitCall) -> Any:
    """Return the inputs of the first samples of a call."""
    data = supply_of(call, 0, lambda text: None).training
    if isinstance(data, Feed):
        first = data.first()
        return first.rows(0, 1 if first.is_even else first.samples)[0]
    return read_microbatch(data, np.arange(1), seed=0).x


class _Training:
    """One call of ``fit``."""

    def __init__(self, model: Any, call: FitCall) -> None:
        self._model = model
        self._call = call
        self._stages = stages_of_script()
        context = self._stages.context
        self._options = context.config.options
        seed = self._stages.stage.seed(context.config.seed)
        self._data = supply_of(call, seed, context.notify)
        self._callbacks: CallbackRun | None = None
        self._rate: ScaledRate | None = None
        self._steps_per_epoch: int | None = None

    def run(self) -> Any:
        """Train, and return the ``History``."""
        begin = self._stages.stage.begin
        try:
            end = self._stages.train(self._request(), self._build, self._accompany)
        finally:
            if self._rate is not None:
                self._rate.take_off()
            if self._callbacks is not None:
                self._callbacks.close()
        leave_pipelines(self._data, end.cursor.step - begin, end.cursor.evaluations)
        if end.random is not None:
            go_on_from(end.random)  # the hooks that have drawn from them did not run here
        if end.error is not None:
            raise end.error
        assert self._callbacks is not None
        return self._callbacks.history

    def _request(self) -> TrainingRequest:
        call, data, factor = self._call, self._data, self._options.scale_batch
        if factor > 1 and isinstance(data.training, Feed):
            raise UsageError(
                f"--scale-batch {factor} cannot change the batches of {data.training.name}: "
                "make them larger in the script"
            )
        return TrainingRequest(
            data.training,
            data.validation,
            call.global_batch(_samples(data.training)) * factor,
            call.epochs_to_train,
            is_shuffled=call.shuffle,
            validation_batch=call.validation_batch(_samples(data.validation)),
            validated=call.validated,
            first_epoch=call.initial_epoch,
            verbose=call.shown,
            scaling=RateScaling.of(self._options.scale_rate, factor),
            steps_per_epoch=call.steps_of_samples(factor),
            takes_nan=any(map(ends_at_nan, flat(call.callbacks))),
        )

    def _build(self, job: TrainingJob, context: WorkerContext) -> Replica:
        if not job.work_plan.is_open:
            steps = job.work_plan.steps_per_epoch
            self._steps_per_epoch = min(steps, self._call.steps_per_epoch or steps)
        if job.stage.number == 1 and self._call.shown != SILENT:
            context.inform(_announcement(self._model, job, len(context.config.workers)))
        few = self._few_samples(job, context)
        if few is not None:
            context.inform(few)
        if job.work_plan.cuts_passes:
            context.inform(_cut_in_words(job))
        if job.rate is not None:
            self._rate = ScaledRate(self._model.optimizer, job.rate)
            context.inform(f"the learning rate grows with the batch: {job.rate}")
        is_accepted = self._options.accept_batch_mixing
        workers = len(context.config.workers)
        mixing = BatchMixing.of(job.microbatches, workers, is_accepted=is_accepted)
        first = job.first_microbatch
        with advice_on_parts(first.samples, job.microbatches, self._model.name, context.notify):
            return kept_replica(
                self._model,
                first,
                mixing,
                context.notify,
                lambda: job.first_of_validation,
                evaluates=job.validation is not None,
            )

    def _few_samples(self, job: TrainingJob, context: WorkerContext) -> str | None:
        if not isinstance(job.order, SampleOrder):
            return None
        config = context.config
        world = World(config.generation, config.workers, config.capacity)
        return advice_on_few_samples(job.order.global_batch, job.microbatches, world)

    def _accompany(self, replica: Replica) -> Companion:
        self._callbacks = callback_run(
            self._model, self._call, replica, self._stages, self._steps_per_epoch
        )
        return of_pipeline(self._callbacks, self._data.training)


def _samples(data: Data | Feed | None) -> int:
    """Return the number of samples that are read by number; a pipeline has its own batches."""
    return 0 if data is None or isinstance(data, Feed) else len(data)


def _cut_in_words(job: TrainingJob) -> str:
    """Say in one line what epochs a pass over the data is cut into, because Keras surprises."""
    plan = job.work_plan
    assert plan.pass_steps is not None
    rest = plan.pass_steps % plan.steps_per_epoch
    words = f"a pass over the data has {plan.pass_steps} steps, and an epoch {plan.steps_per_epoch}"
    if not rest:
        return f"{words}: the next epoch goes on in the pass, as in Keras"
    return (
        f"{words}: the last epoch of each pass has the {rest} that are left, as in Keras; "
        "a dataset that repeats (.repeat()) has epochs of one length"
    )


def _announcement(model: Any, job: TrainingJob, workers: int) -> str:
    """Say in one line that ``fit`` is not Keras's own, and how it trains."""
    steps = "" if job.work_plan.is_open else f", {job.work_plan.steps_per_epoch} steps an epoch"
    several = f"{workers} workers train" if workers > 1 else "1 worker trains"
    parts = count(job.microbatches, "microbatch", "microbatches")
    return (
        f"{several} {model.name!r} by fit(): {job.step_in_words} in {parts}"
        f"{steps} (--no-fit leaves fit() alone)"
    )
