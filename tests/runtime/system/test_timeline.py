"""A worker's activities: sums that are always there, and a ring that outlives the worker."""

from __future__ import annotations

import pytest

from holdfast.runtime.system import timeline
from holdfast.runtime.system.timeline import RING_WORDS, Activity, Change, changes_in
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
    monkeypatch.setattr(timeline, "monotonic_ns", made.monotonic_ns)
    return made


def act(worker: WorkerStatus, clock: Clock, *acts: tuple[Activity, int]) -> None:
    """Spend so many microseconds in each activity, and begin another one at last."""
    for activity, us in acts:
        worker.enter(activity)
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


def test_ring_tells_moments_steps_and_activities_after_the_death_of_its_worker(
    sides: tuple[WorkerStatus, WorkerStatus], clock: Clock
) -> None:
    agent, worker = sides
    ring = agent.ring()
    worker.trace()
    worker.commit(99_999)
    act(worker, clock, (Activity.READ, 5), (Activity.COMPUTE, 70))
    worker.close()

    words, lost = ring.drain()

    at = 10**13
    assert list(changes_in(words, agent.step + 1)) == [
        Change(at, 100_000, Activity.READ),
        Change(at + 5, 100_000, Activity.COMPUTE),
        Change(at + 75, 100_000, Activity.SCRIPT),
    ]
    assert (lost, ring.drain()) == (0, (b"", 0))


def test_ring_that_nobody_reads_keeps_the_newest_and_counts_the_others(
    sides: tuple[WorkerStatus, WorkerStatus], clock: Clock
) -> None:
    agent, worker = sides
    ring = agent.ring()
    worker.trace()
    for _ in range(RING_WORDS):
        act(worker, clock, (Activity.READ, 1))

    words, lost = ring.drain()

    found = list(changes_in(words, 1))
    assert len(found) + lost == 2 * RING_WORDS
    assert len(found) == RING_WORDS - 1, "the worker may be writing one that it has not counted"
    assert [change.at_us for change in found] == sorted(change.at_us for change in found)
    assert found[-1] == Change(clock.us, 1, Activity.SCRIPT)


def test_ring_goes_round_without_a_loss_when_it_is_read(
    sides: tuple[WorkerStatus, WorkerStatus], clock: Clock
) -> None:
    agent, worker = sides
    ring, found = agent.ring(), 0
    worker.trace()
    for _ in range(5):
        for _ in range(RING_WORDS // 3):
            act(worker, clock, (Activity.READ, 1))
        words, lost = ring.drain()
        found += len(words) // 8
        assert lost == 0

    assert found == 5 * 2 * (RING_WORDS // 3)


def test_worker_that_is_not_traced_keeps_no_changes(
    sides: tuple[WorkerStatus, WorkerStatus], clock: Clock
) -> None:
    agent, worker = sides

    act(worker, clock, (Activity.READ, 5))

    assert agent.ring().drain() == (b"", 0)
