"""Who keeps whom waiting, and scripts that have gone apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.detector import (
    LEAST_LIMIT_S,
    ScriptView,
    StallDetector,
    WorkerPace,
    find_diverged,
)
from holdfast.recovery.world import WorkerId

NEVER_MEASURED, MEASURED = 1, 2

LOOKS = st.lists(
    st.tuples(
        st.floats(0.0, 50.0),
        st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=3),
        st.integers(0, 3),
    ),
    max_size=40,
)

ENDED, GOING = True, False


def paces(
    *turns: tuple[int, bool], step: int = 7, commits: int = MEASURED, is_training: bool = True
) -> dict[WorkerId, WorkerPace]:
    """Return the paces of workers 0, 1 and so on, of which each is at one of ``turns``."""
    return {
        WorkerId(n): WorkerPace(*turn, step, commits, is_training) for n, turn in enumerate(turns)
    }


ONE_COMPUTES = paces((8, False), (9, True), (9, True))
ALL_COMPUTE = paces((8, False), (8, False))
ALL_WAIT = paces((9, True), (9, True))


def after_looks(
    detector: StallDetector, seconds: float, views: Mapping[WorkerId, WorkerPace]
) -> StallDetector:
    """Return the detector after_looks looks at the same paces, twice a second."""
    now = detector.looked_at or 0.0
    for _ in range(round(seconds * 2) + 1):
        detector = detector.observe(views, now)
        now += 0.5
    return detector


def pieces(detector: StallDetector, seconds: Sequence[float], **terms: int) -> StallDetector:
    """Return the detector after_looks pieces of work that have taken so long."""
    for number, duration in enumerate(seconds):
        detector = after_looks(
            detector, duration, paces((2 * number, False), (2 * number, True), **terms)
        )
        detector = after_looks(
            detector, 0.5, paces((2 * number + 1, True), (2 * number, True), **terms)
        )
    return detector


def test_worker_that_all_others_wait_for_is_told_at_half_and_fenced_at_the_whole() -> None:
    detector = StallDetector(timeout_s=8.0)

    half = after_looks(detector, 4.5, ONE_COMPUTES).stall
    whole = after_looks(detector, 8.5, ONE_COMPUTES).stall

    assert half is not None
    assert (half.is_over_half, half.is_over) == (True, False)
    assert whole is not None
    assert (whole.workers, whole.is_over, whole.step) == ((0,), True, 7)


@pytest.mark.parametrize(
    "views",
    [
        paces((8, False), (9, True), is_training=False),
        ALL_WAIT,
        {},
    ],
    ids=["in the script", "all wait", "no worker"],
)
def test_nobody_is_accused(views: Mapping[WorkerId, WorkerPace]) -> None:
    assert after_looks(StallDetector(timeout_s=8.0), 2_000.0, views).stall is None


def test_workers_that_all_compute_are_told_of_and_never_fenced() -> None:
    stall = after_looks(StallDetector(timeout_s=8.0), 2_000.0, ALL_COMPUTE).stall

    assert stall is not None
    assert stall.is_over_half
    assert not stall.is_over


def test_last_owner_of_what_its_peers_were_fenced_for_is_fenced_too() -> None:
    detector = after_looks(StallDetector(timeout_s=8.0), 9.0, ONE_COMPUTES)
    assert detector.stall is not None
    detector = detector.fenced(detector.stall)

    alone, elsewhere = (
        after_looks(detector, 9.0, {WorkerId(1): WorkerPace(20, False, step, MEASURED, True)})
        for step in (7, 8)
    )
    relaunched = after_looks(detector.next_launch(8.0), 9.0, paces((3, False)))

    assert [d.stall is not None and d.stall.is_over for d in (alone, elsewhere)] == [
        True,
        False,
    ]
    assert alone.stall is not None
    assert (alone.stall.is_awaited, alone.stall.has_limit) == (False, True)
    assert relaunched.stall is not None
    assert relaunched.stall.is_over


def test_heirs_that_all_compute_may_take_as_long_as_such_work_does() -> None:
    """The user's limit is for waiting, and may be shorter than a piece of work."""
    detector = pieces(StallDetector(timeout_s=8.0), [20.0, 20.0])
    detector = after_looks(detector, 9.0, ONE_COMPUTES)
    assert detector.stall is not None
    detector = detector.fenced(detector.stall)

    usual, unusual = (
        after_looks(detector, seconds, ALL_COMPUTE).stall for seconds in (40.0, 300.0)
    )

    assert usual is not None
    assert not usual.is_over
    assert unusual is not None
    assert unusual.is_over


