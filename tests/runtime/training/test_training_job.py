"""The job that a script describes: what must not change, whose wish counts, and what is kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from configs import worker_config
from simulation import Drawn, TinyReplica, data

from holdfast.checkpoint.retention import Best, Retention, Wanted
from holdfast.recovery.ledger import Cursor, Ledger, fingerprint
from holdfast.recovery.order import BatchOrder, SampleOrder
from holdfast.recovery.schedule import Auto, EachEpoch, EverySeconds, EverySteps, Schedule
from holdfast.recovery.work_plan import Work
from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.samples import Data, SampleIds, Samples
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.saving.plan import retention_of, wanted_of
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.training.progress import check_metric
from holdfast.runtime.training.training_job import (
    ONLY_STAGE,
    RateScale,
    Stage,
    TrainingJob,
    TrainingRequest,
    describe_job,
)

NUMERICS = Numerics.here(threads=1)
REQUEST = TrainingRequest(data(23), None, global_batch=9, epochs=2)
LATER = [Stage().over(Stage().wanted, 10), Stage(2, 10)]
AT_BEGIN = {"first epoch": 0, "data": None}
SHUFFLED = {"seed": 5, "microbatches": 2, "samples": 23, "global batch": 9}
SCRIPTS, USERS = Path("/script.npz"), Path("/user.npz")


class Bare(Data):
    """So many samples, which tell nothing else of themselves."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def read(self, ids: SampleIds) -> Samples:
        raise AssertionError("nothing is read before the job is known")


def feed(*, repeats: bool = False) -> Feed:
    source = Drawn([7] * 4)
    source.repeats = repeats
    return Feed(source, 3)


def job(
    stages: list[Stage] | None = None, options: dict[str, Any] | None = None, **changes: Any
) -> TrainingJob:
    """Return the job of a request with some changes, under some options."""
    request = dataclasses.replace(REQUEST, **changes)
    config = worker_config(**{"microbatches": 2, "seed": 5, **(options or {})})
    return describe_job(request, config, NUMERICS, stages or (ONLY_STAGE,))


@pytest.mark.parametrize(
    ("changes", "identity"),
    [
        ({}, SHUFFLED),
        ({"is_shuffled": False}, {**SHUFFLED, "shuffle": 0}),
        ({"data": feed()}, {"seed": 5, "microbatches": 2, "batches an epoch": 3}),
        (
            {"batch_factor": 4, "options": {"scale_rate": "linear"}},
            {**SHUFFLED, "learning rate": "linear x4 over 6 steps"},
        ),
        ({"epochs": 7, "save_every": 3, "keep": 9, "verify_every": 2}, SHUFFLED),
    ],
    ids=["shuffled", "in order", "pipeline", "scaled rate", "free to change"],
)
def test_identity_is_what_a_run_may_not_change(
    changes: dict[str, Any], identity: dict[str, object]
) -> None:
    assert {**job(**changes).save_terms.fields, **AT_BEGIN} == {**identity, **AT_BEGIN}


def test_workers_compare_more_than_a_run_that_goes_on() -> None:
    found = job(validation=data(11))

    assert {n: v for n, v in found.facts.items() if v is not None} == {
        "number of the training": 1,
        **found.save_terms.fields,
        "number of epochs": 2,
        "digest of the validation data": data(11).fingerprint(),
    }


def test_checkpoint_holds_identity_samples_and_training() -> None:
    assert job(LATER).save_terms.fields == {
        **SHUFFLED,
        "seed": job(LATER).order.seed,
        "data": data(23).fingerprint(),
        "stage": 2,
        "stage begin": 10,
        "first epoch": 0,
    }
    assert job(data=Bare(23), first_epoch=4).save_terms.fields == {**SHUFFLED, "first epoch": 4}


def test_model_is_built_with_the_first_samples() -> None:
    of_arrays, of_feed = job().first_microbatch, job(data=feed()).first_microbatch

    ids = SampleOrder(5, 23, 9, 2).microbatch(0, 0)
    assert of_arrays.y.tolist() == data(23).read(ids)[1].tolist()
    assert of_feed.y.tolist() == next(Drawn([7]).passing(0))[1][:4].tolist()


@pytest.mark.parametrize(("places", "covers"), [(range(20), True), (range(1, 21), False)])
def test_epoch_of_a_pipeline_has_as_many_samples_as_its_batches(
    *, places: range, covers: bool
) -> None:
    ledger = Ledger(len(places), fingerprint(places))
    cursor = dataclasses.replace(Cursor.start(1), ledger=ledger)

    assert job(data=feed()).covers_epoch(cursor) == covers


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"global_batch": 0}, "global_batch must be at least 1, got 0; change the script"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"verify_every": -1}, "verify_every must be at least 0, got -1"),
        ({"data": Bare(0)}, "the number of samples must be at least 1, got 0"),
    ],
)
def test_job_of_nothing_is_refused_with_its_value(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ProgramError, match=complaint):
        job(**changes)


