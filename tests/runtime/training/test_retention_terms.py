from __future__ import annotations

import dataclasses

import pytest
from configs import worker_config
from simulation import TinyReplica, data

from holdfast.checkpoint.retention import Best, Retention, Wanted
from holdfast.recovery.schedule import Auto, EachEpoch, EverySeconds, EverySteps, Schedule
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.model.data import Data
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.saving.plan import retention_of, wanted_of
from holdfast.runtime.training.progress import check_metric
from holdfast.runtime.training.training_job import (
    Stage,
    TrainingJob,
    TrainingRequest,
    describe_job,
)

CONFIG = worker_config(microbatches=2)
REQUEST = TrainingRequest(data(), None, global_batch=9, epochs=2)


def test_options_become_a_retention() -> None:
    assert retention_of(3, (wanted_of(None, None),)) == Retention(3, (Wanted(),))
    assert wanted_of(100, ("val_loss", "min")) == Wanted(100, Best("val_loss"))
    assert wanted_of(None, ["accuracy", "max"]).best == Best("accuracy", False)


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
    ("metric", "validation"), [("loss", None), ("loss", data()), ("val_loss", data())]
)
def test_metric_of_an_epoch_is_accepted(metric: str, validation: Data | None) -> None:
    check_metric(Best(metric), TinyReplica(), has_validation=validation is not None)


@pytest.mark.parametrize(
    ("metric", "validation", "known"),
    [("val_loss", None, "loss;"), ("val_accuracy", data(), "loss, val_loss;")],
)
def test_metric_that_no_epoch_has_is_refused(
    metric: str, validation: Data | None, known: str
) -> None:
    with pytest.raises(ProgramError, match=f"asks for '{metric}', but an epoch has {known}"):
        check_metric(Best(metric), TinyReplica(), has_validation=validation is not None)


def describe(save_every: int | str, override: str | None = None) -> TrainingJob:
    request = dataclasses.replace(REQUEST, save_every=save_every)
    config = worker_config(microbatches=2, save_every=override)
    return describe_job(request, config, Numerics.here(threads=1))


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
    job = describe(save_every, override)

    assert job.schedule == schedule
    assert (job.work_plan.save_every, job.work_plan.saves_epochs) == cursors_part


def test_what_is_to_be_kept_has_to_be_saved() -> None:
    request = dataclasses.replace(REQUEST, keep_best=("loss", "min"), keep_every=50)

    job = describe_job(request, CONFIG, Numerics.here(threads=1))

    assert job.schedule == Auto()
    assert job.work_plan.saves_epochs
    assert job.work_plan.keep_every == 50
    assert job.retention == Retention(3, (Wanted(50, Best("loss")),))


def test_each_training_of_a_script_keeps_its_own_and_that_of_those_before() -> None:
    first = Stage().over(wanted_of(None, ("loss", "min")), 10)
    request = dataclasses.replace(REQUEST, keep_best=("val_loss", "max"), validation=data())

    job = describe_job(request, CONFIG, Numerics.here(threads=1), [first, first.after(10)])

    assert job.best == Best("val_loss", False)
    of_first = Wanted(best=Best("loss"), until=10)
    assert job.retention.wanted == (of_first, Wanted(best=job.best, after=10))
    assert 10 in job.retention.forever


def test_without_a_wish_the_job_finds_its_own_schedule() -> None:
    job = describe_job(REQUEST, CONFIG, Numerics.here(threads=1))

    assert (job.schedule, job.retention) == (Auto(), Retention(3, (Wanted(),)))


def test_nonsense_is_refused_where_it_stands() -> None:
    with pytest.raises(ProgramError, match=r"save_every: steps .* at least 1, got 0; change the"):
        describe(0)
    with pytest.raises(UsageError, match="--save-every: 'soon' is no schedule"):
        describe(1, "soon")


class _Endless(Data):
    """Data of which there is more than the ledger can count."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def read(self, ids: object) -> tuple[object, object]:
        raise AssertionError("nothing is read before it is counted")


@pytest.mark.parametrize(
    ("request_changes", "microbatches", "complaint"),
    [
        ({"global_batch": 2**24 + 1}, 2, "global_batch may be at most 16,777,216, got 16,777,217"),
        (
            {"validation": _Endless(20_000_000)},
            2,
            "the number of validation samples may be at most 16,777,216, got 20,000,000",
        ),
        ({}, 65_001, "--microbatches may be at most 65,000, got 65,001"),
    ],
)
def test_what_the_ledger_cannot_count_is_refused_when_the_job_begins(
    request_changes: dict[str, object], microbatches: int, complaint: str
) -> None:
    request = dataclasses.replace(REQUEST, **request_changes)  # type: ignore[arg-type]

    with pytest.raises(ProgramError, match=complaint):
        describe_job(request, worker_config(microbatches=microbatches), Numerics.here(threads=1))


def test_run_beyond_the_end_of_its_job_is_named() -> None:
    job = describe_job(REQUEST, CONFIG, Numerics.here(threads=1))
    steps = job.work_plan.steps

    assert job.surplus(steps) is None
    assert f"at step {steps + 1}, and the script asks for {steps} steps (epochs=2)" in str(
        job.surplus(steps + 1)
    )
