"""A job is started again as long as that can help."""

from __future__ import annotations

import pytest

from holdfast.runtime.tools.followed_run import (
    MOST_IDLE_JOBS,
    OWNED_FOR_S,
    SUSPENDED_FOR_S,
    Resubmission,
)


@pytest.mark.parametrize("code", [75, 130, 143, -9, -15])
def test_job_that_was_ended_from_outside_is_started_again(code: int) -> None:
    assert Resubmission().refusal(code, 3, 0.0) is None


@pytest.mark.parametrize("code", [1, 2, 70])
def test_job_that_failed_is_not_started_again(code: int) -> None:
    assert Resubmission().refusal(code, 3, 0.0) == f"the job ended with exit code {code}"


def test_directory_of_another_job_is_waited_for_within_a_bound() -> None:
    rule = Resubmission()

    assert rule.refusal(76, 3, 100.0) is None
    assert rule.refusal(76, 3, 100.0 + OWNED_FOR_S) is None
    assert "has owned" in str(rule.refusal(76, 3, 101.0 + OWNED_FOR_S))


def test_job_that_owns_the_directory_for_long_is_taken_for_a_suspended_one() -> None:
    rule = Resubmission()
    assert not rule.is_suspended(0.0)

    rule.refusal(76, 3, 100.0)

    assert not rule.is_suspended(100.0 + SUSPENDED_FOR_S)
    assert rule.is_suspended(101.0 + SUSPENDED_FOR_S)
    rule.refusal(75, 3, 102.0 + SUSPENDED_FOR_S)
    assert not rule.is_suspended(103.0 + SUSPENDED_FOR_S)


def test_bound_begins_again_after_a_job_that_had_the_directory() -> None:
    rule = Resubmission()
    rule.refusal(76, 3, 0.0)
    rule.refusal(75, 3, 1.0)

    assert rule.refusal(76, 3, 2.0 + OWNED_FOR_S) is None


def test_jobs_that_make_no_step_are_given_up() -> None:
    rule = Resubmission()
    refusals = [rule.refusal(75, 5, float(n)) for n in range(MOST_IDLE_JOBS + 1)]

    assert refusals[:-1] == [None] * MOST_IDLE_JOBS
    assert refusals[-1] == f"{MOST_IDLE_JOBS} jobs in a row ended early without a new step"


def test_progress_pays_for_jobs_that_ended_early() -> None:
    rule = Resubmission()

    assert [rule.refusal(75, n, float(n)) for n in range(50)] == [None] * 50


def test_steps_that_were_made_before_are_no_progress() -> None:
    """A run that falls back again and again does not go on for ever."""
    rule = Resubmission()
    steps = [9, *[4, 9] * MOST_IDLE_JOBS]

    refusals = [rule.refusal(75, step, 0.0) for step in steps]

    assert refusals[:MOST_IDLE_JOBS] == [None] * MOST_IDLE_JOBS
    assert "without a new step" in str(refusals[MOST_IDLE_JOBS])


def test_jobs_that_found_another_owner_are_not_counted_as_idle() -> None:
    rule = Resubmission()
    rule.refusal(75, 5, 0.0)

    waiting = [rule.refusal(76, 5, float(moment)) for moment in range(2 * MOST_IDLE_JOBS)]

    assert waiting == [None] * len(waiting)
    assert rule.refusal(75, 5, 99.0) is None
