"""Workers copy their shares into the memory of their agent, and hear the outcome by their page."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from agents import Host
from host_saves import LAUNCH, RUN, STEP, cursor_of, plan_of, request_of, saved_steps, state_of
from host_writer import Head, RunningWriter
from whole_save import stage

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.placement import WHOLE_SAVE, SavePart
from holdfast.recovery.saves import PartHeld, ShareWritten, WorkFailed
from holdfast.runtime.saving import agent_saver
from holdfast.runtime.saving.agent_saver import (
    PendingSave,
    SnapshotNotWritten,
    images_in_memory,
)
from holdfast.runtime.saving.save_messages import PlanSaves
from holdfast.runtime.system import witnessed_time
from holdfast.runtime.system.codec import encode


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
    host.buffers, head = buffers, Head(writer)
    agents = [host.agent() for _ in range(parts)]
    places = [SavePart(part=part, parts=parts) for part in range(parts)]
    for agent, part in zip(agents, places, strict=True):
        agent.way.prepare(host.plan, part, generation=LAUNCH)
    for attempt in (1, 2, 3):
        for agent, part in zip(agents, places, strict=True):
            agent.save(10 * attempt, attempt, part)
        if attempt == 1:
            writer.use(host.memory.kept[-1])
        head.hear(host.held[-1])
        for agent in agents:
            agent.page.answer_save(attempt, is_durable=head.answers[-1].is_durable)

    assert saved_steps(tmp_path) == (30, 20, 10)
    assert [copied.cursor for copied in agents[0].copied] == [cursor_of(n) for n in (10, 20, 30)]
    assert {copied.cursor for agent in agents[1:] for copied in agent.copied} <= {None}


def test_first_worker_of_a_host_tells_the_plan_of_each_world_before_its_saves(host: Host) -> None:
    agents = [host.agent(), host.agent()]
    for world in (1, 2):
        for part, agent in enumerate(agents):
            place = SavePart(host=1, hosts=3, part=part, parts=2)
            agent.way.prepare(host.plan, place, generation=LAUNCH + world)
            agent.save(STEP, world, place)

    first, second = agents
    plan = encode(host.plan).decode()
    layout = host.plan.layout_id(1, 3)
    assert first.plans == [PlanSaves(LAUNCH + world, layout, plan, 1, 3) for world in (1, 2)]
    assert second.plans == []
    assert [len(agent.copied) for agent in agents] == [2, 2]


def test_memory_is_asked_for_once_a_layout(host: Host, tmp_path: Path) -> None:
    """A world of as many hosts has the same one; a stage of another model has its own."""
    agent = host.agent()
    for attempt, part in enumerate([SavePart(part=1, parts=3), SavePart(part=0, parts=2)], 1):
        agent.way.prepare(host.plan, part, generation=LAUNCH)
        agent.save(10 * attempt, attempt, part)
    assert len(agent.asked) == 1

    other = plan_of(tmp_path, shards=3)
    agent.page.answer_save(2, is_durable=True)
    agent.way.prepare(other, WHOLE_SAVE, generation=LAUNCH)
    agent.save(30, 3)
    agent.page.answer_save(3, is_durable=True)
    shrunk = SavePart(host=1, hosts=2)
    agent.way.prepare(other, shrunk, generation=LAUNCH)
    agent.save(40, 4, shrunk)

    names = [host.plan.layout_id(0, 1), other.layout_id(0, 1), other.layout_id(1, 2)]
    assert [question.layout for question in agent.asked] == names


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
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)
    agent.save(1, 1)
    if buffers == 1:
        agent.page.answer_save(1, is_durable=True)
    agent.save(2, 2)
    before = host.view(3)

    def answer() -> None:
        assert host.view(3) == before
        agent.page.answer_save(waits_for, is_durable=is_durable)

    clock = Clock(monkeypatch, answer)
    agent.save(3, 3)

    assert clock.slept == 1
    assert host.view(3) != before


def test_save_that_is_never_answered_keeps_its_memory_and_is_waited_for_within_a_bound(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = host.agent()
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)
    agent.save(1, 1)
    clock = Clock(monkeypatch, lambda: None)

    with pytest.raises(CheckpointError, match="after 60 s, for an earlier save"):
        agent.save(3, 3)

    assert clock.slept > 0
    assert [copied.ticket.attempt for copied in agent.copied] == [1]


@pytest.mark.parametrize("is_durable", [True, False])
def test_save_is_done_when_the_page_says_so(
    host: Host, monkeypatch: pytest.MonkeyPatch, *, is_durable: bool
) -> None:
    agent = host.agent()
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)
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
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)
    agent.save(1, 1)
    agent.page.answer_save(1, is_durable=True)
    agent.lacks = 1
    assert isinstance(agent.save(2, 2).failure, OSError)
    clock = Clock(monkeypatch, lambda: None)

    assert agent.save(3, 3).failure is None

    assert clock.slept == 0
    assert [copied.ticket.attempt for copied in agent.copied] == [1, 3]


@pytest.mark.parametrize("lacks", [1, 2], ids=["no memory", "no memory twice"])
def test_worker_without_its_memory_asks_again_at_the_next_save(host: Host, lacks: int) -> None:
    agent = host.agent()
    agent.lacks = lacks
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)

    for attempt in range(1, 1 + lacks):
        with pytest.raises(OSError, match="Too many open files"):
            agent.save(attempt, attempt)

    assert agent.save(10, 1 + lacks).failure is None
    assert (len(agent.plans), len(agent.copied)) == (1, 1)


@pytest.mark.parametrize("without", [{0}, {1}, {0, 1}])
def test_without_memory_the_first_worker_of_a_host_writes_its_share_of_the_state(
    tmp_path: Path, without: set[int]
) -> None:
    hosts = [Host(tmp_path), Host(tmp_path)]
    writers = [RunningWriter(), RunningWriter(commits=False)]
    head = Head(*writers)
    saves: list[PendingSave] = []
    for attempt in (1, 2):
        for number, host in enumerate(hosts):
            host.buffers = 0 if number in without else 2
            for part in range(2):
                place, agent = SavePart(number, 2, part, 2), host.agent()
                agent.way.prepare(host.plan, place, generation=LAUNCH)
                saves.append(agent.save(10 * attempt, attempt, place))
            writers[number].use(host.memory.kept[-1])
        for host in hosts:
            while host.told:
                head.hear(host.told.pop(0))
        assert head.answers[-1].is_durable

    assert saved_steps(tmp_path) == (20, 10)
    assert not any(save.is_done for save in saves), "their pages have the last word"
    assert [host.copied == 0 for host in hosts] == [number in without for number in range(2)]
    for one in (*hosts, *writers):
        one.close()


def test_without_memory_nothing_is_written_before_the_states_are_compared(
    host: Host, tmp_path: Path
) -> None:
    host.buffers = 0
    agent = host.agent()
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)
    state = state_of(STEP)

    save = agent.way.begin(request_of(STEP, 1), state)
    save.hand_over(state, "00" * 16)

    assert (host.told, list(tmp_path.glob("checkpoints/*"))) == ([], [])
    save.compared()
    assert [type(told) for told in host.told] == [PartHeld, ShareWritten]


def test_step_is_read_from_memory_only_if_the_memory_holds_its_layout(
    host: Host, tmp_path: Path
) -> None:
    """Another model of the same script may have saved a step of that number."""
    agent = host.agent()
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)
    agent.save(STEP, 1)
    header, shards = Header(RUN, LAUNCH, STEP), host.plan.layout.writers
    states = {"held": state_of(STEP), "other": {"a": np.zeros(10**6)}}
    held, other = (
        stage(CheckpointStore(tmp_path / name), state, header=header, writers=shards)[1]
        for name, state in states.items()
    )

    assert list(images_in_memory(agent.context, held)) == list(range(shards))
    assert images_in_memory(agent.context, other) == {}


def test_without_memory_all_shards_are_synced_at_once(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.buffers, host.plan = 0, plan_of(tmp_path, shards=4)
    agent, all_sync = host.agent(), threading.Barrier(4, timeout=10)
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "fsync", lambda _files, _handle: all_sync.wait())
        agent.save(STEP, 1)

    assert [type(told) for told in host.told] == [PartHeld, ShareWritten]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_without_memory_a_failure_is_told_with_its_reason(
    host: Host, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_files: FileSystem, _path: Path) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FileSystem, "create_exclusive", refuse)
    host.buffers = 0
    agent = host.agent()
    agent.way.prepare(host.plan, WHOLE_SAVE, generation=LAUNCH)

    agent.save(STEP, 1)

    failed = host.told[-1]
    assert isinstance(failed, WorkFailed)
    assert os.strerror(number) in failed.reason
    assert (failed.share, failed.is_full) == (0, number == errno.ENOSPC)
