"""What the agent tells a writer, how long it waits, and what follows if one is lost; no process."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_writer import PARTS, AgentOfFakes
from host_saves import saved_steps
from host_simulation import HostSimulation
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.saving.save_messages import PlanSaves, Settle
from holdfast.runtime.saving.writer_link import (
    ANSWERED_WITHIN_S,
    KILLED_SETTLES_WITHIN_S,
    SLOWEST_BYTES_PER_S,
    FailedSaves,
)

FILE_BYTES = 500_000_000
FILE_S = FILE_BYTES / SLOWEST_BYTES_PER_S
EVENTS = st.lists(st.sampled_from(["serve", "die", "hang", "refuse", "allow"]), max_size=3)
SAVES = st.lists(
    st.tuples(st.permutations(range(PARTS)), st.integers(1, PARTS), EVENTS, EVENTS),
    min_size=1,
    max_size=6,
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostSimulation]:
    """Return a host of two workers and two buffers."""
    with contextlib.closing(HostSimulation(tmp_path, monkeypatch, seed=0)) as host:
        host.launch(workers=2, buffers=2)
        yield host


def test_save_goes_on_with_the_next_writer_from_the_parts_that_were_told(
    host: HostSimulation, tmp_path: Path
) -> None:
    step = host.begin()
    host.deliver_from(0)
    host.link.replace("killed")

    host.deliver_from(1)

    assert saved_steps(tmp_path) == (step,)
    assert set(host.answers.values()) == {1}


def test_complete_save_at_which_a_writer_died_is_committed_though_a_later_one_has_begun(
    host: HostSimulation, tmp_path: Path
) -> None:
    lost = host.begin()
    host.deliver_from(0)
    host.processes[-1].files.dies_in = 5
    host.deliver_from(1)
    assert saved_steps(tmp_path) == ()
    host.begin()
    host.deliver_from(0)

    assert host.settle() == lost

    assert saved_steps(tmp_path) == (lost,)


def test_incomplete_save_of_a_lost_writer_is_answered_by_the_plan_of_the_next_world(
    host: HostSimulation,
) -> None:
    """With one buffer the survivors wait for this answer."""
    host.begin()
    host.deliver_from(0)
    host.link.replace("killed")

    host.lose_a_worker()
    host.deliver_from(0)

    assert set(host.answers.values()) == {1}


def test_late_part_of_a_save_that_was_answered_leaves_nothing_to_wait_for(
    host: HostSimulation,
) -> None:
    """Else the agent would give up a writer that has nothing to do."""
    host.begin()
    host.deliver_from(0)
    host.lose_a_worker(is_heard=True)
    host.deliver_from(0)
    assert set(host.answers.values()) == {1}

    host.deliver_from(1)
    host.link.poll(now=1e6)

    assert host.link.pid is not None
    assert len(host.processes) == 1


class Agent(AgentOfFakes):
    """An agent to whom things happen."""

    def happen(self, event: str) -> None:
        match event:
            case "serve" if self.writer is not None:
                self.writer.serve()
            case "die" if self.writer is not None:
                self.writer.kill()
            case "hang":
                self.link.poll(1e6)
            case "refuse" | "allow":
                self.is_refused = event == "refuse"
        self.hear()

    def settle(self) -> int | None:
        self.link.settle(Settle(is_urgent=False))
        self.happen("serve")
        (step,) = self.settled
        return step


@given(SAVES)
def test_complete_save_is_answered_once_and_the_newest_is_settled(
    saves: list[tuple[list[int], int, list[str], list[str]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        agent = Agent(patch)
        complete = []
        for attempt, (order, count, between, after) in enumerate(saves, 1):
            for place, part in enumerate(order[:count]):
                for event in between if place else ():
                    agent.happen(event)
                agent.copied(attempt, part)
            if count == PARTS:
                complete.append(attempt)
            for event in after:
                agent.happen(event)
        agent.happen("allow")
        agent.happen("serve")

        answered = Counter(answer.ticket.attempt for answer in agent.answers)
        settled = agent.settle()
        before_settle = len(answered)

        assert answered == Counter(complete)
        assert len(Counter(answer.ticket.attempt for answer in agent.answers)) == before_settle
        if complete and complete[-1] >= len(saves) - 1:  # no later one has taken its memory
            assert settled == 10 * complete[-1]
        agent.close()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentOfFakes]:
    agent = AgentOfFakes(monkeypatch)
    agent.link.start()
    yield agent
    agent.close()


def test_host_that_saves_no_more_says_so_to_each_writer_until_another_plan_comes(
    agent: AgentOfFakes,
) -> None:
    def plan(generation: int) -> None:
        fd = os.memfd_create("test", os.MFD_CLOEXEC)
        agent.link.plan(PlanSaves(generation), (fd,))

    agent.link.end_maintenance()  # there is nothing to look after
    plan(1)
    agent.link.end_maintenance()
    agent.link.replace("killed")
    agent.link.start()
    plan(2)

    assert agent.writer is not None
    agent.writer.serve()
    assert agent.writer.plans == [False, True]


def settle(agent: AgentOfFakes, *, is_urgent: bool = False) -> list[int | None]:
    """Ask for a settle, and let the writer begin with it; return what it will have answered."""
    agent.link.settle(Settle(is_urgent))
    return agent.settled


def wait(agent: AgentOfFakes, seconds: float) -> None:
    agent.now += seconds
    agent.link.poll(agent.now)


@pytest.mark.parametrize(
    ("told_bytes", "seconds"),
    [
        ((), ANSWERED_WITHIN_S),  # however large the state is: a relaunch may wait behind it
        ((FILE_BYTES,), ANSWERED_WITHIN_S + FILE_S),
        ((FILE_BYTES, 0), ANSWERED_WITHIN_S),
    ],
    ids=["no file has begun", "a file is written", "nothing is written any more"],
)
def test_settle_is_waited_for_as_long_as_the_file_in_hand_takes(
    agent: AgentOfFakes, told_bytes: tuple[int, ...], seconds: float
) -> None:
    found = settle(agent)
    for nbytes in told_bytes:
        agent.progress(nbytes)

    wait(agent, seconds - 1)
    assert found == []
    wait(agent, 2)

    assert found == [None]


def test_wait_begins_anew_with_each_file_and_with_each_read(agent: AgentOfFakes) -> None:
    found = settle(agent)

    for nbytes in (0, 0, FILE_BYTES, 0, FILE_BYTES):
        agent.progress(nbytes)
        wait(agent, ANSWERED_WITHIN_S - 1)

    assert found == []


def test_new_writer_is_not_waited_for_as_long_as_the_file_of_the_one_before(
    agent: AgentOfFakes,
) -> None:
    agent.progress(FILE_BYTES)
    agent.link.replace("killed")
    agent.link.start()
    found = settle(agent)

    wait(agent, ANSWERED_WITHIN_S + 1)

    assert found == [None]


def test_save_is_given_up_when_its_file_takes_too_long(agent: AgentOfFakes) -> None:
    agent.copied(1, 0)
    agent.copied(1, 1)
    agent.progress(FILE_BYTES)

    wait(agent, ANSWERED_WITHIN_S + FILE_S - 1)
    assert agent.answers == []
    wait(agent, 2)

    assert [answer.is_durable for answer in agent.answers] == [False]


def test_settle_for_whom_does_not_want_to_wait_has_seconds(agent: AgentOfFakes) -> None:
    found = settle(agent, is_urgent=True)
    agent.progress(FILE_BYTES)

    wait(agent, KILLED_SETTLES_WITHIN_S - 1)
    assert found == []
    wait(agent, 2)

    assert found == [None]


def test_reason_is_told_in_full_once_until_there_is_another_or_a_success() -> None:
    failed = FailedSaves()
    full = "cannot allocate /run/.tmp-000000000{0}-g1-a{1}/shard: No space left on device (ENOSPC)"

    told = [failed.sentence(10 * n, full.format(10 * n, n)) for n in (1, 2)]
    told.append(failed.sentence(30, "it is read-only"))
    told += [failed.succeeded(35) or "", failed.succeeded(36) or "nothing"]
    told.append(failed.sentence(40, "it is read-only"))

    assert told == [
        f"the checkpoint of step 10 failed: {full.format(10, 1)}",
        "the checkpoint of step 20 failed for the same reason",
        "the checkpoint of step 30 failed: it is read-only",
        "checkpoints are saved again, from step 35 on",
        "nothing",
        "the checkpoint of step 40 failed: it is read-only",
    ]
