"""One launch: what is seen of it, what its end means, its bounds, and how it is halted."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.event import (
    CheckpointCommitted,
    Event,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.launch import (
    Halted,
    HaltPlan,
    Held,
    LaunchClock,
    LaunchView,
    Sight,
    Situation,
    conclude,
    plan_halt,
)
from holdfast.recovery.placement import save_parts
from holdfast.recovery.world import WorkerId

A, B, C = (WorkerId(number) for number in (3, 4, 5))
FRESH = LaunchView.of((A, B, C), 7)

WORKERS = tuple(map(WorkerId, range(4)))

MEMBERS = st.sampled_from(WORKERS)

STEPS = st.integers(1, 3)

SIGHTS: st.SearchStrategy[Sight] = st.one_of(
    st.builds(WorkerJoined, MEMBERS),
    st.builds(
        WorldFormed,
        st.integers(1, 6),
        st.sets(MEMBERS, min_size=1).map(lambda found: tuple(sorted(found))),
        STEPS,
    ),
    st.builds(CheckpointCommitted, MEMBERS, STEPS),
    st.builds(WorkerFailed, MEMBERS, st.sampled_from(["A", "B"]), st.just("m"), st.just(""),
              st.just(1), st.booleans()),
    st.builds(
        WorkerCompleted, MEMBERS, STEPS, st.sampled_from(["cafe", "beef"]), st.booleans()
    ),
    st.builds(WorkerStopped, MEMBERS, STEPS),
    st.builds(WorkerExited, MEMBERS, st.booleans(), st.just("exit 1")),
)  # fmt: skip

HISTORIES = st.lists(SIGHTS, max_size=25)

ONE, ANOTHER = (WorkerId(0), WorkerId(1)), (WorkerId(2), WorkerId(3))
CLOCK = LaunchClock(grace_s=30.0)


def died(worker: WorkerId, cause: str = "signal SIGKILL") -> WorkerExited:
    return WorkerExited(worker, is_clean=False, cause=cause)


def failed(worker: WorkerId, kind: str = "ValueError", *, is_death: bool = False) -> WorkerFailed:
    return WorkerFailed(worker, kind, "first line\nsecond line", "Traceback", 1, is_death)


def test_first_cause_stands_before_deaths_that_only_followed() -> None:
    view = FRESH
    for event in (died(C, "exit 1"), died(A, "killed with its launch; process 7 does not end")):
        view = view.seeing(event)

    assert view.causes.startswith("worker 5: exit 1, worker 3: killed with its launch")


def test_cause_is_what_a_worker_said_of_itself_in_one_line() -> None:
    view = FRESH.seeing(failed(A)).seeing(died(A, "exit 1"))

    assert view.causes == "worker 3: ValueError: first line"


def test_common_failure_is_asked_of_the_newest_world_only() -> None:
    view = FRESH.seeing(WorldFormed(8, (B, C), 3)).seeing(failed(A, "OSError"))

    assert view.seeing(failed(C)).common_failure is None
    assert view.seeing(failed(B)).seeing(failed(C)).common_failure == failed(B)


def test_last_survivor_does_not_speak_for_those_that_died_of_something_else() -> None:
    last = FRESH.seeing(WorldFormed(8, (C,), 3)).seeing(died(A)).seeing(failed(C))
    alone = LaunchView.of((C,), 7).seeing(WorldFormed(7, (C,), 0)).seeing(failed(C))

    assert last.common_failure is None
    assert last.seeing(failed(A)).common_failure is None
    assert last.seeing(failed(A)).seeing(failed(B)).common_failure == failed(A)
    assert alone.common_failure == failed(C)


def view_of(*events: Event) -> LaunchView:
    view = LaunchView.of((A, B), 5).seeing(WorldFormed(5, (A, B), 0))
    for event in events:
        view = view.seeing(event)  # type: ignore[arg-type]
    return view


def left(*workers: WorkerId) -> list[Event]:
    return [WorkerExited(worker, is_clean=True, cause="exit 0") for worker in workers]


def all_died(*workers: WorkerId) -> list[Event]:
    return [WorkerExited(worker, is_clean=False, cause="signal SIGKILL") for worker in workers]


def all_failed(
    *workers: WorkerId, kind: str = "ValueError", trace: str = "Traceback"
) -> list[Event]:
    return [WorkerFailed(worker, kind, "no such column", trace, 1) for worker in workers]


def failed_in_training(*workers: WorkerId) -> list[Event]:
    return [
        WorkerFailed(worker, "ValueError", "no such batch", "Traceback", 1, is_in_training=True)
        for worker in workers
    ]


def completed(*workers: WorkerId, sha256: str = "cafe") -> list[Event]:
    return [WorkerCompleted(worker, 20, sha256, is_first=worker == A) for worker in workers]


def again(worker: WorkerId) -> Event:
    """Return the completion of the script's second training, with another first worker."""
    return WorkerCompleted(worker, 30, "f00d", is_first=True)


