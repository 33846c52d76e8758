"""The process that commits saves, as the agent holds it: it may die like any other."""

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
from holdfast.checkpoint.format.share import share_of
from holdfast.checkpoint.store.share_image import ShareImage
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.retention import Retention
from holdfast.runtime.committing.save_plan import CareTerms, SavePlan
from holdfast.runtime.committing.save_ticket import SaveTicket
from holdfast.runtime.system.channel import FDS, Message
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.sealed_memory import sealed_memory
from holdfast.runtime.writing import writer_link
from holdfast.runtime.writing.writer_link import (
    ANSWERED_WITHIN_S,
    KILLED_SETTLES_WITHIN_S,
    WriterLink,
)

pytestmark = pytest.mark.process

STATE = {"a": np.arange(9000, dtype=np.float32)}
PARTS = 2


class Agent:
    """As much of an agent as a writer needs, and workers whose saves lie in its memory."""

    def __init__(self, run_dir: Path) -> None:
        self.answers: list[Message] = []
        self.notices: list[Message] = []
        self.reactor = Reactor()
        self.now = 1000.0
        self.link = WriterLink(self.reactor, self, clock=lambda: self.now)
        self.link.start()
        layout = ShardLayout(specs_of(STATE), 1)
        care = CareTerms(Retention(), generation=1)
        self._plan = SavePlan(run_dir, "run", layout, care, {}, {})
        self._map = self._plan.image_map()
        self.nbytes = layout.nbytes
        self._fds = [sealed_memory("holdfast-test", self._map.size) for _ in range(2)]
        self._attempts = 0
        self._has_told = False

    def on_written(self, answer: Message) -> None:
        self.answers.append(answer)

    def on_writer_notice(self, notice: Message) -> None:
        self.notices.append(notice)

    def tell(self) -> None:
        """Tell the writer memory and plan, once."""
        if self._has_told:
            return
        self._has_told = True
        sizes = {"bytes": self.nbytes, "file_bytes": self.nbytes}
        memory = {"kind": "memory", "launch": 1, "layout": self._plan.layout_id, **sizes}
        self.link.use(memory, self._fds)
        self.link.plan({"kind": "plan", "generation": 1, FDS: [memory_of(self._plan.encode())]})

    def save(self, step: int = 30, *, parts: int = PARTS, state_digest: str = "00") -> None:
        """Copy a save, or only some parts of it, and say so."""
        self.tell()
        self._attempts += 1
        buffer = self._attempts % 2
        layout = self._plan.layout_id
        ticket = SaveTicket(1, 1, step, self._attempts, PARTS, buffer, layout, began=0.0)
        contents = memoryview(bytearray(self._map.size))
        for part in range(PARTS):
            share = ShareImage(self._map, share_of(self._map, part, PARTS), "run")
            share.copy(contents, STATE, ticket.header("run"))
            share.describe(contents, STATE, ticket.header("run"))
        os.pwrite(self._fds[buffer], contents, 0)
        for part in range(parts):
            fds = {FDS: [memory_of(b"{}")]} if part == 0 else {}
            fields = {"kind": "copied", **ticket.as_json(), "part": part, "digest": state_digest}
            self.link.copied({**fields, **fds})

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
        for fd in self._fds:
            os.close(fd)


def memory_of(content: bytes) -> int:
    fd = os.memfd_create("holdfast-test", os.MFD_CLOEXEC)
    os.write(fd, content)
    return fd


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.close()


def test_save_is_committed_by_the_process_while_workers_live(agent: Agent, tmp_path: Path) -> None:
    agent.save()
    agent.wait_until(lambda: bool(agent.answers))

    assert (agent.answers[0]["kind"], agent.answers[0]["attempt"]) == ("saved", 1)
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
    agent.save()
    agent.wait_until(lambda: bool(agent.answers))

    found = agent.link.pid and resource.prlimit(agent.link.pid, resource.RLIMIT_NOFILE)

    agent.close()
    assert found == (before[1], before[1])


