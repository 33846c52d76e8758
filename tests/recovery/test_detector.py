"""Verdicts on silent workers, and pauses of a whole job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.detector import ChangeDetector, PauseWatch
from holdfast.recovery.world import WorkerId

WORKER, OTHER = WorkerId(3), WorkerId(4)
GAPS = st.lists(st.floats(0.0, 20.0), min_size=1, max_size=30)
BEAT_S = 0.5


def look(
    limit_s: float, gaps_s: Sequence[float], views: Sequence[object]
) -> list[ChangeDetector[int]]:
    """Return the state after each look at a worker; the first is at 0 s."""
    now = 0.0
    seen: list[ChangeDetector[int]] = [ChangeDetector(limit_s)]
    for gap_s, view in zip([0.0, *gaps_s], views, strict=False):
        now += gap_s
        seen.append(seen[-1].observe({WORKER: view}, now))
    return seen[1:]


@pytest.mark.parametrize(
    ("silent_looks", "is_beyond"), [(0, False), (4, False), (9, False), (11, True)]
)
def test_what_stands_still_for_longer_than_the_limit_is_found(
    silent_looks: int, *, is_beyond: bool
) -> None:
    last = look(1.0, [0.1] * silent_looks, [7] * (silent_looks + 1))[-1]

    assert (WORKER in last.beyond) is is_beyond


def test_observer_that_was_away_accuses_nobody() -> None:
    """A stopped agent or a suspended machine saw nothing, which says nothing about workers."""
    last = look(1.0, [3600.0], [7, 7])[-1]

    assert last.beyond == {}
    assert last.seconds == {WORKER: 0.25}


def test_what_is_not_looked_at_any_more_is_forgotten() -> None:
    last = look(1.0, [0.1], [1, 1])[-1].observe({OTHER: 1}, 1.0)

    assert last.seconds == {OTHER: 0.0}
    assert last.observe({WORKER: 1}, 1.1).seconds == {WORKER: 0.0}


def test_time_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match=r"time ran backwards, from 5\.0 to 4\.0"):
        ChangeDetector(1.0).observe({}, 5.0).observe({}, 4.0)


@given(GAPS, st.integers(0, 30))
def test_stillness_grows_with_the_time_that_was_seen_until_a_sign_of_life(
    gaps_s: list[float], moment: int
) -> None:
    """Each worker is judged apart: one that counts at every look is never found."""
    now = passed = 0.0
    state: ChangeDetector[int] = ChangeDetector(1.0)
    for number, gap_s in enumerate([0.0, *gaps_s]):
        now += gap_s
        before = state.seconds.get(WORKER, 0.0)
        state = state.observe({WORKER: number > moment, OTHER: number}, now)
        passed = 0.0 if number == moment + 1 else passed + gap_s

        still_s = state.seconds[WORKER]
        grown_s = 0.0 if number == moment + 1 else before + min(gap_s, 0.25)
        assert still_s == pytest.approx(grown_s)
        assert still_s <= passed + 1e-9
        assert state.beyond == ({WORKER: still_s} if still_s > 1.0 else {})


@pytest.mark.parametrize(
    ("gap_s", "beats", "pause_s"),
    [
        pytest.param(66.0, {0: 0, 1: 0}, 66.0, id="nobody ran"),
        pytest.param(66.0, {0: 2, 1: 12}, 66.0, id="workers woke seconds before"),
        pytest.param(66.0, {0: 0, 1: 130}, 0.0, id="one worker ran"),
        pytest.param(66.0, {}, 66.0, id="there is no worker"),
        pytest.param(4.9, {0: 0, 1: 0}, 0.0, id="too short for a word"),
    ],
)
def test_job_stood_still_if_no_worker_has_counted_on(
    gap_s: float, beats: dict[int, int], pause_s: float
) -> None:
    before = {WorkerId(worker): 1000 for worker in beats}
    after = {WorkerId(worker): 1000 + count for worker, count in beats.items()}
    watch = PauseWatch(BEAT_S).observe(before, 100.0)

    assert watch.pause_s == 0
    watch = watch.observe(after, 100.0 + gap_s)
    assert watch.pause_s == pause_s
    assert watch.observe(after, 100.5 + gap_s).pause_s == 0


def test_counters_are_looked_at_once_a_beat_at_most() -> None:
    watch = PauseWatch(BEAT_S)
    assert watch.is_look_due(100.0)
    watch = watch.observe({WorkerId(0): 1000}, 100.0)

    assert not watch.is_look_due(100.0 + 0.9 * BEAT_S)
    assert watch.is_look_due(100.0 + BEAT_S)
