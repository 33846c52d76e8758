"""The job that a script describes: its data in order, its transactions, and its identity.

A script may train several times.  Each time is one `Stage` of its run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.checkpoint.retention import Best, Retention, Wanted
from holdfast.recovery.errors import WrongText
from holdfast.recovery.ledger import MAX_MICROBATCHES, MAX_SAMPLES_OF_A_SUM, Cursor
from holdfast.recovery.order import BatchOrder, SampleOrder, chain
from holdfast.recovery.schedule import EachEpoch, EverySteps, Schedule, parse_schedule
from holdfast.recovery.work_plan import Work, WorkPlan
from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.samples import Data, Fingerprinted, read_microbatch
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.replica import Microbatch, Replica
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.progress import LIVE
from holdfast.runtime.saving.plan import SaveTerms, retention_of, wanted_of
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.training.transaction import (
    BatchLeaves,
    BatchValidationLeaves,
    LeafMaker,
    TrainingLeaves,
    Transaction,
    ValidationLeaves,
    part_of,
)

_STAGE, _BEGIN, _AFTER_ERROR = "stage", "stage begin", "stage after error"

MICROBATCHES = "microbatches"
"""The field of a manifest's cursor that tells how many each step before had."""

FIRST_EPOCH = "first epoch"
"""The field of a manifest's cursor that tells how many epochs counted as done at the begin."""

DATA = "data"
"""The field of a manifest's cursor that holds the digest of the training data."""

_WARM_UP_EPOCHS = 5


@dataclass(frozen=True, slots=True)
class RateScale:
    """What multiplies the rate that the script has chosen, at each update (``--scale-lr``).

    An update over K times the samples should move as far as K updates did, so the rate is
    multiplied by K (Goyal et al. 2017), or by the root of K where the noise of the gradient decides
    (Hoffer et al. 2017).  At the start of a training the weights change fast, and such a rate
    diverges.  So the factor grows from 1 in equal parts, over the first five epochs.
    """

    rule: str
    batch_factor: int
    warm_up_steps: int

    @staticmethod
    def of(
        rule: str | None, batch_factor: int, steps_per_epoch: int, epochs: int
    ) -> RateScale | None:
        """Return the scale of a training, None without a rule or a larger batch.

        A short training warms up until its end.
        """
        if rule is None or batch_factor == 1:
            return None
        return RateScale(rule, batch_factor, steps_per_epoch * min(epochs, _WARM_UP_EPOCHS))

    @property
    def factor(self) -> float:
        """The factor after the warm-up."""
        return math.sqrt(self.batch_factor) if self.rule == "sqrt" else float(self.batch_factor)

    @property
    def growth(self) -> float:
        """What an update of the warm-up adds to the factor."""
        return (self.factor - 1.0) / self.warm_up_steps

    def __str__(self) -> str:
        """Return the scale in words."""
        return f"{self.rule} x{self.factor:g} over {self.warm_up_steps} steps"


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """The arguments that the script gives the trainer, unchecked."""

    data: Data | Feed
    validation: Data | Feed | None
    global_batch: int
    epochs: int
    save_every: int | str = "auto"
    keep: int = 3
    verify_every: int = 0
    initial: Path | None = None
    keep_every: int | None = None
    keep_best: tuple[str, str] | None = None
    is_shuffled: bool = True
    validation_batch: int | None = None
    validated: int | tuple[int, ...] = 1
    first_epoch: int = 0
    verbose: int = LIVE
    batch_factor: int = 1
    """How many times as large as the script's the batch is."""
    steps_per_epoch: int | None = None
    """Updates of an epoch of samples that are read by number, None for a whole pass."""
    takes_nan: bool = False
    """Whether steps that are not finite are applied: a callback host ends the training then."""


