"""How long a launch may be in one situation, looked at by a clock of our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.launch import LaunchClock, LaunchLimits, Situation
from holdfast.recovery.world import WorkerId

LIMITS = LaunchLimits(warm_s=90.0, join_s=20.0, end_s=8.0, leave_s=9.0, grace_s=30.0)
ONE, ANOTHER = (WorkerId(0), WorkerId(1)), (WorkerId(2), WorkerId(3))
CLOCK = LaunchClock(LIMITS, longest_look_s=2.0)


def after(seconds: float, situation: Situation, clock: LaunchClock = CLOCK) -> LaunchClock:
    """Look every second for ``seconds``."""
    start = clock.looked_at or 0.0
    for look in range(int(seconds) + 1):
        clock = clock.observe(ONE, situation, start + look)
    return clock


@pytest.mark.parametrize(
    ("situation", "limit_s"),
    [
        (Situation.WARMING, 90),
        (Situation.JOINING, 20),
        (Situation.STOPPING, 30),
        (Situation.LEAVING, 9),
        (Situation.ENDING, 8),
    ],
)
def test_situation_is_overdue_after_its_bound_and_not_before(
    situation: Situation, limit_s: int
) -> None:
    assert after(limit_s, situation).overdue is None

    overdue = after(limit_s + 1, situation).overdue

    assert overdue is not None
    assert overdue.reason == f"after {limit_s + 1} s {situation.value}"


def test_training_has_no_bound() -> None:
    assert after(10_000, Situation.RUNNING).overdue is None


def test_stop_without_a_grace_has_no_bound() -> None:
    clock = LaunchClock(LaunchLimits(), longest_look_s=2.0)

    assert after(10_000, Situation.STOPPING, clock).overdue is None


def test_time_begins_anew_with_each_situation_and_each_launch() -> None:
    joining = after(20, Situation.JOINING)

    ending = joining.observe(ONE, Situation.ENDING, 21.0)
    next_launch = joining.observe(ANOTHER, Situation.JOINING, 21.0)

    assert (joining.spent_s, ending.spent_s, next_launch.spent_s) == (20.0, 0.0, 0.0)


def test_supervisor_that_was_away_accuses_nobody() -> None:
    clock = after(3, Situation.ENDING)

    clock = clock.observe(ONE, Situation.ENDING, 100_000.0)

    assert clock.spent_s == 5.0
    assert clock.overdue is None


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=30))
def test_time_spent_never_exceeds_the_time_that_passed(pauses_s: list[float]) -> None:
    clock, now = CLOCK, 0.0
    for pause_s in pauses_s:
        now += pause_s
        clock = clock.observe(ONE, Situation.JOINING, now)

    assert 0.0 <= clock.spent_s <= now
