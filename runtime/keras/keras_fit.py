"""Our ``fit`` in the place of Keras's: it trains on all workers of the job.

DESIGN.md has the walk of a script.  ``evaluate`` and ``predict`` stay Keras's own.

A model that fails on a part of a batch, or has batches of few samples, gets advice.  The learning
rate of a larger batch is scaled while an optimizer applies gradients: the rate that the script has
chosen stays what it was.  Callbacks read and change that one, and a schedule goes on.  Only an
update sees the product.

Keras downloads for one worker at a time.  ``keras.utils.get_file`` looks whether a file is there,
and downloads it otherwise.  All workers of a job ask at the same moment, so the second one would
take the half of a file for the whole.  Invariant: a worker that looks for a file sees it whole, or
not at all.  The kernel ends the turn of a worker that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.utils import file_utils

from holdfast.recovery.order import SampleOrder
from holdfast.recovery.world import assign
from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.samples import Data, read_microbatch
from holdfast.runtime.errors import JobError, UsageError
from holdfast.runtime.keras.callback_rounds import CallbackRounds
from holdfast.runtime.keras.callback_rules import ends_at_nan, flat, steps_per_execution
from holdfast.runtime.keras.callback_run import CallbackRun
from holdfast.runtime.keras.fit_call import (
    FitCall,
    as_begun,
    datasets_of,
    hears_of_epochs,
    leave_pipelines,
    supply_of,
)
from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.choose import as_traced, kept_replica, note_steps
from holdfast.runtime.model.graphs import set_numerics
from holdfast.runtime.model.model_rules import check_backend
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.progress import SILENT, count
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.script.calls import during_training, go_on_from, stand_in
from holdfast.runtime.script.process import script_process
from holdfast.runtime.script.saves import EventFiles, FirstSaves, KeptLoads, install
from holdfast.runtime.training.callback_host import CallbackHost
from holdfast.runtime.training.stages import stages_of_script
from holdfast.runtime.training.training_job import RateScale, TrainingJob, TrainingRequest
from holdfast.runtime.worker.context import WorkerContext, is_forked, is_refused


@contextmanager
def advice_on_parts(
    samples: int, microbatches: int, name: str, tell: Callable[[str], None]
) -> Iterator[None]:
    """Tell how to keep batches whole if the model ``name`` raises an error of its own.

    A model may be written for batches of one size, or for a first axis that does not count
    samples.  It trains in plain Keras, and fails on ``samples`` of a batch that is divided
    into ``microbatches`` parts.  The error itself goes on as it is.
    """
    try:
        yield
    except JobError:
        raise
    except Exception:
        if microbatches > 1:
            tell(
                f"{name!r} was tried on {samples} of the samples of a batch, which is divided into "
                f"{microbatches} microbatches along its first axis: if it needs the whole batch, "
                "run with --microbatches 1"
            )
        raise


def advice_on_few_samples(job: TrainingJob, config: WorkerConfig) -> str | None:
    """Return how many workers have nothing to do in a step; None if all have, or it is unknown."""
    if not isinstance(job.order, SampleOrder) or job.order.global_batch >= job.microbatches:
        return None
    samples = job.order.global_batch
    world = config.first_world
    busy = len(set(assign(job.microbatches, world).owners[:samples]))
    idle = len(world.active) - busy
    if not idle:
        return None
    return (
        f"batch_size {samples} in {job.microbatches} microbatches leaves {idle} of "
        f"{len(world.active)} workers without a sample: take batches of {job.microbatches} or more"
    )


_RATE = "_get_current_learning_rate"


class ScaledRate:
    """Scales the rate of an optimizer from its next update on, until it is taken off."""

    def __init__(self, optimizer: Any, scale: RateScale) -> None:
        # An optimizer of mixed precision hands scaled-back gradients to the one inside.
        self._optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._scale = scale
        self._begin = int(self._optimizer.iterations.numpy())
        self._apply = self._optimizer.apply
        self._rate = getattr(self._optimizer, _RATE)
        object.__setattr__(self._optimizer, "apply", self._apply_scaled)

    def take_off(self) -> None:
        """Let the optimizer be what it was."""
        vars(self._optimizer).pop("apply", None)

    def _apply_scaled(self, *args: Any, **arguments: Any) -> Any:
        object.__setattr__(self._optimizer, _RATE, self._scaled)
        try:
            return self._apply(*args, **arguments)
        finally:
            vars(self._optimizer).pop(_RATE, None)

    def _scaled(self) -> Any:
        update = keras.ops.cast(self._optimizer.iterations - self._begin, "float32")
        scale = self._scale
        factor = keras.ops.minimum(scale.factor, 1.0 + scale.growth * update)
        return self._rate() * factor


def take_turns(lock: Path, tell: Callable[[str], None]) -> None:
    """Let ``get_file`` wait until no other worker is in it.

    ``lock`` is a file that all workers of the job have; only its lock is used.  ``tell``
    shows one line to the user: which address is being downloaded.

    Data sets and weights of applications come through the same function.
    """
    plain = file_utils.get_file

    @functools.wraps(plain)
    def get_file(*args: Any, **arguments: Any) -> Any:
        with _turn(lock):
            return plain(*args, **arguments)

    for module in list(sys.modules.values()):
        if vars(module).get("get_file") is plain:  # a lazy module loads nothing for it
            vars(module)["get_file"] = get_file

    def urlretrieve(retrieve: Callable[..., Any], url: str, *args: Any, **arguments: Any) -> Any:
        tell(f"one worker downloads {url}, the others wait for it")
        return retrieve(url, *args, **arguments)

    stand_in(file_utils, "urlretrieve", urlretrieve)


@contextlib.contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """Hold the lock; where the file system has none, go on as plain Keras does."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def prepare(config: WorkerConfig) -> None:
    """Fix the numerics of Keras, and let every model's ``fit`` be ours."""
    set_numerics(config.numerics, config.record.seed)
    context = stages_of_script().context
    take_turns(RunDirectory(context.run_dir.resolve()).journal_path, context.inform)
    if config.options.fit:
        take_over()
        saves()


