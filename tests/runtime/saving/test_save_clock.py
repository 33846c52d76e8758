from __future__ import annotations

import pytest

from holdfast.recovery.schedule import (
    FIRST_SAVE_S,
    Auto,
    EachEpoch,
    EverySeconds,
    EverySteps,
    FailureHistory,
    Schedule,
)
from holdfast.runtime.run.checkpoint_events import SaveInterval
from holdfast.runtime.saving.plan import SaveClock


class Training:
    """A loop of steps under a clock that it moves itself."""

    def __init__(self, schedule: Schedule, history: FailureHistory | None = None) -> None:
        self.told: list[SaveInterval] = []
        self.clock = SaveClock(schedule, history or FailureHistory(), self.told.append)
        self.now = 1000.0
        self.commit(0.0)

    def commit(self, seconds: float, *, is_step: bool = True, is_saving: bool = False) -> None:
        self.now += seconds
        self.clock.committed(self.now, is_step=is_step, is_saving=is_saving)

    def steps(self, count: int, seconds: float, *, is_saving: bool = False) -> None:
        for _ in range(count):
            self.commit(seconds, is_saving=is_saving)

    def save(self, *durations: float) -> None:
        """Save beside steps that last so long."""
        self.clock.began(self.now)
        *during, last = durations
        for seconds in during:
            self.commit(seconds, is_saving=True)
        self.commit(last)

    @property
    def costs_s(self) -> tuple[float, ...]:
        return self.told[-1].costs_s if self.told else ()

    @property
    def interval_s(self) -> float | None:
        return self.told[-1].seconds

    @property
    def is_due(self) -> bool:
        return self.clock.is_due(self.now)


@pytest.mark.parametrize("schedule", [EverySteps(3), EachEpoch()])
def test_without_a_clock_nothing_is_timed(schedule: Schedule) -> None:
    training = Training(schedule)
    training.steps(5, 1e6)

    assert training.clock.is_idle
    assert not training.is_due
    assert training.clock.next_at is None


def test_seconds_count_from_the_first_step_and_then_from_the_beginning_of_each_save() -> None:
    clock = SaveClock(EverySeconds(10.0), FailureHistory(), print)
    assert not clock.is_due(5000.0)  # starting and compiling are no training

    training = Training(EverySeconds(10.0))
    training.steps(9, 1.0)
    assert not training.is_due
    training.commit(1.0)
    assert training.is_due

    training.save(1.0, 1.0)
    training.steps(7, 1.0)
    assert not training.is_due
    training.commit(1.0)
    assert training.is_due


def test_cost_is_what_the_steps_beside_it_took_longer() -> None:
    training = Training(Auto())
    training.steps(10, 0.5)

    training.save(1.5, 0.5, 1.0)

    assert training.costs_s == pytest.approx((1.5,))


def test_evaluations_do_not_count() -> None:
    training = Training(Auto())
    training.steps(10, 0.5)
    training.commit(60.0, is_step=False)
    training.clock.began(training.now)
    training.commit(1.0, is_saving=True)
    training.commit(60.0, is_step=False, is_saving=True)
    training.commit(0.5)

    assert training.costs_s == pytest.approx((0.5,))


def test_auto_saves_early_then_by_cost_and_failures() -> None:
    calm, stormy = Training(Auto()), Training(Auto(), FailureHistory(86400.0, 99))
    for training in (calm, stormy):
        training.steps(int(FIRST_SAVE_S) - 1, 1.0)
        assert not training.is_due
        training.commit(1.0)
        assert training.is_due
        training.save(1.5)

    assert calm.interval_s == pytest.approx(293.95, abs=0.1)
    assert stormy.interval_s == pytest.approx(30.97, abs=0.1)


def test_interval_is_told_with_its_reasons() -> None:
    training = Training(Auto(), FailureHistory(3600.0, 2))
    training.steps(10, 1.0)
    training.save(1.5)

    assert training.told == [
        SaveInterval(
            seconds=pytest.approx((training.clock.next_at or 0.0) + 1.5 - training.now),
            costs_s=(0.5,),
            failures=2,
            mean_time_between_failures_s=round((3600 + 11.5 + 8640) / 2.1, 3),
        )
    ]


def test_save_before_any_usual_step_measures_nothing() -> None:
    training = Training(Auto())
    training.save(7.0)

    assert training.costs_s == ()
    assert training.interval_s == FIRST_SAVE_S


def test_repair_is_not_counted() -> None:
    training = Training(Auto())
    training.steps(10, 1.0)
    training.clock.began(training.now)
    training.commit(1.0, is_saving=True)
    training.clock.world_changed()
    training.commit(500.0)
    training.commit(1.0)

    assert training.costs_s == ()
    assert training.is_due


def test_next_save_is_known_but_while_one_is_under_way() -> None:
    training = Training(EverySeconds(10.0))
    begin = training.now
    training.steps(3, 1.0)
    assert training.clock.next_at == begin + 10.0

    training.clock.began(training.now)
    assert training.clock.next_at is None
    training.commit(1.0)

    assert training.clock.next_at == begin + 13.0
    assert Training(EverySteps(5)).clock.next_at is None


def test_slow_first_steps_and_slow_saves_are_outvoted() -> None:
    slow, usual = Training(Auto()), Training(Auto())
    slow.commit(120.0)  # compiling
    for training, first in ((slow, 31.0), (usual, 1.5)):
        training.steps(20, 1.0)
        for seconds in (first, 1.5, 1.5):
            training.save(seconds)
            training.steps(5, 1.0)

    assert slow.interval_s == pytest.approx(usual.interval_s, rel=1e-2)