def stage_of(cursor: Mapping[str, object]) -> int:
    """Return the number of the stage in which a manifest with this cursor was saved."""
    number = cursor.get(_STAGE, 1)
    return number if isinstance(number, int) else 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A script may train several times, on other models or data: each time is a stage.

    All stages of a run share one count of steps: ``begin`` is the step at which the stage
    before has ended.  So a later checkpoint always has the larger step.  ``number`` counts
    from 1.  ``wanted`` are the checkpoints that a stage which is over keeps for ever.
    ``follows_error`` is whether an error of the script has ended the stage before.
    """

    number: int = 1
    begin: int = 0
    wanted: Wanted = field(default_factory=Wanted)
    follows_error: bool = False

    @property
    def before(self) -> int:
        """The last step that may have a checkpoint of an earlier stage, -1 for none."""
        return -1 if self.number == 1 else self.begin

    def seed(self, of_run: int) -> int:
        """Return the seed of the stage: each one shuffles in a way of its own."""
        return of_run if self.number == 1 else chain(of_run, self.number)

    def into(self, cursor: Mapping[str, object]) -> dict[str, object]:
        """Return a manifest's cursor with the stage in it; the first one goes without saying."""
        if self.number == 1:
            return dict(cursor)
        after = {_AFTER_ERROR: True} if self.follows_error else {}
        return {**cursor, _STAGE: self.number, _BEGIN: self.begin, **after}

    def is_of(self, cursor: Mapping[str, object]) -> bool:
        """Return whether a manifest with this cursor was saved in this stage."""
        return stage_of(cursor) == self.number

    def begins_as(self, cursor: Mapping[str, object]) -> bool:
        """Return whether a checkpoint of this stage was saved after the same earlier stages."""
        return cursor.get(_BEGIN, self.begin) == self.begin

    def is_followed_at(self, step: int, cursor: Mapping[str, object]) -> bool:
        """Return whether a checkpoint of a later stage says that this one ended at ``step``.

        Stages between the two have failed before their first step.
        """
        return stage_of(cursor) > self.number and cursor.get(_BEGIN) == step

    def was_cut_off_at(self, step: int, cursor: Mapping[str, object]) -> bool:
        """Return whether a checkpoint of a later stage says that an error ended this one there.

        It would come to the error again, from any of its checkpoints.
        """
        return self.is_followed_at(step, cursor) and cursor.get(_AFTER_ERROR) is True

    def may_have(self, step: int) -> bool:
        """Return whether a checkpoint of ``step`` may be of this stage, not of an earlier one."""
        return step > self.before

    def over(self, wanted: Wanted, step: int) -> Stage:
        """Return this stage when it is over, at ``step``."""
        return replace(self, wanted=replace(wanted, until=step))

    def after(self, step: int, *, by_error: bool = False) -> Stage:
        """Return the stage that follows when this one ends at ``step``."""
        return Stage(self.number + 1, step, follows_error=by_error)


