from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.event import WorkInHand
from holdfast.recovery.placement import SavePart
from holdfast.runtime.system.activity import Activity
from holdfast.runtime.system.worker_status import (
    MOST_IDS,
    MOST_PROGRESS_BYTES,
    HaltOrder,
    Phase,
    Pulse,
    RequestFlag,
    StatusChanges,
    WorkerStatus,
    Writer,
    pulse_interval_s,
)


def test_agent_sees_what_the_worker_writes(sides: tuple[WorkerStatus, WorkerStatus]) -> None:
    agent, worker = sides

    worker.beat()
    worker.beat()
    worker.phase = Phase.REPAIRING
    worker.commit(2**63 + 1)
    worker.generation = 3

    assert (agent.counter, agent.phase, agent.step) == (2, Phase.REPAIRING, 2**63 + 1)
    assert agent.generation == 3
    assert agent.phase.label == "repairing"


def test_request_is_pending_until_it_is_answered(
    sides: tuple[WorkerStatus, WorkerStatus],
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


def test_request_is_not_answered_with_one_that_came_before(
    sides: tuple[WorkerStatus, WorkerStatus],
) -> None:
    agent, worker = sides
    agent.ask(RequestFlag.SAVE)
    heard = worker.asked(RequestFlag.SAVE)
    agent.ask(RequestFlag.SAVE)

    worker.answer(RequestFlag.SAVE, heard)

    assert worker.requests == RequestFlag.SAVE


def test_status_cannot_be_cut_under_its_reader(
    sides: tuple[WorkerStatus, WorkerStatus],
) -> None:
    agent, worker = sides

    with pytest.raises(PermissionError):
        os.ftruncate(worker.fd, 0)

    assert agent.counter == 0


def test_pulse_counts_until_it_is_stopped(sides: tuple[WorkerStatus, WorkerStatus]) -> None:
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
    agent = WorkerStatus.create()
    worker = WorkerStatus(os.dup(agent.fd))
    ids = list(range(100, 100 + MOST_IDS + 5))

    worker.begin_work(8, 3, array("q", ids).tobytes(), is_validation=False)
    work = agent.work
    worker.end_work()

    assert work == WorkInHand(8, 3, MOST_IDS + 5, tuple(ids[:MOST_IDS]), is_validation=False)
    assert agent.work is None
    worker.close()
    agent.close()


def test_each_microbatch_is_a_turn_of_its_own(sides: tuple[WorkerStatus, WorkerStatus]) -> None:
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
    sides: tuple[WorkerStatus, WorkerStatus], *, waits_for_peers: bool
) -> None:
    agent, worker = sides
    worker.begin_turn(waits_for_peers=waits_for_peers)

    with worker.needing_no_peer():
        assert agent.turn == (2, False)

    assert agent.turn == (3, waits_for_peers)


def test_progress_is_read_as_it_was_told(sides: tuple[WorkerStatus, WorkerStatus]) -> None:
    agent, worker = sides
    assert agent.progress == b""

    worker.tell_progress(b"x" * MOST_PROGRESS_BYTES)
    worker.tell_progress(b"step 7")

    assert agent.progress == b"step 7"
    assert worker.work is None
    with pytest.raises(ValueError, match="fit"):
        worker.tell_progress(bytes(MOST_PROGRESS_BYTES + 1))
    assert agent.progress == b"step 7"


def _by_worker() -> st.SearchStrategy[Callable[[WorkerStatus], None]]:
    """One thing that a worker may write."""
    number = st.integers(0, 2**63)
    return st.one_of(
        st.just(WorkerStatus.beat),
        number.map(lambda step: lambda status: status.commit(step)),
        st.sampled_from(Phase).map(lambda phase: lambda status: setattr(status, "phase", phase)),
        st.booleans().map(lambda waits: lambda status: status.begin_turn(waits_for_peers=waits)),
        # No worker tells an empty one: that is how it reads while it is being rewritten.
        st.binary(min_size=1, max_size=9).map(
            lambda content: lambda status: status.tell_progress(content)
        ),
        st.sampled_from([RequestFlag.SAVE, RequestFlag.STOP]).map(
            lambda what: lambda status: status.answer(what, status.asked(what))
        ),
        st.just(lambda status: status.begin_work(3, 1, bytes(16), is_validation=True)),
        st.sampled_from(Activity).map(lambda activity: lambda status: status.enter(activity)),
    )


