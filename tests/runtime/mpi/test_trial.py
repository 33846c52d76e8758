"""What a trial asks for, and the outcome that its ranks' reports tell."""

from __future__ import annotations

import pytest

from holdfast.runtime.mpi.trial import (
    Death,
    RankReport,
    Trial,
    Where,
    judge,
)

TRIAL = Trial("one of three", 3, (Death(1, Where.VOTE),))
WELL = RankReport(world=(0, 2), steps=6)


def test_trial_passes_when_all_survivors_went_on_together() -> None:
    assert judge(TRIAL, {0: WELL, 2: WELL}, "mpiexec ended with code 0").has_passed


@pytest.mark.parametrize(
    ("reports", "failure", "wrong"),
    [
        ({}, "3 ranks did not end within 5 s", ""),
        (
            {0: WELL},
            "rank 2 of 3 was lost, although nobody killed it; 3 ranks did not end within 5 s",
            "",
        ),
        ({0: WELL, 2: RankReport((), 2, failure="no Shrink")}, "no Shrink", ""),
        ({0: WELL, 2: RankReport((), 2, wrong="the sum 5")}, "", "the sum 5"),
        (
            {0: WELL, 2: RankReport((2,), 6)},
            "",
            "survivors went on in different worlds: [(0, 2), (2,)]",
        ),
        (
            {-77: RankReport((), 0, failure="mpi4py uses another MPI")},
            "mpi4py uses another MPI",
            "",
        ),
    ],
)
def test_trial_fails_with_the_cause(
    reports: dict[int, RankReport], failure: str, wrong: str
) -> None:
    outcome = judge(TRIAL, reports, "3 ranks did not end within 5 s")

    assert not outcome.has_passed
    if not wrong:
        assert failure in outcome.failure
    assert outcome.wrong == wrong


def test_all_lost_ranks_are_named_at_once() -> None:
    trial = Trial("one of five", 5, (Death(4, Where.VOTE),))

    outcome = judge(trial, {2: RankReport((2,), 6)}, "mpiexec ended with code 0")

    assert outcome.failure == (
        "rank 0, 1, 3 of 5 was lost, although nobody killed it; mpiexec ended with code 0"
    )


def test_wrong_result_of_a_rank_that_died_later_counts() -> None:
    """Its peers have taken the same step."""
    outcome = judge(TRIAL, {0: WELL, 1: RankReport((), 2, wrong="the sum 5"), 2: WELL}, "")

    assert outcome.wrong == "the sum 5"
