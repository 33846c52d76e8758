from __future__ import annotations

import os
from array import array
from collections.abc import Iterator

import pytest

from holdfast.runtime.system.heartbeat import (
    MOST_IDS,
    MOST_PROGRESS_BYTES,
    HeartbeatPage,
    Phase,
    Pulse,
    RequestFlag,
    WorkInHand,
    pulse_interval_s,
)


@pytest.fixture
def sides() -> Iterator[tuple[HeartbeatPage, HeartbeatPage]]:
    """One page as its agent and as its worker sees it."""
    agent = HeartbeatPage.create()
    worker = HeartbeatPage(os.dup(agent.fd))
    yield agent, worker
    agent.close()
    worker.close()


def test_fresh_page_says_that_the_worker_starts(
    sides: tuple[HeartbeatPage, HeartbeatPage],
) -> None:
    agent, _ = sides

    assert (agent.counter, agent.phase, agent.step, agent.generation) == (0, Phase.STARTING, 0, 0)
    assert agent.requests == RequestFlag.NONE


def test_agent_sees_what_the_worker_writes(sides: tuple[HeartbeatPage, HeartbeatPage]) -> None:
    agent, worker = sides

    worker.beat()
    worker.beat()
    worker.phase = Phase.REPAIRING
    worker.commit(2**63 + 1)
    worker.generation = 3

    assert (agent.counter, agent.phase, agent.step) == (2, Phase.REPAIRING, 2**63 + 1)
    assert agent.generation == 3
    assert agent.phase.label == "repairing"


def test_page_outlives_its_worker(sides: tuple[HeartbeatPage, HeartbeatPage]) -> None:
    agent, worker = sides
    worker.commit(7)

    worker.close()
    worker.close()

    assert agent.step == 7


def test_request_is_pending_until_it_is_answered(
    sides: tuple[HeartbeatPage, HeartbeatPage],
) -> None:
    agent, worker = sides
    agent.ask(RequestFlag.SAVE)
    agent.ask(RequestFlag.SAVE)
    agent.ask(RequestFlag.STOP)
    assert worker.requests == RequestFlag.SAVE | RequestFlag.STOP

    worker.answer(RequestFlag.SAVE, 2)
    worker.answer(RequestFlag.SAVE, 2)

    assert worker.requests == RequestFlag.STOP
    assert agent.requests == RequestFlag.STOP


def test_request_can_be_made_again(sides: tuple[HeartbeatPage, HeartbeatPage]) -> None:
    agent, worker = sides
    for count in (1, 2, 3):
        agent.ask(RequestFlag.SAVE)
        assert worker.requests == RequestFlag.SAVE
        assert worker.asked(RequestFlag.SAVE) == count
        worker.answer(RequestFlag.SAVE, count)
        assert not worker.requests


def test_request_is_not_answered_with_one_that_came_before(
    sides: tuple[HeartbeatPage, HeartbeatPage],
) -> None:
    agent, worker = sides
    agent.ask(RequestFlag.SAVE)
    heard = worker.asked(RequestFlag.SAVE)
    agent.ask(RequestFlag.SAVE)

    worker.answer(RequestFlag.SAVE, heard)

    assert worker.requests == RequestFlag.SAVE


def test_page_cannot_be_cut_under_its_reader(
    sides: tuple[HeartbeatPage, HeartbeatPage],
) -> None:
    agent, worker = sides

    with pytest.raises(PermissionError):
        os.ftruncate(worker.fd, 0)

    assert agent.counter == 0


def test_pulse_counts_until_it_is_stopped(sides: tuple[HeartbeatPage, HeartbeatPage]) -> None:
    agent, worker = sides
    pulse = Pulse(worker, 0.001)

    pulse.start()
    while agent.counter < 5:
        os.sched_yield()
    pulse.stop()

    at_stop = agent.counter
    worker.beat()
    assert agent.counter == at_stop + 1


@pytest.mark.parametrize(
    ("timeout_s", "interval_s"), [(0.1, 0.02), (1.0, 0.1), (5.0, 0.5), (60.0, 0.5)]
)
def test_pulse_beats_ten_times_within_the_timeout(timeout_s: float, interval_s: float) -> None:
    assert pulse_interval_s(timeout_s) == pytest.approx(interval_s)


def test_work_in_hand_is_seen_by_the_agent_until_it_is_done() -> None:
    agent = HeartbeatPage.create()
    worker = HeartbeatPage(os.dup(agent.fd))
    ids = list(range(100, 100 + MOST_IDS + 5))

    worker.begin_work(8, 3, array("q", ids).tobytes(), is_validation=False)
    work = agent.work
    worker.end_work()

    assert work == WorkInHand(8, 3, MOST_IDS + 5, tuple(ids[:MOST_IDS]), is_validation=False)
    assert agent.work is None
    worker.close()
    agent.close()


def test_commits_are_counted_and_a_resumed_step_is_none() -> None:
    page = HeartbeatPage.create()

    page.resume(40)
    page.commit(41)
    page.commit(41)

    assert (page.step, page.commits) == (41, 2)
    page.close()


def test_each_microbatch_is_a_turn_of_its_own(sides: tuple[HeartbeatPage, HeartbeatPage]) -> None:
    agent, worker = sides
    worker.begin_turn(waits_for_peers=True)
    turns = [agent.turn]

    for microbatch in range(3):
        worker.begin_work(20, microbatch, array("q", [1]).tobytes(), is_validation=True)
        turns.append(agent.turn)
        worker.end_work()

    assert turns == [(1, True), (2, False), (3, False), (4, False)]


@pytest.mark.parametrize("waits_for_peers", [True, False])
def test_work_that_needs_no_peer_interrupts_a_wait(
    sides: tuple[HeartbeatPage, HeartbeatPage], *, waits_for_peers: bool
) -> None:
    agent, worker = sides
    worker.begin_turn(waits_for_peers=waits_for_peers)

    with worker.needing_no_peer():
        assert agent.turn == (2, False)

    assert agent.turn == (3, waits_for_peers)


def test_progress_is_read_as_it_was_told(sides: tuple[HeartbeatPage, HeartbeatPage]) -> None:
    agent, worker = sides
    assert agent.progress == b""

    worker.tell_progress(b"x" * MOST_PROGRESS_BYTES)
    worker.tell_progress(b"step 7")

    assert agent.progress == b"step 7"
    assert worker.work is None
    with pytest.raises(ValueError, match="fit"):
        worker.tell_progress(bytes(MOST_PROGRESS_BYTES + 1))
    assert agent.progress == b"step 7"


def test_progress_that_is_being_rewritten_is_not_read(
    sides: tuple[HeartbeatPage, HeartbeatPage],
) -> None:
    """The writer has died, or is stopped, in the middle: its version is odd."""
    agent, worker = sides
    worker.tell_progress(b"step 7")

    memoryview(worker._map).cast("Q")[10] += 1

    assert agent.progress == b""
