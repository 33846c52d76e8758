"""The process that writes snapshots, as the agent holds it: it may die like any other."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.format.layout import ShardLayout, specs_of
from holdfast.checkpoint.format.record import Header
from holdfast.checkpoint.store.image import ShardImage
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.runtime.agent import writer_link
from holdfast.runtime.agent.writer_link import (
    ANSWERED_WITHIN_S,
    KILLED_SETTLES_WITHIN_S,
    WriterLink,
)
from holdfast.runtime.saving.snapshot import SavePlan, Snapshot
from holdfast.runtime.saving.snapshot_place import SnapshotMemory
from holdfast.runtime.system.channel import FDS, Message
from holdfast.runtime.system.reactor import Reactor

pytestmark = pytest.mark.process

STATE = {"a": np.arange(9000, dtype=np.float32)}


class Agent:
    """As much of an agent as a writer needs."""

    def __init__(self, run_dir: Path) -> None:
        self.answers: list[Message] = []
        self.reactor = Reactor()
        self.now = 1000.0
        self.size_bytes = 0
        self.link = WriterLink(self.reactor, self, clock=lambda: self.now)
        self.link.start()
        self._run_dir = run_dir
        self._memory: list[SnapshotMemory] = []

    def on_written(self, answer: Message) -> None:
        self.answers.append(answer)

    def write(self, attempt: int) -> None:
        plan = SavePlan(Header("run", 1, 30), attempt, ShardLayout(specs_of(STATE), 1), {}, {})
        image = ShardImage(plan.layout, 0, "run")
        self.size_bytes = image.size
        memory = SnapshotMemory(image.size)
        self._memory.append(memory)
        fd, buffer = memory.next()
        snapshot = Snapshot(self._run_dir, plan, image.fill(buffer, STATE, plan.header), "00")
        message = {
            "kind": "snapshot",
            "launch": 1,
            "worker": 0,
            "shard": 0,
            "is_second": False,
            **snapshot.as_json(),
            FDS: [os.dup(fd)],
        }
        self.link.write(message)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.reactor.run_once(10.0)

    def settle(self) -> int | None:
        found: list[int | None] = []
        self.link.settle(lambda answer: found.append(answer["step"]))
        self.wait_until(lambda: bool(found))
        return found[0]

    def close(self) -> None:
        self.link.close()
        self.reactor.close()
        for memory in self._memory:
            memory.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.close()


def test_snapshot_is_written_and_committed_by_the_process(agent: Agent, tmp_path: Path) -> None:
    agent.write(attempt=1)
    agent.wait_until(lambda: bool(agent.answers))

    assert (agent.answers[0]["kind"], agent.answers[0]["attempt"]) == ("durable", 1)
    assert agent.settle() == 30
    assert CheckpointStore(tmp_path).steps() == (30,)


def test_writer_may_have_more_open_files_than_is_usual(tmp_path: Path) -> None:
    """It holds the images of all workers of a host, and a limit of 1024 is soft."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    try:
        agent = Agent(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    agent.write(attempt=1)
    agent.wait_until(lambda: bool(agent.answers))

    found = agent.link.pid and resource.prlimit(agent.link.pid, resource.RLIMIT_NOFILE)

    agent.close()
    assert found == (before[1], before[1])


def test_writer_that_dies_fails_what_it_had_and_is_replaced(agent: Agent) -> None:
    first = agent.link.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    agent.write(attempt=1)
    os.kill(first, signal.SIGKILL)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.answers[0]["kind"] == "failed"
    assert "has died" in agent.answers[0]["reason"]
    agent.write(attempt=2)
    agent.wait_until(lambda: len(agent.answers) == 2)
    assert agent.answers[1]["kind"] == "durable"
    assert agent.link.pid != first


def test_nobody_waits_for_a_writer_that_is_dead(agent: Agent) -> None:
    assert agent.link.pid is not None
    os.kill(agent.link.pid, signal.SIGSTOP)
    found: list[int | None] = []
    agent.link.settle(lambda answer: found.append(answer["step"]))
    os.kill(agent.link.pid, signal.SIGKILL)

    agent.wait_until(lambda: bool(found))

    assert found == [None]
    assert not agent.link.is_settling


def test_writer_that_makes_no_progress_is_given_up_and_replaced(agent: Agent) -> None:
    """The agent does not wait for its end, which a hanging disk may delay for ever."""
    first = agent.link.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    agent.write(attempt=1)

    agent.link.look(agent.now + ANSWERED_WITHIN_S - 1)
    assert agent.answers == []
    agent.link.look(agent.now + ANSWERED_WITHIN_S + 1)

    assert agent.answers[0]["kind"] == "failed"
    assert "makes no progress" in agent.answers[0]["reason"]
    agent.write(attempt=2)
    agent.wait_until(lambda: len(agent.answers) == 2)
    assert agent.answers[1]["kind"] == "durable"


def test_damage_on_the_disk_is_mended_by_the_process(agent: Agent, tmp_path: Path) -> None:
    agent.write(attempt=1)
    assert agent.settle() == 30
    (shard,) = tmp_path.glob("checkpoints/step-*/shard-*")
    shard.write_bytes(b"rubbish")
    found: list[Message] = []

    agent.link.ask({"kind": "mend", "step": 30}, found.append)
    agent.wait_until(lambda: bool(found))

    assert found[0]["reason"] is None
    assert found[0]["result"]["taken"] == 2
    assert shard.stat().st_size > 30000


def test_nobody_waits_for_a_mend_of_a_writer_that_is_dead(agent: Agent) -> None:
    assert agent.link.pid is not None
    os.kill(agent.link.pid, signal.SIGSTOP)
    found: list[Message] = []
    agent.link.ask({"kind": "mend", "step": 30}, found.append)
    os.kill(agent.link.pid, signal.SIGKILL)

    agent.wait_until(lambda: bool(found))

    assert "has died" in found[0]["reason"]
    agent.link.ask({"kind": "mend", "step": 30}, found.append)
    assert "no process" in found[1]["reason"]


def test_mend_on_a_slow_disk_has_time_to_read_write_and_read_again(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.write(attempt=1)
    agent.wait_until(lambda: bool(agent.answers))
    monkeypatch.setattr(writer_link, "SLOWEST_BYTES_PER_S", agent.size_bytes / 100.0)
    assert agent.link.pid is not None
    os.kill(agent.link.pid, signal.SIGSTOP)
    found: list[Message] = []
    agent.link.ask({"kind": "mend", "step": 30}, found.append)

    agent.link.look(agent.now + ANSWERED_WITHIN_S + 299)
    assert found == []
    agent.link.look(agent.now + ANSWERED_WITHIN_S + 301)

    assert "makes no progress" in found[0]["reason"]


@pytest.mark.parametrize(
    ("is_urgent", "bound_s"), [(False, ANSWERED_WITHIN_S), (True, KILLED_SETTLES_WITHIN_S)]
)
def test_settling_has_a_bound(
    agent: Agent,
    is_urgent: bool,  # noqa: FBT001
    bound_s: float,
) -> None:
    assert agent.link.pid is not None
    os.kill(agent.link.pid, signal.SIGSTOP)
    found: list[int | None] = []
    agent.link.settle(lambda answer: found.append(answer["step"]), is_urgent=is_urgent)

    agent.link.look(agent.now + bound_s - 1)
    assert found == []
    agent.link.look(agent.now + bound_s + 1)

    assert found == [None]
    assert not agent.link.is_settling


def test_several_may_ask_and_each_is_answered(agent: Agent) -> None:
    """Workers of a new launch ask at the same time."""
    agent.write(attempt=1)
    assert agent.settle() == 30
    found: list[tuple[int, Message]] = []
    for number in range(3):
        agent.link.ask(
            {"kind": "keeps"}, lambda answer, number=number: found.append((number, answer))
        )
    agent.link.settle(lambda answer: found.append((3, answer)))

    agent.wait_until(lambda: len(found) == 4)

    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert [answer["step"] for _, answer in found] == [30, 30, 30, None]


def test_writer_that_cannot_be_started_fails_the_snapshot(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    agent.link.close()
    monkeypatch.setattr(subprocess, "Popen", refuse)

    agent.write(attempt=1)

    assert agent.answers[0]["kind"] == "failed"
    assert "no more processes" in agent.answers[0]["reason"]
