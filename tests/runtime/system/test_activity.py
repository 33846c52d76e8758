"""A worker's activities: the time of each adds up."""

from __future__ import annotations

import pytest

from holdfast.runtime.system import activity
from holdfast.runtime.system.activity import Activity
from holdfast.runtime.system.worker_status import Phase, WorkerStatus


class Clock:
    """Time that tests pass."""

    def __init__(self) -> None:
        self.us = 10**13

    def monotonic_ns(self) -> int:
        return 1000 * self.us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(activity, "monotonic_ns", made.monotonic_ns)
    return made


def act(worker: WorkerStatus, clock: Clock, *acts: tuple[Activity, int]) -> None:
    """Spend so many microseconds in each activity, and begin another one at last."""
    for kind, us in acts:
        worker.enter(kind)
        clock.us += us
    worker.enter(Activity.SCRIPT)


def test_time_of_each_activity_adds_up(
    sides: tuple[WorkerStatus, WorkerStatus], clock: Clock
) -> None:
    agent, worker = sides

    act(worker, clock, (Activity.READ, 5), (Activity.COMPUTE, 70), (Activity.READ, 2))

    spent = agent.spent_ns
    assert (spent[Activity.READ], spent[Activity.COMPUTE], sum(spent)) == (7000, 70_000, 77_000)


def test_computing_before_the_first_commit_counts_as_compiling(
    sides: tuple[WorkerStatus, WorkerStatus], clock: Clock
) -> None:
    agent, worker = sides
    worker.phase = Phase.COMPILING

    act(worker, clock, (Activity.COMPUTE, 70))

    assert agent.spent_ns[Activity.COMPILE] == 70_000