@pytest.mark.parametrize(
    ("options", "every", "kept"),
    [({}, 6, 5), ({"verify_every": 0}, 0, 5), ({"verify_every": 4, "keep": 2}, 4, 2)],
)
def test_command_line_decides_before_the_script(
    options: dict[str, Any], every: int, kept: int
) -> None:
    described = job(options=options, verify_every=6, keep=5)

    assert (described.work_plan.verify_every, described.retention.newest) == (every, kept)


@pytest.mark.parametrize(
    ("source", "steps", "pass_steps"),
    [(data(23), 3, 3), (feed(), 3, 4), (feed(repeats=True), 3, None)],
    ids=["arrays", "pipeline", "pipeline without an end"],
)
def test_pass_over_the_data_may_be_longer_than_an_epoch(
    source: Any, steps: int, pass_steps: int | None
) -> None:
    plan = job(data=source).work_plan

    assert (plan.steps_per_epoch, plan.pass_steps) == (steps, pass_steps)


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({}, None),
        ({"validation": data(11)}, SampleOrder(0, 11, 9, 2, is_shuffled=False)),
        (
            {"validation": data(11), "validation_batch": 4},
            SampleOrder(0, 11, 4, 2, is_shuffled=False),
        ),
        ({"validation": feed()}, BatchOrder(5, 3, 2)),
    ],
    ids=["none", "batch of the training", "batch of its own", "pipeline"],
)
def test_validation_visits_its_samples_in_their_order(changes: dict[str, Any], order: Any) -> None:
    described = job(**changes)

    assert described.validation_order == order
    assert described.work_plan.has_validation == (order is not None)


@pytest.mark.parametrize("source", [data(23), feed()], ids=["arrays", "pipeline"])
def test_later_training_draws_with_seeds_of_its_own(source: Any) -> None:
    first, later = job(data=source).order, job(LATER, data=source).order

    assert first.seed == 5
    assert later == dataclasses.replace(first, seed=LATER[-1].seed(5))


@pytest.mark.parametrize(
    ("stages", "wish", "users", "source"),
    [
        (None, None, {}, None),
        (None, SCRIPTS, {}, SCRIPTS),
        (None, SCRIPTS, {"initial": USERS}, USERS),
        (LATER, SCRIPTS, {"initial": USERS}, SCRIPTS),
        (LATER, None, {"initial": USERS}, None),
    ],
    ids=["none", "script", "user before script", "later training", "later, no wish"],
)
def test_first_weights_of_the_user_are_those_of_the_runs_begin(
    stages: list[Stage] | None,
    wish: Path | None,
    users: dict[str, Any],
    source: Path | None,
) -> None:
    assert job(stages, users, initial=wish).initial == source


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({}, {Work.TRAIN: False}),
        ({"validation": data(11)}, {Work.TRAIN: False, Work.EVALUATE: False}),
        ({"data": feed(), "validation": feed()}, {Work.TRAIN: True, Work.EVALUATE: True}),
        ({"data": feed(), "validation": data(11)}, {Work.TRAIN: True, Work.EVALUATE: False}),
    ],
    ids=["training", "validation", "pipelines", "both"],
)
def test_only_work_on_a_pipeline_waits_for_samples_of_another_worker(
    changes: dict[str, Any], lacking: dict[Work, bool]
) -> None:
    page = WorkerStatus.create()

    transactions = job(**changes).transactions(TinyReplica(), page)

    assert {work: found.lacks_samples for work, found in transactions.items()} == lacking
    page.close()


def cut_job(steps_per_epoch: int | None) -> TrainingJob:
    return job(global_batch=5, epochs=4, steps_per_epoch=steps_per_epoch)


def after(cut: TrainingJob, step: int) -> Cursor:
    """Return the cursor after ``step`` updates that recorded the samples of their order."""
    cursor, order = Cursor.start(1), cut.order
    assert isinstance(order, SampleOrder)
    for index in range(step):
        if cut.work_plan.is_epoch_start(cursor):
            cursor = cursor.at_epoch_start()
        ids = order.batch(index)
        cursor = cursor.after_step(len(ids), fingerprint(ids), np.zeros(1))
    return cursor


def test_other_steps_are_another_run() -> None:
    names = [set(cut_job(asked).save_terms.fields) for asked in (None, 5, 2)]

    assert names[0] == names[1]
    assert names[2] - names[0] == {"steps per epoch"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((1, None, None), "keep must be at least 2, got 1; change the script"),
        ((True, None, None), "keep must be at least 2, got True"),
        ((2.5, None, None), "keep must be at least 2, got 2.5"),
        ((2, 0, None), "keep_every must be at least 1, got 0"),
        ((2, "5", None), "keep_every must be at least 1, got '5'"),
        ((2, None, "loss"), "keep_best must be a metric and .*, got 'loss'"),
        ((2, None, ("loss",)), r"keep_best must be .*, got \('loss',\)"),
        ((2, None, ("loss", "best")), r"keep_best must be .*, got \('loss', 'best'\)"),
        ((2, None, (3, "min")), r"keep_best must be .*, got \(3, 'min'\)"),
    ],
)
def test_nonsense_is_refused_with_its_value(
    options: tuple[object, object, object], complaint: str
) -> None:
    with pytest.raises(ProgramError, match=complaint):
        retention_of(options[0], (wanted_of(*options[1:]),))