def test_without_a_limit_of_the_users_nobody_is_accused_before_two_steps() -> None:
    detector = after_looks(
        StallDetector(), 1e4, paces((1, False), (2, True), commits=NEVER_MEASURED)
    )

    assert detector.limit_s is None
    assert detector.stall is None


def test_users_limit_does_not_hold_while_models_are_compiled() -> None:
    compiling = paces((1, False), (2, True), commits=NEVER_MEASURED)

    assert after_looks(StallDetector(timeout_s=8.0), 1.0, compiling).limit_s == LEAST_LIMIT_S
    assert after_looks(StallDetector(timeout_s=900.0), 1.0, compiling).limit_s == 900.0


def test_limit_is_generous_and_grows_with_the_longest_piece_of_work() -> None:
    short = pieces(StallDetector(), [1.0, 2.0])
    long = pieces(short, [30.0])

    assert short.limit_s == LEAST_LIMIT_S
    assert long.limit_s is not None
    assert 50 * 29.0 <= long.limit_s <= 50 * 32.0


@given(LOOKS, st.none() | st.floats(1.0, 20.0))
def test_only_workers_that_compute_while_another_waits_for_longer_than_the_limit_are_fenced(
    looks: list[tuple[float, list[tuple[int, bool]], int]], timeout_s: float | None
) -> None:
    detector, now, changed_at = StallDetector(timeout_s), 0.0, 0.0
    last: Mapping[WorkerId, WorkerPace] = {}
    for pause_s, turns, commits in looks:
        now += pause_s
        views = paces(*turns, commits=commits)
        changed_at, last = (changed_at if views == last else now), views
        detector = detector.observe(views, now)
        stall = detector.stall

        if stall is not None and stall.is_over:
            assert all(not views[worker].waits_for_peers for worker in stall.workers)
            assert any(pace.waits_for_peers for pace in views.values())
            assert now - changed_at > (timeout_s or LEAST_LIMIT_S)


def scripts(*ways: tuple[int, bool]) -> list[ScriptView]:
    return [ScriptView(WorkerId(number), *way) for number, way in enumerate(ways)]


@pytest.mark.parametrize(
    "ways",
    [
        [],
        [(0, GOING)],
        [(3, ENDED)],
        [(3, ENDED), (3, ENDED)],
        [(3, ENDED), (3, GOING)],
        [(0, ENDED), (0, GOING)],
        [(1, GOING), (4, GOING)],
        [(1, GOING), (4, ENDED)],
        [(1, GOING), (4, ENDED), (4, GOING)],
    ],
)
def test_worker_that_may_still_come_is_waited_for(ways: list[tuple[int, bool]]) -> None:
    assert find_diverged(scripts(*ways)) is None


@pytest.mark.parametrize(
    ("ways", "behind", "ahead"),
    [
        ([(3, ENDED), (4, GOING)], 0, 1),
        ([(4, GOING), (3, ENDED)], 1, 0),
        ([(4, ENDED), (3, ENDED)], 1, 0),
        ([(0, ENDED), (1, GOING), (1, GOING)], 0, 1),
        ([(2, ENDED), (3, GOING), (1, ENDED), (4, GOING)], 2, 3),
        ([(1, GOING), (2, ENDED), (3, GOING)], 1, 2),
    ],
)
def test_script_that_has_ended_before_another_one_trains_again_is_named(
    ways: list[tuple[int, bool]], behind: int, ahead: int
) -> None:
    for order in itertools.permutations(scripts(*ways)):
        apart = find_diverged(order)

        assert apart is not None
        ended, why = apart
        assert ended.worker == behind
        assert why.startswith(f"worker {behind} ended its script after ")
        assert f", but worker {ahead} began training " in why


@pytest.mark.parametrize(
    ("begun", "words"), [(0, "no training"), (1, "1 training"), (3, "3 trainings")]
)
def test_message_has_both_workers_and_both_numbers(begun: int, words: str) -> None:
    apart = find_diverged(scripts((begun + 2, GOING), (begun, ENDED)))

    assert apart is not None
    assert apart[1].startswith(
        f"worker 1 ended its script after {words}, but worker 0 began training {begun + 2}, "
    )