@pytest.mark.parametrize(
    ("events", "stop_code", "exit_code"),
    [
        ([*completed(A, B), *left(A, B)], None, 0),
        ([*completed(A, B), *left(A), *all_died(B)], 130, 0),
        ([*completed(A, B), *left(B), *all_died(A)], None, None),
        ([*completed(A, B), *all_failed(A), *left(B), *all_died(A)], None, 1),
        ([*completed(A, B), *all_failed(B), *left(A), *all_died(B)], None, 0),
        ([*completed(A, B), *all_failed(A), *all_died(A), again(B), *left(B)], None, 1),
        ([*completed(A, B), *all_failed(B), *all_died(B), again(A), *left(A)], None, 0),
        ([*completed(A, B), *failed_in_training(A), *all_died(A), again(B), *left(B)], None, 0),
        ([*completed(A, B), *failed_in_training(A), *all_died(A, B)], None, None),
        ([*completed(B), *left(B)], None, None),
        ([*completed(A, B), *all_died(A, B)], None, None),
        ([*completed(A, B), *all_died(A, B)], 143, 143),
        ([*completed(A), *completed(B, sha256="beef"), *left(A, B)], None, 70),
        (
            [*completed(A), *completed(B, sha256="beef"), *all_failed(A, B), *all_died(A, B)],
            None,
            70,
        ),
        ([*all_failed(A, B), *all_died(A, B)], None, 1),
        ([*all_failed(A, B), *all_died(A, B)], 130, 1),
        ([*all_failed(A), *all_died(A, B)], None, None),
        ([WorkerStopped(A, 7), *left(A), *all_died(B)], 130, 75),
        ([WorkerStopped(A, 7), *all_died(A, B)], 130, 75),
        (left(A, B), None, 1),
        ([*completed(A, B), *all_died(A), again(B), *left(B)], None, 0),
        ([*completed(A, B), *all_died(A), again(B), *all_died(B)], None, None),
        ([*completed(A, B), WorkerStopped(A, 25), *left(A, B)], None, 75),
        ([*left(A), *all_died(B)], None, None),
        (all_died(A, B), 130, 130),
        (all_died(A, B), None, None),
        ([], None, None),
    ],
)
def test_rules_in_their_order(
    events: list[Event], stop_code: int | None, exit_code: int | None
) -> None:
    end = conclude(view_of(*events), stop_code)

    assert (None if end is None else end.exit_code) == exit_code


def test_error_of_the_script_comes_with_its_kind_and_traceback() -> None:
    end = conclude(view_of(*all_failed(A, B), *all_died(A, B)), None)

    assert end is not None
    assert (end.reason, end.traceback) == ("ValueError: no such column", "Traceback")


def seen_by(sights: list[Sight]) -> LaunchView:
    view = LaunchView.of(WORKERS, 1)
    for sight in sights:
        view = view.seeing(sight)
    return view


@given(HISTORIES)
def test_all_that_is_seen_of_a_launch_concerns_it(sights: list[Sight]) -> None:
    view = seen_by(sights)

    assert view.workers == WORKERS
    assert all(view.concerns(sight) for sight in sights)
    saved = [sight.step for sight in sights if isinstance(sight, CheckpointCommitted)]
    newest = list(itertools.accumulate(saved, max))
    assert view.checkpoints == len(set(newest))
    assert view.was_formed is any(isinstance(sight, WorldFormed) for sight in sights)


@given(HISTORIES)
def test_world_is_the_last_of_the_highest_generation(sights: list[Sight]) -> None:
    formed = [sight for sight in sights if isinstance(sight, WorldFormed)]
    highest = max((world.generation for world in formed), default=1)
    newest = [world.workers for world in formed if world.generation == highest]

    assert seen_by(sights).world == (newest[-1] if newest else WORKERS)
    assert seen_by(sights).generation == highest


@given(HISTORIES, SIGHTS)
def test_seeing_something_twice_tells_nothing_new_of_the_end(
    sights: list[Sight], more: Sight
) -> None:
    once = seen_by([*sights, more])

    assert conclude(once.seeing(more), None) == conclude(once, None)


@given(HISTORIES, st.sampled_from([None, 130, 143]))
def test_wish_to_stop_decides_only_what_nothing_else_does(
    sights: list[Sight], stop_code: int | None
) -> None:
    view = seen_by(sights)
    unasked, asked = conclude(view, None), conclude(view, stop_code)

    if unasked is not None:
        assert asked == unasked
    else:
        assert (asked.exit_code if asked else None) == stop_code


@given(HISTORIES)
def test_launch_of_which_nobody_came_to_an_end_may_be_relaunched(sights: list[Sight]) -> None:
    deaths = [
        sight
        for sight in sights
        if not isinstance(sight, (WorkerCompleted, WorkerStopped))
        and not (isinstance(sight, WorkerFailed) and not sight.is_death)
        and not (isinstance(sight, WorkerExited) and sight.is_clean)
    ]

    assert conclude(seen_by(deaths), None) is None


