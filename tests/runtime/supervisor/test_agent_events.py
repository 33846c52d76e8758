"""What an agent's message means for the job."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.recovery.event import (
    CheckpointCommitted,
    Event,
    ExitCode,
    LaunchEnded,
    LaunchRenewing,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.supervisor.supervisor import event_of

WORKER = WorkerId(3)
ERROR = {"kind": "error", "message": "m", "traceback": "t", "exit_code": 1}


def report(**fields: Any) -> dict[str, Any]:
    return {"kind": "worker_report", "worker": 3, "report": fields}


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (report(kind="joined"), WorkerJoined(WORKER)),
        (
            report(kind="world", generation=2, workers=[1, 3], step=5),
            WorldFormed(2, (WorkerId(1), WORKER), 5),
        ),
        (report(kind="checkpoint", step=5), CheckpointCommitted(WORKER, 5)),
        (
            report(kind="complete", step=9, sha256="cafe", is_first=True),
            WorkerCompleted(WORKER, 9, "cafe", is_first=True),
        ),
        (report(kind="stopped", step=7), WorkerStopped(WORKER, 7)),
        (
            {"kind": "worker_exited", "worker": 3, "clean": True, "cause": "exit 0"},
            WorkerExited(WORKER, is_clean=True, cause="exit 0"),
        ),
        (
            {"kind": "worker_exited", "worker": 3, "clean": False, "cause": "guard lost"},
            WorkerExited(WORKER, is_clean=False, cause="guard lost"),
        ),
    ],
)
def test_message_becomes_an_event(message: dict[str, Any], event: Event) -> None:
    assert event_of(message) == event


@pytest.mark.parametrize(
    ("error", "is_death"),
    [("ValueError", False), ("KeyError", False), ("InjectedFault", True), ("WorldLost", True)],
)
def test_only_what_a_relaunch_may_mend_is_a_death(error: str, *, is_death: bool) -> None:
    event = event_of(report(**ERROR, type=error))

    assert event == WorkerFailed(WORKER, error, "m", "t", 1, is_death)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"kind": "warm", "pid": 1},
        {"kind": "worker_started", "worker": 3},
        {"kind": "worker_fenced", "worker": 3},
        report(kind="notice", text="disk full"),
        report(),
    ],
)
def test_message_that_changes_nothing_is_no_event(message: dict[str, Any]) -> None:
    assert event_of(message) is None


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"kind": "renewing", "worker": 3}, LaunchRenewing(WORKER)),
        ({"kind": "launch_ended", "words": ""}, LaunchEnded()),
        (
            {"kind": "launch_ended", "words": "no slots"},
            LaunchEnded("mpiexec started no worker: no slots"),
        ),
    ],
    ids=["renewing", "ended", "never begun"],
)
def test_word_on_the_whole_launch_becomes_an_event(message: dict[str, Any], event: Event) -> None:
    assert event_of(message) == event


@pytest.mark.parametrize(("fields", "is_in_training"), [({}, False), ({"is_in_training": 1}, True)])
def test_error_says_whether_it_has_ended_a_training(
    fields: dict[str, Any], *, is_in_training: bool
) -> None:
    event = event_of(report(**ERROR, type="ValueError", **fields))

    assert isinstance(event, WorkerFailed)
    assert event.is_in_training is is_in_training
    assert event.exit_code is ExitCode.PROGRAM_FAILED