def test_writer_that_dies_fails_what_it_had_and_is_replaced(agent: Agent) -> None:
    first = agent.link.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    agent.save()
    os.kill(first, signal.SIGKILL)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.answers[0]["kind"] == "unsaved"
    assert "has died" in agent.answers[0]["reason"]
    agent.save(step=31)
    agent.wait_until(lambda: len(agent.answers) == 2)
    assert agent.answers[1]["kind"] == "saved"
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
    agent.save()

    agent.link.look(agent.now + ANSWERED_WITHIN_S - 1)
    assert agent.answers == []
    agent.link.look(agent.now + ANSWERED_WITHIN_S + 1)

    assert agent.answers[0]["kind"] == "unsaved"
    assert "makes no progress" in agent.answers[0]["reason"]
    agent.save(step=31)
    agent.wait_until(lambda: len(agent.answers) == 2)
    assert agent.answers[1]["kind"] == "saved"


def test_damage_on_the_disk_is_mended_by_the_process(agent: Agent, tmp_path: Path) -> None:
    agent.save()
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
    agent.save()
    agent.wait_until(lambda: bool(agent.answers))
    monkeypatch.setattr(writer_link, "SLOWEST_BYTES_PER_S", agent.nbytes / 100.0)
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
    agent.save()
    assert agent.settle() == 30
    found: list[tuple[int, Message]] = []
    for number in range(3):
        agent.link.ask(
            {"kind": "keeps"}, lambda answer, number=number: found.append((number, answer))
        )
    agent.link.settle(lambda answer: found.append((3, answer)))

    agent.wait_until(lambda: len(found) == 4)

    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert [answer["step"] for _, answer in found] == [30] * 4


def test_writer_that_cannot_be_started_fails_the_save(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    agent.link.close()
    monkeypatch.setattr(subprocess, "Popen", refuse)

    agent.save()

    assert agent.answers[0]["kind"] == "unsaved"
    assert "no more processes" in agent.answers[0]["reason"]


def test_new_writer_commits_for_the_dead_what_the_old_one_could_not(
    agent: Agent, tmp_path: Path
) -> None:
    """The memory is the agent's, so it outlives both the workers and the writer."""
    assert agent.link.pid is not None
    os.kill(agent.link.pid, signal.SIGSTOP)
    agent.save()
    os.kill(agent.link.pid, signal.SIGKILL)
    agent.wait_until(lambda: bool(agent.answers))
    assert agent.answers[0]["kind"] == "unsaved"
    assert CheckpointStore(tmp_path).steps() == ()

    assert agent.settle() == 30

    assert CheckpointStore(tmp_path).steps() == (30,)
    assert len(agent.answers) == 1, "the save was answered already"


def test_save_at_which_a_writer_has_died_is_not_the_death_of_the_next_one(agent: Agent) -> None:
    assert agent.link.pid is not None
    os.kill(agent.link.pid, signal.SIGSTOP)
    agent.save()
    os.kill(agent.link.pid, signal.SIGKILL)
    agent.wait_until(lambda: bool(agent.answers))

    agent.save(step=31)
    agent.wait_until(lambda: len(agent.answers) == 2)

    found: list[Message] = []
    agent.link.ask({"kind": "keeps"}, found.append)
    agent.wait_until(lambda: bool(found))
    assert (agent.answers[1]["step"], found[0]["step"]) == (31, 31)


def test_nobody_loses_patience_with_a_save_whose_parts_are_not_all_copied(agent: Agent) -> None:
    """A worker may take long, and that is not the fault of the disk."""
    first = agent.link.pid
    agent.save(parts=PARTS - 1)

    agent.link.look(agent.now + 100 * ANSWERED_WITHIN_S)

    assert (agent.answers, agent.link.pid) == ([], first)


def test_save_that_stays_incomplete_is_answered_when_the_next_one_begins(agent: Agent) -> None:
    agent.save(parts=PARTS - 1)
    agent.save(step=31)

    agent.wait_until(lambda: len(agent.answers) == 2)

    kinds = [(answer["kind"], answer["attempt"]) for answer in agent.answers]
    assert kinds == [("unsaved", 1), ("saved", 2)]
    assert agent.answers[0]["is_expected"]


def test_descriptors_stay_as_many_through_saves_and_deaths_of_writers(agent: Agent) -> None:
    agent.save(step=1)
    agent.save(step=2)
    agent.wait_until(lambda: len(agent.answers) == 2)
    before = len(os.listdir("/proc/self/fd"))

    for number in range(3, 30):
        if number % 9 == 0:
            assert agent.link.pid is not None
            agent.link.replace("killed by the test")
        agent.save(step=number)
        agent.wait_until(lambda number=number: len(agent.answers) >= number)  # type: ignore[misc]

    assert len(os.listdir("/proc/self/fd")) == before