@given(HISTORIES)
def test_different_bytes_of_one_step_are_never_a_success(sights: list[Sight]) -> None:
    told = [
        WorkerCompleted(WORKERS[0], 9, "cafe", is_first=True),
        WorkerCompleted(WORKERS[1], 9, "beef", is_first=False),
    ]

    end = conclude(seen_by([*sights, *told]), None)

    assert end is not None
    assert end.exit_code == 70


def after(seconds: float, situation: Situation, clock: LaunchClock = CLOCK) -> LaunchClock:
    """Look every second for ``seconds``."""
    start = clock.looked_at or 0.0
    for poll in range(int(seconds) + 1):
        clock = clock.observe(ONE, situation, start + poll)
    return clock


@pytest.mark.parametrize(
    ("situation", "limit_s"),
    [
        (Situation.WARMING, 900),
        (Situation.JOINING, 180),
        (Situation.STOPPING, 30),
        (Situation.LEAVING, 120),
        (Situation.ENDING, 120),
    ],
)
def test_situation_is_overdue_after_its_bound_and_not_before(
    situation: Situation, limit_s: int
) -> None:
    assert after(limit_s, situation).overdue is None

    overdue = after(limit_s + 1, situation).overdue

    assert overdue is not None
    assert overdue.reason == f"after {limit_s + 1} s {situation.value}"


def test_time_begins_anew_with_each_situation_and_each_launch() -> None:
    joining = after(20, Situation.JOINING)

    ending = joining.observe(ONE, Situation.ENDING, 21.0)
    next_launch = joining.observe(ANOTHER, Situation.JOINING, 21.0)

    assert (joining.spent_s, ending.spent_s, next_launch.spent_s) == (20.0, 0.0, 0.0)


def test_head_that_was_away_accuses_nobody() -> None:
    clock = after(3, Situation.ENDING)

    clock = clock.observe(ONE, Situation.ENDING, 100_000.0)

    assert clock.spent_s == 8.0
    assert clock.overdue is None


def halted(
    worker: int, step: int | None, *, settled: bool = True, world: int = 1, saved: bool = False
) -> Halted:
    held = None if step is None else Held(step, settled, world)
    return Halted(WorkerId(worker), held, saves=worker, is_saved=saved)


@pytest.mark.parametrize(
    ("workers", "savers", "attempt"),
    [
        ([halted(0, 7), halted(1, 7), halted(2, 7)], (0, 1, 2), 3),
        ([halted(0, 7), halted(1, 8)], (1,), 2),
        ([halted(2, 8), halted(0, 8, settled=False), halted(1, 8)], (1, 2), 3),
        ([halted(0, 8, world=2), halted(1, 8), halted(2, 8, world=2)], (0, 2), 3),
        ([halted(0, None), halted(1, 3)], (1,), 2),
        ([halted(0, 7, saved=True), halted(1, 7, saved=True)], (0, 1), 0),
        ([halted(0, 7, saved=True), halted(1, 8)], (1,), 2),
        ([halted(0, None, saved=True), halted(1, None, saved=True)], (0, 1), 0),
    ],
    ids=[
        "all hold the same",
        "one has applied another step",
        "callbacks are over for some",
        "some have repaired their world already",
        "one gets the state of another",
        "it is saved",
        "only the older state is saved",
        "nobody has trained",
    ],
)
def test_newest_state_is_saved_by_all_that_hold_it(
    workers: list[Halted], savers: tuple[int, ...], attempt: int
) -> None:
    host_of = {one.worker: "a" for one in workers}
    plan = plan_halt(workers, host_of)

    assert plan.attempt == attempt
    assert plan.savers == save_parts(tuple(map(WorkerId, savers)), host_of)


@pytest.mark.parametrize(
    ("workers", "savers", "attempt"),
    [
        ([halted(0, 7), halted(1, 7), halted(2, 7), halted(3, 7)], (0, 1, 2, 3), 4),
        ([halted(0, 7), halted(1, 7), halted(2, 8), halted(3, 8)], (2, 3), 4),
        ([halted(3, 8), halted(1, 8), halted(2, 8)], (1, 2, 3), 4),
        ([halted(1, 7), halted(2, 7, saved=True)], (1, 2), 3),
        ([halted(1, 7, saved=True), halted(2, 7, saved=True)], (1, 2), 0),
    ],
    ids=["all hold the same", "the second is ahead", "one has died", "not by all", "it is saved"],
)
def test_newest_state_that_lies_on_two_hosts_is_saved_by_both(
    workers: list[Halted], savers: tuple[int, ...], attempt: int
) -> None:
    host_of = {WorkerId(worker): "ab"[worker // 2] for worker in range(4)}
    parts = save_parts(tuple(map(WorkerId, savers)), host_of)

    assert plan_halt(workers, host_of) == HaltPlan(parts, attempt)
