"""The stages of a script, one after the other, in one world and one run; and `Trainer`.

A script that calls the trainer names the model and the data.  It does not know the machines and the
number of workers, and need not handle a death.

Theory.  Every worker runs the whole script, so all come to the same stages in the same
order.  After a relaunch they come to the first one again.  A stage that is complete
restores the state of its end, and trains nothing.  So the script goes on with what it
had then, and needs no memory of its own.

An error of the script that all workers have raised ends a stage as well: the script may catch it
and go on, as in plain Keras.  One that only some have raised is the end of these workers.

Invariant: a stage begins at the step at which the one before has ended.  Its checkpoints
have larger steps than all before it, and the last checkpoint of each stage stays for ever.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from holdfast.checkpoint.tensor import state_sha256
from holdfast.recovery.event import WorkerCompleted, WorkerStopped
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.world import REFUSED, World
from holdfast.runtime.data.feed import Pipelines
from holdfast.runtime.data.samples import Data, check_data, read_microbatch
from holdfast.runtime.errors import Ending, JobError, NoMoreTraining, ProgramError, StopRequested
from holdfast.runtime.exchange.membership import Membership, WorldBroken
from holdfast.runtime.model.replica import Replica, make_model
from holdfast.runtime.run.script_record import TRAININGS
from holdfast.runtime.script.calls import during_training
from holdfast.runtime.system.channel import to_message
from holdfast.runtime.system.worker_status import Phase, SurvivorsMet, TrainingBegun, TrainingFailed
from holdfast.runtime.training.callback_host import CallbackHost
from holdfast.runtime.training.job_state import FAILED, TrainingState
from holdfast.runtime.training.loop import TrainingLoop
from holdfast.runtime.training.progress import RepairCount, check_metric
from holdfast.runtime.training.training_job import Stage, TrainingJob, TrainingRequest, describe_job
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker.context import WorkerContext, is_refused
from holdfast.runtime.worker.halt import Nothing
from holdfast.runtime.worker.stacks import shortened

BuildReplica: TypeAlias = Callable[[TrainingJob, WorkerContext], Replica]
MakeCallbackHost: TypeAlias = Callable[[Replica], CallbackHost]

_stages: Stages | None = None


@dataclass(frozen=True, slots=True)
class StageEnd:
    """A stage that is complete: its final cursor and digest, and the metrics of its last epoch.

    ``random`` are the states of generators of a stage that was complete before this launch.
    ``error`` is the script's own, on all workers alike, which has ended the stage.
    """

    replica: Replica
    cursor: Cursor
    sha256: str
    is_first: bool
    metrics: dict[str, float]
    validation: dict[str, float]
    random: Mapping[str, Any] | None = None
    error: Exception | None = None


def stages_of_script() -> Stages:
    """Return the stages of the script that runs in this process."""
    global _stages  # noqa: PLW0603  (one process is one worker)
    if _stages is None:
        _stages = Stages(contexts.current())
    return _stages


def is_first() -> bool:
    """Return whether this worker prints and writes for all: one of them, and another if it dies.

    Without ``holdfast run`` a script is alone, and the first.
    """
    return contexts.rank() == 0 if _stages is None else _stages.is_first


class Stages:
    """All stages that this process has begun."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self._membership = membership_of(context)
        self._stages = [Stage()]
        self._is_under_way = False

    @property
    def is_first(self) -> bool:
        """Whether this worker is the first one of its world, as it was known last."""
        return self._membership.is_first

    @property
    def has_begun(self) -> bool:
        """Whether a training has begun."""
        return self._is_under_way or len(self._stages) > 1

    @property
    def world(self) -> World:
        """Its world, as it was known last."""
        return self._membership.world

    @property
    def stage(self) -> Stage:
        """The stage that is next, or under way."""
        return self._stages[-1]

    def train(
        self,
        request: TrainingRequest,
        build: BuildReplica,
        callback_host: MakeCallbackHost = lambda _: CallbackHost(),
    ) -> StageEnd:
        """Train the next stage to its end, through deaths of workers.

        Raises:
            JobError: the job cannot go on; one sentence gives the reason.
            StopRequested: the job was asked to stop.
            NoMoreTraining: an earlier training has failed.
        """
        self._refuse_another()
        self._is_under_way = True
        self.context.report(TrainingBegun(self.context.config.worker, self.stage.number))
        if self.stage.number > 1 and self.is_first:
            self.context.config.script_record.reach(TRAININGS, self.stage.number)
        try:
            with during_training():
                end = self._train(request, build, callback_host)
        except BaseException as error:  # the script may catch it, and go on
            if self._is_under_way:
                self._fail(error)
            raise
        if end.error is not None:
            contexts.trainings.end = end.error
        self._end_at(end.cursor.step, by_error=end.error is not None)
        return end

    def _end_at(self, step: int, *, by_error: bool) -> None:
        """Let the next stage begin at ``step``."""
        self.context.page.phase = Phase.CONCLUDING
        self.context.halt.resting = Nothing(
            f"stopped after training {self.stage.number} of the script, whose end was saved at "
            f"step {step}; what the script does after it is done again",
            step,
        )
        self._stages.append(self.stage.after(step, by_error=by_error))
        self._is_under_way = False

    def _refuse_another(self) -> None:
        """Let no training follow one that has not come to its end, or begin in a forked process."""
        if contexts.is_forked():
            raise ProgramError(
                "the script trains in a process that it has forked, which is no worker of the job: "
                "train in the script itself"
            )
        if not self._is_under_way:
            return
        before = contexts.trainings.failure
        if isinstance(before, Ending):
            raise before
        why = "" if before is None else f", because of {_in_a_line(before)}"
        raise NoMoreTraining(
            f"training {self.stage.number} of the script has not come to its end{why}: no other "
            "one can follow, so let this error end the script"
        ) from before

    def _fail(self, error: BaseException) -> None:
        """Take note of the error that ends the training of this worker."""
        contexts.trainings.failure = contexts.trainings.failure or error
        if not isinstance(error, StopRequested):
            self.context.halt.resting = Nothing("stopped after an error had ended a training")
        page = self.context.page
        page.begin_turn(waits_for_peers=False)
        if not isinstance(error, StopRequested):
            self.context.report(TrainingFailed(self.context.config.worker, _in_a_line(error)))
            page.phase = Phase.FAILED

    def _train(
        self, request: TrainingRequest, build: BuildReplica, callback_host: MakeCallbackHost
    ) -> StageEnd:
        self.context.page.phase = Phase.STARTING  # the one before has left its script concluding
        config = self.context.config
        job = describe_job(request, config, config.numerics, self._stages)
        planned = 0 if job.work_plan.is_open else job.work_plan.steps
        contexts.trainings.planned_steps = planned
        try:
            replica = build(job, self.context)
        except JobError:
            raise
        except Exception as error:
            if self._has_failed_on_all():  # then it has ended, and another one may follow
                contexts.trainings.end = error
                self._end_at(self.stage.begin, by_error=True)
            raise
        for notice in getattr(replica, "notices", ()):
            self.context.notify(notice)
        check_metric(job.best, replica, has_validation=job.validation is not None)
        pipelines = Pipelines(job.data, job.validation)
        state = TrainingState(replica, callback_host(replica), pipelines)
        loop = TrainingLoop(self.context, self._membership, state, job)
        cursor = loop.run()
        self.context.page.phase = Phase.CONCLUDING
        end = self._conclude(job, loop, state, cursor)
        loop.close()
        self._stages[-1] = self.stage.over(job.retention.wanted[-1], cursor.step)
        return end

    def _has_failed_on_all(self) -> bool:
        """Return whether the scripts of all workers have failed to begin this training.

        It stands where a worker that has begun it joins the others (`TrainingLoop`).
        """
        page, membership = self.context.page, self._membership
        repairs = RepairCount(self.context.config)
        page.begin_turn(waits_for_peers=True)
        form: Callable[[], object] = functools.partial(membership.join, FAILED)
        while True:
            try:
                form()
            except WorldBroken:
                repairs.attempts += 1
                if repairs.is_hopeless:
                    raise repairs.lost() from None
                form = functools.partial(membership.repair, FAILED, lambda: None)
            else:
                page.begin_turn(waits_for_peers=False)
                return set(membership.versions) == {FAILED}

    def _conclude(
        self, job: TrainingJob, loop: TrainingLoop, state: TrainingState, cursor: Cursor
    ) -> StageEnd:
        context = self.context
        if not loop.is_complete:
            stopped = WorkerStopped(context.config.worker, cursor.step)
            loop.records.note(stopped)
            context.report(stopped)
            of = "" if job.work_plan.is_open else f" of {job.work_plan.steps}"
            raise StopRequested(
                f"stopped at step {cursor.step}{of} with a checkpoint; run again to go on"
            )
        surplus = None if loop.error is not None else job.surplus(cursor.step)
        if surplus is not None:
            context.notify(surplus)
        progress, sha256 = loop.progress, state_sha256(state.tensors(cursor))
        end = StageEnd(
            state.replica,
            cursor,
            sha256,
            self.is_first,
            progress.metrics,
            progress.validation or {},
            state.random_at_end(cursor.step),
            loop.error,
        )
        if end.error is None or cursor.step > job.stage.begin:  # else another stage has ended here
            self._tell(job, loop, end)
        return end

    def _tell(self, job: TrainingJob, loop: TrainingLoop, end: StageEnd) -> None:
        completed = WorkerCompleted(
            self.context.config.worker,
            end.cursor.step,
            end.sha256,
            epochs=job.work_plan.epochs,
            metrics=end.metrics,
            validation=end.validation,
            error=None if end.error is None else _in_a_line(end.error),
        )
        # The head records it too, because rank 0 may die before it records.
        loop.records.note(completed)
        self.context.report(replace(completed, is_first=end.is_first))


def membership_of(context: WorkerContext) -> Membership:
    """Return a worker's view of the world that its launch begins with."""
    config = context.config

    def ask_head(survivors: World) -> int:
        answer = context.ask_agent(to_message(SurvivorsMet(config.worker, survivors.workers)))
        return int(answer.get("world", REFUSED))

    return Membership(
        config.worker,
        config.first_world,
        context.communicator,
        time.monotonic,
        config.host_of,
        ask_head,
    )


def _in_a_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says, as far as a message holds."""
    return shortened(f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": "))


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
        if is_refused(self._model, lambda: read_microbatch(self._data, np.arange(1), seed=0).x):
            return Result(0, "", is_first=True)
        end = stages_of_script().train(self._request, self._build)
        if end.error is not None:
            raise end.error
        return Result(end.cursor.step, end.sha256, end.is_first, end.metrics, end.validation)

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
    graphs.set_numerics(job.numerics, config.record.seed)
    made = make_model(model)
    if isinstance(made, Replica):
        return made
    mixing = batch_mixing.BatchMixing.of(
        job.microbatches, len(config.workers), is_accepted=accepts_mixing
    )
    return replica_of_keras(made, job.first_microbatch, mixing, lambda: job.first_of_validation)