_keras_fit = keras.Model.fit


def _fit(model: Any, *args: Any, **arguments: Any) -> Any:
    """Train ``model`` on all workers; arguments and result are those of ``keras.Model.fit``."""
    if is_forked():
        _tell_of_fork()
        return _keras_fit(model, *args, **arguments)
    return fit(model, FitCall.of(*args, **arguments))


def fit(model: Any, call: FitCall) -> Any:
    """Train a compiled model as the next stage of the run and return its ``History``.

    Raises:
        JobError: the job cannot go on; one sentence gives the reason.
        StopRequested: the job was asked to stop.  It is no ``Exception``.
    """
    # Warm processes may have imported Keras before the script has chosen.
    check_backend(os.environ.get("KERAS_BACKEND") or keras.backend.backend())
    call = replace(_limited(call), per_execution=steps_per_execution(model))
    if not call.epochs_to_train:
        return _empty_history(model, call)
    if is_refused(model, lambda: _first_inputs(call)):
        return keras.callbacks.History()
    stages = stages_of_script()
    if not stages.is_first:
        for word in script_process().stores.new_words(len(stages.context.config.workers)):
            stages.context.notify(word)
    with during_training():
        validates = call.validation_data is not None or bool(call.validation_split)
        with as_traced(model, stages.context.notify, validates=validates):
            return _Training(model, as_begun(call, stages_of_script())).run()


@functools.cache
def _tell_of_fork() -> None:
    stages_of_script().context.notify(
        "fit() in a process that the script has forked is plain Keras: each worker trains there "
        "alone, and nothing of it is shared or saved; model.fit(...) in the script itself is"
    )


def take_over() -> None:
    """Let every model's ``fit`` be ours from now on, with the signature of Keras's."""
    ours = functools.wraps(keras.Model.fit)(_fit)
    ours.__module__, ours.__qualname__ = keras.Model.__module__, f"{keras.Model.__qualname__}.fit"
    keras.Model.fit = ours
    note_steps()


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
        seed = self._stages.stage.seed(context.config.record.seed)
        self._data = supply_of(call, seed, context.notify)
        self._callbacks: CallbackRun | None = None
        self._rate: ScaledRate | None = None

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

    @property
    def _tells_script(self) -> bool:
        """Whether lines of epochs go to a stream of the script's own, such as a file as well."""
        return self._call.shown != SILENT and sys.stdout is not sys.__stdout__

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
            verbose=SILENT if self._tells_script else call.shown,
            batch_factor=factor,
            steps_per_epoch=call.steps_of_samples(factor),
            takes_nan=any(map(ends_at_nan, flat(call.callbacks))),
        )

    def _build(self, job: TrainingJob, context: WorkerContext) -> Replica:
        self._job = job
        if job.stage.number == 1 and self._call.shown != SILENT:
            context.inform(_announcement(self._model, job, len(context.config.workers)))
        few = advice_on_few_samples(job, context.config)
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

    def _accompany(self, replica: Replica) -> CallbackHost:
        """Return the callback host of this training."""
        call, process, stage = self._call, script_process(), self._stages.stage
        context, plan = self._stages.context, self._job.work_plan
        most = call.steps_per_epoch or plan.steps_per_epoch
        steps = None if plan.is_open else min(plan.steps_per_epoch, most)
        files = process.begin_training(stage.number, context.notify, is_first=self._stages.is_first)
        rounds = CallbackRounds(
            call.callbacks,
            self._model,
            replica,
            files,
            EventFiles(files, f".{context.config.record.run_id}-{stage.number}"),
            saves(),
            {"epochs": call.epochs, "steps": steps},
        )
        rounds.keep(datasets_of(self._data))
        for word in rounds.words:
            context.notify(word)
        epochs = range(call.initial_epoch, call.epochs)
        tell_data = hears_of_epochs(self._data.training)
        self._callbacks = CallbackRun(
            self._model,
            replica,
            rounds,
            epochs,
            context.notify,
            tell_data,
            self._job.validation_batches,
        )
        self._callbacks.tells_script = self._tells_script
        return self._callbacks


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
    """Say in one line that ``fit`` is not Keras's own, and how it trains: in 80 columns."""
    steps = "" if job.work_plan.is_open else f", {job.work_plan.steps_per_epoch} steps an epoch"
    return f"training {model.name!r} on {count(workers, 'worker')}: {job.step_in_words}{steps}"


@functools.cache
def saves() -> FirstSaves:
    """Return this process's way to save models; the first call exchanges Keras's functions."""
    context, process = stages_of_script().context, script_process()
    folder = RunDirectory(context.run_dir.resolve()).loaded_path
    kept = KeptLoads(folder, context.notify, process.folders.lasting_name)
    found = FirstSaves(process, kept)
    process.folders.before_removal.append(kept.before_removal)
    install(found)
    return found
