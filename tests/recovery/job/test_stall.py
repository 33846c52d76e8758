"""When workers wait for each other, and when for one that computes."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.stall import StallDetector, Standing, Turn
from holdfast.recovery.world import WorkerId

LIMIT_S = 8.0


def turns(**of: tuple[int, bool]) -> Mapping[WorkerId, Turn]:
    return {WorkerId(int(name[1:])): Turn(*turn) for name, turn in of.items()}


def after(seconds: int, views: Mapping[WorkerId, Turn]) -> StallDetector:
    """Look every second for ``seconds``, at the same turns."""
    detector = StallDetector(LIMIT_S)
    for now in range(seconds + 1):
        detector = detector.observe(views, float(now))
    return detector


def test_workers_that_all_wait_stall_after_the_limit_and_not_before() -> None:
    waiting = turns(w0=(7, True), w1=(7, True))

    assert not after(8, waiting).is_stalled
    assert after(9, waiting).is_stalled


def test_workers_may_wait_for_one_that_computes_as_long_as_it_takes() -> None:
    assert not after(10_000, turns(w0=(7, True), w1=(6, False))).is_stalled


def test_launch_without_workers_does_not_stall() -> None:
    assert not after(10_000, {}).is_stalled


def test_one_new_turn_is_progress_for_all() -> None:
    detector = after(8, turns(w0=(7, True), w1=(7, True)))

    detector = detector.observe(turns(w0=(8, True), w1=(7, True)), 9.0)

    assert detector.standing_s == 0.0


def test_death_is_progress_for_the_survivors() -> None:
    detector = after(8, turns(w0=(7, True), w1=(7, True)))

    detector = detector.observe(turns(w0=(7, True)), 9.0)

    assert detector.standing_s == 0.0


def test_observer_that_was_away_accuses_nobody() -> None:
    waiting = turns(w0=(7, True), w1=(7, True))
    detector = after(1, waiting)

    detector = detector.observe(waiting, 1e6)

    assert not detector.is_stalled


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 3)), min_size=2, max_size=40))
def test_time_standing_never_exceeds_the_time_since_the_last_turn(
    looks: list[tuple[float, int]],
) -> None:
    detector, now, changed_at, last = StallDetector(LIMIT_S), 0.0, 0.0, -1
    for pause_s, number in looks:
        now += pause_s
        if number != last:
            changed_at, last = now, number
        detector = detector.observe(turns(w0=(number, True)), now)

        assert detector.standing_s <= now - changed_at


def test_workers_that_all_wait_for_are_known_when_it_takes_unusually_long() -> None:
    standing = Standing()
    for second in range(7):
        standing = standing.observe(turns(w0=(7, True), w1=(6, False), w2=(7, True)), float(second))

    assert standing.seconds == 6.0
    assert standing.workers(usual_s=1.0) == (1,)
    assert standing.workers(usual_s=2.1) == ()
    assert standing.observe(turns(w0=(8, False), w1=(7, False)), 7.0).workers(0.0) == ()
