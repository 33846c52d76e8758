from __future__ import annotations

from holdfast.recovery.event import (
    CheckpointCommitted,
    LaunchEnded,
    StopAsked,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorldFormed,
)
from holdfast.recovery.launch import LaunchView
from holdfast.recovery.world import WorkerId

A, B, C = (WorkerId(number) for number in (3, 4, 5))
FRESH = LaunchView.of((A, B, C), 7)


def died(worker: WorkerId, cause: str = "signal SIGKILL") -> WorkerExited:
    return WorkerExited(worker, is_clean=False, cause=cause)


def failed(worker: WorkerId, kind: str = "ValueError", *, is_death: bool = False) -> WorkerFailed:
    return WorkerFailed(worker, kind, "first line\nsecond line", "Traceback", 1, is_death)


def test_launch_is_up_when_the_last_has_joined() -> None:
    two = FRESH.seeing(WorkerJoined(A)).seeing(WorkerJoined(C)).seeing(WorkerJoined(A))

    assert not two.is_up
    assert two.seeing(WorkerJoined(B)).is_up


def test_seeing_leaves_the_old_view_alone() -> None:
    FRESH.seeing(died(A)).seeing(WorldFormed(8, (B, C), 3))

    assert LaunchView.of((A, B, C), 7) == FRESH


def test_newest_world_counts_in_whatever_order_worlds_are_reported() -> None:
    view = FRESH.seeing(WorldFormed(9, (B,), 4)).seeing(WorldFormed(8, (B, C), 3))

    assert (view.generation, view.world) == (9, (B,))


def test_only_events_of_its_own_workers_concern_a_launch() -> None:
    stranger = WorkerId(2)

    assert not FRESH.concerns(died(stranger))
    assert not FRESH.concerns(CheckpointCommitted(stranger, 3))
    assert not FRESH.concerns(WorldFormed(6, (stranger, A), 3))
    assert FRESH.concerns(WorldFormed(8, (A, C), 3))
    assert FRESH.concerns(died(A))
    assert FRESH.concerns(LaunchEnded())
    assert FRESH.concerns(StopAsked(130))


def test_causes_are_those_of_the_newest_world() -> None:
    view = FRESH.seeing(WorldFormed(8, (B, C), 3))
    for event in (died(A), died(C, "exit 1"), died(B)):
        view = view.seeing(event)

    assert view.causes == "worker 4: signal SIGKILL, worker 5: exit 1"


def test_first_cause_stands_before_deaths_that_only_followed() -> None:
    view = FRESH
    for event in (died(C, "exit 1"), died(A, "killed by the supervisor; process 7 does not end")):
        view = view.seeing(event)

    assert view.causes.startswith("worker 5: exit 1, worker 3: killed by the supervisor")


def test_cause_is_what_a_worker_said_of_itself_in_one_line() -> None:
    view = FRESH.seeing(failed(A)).seeing(died(A, "exit 1"))

    assert view.causes == "worker 3: ValueError: first line"


def test_causes_of_a_launch_that_started_nobody() -> None:
    assert FRESH.causes == "no worker started"


def test_causes_of_a_launch_in_which_nobody_died() -> None:
    assert FRESH.seeing(WorkerExited(A, is_clean=True, cause="exit 0")).causes == "no worker died"


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


def test_before_any_world_those_that_failed_speak_for_all() -> None:
    view = FRESH.seeing(failed(B))

    assert view.common_failure == failed(B)
    assert view.seeing(WorldFormed(7, (A, B, C), 0)).common_failure is None


def test_before_any_world_two_kinds_of_error_are_no_common_failure() -> None:
    assert FRESH.seeing(failed(A)).seeing(failed(B, "OSError")).common_failure is None


def test_a_death_is_no_common_failure() -> None:
    view = FRESH.seeing(WorldFormed(8, (A,), 3)).seeing(failed(A, "WorldLost", is_death=True))

    assert view.common_failure is None
    assert FRESH.common_failure is None
