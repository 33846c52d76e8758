"""What the agent tells a writer, how long it waits, and what follows if one is lost; no process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from fake_writer import AgentOfFakes
from host_saves import LAUNCH
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.saves import ShareWritten, WorkFailed, WriteShare
from holdfast.runtime.saving.save_messages import PlanSaves, ToWriter, UseMemory
from holdfast.runtime.saving.writer_link import (
    ANSWERED_WITHIN_S,
    KILLED_SETTLES_WITHIN_S,
    SLOWEST_BYTES_PER_S,
)

FILE_BYTES = 500_000_000
FILE_S = FILE_BYTES / SLOWEST_BYTES_PER_S
EVENTS = st.lists(
    st.sampled_from(["work", "serve", "die", "hang", "replace", "refuse", "allow"]), max_size=30
)


class Agent(AgentOfFakes):
    """An agent to whom things happen."""

    worked = 0

    def happen(self, event: str) -> None:
        match event:
            case "work":
                self.worked += 1
                self.write(self.worked)
            case "serve" if self.writer is not None:
                self.writer.serve()
            case "die" if self.writer is not None:
                self.writer.kill()
            case "hang":
                self.link.poll(1e6)
            case "replace":
                self.link.replace("killed")
            case "refuse" | "allow":
                self.is_refused = event == "refuse"
        self.hear()

    @property
    def answered(self) -> list[int]:
        """The attempts that were answered, in order."""
        return [answer.ticket.attempt for answer in self.answers]


@given(EVENTS)
def test_each_work_is_answered_once_and_in_order(events: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(Agent(patch)) as agent:
        for event in events:
            agent.happen(event)
        for event in ("allow", "work", "serve"):
            agent.happen(event)

        assert agent.answered == list(range(1, agent.worked + 1))
        assert isinstance(agent.answers[-1], ShareWritten)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    agent = Agent(monkeypatch)
    agent.link.start()
    yield agent
    agent.close()


def told(agent: Agent) -> list[ToWriter]:
    """Return what the newest writer was told."""
    agent.happen("serve")
    assert agent.writer is not None
    return agent.writer.told


def test_new_writer_is_told_memory_and_plans_and_nothing_that_was_done(agent: Agent) -> None:
    agent.use("one")
    agent.plan("one")
    agent.happen("work")
    before = told(agent)
    agent.use("two")
    agent.plan("two", LAUNCH + 1)
    agent.happen("die")
    agent.happen("work")

    one, two = (PlanSaves(LAUNCH + n, name, "{}", 0, 1) for n, name in enumerate(["one", "two"]))
    memories = [UseMemory(LAUNCH, name) for name in ("one", "two")]
    assert before[:2] == [memories[0], one]
    found = told(agent)
    assert found[:4] == [memories[0], one, memories[1], two]
    assert [work.ticket.attempt for work in found if isinstance(work, WriteShare)] == [2]


def test_new_writer_of_a_host_without_workers_is_told_the_plan_of_the_others(agent: Agent) -> None:
    """It commits the saves of all hosts, and has no memory of its own."""
    for world, hosts in enumerate((3, 2)):
        agent.link.plan(PlanSaves(LAUNCH + world, f"of {hosts} hosts", "{}", 0, hosts))
    agent.happen("die")
    agent.happen("work")

    assert told(agent)[0] == PlanSaves(LAUNCH, "of 2 hosts", "{}", 0, 2), (
        "it is that of both worlds"
    )


def wait(agent: Agent, seconds: float) -> None:
    agent.now += seconds
    agent.link.poll(agent.now)


@pytest.mark.parametrize(
    ("told_bytes", "is_urgent", "seconds"),
    [
        ((), False, ANSWERED_WITHIN_S),  # however large the state is: a relaunch may wait behind it
        ((FILE_BYTES,), False, ANSWERED_WITHIN_S + FILE_S),
        ((FILE_BYTES, 0), False, ANSWERED_WITHIN_S),
        ((FILE_BYTES,), True, KILLED_SETTLES_WITHIN_S),
    ],
    ids=["no file has begun", "a file is written", "nothing is written any more", "no time"],
)
def test_work_is_waited_for_as_long_as_the_file_in_hand_takes(
    agent: Agent, told_bytes: tuple[int, ...], seconds: float, *, is_urgent: bool
) -> None:
    if is_urgent:
        agent.link.hurry()
    agent.happen("work")
    for nbytes in told_bytes:
        agent.progress(nbytes)

    wait(agent, seconds - 1)
    assert agent.answers == []
    wait(agent, 2)

    (answer,) = agent.answers
    assert isinstance(answer, WorkFailed)
    assert "makes no progress: the disk hangs" in answer.reason


def test_wait_begins_anew_with_each_file_and_with_each_read(agent: Agent) -> None:
    agent.happen("work")

    for nbytes in (0, 0, FILE_BYTES, 0, FILE_BYTES):
        agent.progress(nbytes)
        wait(agent, ANSWERED_WITHIN_S - 1)

    assert agent.answers == []


def test_nobody_hurries_once_another_world_saves(agent: Agent) -> None:
    agent.link.hurry()
    agent.plan("one")
    agent.happen("work")

    wait(agent, ANSWERED_WITHIN_S - 1)

    assert agent.answers == []


def test_new_writer_is_not_waited_for_as_long_as_the_file_of_the_one_before(agent: Agent) -> None:
    agent.progress(FILE_BYTES)
    agent.happen("replace")
    agent.happen("work")

    wait(agent, ANSWERED_WITHIN_S + 1)

    assert agent.answered == [1]


def test_writer_that_does_nothing_is_waited_for_no_time(agent: Agent) -> None:
    wait(agent, 1e6)

    assert agent.link.pid is not None