def _by_agent() -> st.SearchStrategy[Callable[[WorkerStatus], None]]:
    """One thing that an agent may write."""
    number = st.integers(0, 2**63)
    return st.one_of(
        st.sampled_from([RequestFlag.SAVE, RequestFlag.STOP]).map(
            lambda what: lambda status: status.ask(what)
        ),
        st.just(lambda status: setattr(status, "is_halt_asked", True)),
        st.builds(HaltOrder, number, st.builds(SavePart, number, number, number, number)).map(
            lambda order: lambda status: status.order_halted(order)
        ),
        st.tuples(number, st.booleans()).map(
            lambda save: lambda status: status.answer_save(save[0], is_durable=save[1])
        ),
    )


def _told(status: WorkerStatus) -> tuple[object, ...]:
    """What both sides of a status can see of it, but the work in hand."""
    return (
        *(status.counter, status.phase, status.step, status.commits, status.generation),
        *(status.turn, status.progress, status.requests, status.is_halt_asked),
        *(status.halt_orders, status.halt_order, status.failed_save, status.durable_save),
        *(status.asked(RequestFlag.SAVE), status.asked(RequestFlag.STOP), status.spent_ns),
    )


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("worker"), _by_worker()),
            st.tuples(st.just("agent"), _by_agent()),
            st.tuples(st.just("copy"), st.none()),
        ),
        max_size=20,
    )
)
def test_mirror_is_equal_after_both_ways_were_copied(
    acts: list[tuple[str, Callable[[WorkerStatus], None] | None]],
) -> None:
    """The worker writes on its host, the agent that decides writes into the mirror."""
    real, mirror = WorkerStatus.create(), WorkerStatus.mirror()
    up, down = StatusChanges(real, Writer.WORKER), StatusChanges(mirror, Writer.AGENT)

    def copy() -> None:
        mirror.take(json.loads(json.dumps(up.look())), Writer.WORKER)
        real.take(json.loads(json.dumps(down.look())), Writer.AGENT)

    for who, act in acts:
        if act is None:
            copy()
        else:
            act(real if who == "worker" else mirror)
    copy()

    assert _told(mirror) == _told(real)
    assert (up.look(), down.look()) == ({}, {})
    assert mirror.work is None, "the samples stay on the worker's host"
    real.close()
    mirror.close()


def test_progress_that_is_being_rewritten_comes_with_a_later_look(
    sides: tuple[WorkerStatus, WorkerStatus],
) -> None:
    agent, worker = sides
    changes = StatusChanges(agent, Writer.WORKER)
    worker.tell_progress(b"step 7")
    worker._progress_version += 1
    assert "progress" not in changes.look()

    worker._progress_version += 1

    assert changes.look() == {"progress": "step 7"}


def test_what_each_step_changes_waits_for_a_look_that_wants_it_and_goes_with_what_does_not_wait(
    sides: tuple[WorkerStatus, WorkerStatus],
) -> None:
    agent, worker = sides
    changes = StatusChanges(agent, Writer.WORKER)
    worker.beat()
    worker.commit(7)
    assert changes.look(with_steady=False) == {}

    worker.phase = Phase.SAVING
    steps = {"counter": 1, "step": 7, "commits": 1}
    assert changes.look(with_steady=False) == steps | {"phase": Phase.SAVING}

    worker.commit(8)
    assert changes.look(with_steady=False) == {}
    assert changes.look() == {"step": 8, "commits": 2}


def test_mirror_tells_of_wishes_of_the_agent_alone() -> None:
    wishes: list[str] = []
    mirror = WorkerStatus.mirror(lambda: wishes.append("wish"))
    mirror.take({"counter": 3, "step": 41, "progress": "step 41"}, Writer.WORKER)
    assert wishes == []

    mirror.ask(RequestFlag.SAVE)
    mirror.is_halt_asked = True

    assert wishes == ["wish", "wish"]
    mirror.close()