ONLY_STAGE = Stage()
"""The stage of a script that trains once."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The constants of a job, equal on all workers."""

    data: Data | Feed
    validation: Data | Feed | None
    order: SampleOrder | BatchOrder
    validation_order: SampleOrder | BatchOrder | None
    work_plan: WorkPlan
    numerics: Numerics
    schedule: Schedule
    retention: Retention
    initial: Path | None = None
    stage: Stage = ONLY_STAGE
    verbose: int = LIVE
    """What people see of the training: that of Keras, 0 for nothing."""
    rate: RateScale | None = None
    takes_nan: bool = False

    @property
    def microbatches(self) -> int:
        """Equal parts of each global batch: the leaves of the reduction tree."""
        return self.order.microbatches

    @property
    def step_in_words(self) -> str:
        """What an update trains on, for people."""
        if isinstance(self.data, Feed):
            return f"a batch of {self.data.name}"
        assert isinstance(self.order, SampleOrder)
        return f"batch {self.order.global_batch}"

    @property
    def first_microbatch(self) -> Microbatch:
        """The first samples of the job; a model is built with their shapes."""
        return _first_of(self.data, self.order)

    @property
    def first_of_validation(self) -> Microbatch | None:
        """The first samples of the validation, None if there is none."""
        if self.validation is None or self.validation_order is None:
            return None
        return _first_of(self.validation, self.validation_order)

    @property
    def validation_batches(self) -> int:
        """Batches of a validation, 0 without one."""
        if isinstance(self.validation, Feed):
            return self.validation.steps
        order = self.validation_order
        return order.steps_per_epoch if isinstance(order, SampleOrder) else 0

    @property
    def data_ended(self) -> bool:
        """Whether the newest batch was the last of an epoch without a known end."""
        return isinstance(self.data, Feed) and self.data.is_at_end

    def covers_epoch(self, cursor: Cursor) -> bool:
        """Return whether each sample of an epoch that has just ended was recorded once.

        An epoch of a pipeline has as many samples as its batches had.
        """
        ledger, order = cursor.ledger, self.order
        if isinstance(order, BatchOrder):
            return ledger.covers(ledger.samples)
        if self.work_plan.cuts_passes or cursor.is_cut:
            return ledger.holds(order.batches(self.work_plan.updates_of_epoch(cursor)))
        return ledger.covers(order.samples)

    @property
    def facts_of_run(self) -> dict[str, object]:
        """What a checkpoint holds, and a run that goes on must have alike.

        The names are fields of a manifest's cursor.  What the job has not is None.
        """
        order, plan = self.order, self.work_plan
        samples = order if isinstance(order, SampleOrder) else None
        return {
            "seed": order.seed,
            MICROBATCHES: order.microbatches,
            "batches an epoch": None if samples else order.steps_per_epoch,
            "samples": samples and samples.samples,
            "global batch": samples and samples.global_batch,
            "shuffle": None if samples is None or samples.is_shuffled else 0,
            "steps per epoch": plan.steps_per_epoch if samples and plan.cuts_passes else None,
            "learning rate": self.rate and str(self.rate),
            FIRST_EPOCH: plan.first_epoch,
            DATA: _digest_of(self.data),
        }

    @property
    def facts(self) -> dict[str, object]:
        """All that workers must have alike, in the order in which a difference is told."""
        return {
            "number of the training": self.stage.number,
            **self.facts_of_run,
            "number of epochs": self.work_plan.epochs,
            "digest of the validation data": _digest_of(self.validation),
        }

    @property
    def best(self) -> Best | None:
        """The metric by which a checkpoint is the best of the stage, None for none."""
        return self.retention.wanted[-1].best

    @property
    def save_terms(self) -> SaveTerms:
        """The part of the job that the saver needs."""
        facts = {name: value for name, value in self.facts_of_run.items() if value is not None}
        return SaveTerms(self.retention, self.stage.into(facts), to_plain(self.numerics))

    def surplus(self, step: int) -> str | None:
        """Return in words that a run at ``step`` is beyond this job's end, None if it is not."""
        work_plan = self.work_plan
        if step <= work_plan.steps:
            return None
        return (
            f"the run is at step {step}, and the script asks for {work_plan.steps} steps "
            f"(epochs={work_plan.epochs}): nothing was trained; ask for more epochs to go on"
        )

    def transactions(self, replica: Replica, notes: WorkerStatus) -> dict[Work, Transaction]:
        """Return an empty transaction for each kind of work, which takes notes of its work."""
        makers = {Work.TRAIN: self._training(replica, notes)}
        if self.validation is not None:
            makers[Work.EVALUATE] = self._evaluating(replica, notes)
        return {work: Transaction(work, maker, self.microbatches) for work, maker in makers.items()}

    def _training(self, replica: Replica, notes: WorkerStatus) -> LeafMaker:
        if isinstance(self.data, Feed):
            assert isinstance(self.order, BatchOrder)
            return BatchLeaves(replica, self.data, self.order, self.work_plan, notes)
        assert isinstance(self.order, SampleOrder)
        return TrainingLeaves(replica, self.data, self.order, notes, self.stage.begin)

    def _evaluating(self, replica: Replica, notes: WorkerStatus) -> LeafMaker:
        if isinstance(self.validation, Feed):
            assert isinstance(self.validation_order, BatchOrder)
            order = self.validation_order
            return BatchValidationLeaves(replica, self.validation, order, notes)
        assert self.validation is not None
        assert isinstance(self.validation_order, SampleOrder)
        return ValidationLeaves(replica, self.validation, self.validation_order, notes)


def _digest_of(data: Data | Feed | None) -> str | None:
    return data.fingerprint() if isinstance(data, Fingerprinted) else None


def _first_of(data: Data | Feed, order: SampleOrder | BatchOrder) -> Microbatch:
    """Return the first microbatch of the first batch."""
    if isinstance(data, Feed):
        assert isinstance(order, BatchOrder)
        batch = data.first()
        return part_of(data, batch, order.bounds(batch.samples, 0), seed=0)
    assert not isinstance(order, BatchOrder)
    return read_microbatch(data, order.microbatch(0, 0), 0, order.batch_size(0))