@pytest.mark.parametrize(
    ("metric", "validation", "known"),
    [("val_loss", None, "loss;"), ("val_accuracy", data(), "loss, val_loss;")],
)
def test_metric_that_no_epoch_has_is_refused(
    metric: str, validation: Data | None, known: str
) -> None:
    with pytest.raises(ProgramError, match=f"asks for '{metric}', but an epoch has {known}"):
        check_metric(Best(metric), TinyReplica(), has_validation=validation is not None)


@pytest.mark.parametrize(
    ("save_every", "override", "schedule", "cursors_part"),
    [
        ("auto", None, Auto(), (None, False)),
        (7, None, EverySteps(7), (7, False)),
        ("10min", None, EverySeconds(600.0), (None, False)),
        ("epoch", None, EachEpoch(), (None, True)),
        (7, "90s", EverySeconds(90.0), (None, False)),
        ("auto", "5", EverySteps(5), (5, False)),
        ("auto", "epoch", EachEpoch(), (None, True)),
    ],
)
def test_command_line_overrides_the_scripts_schedule(
    save_every: int | str,
    override: str | None,
    schedule: Schedule,
    cursors_part: tuple[int | None, bool],
) -> None:
    found = job(options={"save_every": override}, save_every=save_every)

    assert found.schedule == schedule
    assert (found.work_plan.save_every, found.work_plan.saves_epochs) == cursors_part


def test_what_is_to_be_kept_has_to_be_saved() -> None:
    found = job(keep_best=("loss", "min"), keep_every=50)

    assert found.schedule == Auto()
    assert (found.work_plan.saves_epochs, found.work_plan.keep_every) == (True, 50)
    assert found.retention == Retention(3, (Wanted(50, Best("loss")),))


def test_each_training_of_a_script_keeps_its_own_and_that_of_those_before() -> None:
    first = Stage().over(wanted_of(None, ("loss", "min")), 10)
    stages = [first, first.after(10)]

    found = job(stages, keep_best=("val_loss", "max"), validation=data())

    assert found.best == Best("val_loss", False)
    of_first = Wanted(best=Best("loss"), until=10)
    assert found.retention.wanted == (of_first, Wanted(best=found.best, after=10))
    assert 10 in found.retention.forever


def test_nonsense_is_refused_where_it_stands() -> None:
    with pytest.raises(ProgramError, match=r"save_every: steps .* at least 1, got 0; change the"):
        job(save_every=0)
    with pytest.raises(UsageError, match="--save-every: 'soon' is not a valid time to save"):
        job(options={"save_every": "soon"}, save_every=1)


@pytest.mark.parametrize(
    ("changes", "microbatches", "complaint"),
    [
        ({"global_batch": 2**24 + 1}, 2, "global_batch may be at most 16,777,216, got 16,777,217"),
        (
            {"validation": Bare(20_000_000)},
            2,
            "the number of validation samples may be at most 16,777,216, got 20,000,000",
        ),
        ({}, 65_001, "--microbatches may be at most 65,000, got 65,001"),
    ],
)
def test_what_the_ledger_cannot_count_is_refused_when_the_job_begins(
    changes: dict[str, Any], microbatches: int, complaint: str
) -> None:
    with pytest.raises(ProgramError, match=complaint):
        job(options={"microbatches": microbatches}, **changes)


def test_run_beyond_the_end_of_its_job_is_named() -> None:
    found = job()
    steps = found.work_plan.steps

    assert found.surplus(steps) is None
    assert f"at step {steps + 1}, and the script asks for {steps} steps (epochs=2)" in str(
        found.surplus(steps + 1)
    )


@pytest.mark.parametrize(
    ("rule", "batch", "epochs", "words"),
    [
        ("linear", 8, 90, "linear x8 over 50 steps"),
        ("sqrt", 16, 90, "sqrt x4 over 50 steps"),
        ("linear", 4, 2, "linear x4 over 20 steps"),
        (None, 8, 90, "None"),
        ("linear", 1, 90, "None"),
    ],
)
def test_rate_grows_with_the_batch_over_five_epochs(
    rule: str | None, batch: int, epochs: int, words: str
) -> None:
    scale = RateScale.of(rule, batch, steps_per_epoch=10, epochs=epochs)

    assert str(scale) == words
    if scale is not None:
        assert 1.0 + scale.warm_up_steps * scale.growth == pytest.approx(scale.factor)
