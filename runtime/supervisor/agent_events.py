"""The agent's messages as events of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.recovery.event import (
    CheckpointCommitted,
    Event,
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
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.system.channel import Message

_DEATHS = frozenset({"InjectedFault", "WorldLost"})
"""Errors of a worker that are no mistake of its script: a relaunch may cure them."""


def event_of(message: Message) -> Event | None:
    """Return the job's event for an agent's message, None if the message changes nothing."""
    kind = message.get("kind")
    if kind == "worker_exited":
        worker = WorkerId(message["worker"])
        return WorkerExited(worker, bool(message["clean"]), str(message["cause"]))
    if kind == "renewing":
        return LaunchRenewing(WorkerId(message["worker"]))
    if kind == "launch_ended":
        words = str(message["words"])
        return LaunchEnded(f"mpiexec started no worker: {words}" if words else "")
    if kind != "worker_report":
        return None
    report = message["report"]
    translate = _REPORTS.get(report.get("kind"))
    return None if translate is None else translate(WorkerId(message["worker"]), report)


def _failed(worker: WorkerId, report: Mapping[str, str]) -> WorkerFailed:
    return WorkerFailed(
        worker,
        kind=report["type"],
        message=report["message"],
        traceback=report["traceback"],
        exit_code=ExitCode(int(report["exit_code"])),
        is_death=report["type"] in _DEATHS,
        is_in_training=bool(report.get("is_in_training")),
    )


def _formed(worker: WorkerId, report: Message) -> WorldFormed:
    workers = tuple(WorkerId(member) for member in report["workers"])
    return WorldFormed(report["generation"], workers, report["step"])


_REPORTS: dict[object, Callable[[WorkerId, Message], Event]] = {
    "joined": lambda worker, report: WorkerJoined(worker),
    "world": _formed,
    "checkpoint": lambda worker, report: CheckpointCommitted(worker, report["step"]),
    "error": _failed,
    "complete": lambda worker, report: WorkerCompleted(
        worker, report["step"], report["sha256"], bool(report["is_first"])
    ),
    "stopped": lambda worker, report: WorkerStopped(
        worker, report["step"], str(report.get("words", ""))
    ),
}
