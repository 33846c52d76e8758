"""Workers copy their shares into the memory of their agent, and hear the outcome by their page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from agents import Host
from host_saves import STEP, plan_of, request_of, saved_steps, state_of
from host_writer import RunningWriter

from holdfast.checkpoint.errors import CheckpointError
from holdfast.runtime.saving import agent_saver
from holdfast.runtime.saving.agent_saver import SnapshotNotWritten
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.system import witnessed_time
from holdfast.runtime.system.codec import decode


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_what_all_workers_copy_and_tell_becomes_a_checkpoint(
    host: Host, tmp_path: Path, writer: RunningWriter, buffers: int, parts: int
) -> None:
    host.buffers = buffers
    agents = [host.agent() for _ in range(parts)]
    for part, agent in enumerate(agents):
        agent.way.prepare(host.plan, part, parts, generation=1)
    for attempt in (1, 2, 3):
        for part, agent in enumerate(agents):
            agent.save(10 * attempt, attempt, (part, parts))
        if attempt == 1:
            writer.use(host.memories[host.plan.layout_id])
        writer.tell(*(agent.copied[-1] for agent in reversed(agents)))
        assert writer.answer().is_durable
        for agent in agents:
            agent.page.answer_save(attempt, is_durable=True)

    assert saved_steps(tmp_path) == (30, 20, 10)
    assert [part.content is not None for part in agents[0].copied] == [True] * 3
    assert [part.content for agent in agents[1:] for part in agent.copied] == [None] * 3 * (
        parts - 1
    )


def test_first_worker_tells_the_plan_of_each_world_before_its_saves(host: Host) -> None:
    first, second = host.agent(), host.agent()
    for world in (1, 2):
        first.way.prepare(host.plan, 0, 2, generation=1)
        second.way.prepare(host.plan, 1, 2, generation=1)
        first.save(STEP, world, (0, 2))
        second.save(STEP, world, (1, 2))

    assert [len(agent.plans) for agent in (first, second)] == [2, 0]
    assert [len(agent.copied) for agent in (first, second)] == [2, 2]
    content = first.plans[0]
    assert content is not None
    assert decode(SavePlan, content) == host.plan


def test_memory_is_asked_for_once_a_layout(host: Host, tmp_path: Path) -> None:
    """A world after a death has the same one; a stage of another model has its own."""
    agent = host.agent()
    agent.way.prepare(host.plan, 1, 3, generation=1)
    agent.save(10, 1, (1, 3))
    agent.way.prepare(host.plan, 0, 2, generation=1)
    agent.save(20, 2, (0, 2))
    assert len(agent.asked) == 1

    host.plan = plan_of(tmp_path, shards=3)
    agent.way.prepare(host.plan, 0, 2, generation=1)
    agent.page.answer_save(2, is_durable=True)
    agent.save(30, 3, (0, 2))

    assert [question.layout for question in agent.asked] == [
        plan_of(tmp_path).layout_id,
        host.plan.layout_id,
    ]
    assert agent.copied[-1].message.ticket.layout == host.plan.layout_id


class Clock:
    """The clock of the module; what happens while it sleeps is the test's."""

    def __init__(self, patch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        self.now = 1000.0
        self.slept = 0
        self._then = then
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        for module in (agent_saver, witnessed_time):
            patch.setattr(module, "time", clock)

    def _sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += 1.0
        self._then()


@pytest.mark.parametrize(("buffers", "waits_for"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("is_durable", [False, True])
def test_save_in_writing_is_never_written_over(
    host: Host, monkeypatch: pytest.MonkeyPatch, buffers: int, waits_for: int, *, is_durable: bool
) -> None:
    """The disk is slow: the third save waits for the answer to the one in its buffer."""
    host.buffers = buffers
    agent = host.agent()
    agent.way.prepare(host.plan, 0, 1, generation=1)
    agent.save(1, 1)
    if buffers == 1:
        agent.page.answer_save(1, is_durable=True)
    agent.save(2, 2)
    buffer = host.views[3 % buffers]
    before = bytes(buffer)

    def answer() -> None:
        assert bytes(buffer) == before
        agent.page.answer_save(waits_for, is_durable=is_durable)

    clock = Clock(monkeypatch, answer)
    agent.save(3, 3)

    assert clock.slept == 1
    assert bytes(buffer) != before


def test_save_that_is_never_answered_keeps_its_memory_and_is_waited_for_within_a_bound(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = host.agent()
    agent.way.prepare(host.plan, 0, 1, generation=1)
    agent.save(1, 1)
    clock = Clock(monkeypatch, lambda: None)

    with pytest.raises(CheckpointError, match="after 60 s, for an earlier save"):
        agent.save(3, 3)

    assert clock.slept > 0
    assert [part.message.ticket.attempt for part in agent.copied] == [1]


@pytest.mark.parametrize("is_durable", [True, False])
def test_save_is_done_when_the_page_says_so(
    host: Host, monkeypatch: pytest.MonkeyPatch, *, is_durable: bool
) -> None:
    agent = host.agent()
    agent.way.prepare(host.plan, 0, 1, generation=1)
    save = agent.save(STEP, 1)
    assert not save.is_done
    clock = Clock(monkeypatch, lambda: agent.page.answer_save(1, is_durable=is_durable))

    save.wait(3600.0)

    assert (clock.slept, save.is_done) == (1, True)
    for _ in range(2):
        assert (save.failure is None) == is_durable
        assert is_durable or isinstance(save.failure, SnapshotNotWritten)
        agent.page.answer_save(2, is_durable=True)  # another one


def test_save_that_was_not_told_is_not_waited_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is incomplete, so no process reads its memory, and nobody may ever answer it."""
    host.buffers = 1
    agent = host.agent()
    agent.way.prepare(host.plan, 0, 1, generation=1)
    agent.save(1, 1)
    agent.page.answer_save(1, is_durable=True)
    agent.lacks = 1
    assert isinstance(agent.save(2, 2).failure, OSError)
    clock = Clock(monkeypatch, lambda: None)

    assert agent.save(3, 3).failure is None

    assert clock.slept == 0
    assert [part.message.ticket.attempt for part in agent.copied] == [1, 3]


@pytest.mark.parametrize("lacks", [1, 2], ids=["no memory", "no memory twice"])
def test_worker_without_its_memory_asks_again_at_the_next_save(host: Host, lacks: int) -> None:
    agent = host.agent()
    agent.lacks = lacks
    agent.way.prepare(host.plan, 0, 1, generation=1)

    for attempt in range(1, 1 + lacks):
        with pytest.raises(OSError, match="Too many open files"):
            agent.save(attempt, attempt)

    assert agent.save(10, 1 + lacks).failure is None
    assert (len(agent.plans), len(agent.copied)) == (1, 1)


def test_without_memory_the_first_worker_writes_the_state_itself(
    host: Host, tmp_path: Path
) -> None:
    host.buffers = 0
    agents = [host.agent(), host.agent()]
    for part, agent in enumerate(agents):
        agent.way.prepare(host.plan, part, 2, generation=1)

    for attempt in (1, 2):
        saves = [agent.save(10 * attempt, attempt, (part, 2)) for part, agent in enumerate(agents)]
        assert [(save.is_done, save.failure) for save in saves] == [(True, None)] * 2

    assert saved_steps(tmp_path) == (20, 10)
    assert [agent.copied for agent in agents] == [[], []]
    plans = [agent.plans for agent in agents]
    assert plans == [[], []], "the writer cares for no steps beside the first worker"


def test_without_memory_nothing_is_written_before_the_states_are_compared(
    host: Host, tmp_path: Path
) -> None:
    host.buffers = 0
    agent = host.agent()
    agent.way.prepare(host.plan, 0, 1, generation=1)
    state = state_of(STEP)

    save = agent.way.begin(request_of(STEP, 1), state)
    save.hand_over(state, "00")

    assert (save.is_done, saved_steps(tmp_path)) == (False, ())
    save.compared()
    assert (save.is_done, saved_steps(tmp_path)) == (True, (STEP,))