def describe_job(
    request: TrainingRequest,
    config: WorkerConfig,
    numerics: Numerics,
    stages: Sequence[Stage] = (ONLY_STAGE,),
) -> TrainingJob:
    """Return the job that ``request`` describes; the last of ``stages``, all so far, is its own.

    Raises:
        ProgramError: a value is not valid; the message names it and says what to do.
    """
    _check(request, config.record.microbatches)
    stage = stages[-1]
    order = _order_of(request, config, stage)
    schedule = _schedule_of(request, config)
    wanted = wanted_of(request.keep_every, request.keep_best, after=stage.before)
    steps, options = order.steps_per_epoch, config.options
    work_plan = WorkPlan(
        steps_per_epoch=min(request.steps_per_epoch or steps, steps),
        epochs=request.epochs,
        has_validation=request.validation is not None,
        save_every=schedule.steps if isinstance(schedule, EverySteps) else None,
        verify_every=request.verify_every if options.verify_every is None else options.verify_every,
        # Metrics exist only at the end of an epoch, so each end needs a checkpoint.
        saves_epochs=isinstance(schedule, EachEpoch) or request.keep_best is not None,
        keep_every=wanted.every,
        begin=stage.begin,
        first_epoch=request.first_epoch,
        validated=request.validated,
        pass_steps=request.data.pass_batches if isinstance(request.data, Feed) else steps,
    )
    return TrainingJob(
        request.data,
        request.validation,
        order,
        _validation_order(request, config),
        work_plan,
        numerics,
        schedule,
        retention_of(
            request.keep if options.keep is None else options.keep,
            (*(earlier.wanted for earlier in stages[:-1]), wanted),
            forever=_ends(work_plan, stages),
        ),
        _initial_of(request, config, stage),
        stage,
        request.verbose,
        RateScale.of(
            options.scale_rate, request.batch_factor, work_plan.steps_per_epoch, work_plan.epochs
        ),
        request.takes_nan,
    )


def _check(request: TrainingRequest, microbatches: int) -> None:
    lower_bounds = {
        "global_batch": (request.global_batch, 1),
        "epochs": (request.epochs, 1),
        "verify_every": (request.verify_every, 0),
        "the number of samples": (_samples(request.data), 1),
    }
    for name, (value, least) in lower_bounds.items():
        if value < least:
            raise ProgramError(f"{name} must be at least {least}, got {value}; change the script")
    _check_ledger(request, microbatches)


def _check_ledger(request: TrainingRequest, microbatches: int) -> None:
    """Refuse what the ledger could not count: its lanes are exact up to 2^24."""
    validation = 0 if request.validation is None else _samples(request.validation)
    upper_bounds = {
        "global_batch": (request.global_batch, MAX_SAMPLES_OF_A_SUM),
        "the number of validation samples": (validation, MAX_SAMPLES_OF_A_SUM),
        "--microbatches": (microbatches, MAX_MICROBATCHES),
    }
    for name, (value, most) in upper_bounds.items():
        if value > most:
            raise ProgramError(
                f"{name} may be at most {most:,}, got {value:,}: the proof that each sample was "
                "used once counts no further; take fewer"
            )


def _samples(data: Data | Feed) -> int:
    """Return the number of samples; nobody knows how many a pipeline has, but it has some."""
    return 1 if isinstance(data, Feed) else len(data)


def _order_of(
    request: TrainingRequest, config: WorkerConfig, stage: Stage
) -> SampleOrder | BatchOrder:
    """Return the order of the samples: each stage shuffles in a way of its own."""
    seed = stage.seed(config.record.seed)
    if isinstance(request.data, Feed):
        return BatchOrder(seed, request.data.steps, config.record.microbatches)
    return SampleOrder(
        seed,
        len(request.data),
        request.global_batch,
        config.record.microbatches,
        is_shuffled=request.is_shuffled,
    )


def _validation_order(
    request: TrainingRequest, config: WorkerConfig
) -> SampleOrder | BatchOrder | None:
    data = request.validation
    if data is None:
        return None
    if isinstance(data, Feed):
        return BatchOrder(config.record.seed, data.steps, config.record.microbatches)
    batch = request.validation_batch or request.global_batch
    return SampleOrder(0, len(data), batch, config.record.microbatches, is_shuffled=False)


def _schedule_of(request: TrainingRequest, config: WorkerConfig) -> Schedule:
    """Return the schedule that the command line asks for, else the script's."""
    asked = config.options.save_every
    if asked is not None:
        return parse_schedule(asked)  # the options have checked it
    try:
        return parse_schedule(request.save_every)
    except WrongText as error:
        raise ProgramError(f"save_every: {error}; change the script") from error


def _ends(work_plan: WorkPlan, stages: Sequence[Stage]) -> frozenset[int]:
    """Return the last steps of all stages, where a relaunch takes their results from."""
    if len(stages) == 1:
        return frozenset()
    return frozenset({work_plan.steps, *(later.begin for later in stages[1:])})


def _initial_of(request: TrainingRequest, config: WorkerConfig, stage: Stage) -> Path | None:
    """Return the source of a new run's weights: the command line's, else the script's.

    The command line's are those of the run's begin, so a later stage does not take them again.
    """
    if config.options.initial is not None and stage.number == 1:
        return config.options.initial
    return request.initial
