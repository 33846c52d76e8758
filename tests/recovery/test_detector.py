"""Verdicts on silent workers, and pauses of a whole job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.detector import (
    FailureDetector,
    HeartbeatView,
    Pause,
    PauseWatch,
    SilenceLimits,
)
from holdfast.recovery.world import WorkerId

STARTING, TRAINING = 0, 4
LIMITS = SilenceLimits(1.0, {STARTING: 60.0})
WORKER = WorkerId(3)

GAPS = st.lists(st.floats(0.0, 20.0), min_size=1, max_size=30)

BEAT_S = 0.5


def looks(
    counters: Sequence[int], *, phase: int = TRAINING, every_s: float = 0.1
) -> FailureDetector:
    """Return the detector after one look for each of ``counters``."""
    detector = FailureDetector(LIMITS)
    for number, counter in enumerate(counters):
        detector = detector.observe({WORKER: HeartbeatView(counter, phase)}, number * every_s)
    return detector


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


def test_worker_without_a_view_is_watched_no_longer() -> None:
    other = WorkerId(4)
    detector = looks([1, 2]).observe({other: HeartbeatView(1, TRAINING)}, 1.0)

    assert set(detector.findings()) == {other}
    with pytest.raises(KeyError):
        detector.finding(WORKER)


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


def look_all(
    limits: SilenceLimits, gaps_s: list[float], counters: list[int], phase: int = 0
) -> list[FailureDetector]:
    """Return the detector after each look; the first is at 0 s."""
    now, seen = 0.0, [FailureDetector(limits)]
    for gap_s, counter in zip([0.0, *gaps_s], counters, strict=False):
        now += gap_s
        seen.append(seen[-1].observe({WORKER: HeartbeatView(counter, phase)}, now))
    return seen[1:]


@given(GAPS)
def test_silence_only_grows_and_verdicts_only_get_worse(gaps_s: list[float]) -> None:
    looks = look_all(SilenceLimits(1.0), gaps_s, [7] * 40)

    findings = [poll.finding(WORKER) for poll in looks]
    silences = [finding.silent_s for finding in findings]
    assert silences == sorted(silences)
    grades = [finding.is_dead for finding in findings]
    assert grades == sorted(grades)


@given(GAPS)
def test_silence_is_never_more_than_the_time_that_passed(gaps_s: list[float]) -> None:
    last = look_all(SilenceLimits(1.0), gaps_s, [7] * 40)[-1].finding(WORKER)

    assert last.silent_s <= sum(gaps_s) + 1e-9
    assert last.silent_s <= 0.25 * len(gaps_s) + 1e-9


@given(GAPS)
def test_worker_that_counts_at_every_look_is_never_dead(gaps_s: list[float]) -> None:
    looks = look_all(SilenceLimits(0.1), gaps_s, list(range(40)))

    assert {poll.finding(WORKER).is_dead for poll in looks} == {False}


@given(GAPS)
def test_verdict_follows_from_silence_and_limit(gaps_s: list[float]) -> None:
    for poll in look_all(SilenceLimits(2.0), gaps_s, [7] * 40):
        finding = poll.finding(WORKER)
        assert finding.is_dead is (finding.silent_s > 2.0)


@given(GAPS, st.integers(0, 30))
def test_one_sign_of_life_begins_the_count_anew(gaps_s: list[float], moment: int) -> None:
    counters = [7] * moment + [8] * 40

    looks = look_all(SilenceLimits(1.0), gaps_s, counters)

    if moment < len(looks):
        assert looks[moment].finding(WORKER).silent_s == 0.0


@given(GAPS)
def test_workers_are_judged_apart(gaps_s: list[float]) -> None:
    alone = look_all(SilenceLimits(1.0), gaps_s, [7] * 40)[-1].finding(WORKER)
    detector, now = FailureDetector(SilenceLimits(1.0)), 0.0
    for turn, gap_s in enumerate([0.0, *gaps_s]):
        now += gap_s
        views = {WORKER: HeartbeatView(7, 0), WorkerId(4): HeartbeatView(turn, 0)}
        detector = detector.observe(views, now)

    findings = detector.findings()
    assert findings[WORKER] == alone
    assert not findings[WorkerId(4)].is_dead


@pytest.mark.parametrize(
    ("gap_s", "beats", "pause"),
    [
        pytest.param(66.0, {0: 0, 1: 0}, Pause(100.0, 166.0), id="nobody ran"),
        pytest.param(66.0, {0: 2, 1: 12}, Pause(100.0, 166.0), id="workers woke seconds before"),
        pytest.param(66.0, {0: 0, 1: 130}, None, id="one worker ran"),
        pytest.param(66.0, {}, Pause(100.0, 166.0), id="there is no worker"),
        pytest.param(4.9, {0: 0, 1: 0}, None, id="too short for a word"),
    ],
)
def test_job_stood_still_if_no_worker_has_counted_on(
    gap_s: float, beats: dict[int, int], pause: Pause | None
) -> None:
    before = {WorkerId(worker): 1000 for worker in beats}
    after = {WorkerId(worker): 1000 + count for worker, count in beats.items()}
    watch = PauseWatch(BEAT_S).observe(before, 100.0)

    assert watch.pause is None
    watch = watch.observe(after, 100.0 + gap_s)
    assert watch.pause == pause
    assert watch.observe(after, 100.5 + gap_s).pause is None


def test_two_observers_of_one_pause_have_seen_the_same_time() -> None:
    seen = Pause(100.0, 166.0)

    assert seen.overlaps(Pause(100.3, 167.0))
    assert seen.overlaps(Pause(99.0, 165.0))
    assert not seen.overlaps(Pause(170.0, 190.0))
    assert seen.seconds == 66.0
