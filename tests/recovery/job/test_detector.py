from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.detector import FailureDetector, HeartbeatView, SilenceLimits
from holdfast.recovery.world import WorkerId

STARTING, TRAINING = 0, 4
LIMITS = SilenceLimits(1.0, {STARTING: 60.0})
WORKER = WorkerId(3)


def looks(
    counters: Sequence[int], *, phase: int = TRAINING, every_s: float = 0.1
) -> FailureDetector:
    """Return the detector after one look for each of ``counters``."""
    detector = FailureDetector(LIMITS)
    for number, counter in enumerate(counters):
        detector = detector.observe({WORKER: HeartbeatView(counter, phase)}, number * every_s)
    return detector


@pytest.mark.parametrize(
    ("silent_looks", "is_dead"), [(0, False), (4, False), (6, False), (9, False), (11, True)]
)
def test_silence_beyond_the_limit_makes_a_worker_dead(silent_looks: int, *, is_dead: bool) -> None:
    detector = looks([7] * (silent_looks + 1))

    assert detector.finding(WORKER).is_dead is is_dead


def test_worker_that_counts_stays_alive() -> None:
    assert not looks(range(100)).finding(WORKER).is_dead


def test_worker_that_counts_again_is_alive_again() -> None:
    detector = looks([7] * 9 + [8])

    assert not detector.finding(WORKER).is_dead
    assert detector.finding(WORKER).silent_s == 0


def test_change_of_phase_is_a_sign_of_life() -> None:
    detector = looks([7] * 30, phase=STARTING)

    detector = detector.observe({WORKER: HeartbeatView(7, TRAINING)}, 3.0)

    assert not detector.finding(WORKER).is_dead


def test_starting_worker_may_be_silent_longer() -> None:
    assert not looks([0] * 21, phase=STARTING).finding(WORKER).is_dead
    assert looks([0] * 402, phase=STARTING, every_s=0.15).finding(WORKER).is_dead


def test_phase_limit_below_the_timeout_does_not_shorten_it() -> None:
    assert SilenceLimits(10.0, {STARTING: 1.0}).of(STARTING) == 10.0


def test_observer_that_was_away_accuses_nobody() -> None:
    """A stopped agent or a suspended machine saw nothing, which says nothing about workers."""
    detector = FailureDetector(LIMITS).observe({WORKER: HeartbeatView(7, TRAINING)}, 0.0)

    detector = detector.observe({WORKER: HeartbeatView(7, TRAINING)}, 3600.0)

    assert not detector.finding(WORKER).is_dead
    assert detector.finding(WORKER).silent_s == 0.25


def test_first_look_finds_a_worker_alive() -> None:
    detector = FailureDetector(LIMITS).observe({WORKER: HeartbeatView(0, TRAINING)}, 1e6)

    assert not detector.finding(WORKER).is_dead


def test_worker_without_a_view_is_watched_no_longer() -> None:
    other = WorkerId(4)
    detector = looks([1, 2]).observe({other: HeartbeatView(1, TRAINING)}, 1.0)

    assert set(detector.findings()) == {other}
    with pytest.raises(KeyError):
        detector.finding(WORKER)


def test_observation_leaves_the_detector_before_it_alone() -> None:
    before = looks([7] * 6)
    found = before.finding(WORKER)

    before.observe({}, 100.0)

    assert before.finding(WORKER) == found


@given(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=30))
def test_nobody_is_dead_before_four_silent_looks(gaps_s: list[float]) -> None:
    detector, now = FailureDetector(LIMITS), 0.0
    view = {WORKER: HeartbeatView(1, TRAINING)}
    detector = detector.observe(view, now)

    for number, gap_s in enumerate(gaps_s, start=1):
        now += gap_s
        detector = detector.observe(view, now)
        if number <= 4:
            assert not detector.finding(WORKER).is_dead
        assert detector.finding(WORKER).silent_s <= now + 1e-9


def test_time_that_runs_backwards_is_refused() -> None:
    detector = FailureDetector(LIMITS).observe({}, 5.0)

    with pytest.raises(ValueError, match=r"time ran backwards, from 5\.0 to 4\.0"):
        detector.observe({}, 4.0)


@pytest.mark.parametrize(
    ("timeout_s", "by_phase_s"), [(0.0, {}), (-1.0, {}), (1.0, {STARTING: 0.0})]
)
def test_limit_that_no_worker_could_keep_is_refused(
    timeout_s: float, by_phase_s: dict[int, float]
) -> None:
    with pytest.raises(ValueError, match="must be allowed some silence"):
        SilenceLimits(timeout_s, by_phase_s)


def test_ten_thousand_workers_are_judged() -> None:
    detector = FailureDetector(LIMITS)
    for number in range(12):
        views = {
            WorkerId(worker): HeartbeatView(number * (worker % 100 > 0), TRAINING)
            for worker in range(10_000)
        }
        detector = detector.observe(views, number * 0.1)

    dead = [worker for worker, found in detector.findings().items() if found.is_dead]

    assert dead == list(range(0, 10_000, 100))
