"""The host's writer, as the agent holds it: it may die like any other process."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from copied_saves import STATE, CopiedSaves

from holdfast.checkpoint.store.reader import restore
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.runtime.committing.mend_order import MendOrder
from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.writing.writer_link import ANSWERED_WITHIN_S, WriterLink

pytestmark = pytest.mark.process


class Agent:
    """As much of an agent as a writer needs, and the workers of one launch."""

    def __init__(self, run_dir: Path) -> None:
        self.answers: list[Message] = []
        self.notices: list[Message] = []
        self.reactor = Reactor()
        self.now = 1000.0
        self.link = WriterLink(self.reactor, self, clock=lambda: self.now)
        self.link.start()
        self.run_dir = run_dir
        self._launches: list[CopiedSaves] = []
        self.launch()

    def launch(self, number: int = 1, *, shards: int = 2) -> None:
        """Begin a launch or a stage: its memory and plan are told."""
        self.saves = CopiedSaves(self.run_dir, launch=number, shards=shards)
        self._launches.append(self.saves)
        self.link.use(self.saves.memory, self.saves.fds)
        self.link.plan(self.saves.plan_message)

    def end_launch(self) -> None:
        """Give the memory of the newest launch back."""
        self._launches.pop().close()

    def on_written(self, answer: Message) -> None:
        self.answers.append(answer)

    def on_writer_notice(self, notice: Message) -> None:
        self.notices.append(notice)

    def write(self, attempt: int) -> None:
        for message in self.saves.save(attempt):
            self.link.copied(message)

    def write_part(self, attempt: int, part: int, *, generation: int | None = None) -> None:
        ticket = self.saves.ticket(attempt, generation=generation)
        self.link.copied(self.saves.part(ticket, part))

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.reactor.run_once(10.0)

    def save(self, attempt: int) -> Message:
        """Let a save be written, and return its answer."""
        self.write(attempt)
        self.wait_until(lambda: attempt in [answer["attempt"] for answer in self.answers])
        return self.answers[-1]

    def settle(self) -> int | None:
        found: list[int | None] = []
        self.link.settle(lambda answer: found.append(answer["step"]))
        self.wait_until(lambda: bool(found))
        return found[0]

    def ask(self, question: Message) -> Message:
        found: list[Message] = []
        self.link.ask(question, found.append)
        self.wait_until(lambda: bool(found))
        return found[0]

    def mend_of(self, step: int, *copies: Path) -> Message:
        """Return the order to mend a step."""
        return MendOrder(step, self.run_dir, "run", "", None, copies).as_json()

    def stop_writer(self) -> int:
        assert self.link.pid is not None
        os.kill(self.link.pid, signal.SIGSTOP)
        return self.link.pid

    def kill_writer(self) -> None:
        """Kill the writer, and let the agent see its end."""
        pid = self.link.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.wait_until(lambda: self.link.pid != pid)

    @property
    def outcomes(self) -> list[tuple[str, int]]:
        return [(answer["kind"], answer["attempt"]) for answer in self.answers]

    @property
    def steps(self) -> tuple[int, ...]:
        return CheckpointStore(self.run_dir).steps()

    def close(self) -> None:
        self.link.close()
        self.reactor.close()
        for saves in self._launches:
            saves.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.close()


def test_save_is_committed_by_the_process_when_its_last_part_is_there(agent: Agent) -> None:
    agent.write_part(1, 0)
    assert agent.ask({"kind": "keeps"})["step"] is None
    agent.write_part(1, 1)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.outcomes == [("saved", 1)]
    restored = restore(CheckpointStore(agent.run_dir), 10, run_id="run")
    assert restored.manifest.cursor == {"step": 10, "epoch": 1}
    assert {name: value.tobytes() for name, value in restored.state.items()} == {
        name: value.tobytes() for name, value in STATE.items()
    }


def test_writer_may_have_more_open_files_than_is_usual(tmp_path: Path) -> None:
    """It opens all shards of a step, and a limit of 1024 is soft."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
    try:
        agent = Agent(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    agent.save(attempt=1)

    found = agent.link.pid and resource.prlimit(agent.link.pid, resource.RLIMIT_NOFILE)

    agent.close()
    assert found == (before[1], before[1])


def test_writer_that_dies_fails_what_it_had_and_is_replaced(agent: Agent) -> None:
    first = agent.stop_writer()
    agent.write(attempt=1)
    os.kill(first, signal.SIGKILL)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.outcomes == [("unsaved", 1)]
    assert "has died" in agent.answers[0]["reason"]
    assert agent.save(attempt=2)["kind"] == "saved", "it was told memory and plan"
    assert agent.link.pid != first
    assert agent.outcomes == [("unsaved", 1), ("saved", 2)]


def test_save_that_was_incomplete_when_the_writer_died_is_committed_by_the_next(
    agent: Agent,
) -> None:
    agent.write_part(1, 0)
    agent.kill_writer()

    agent.write_part(1, 1)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.outcomes == [("saved", 1)]


def test_complete_save_waits_for_the_settle_when_the_writer_died_of_it(agent: Agent) -> None:
    agent.stop_writer()
    agent.write(attempt=1)
    agent.kill_writer()
    assert agent.outcomes == [("unsaved", 1)]

    agent.write_part(2, 0)
    assert agent.ask({"kind": "keeps"})["step"] is None, "it might kill the new one, too"
    assert agent.settle() == 10, "a later save that stays incomplete does not hide it"

    assert agent.steps == (10,)
    assert agent.outcomes == [("unsaved", 1)], "it is answered once"


def test_newest_of_two_saves_of_dead_writers_is_settled(agent: Agent) -> None:
    for attempt in (1, 2):
        agent.write_part(attempt, 0)
        agent.stop_writer()
        agent.write_part(attempt, 1)
        agent.kill_writer()

    assert agent.settle() == 20

    assert agent.steps == (20,)
    assert agent.outcomes == [("unsaved", 1), ("unsaved", 2)]


def test_settle_after_a_writer_has_died_writes_nothing_twice(agent: Agent) -> None:
    agent.stop_writer()
    agent.write(attempt=1)
    agent.kill_writer()
    assert agent.save(attempt=2)["kind"] == "saved"

    assert agent.settle() == 20

    assert agent.steps == (20,), "step 10 is older than one that is durable"
    assert agent.outcomes == [("unsaved", 1), ("saved", 2)]
    agent.link.close()
    events = read_journal(RunDirectory(agent.run_dir).journal_path)
    saved = [event["step"] for event in events if event["event"] == "checkpoint"]
    assert saved == [20]


def test_durable_save_is_kept_by_the_writer_that_follows_its_writer(agent: Agent) -> None:
    assert agent.save(attempt=1)["kind"] == "saved"
    agent.kill_writer()

    assert agent.settle() == 10
    next(agent.run_dir.glob("checkpoints/step-*/shard-*")).write_bytes(b"rubbish")

    assert agent.ask(agent.mend_of(10))["result"]
    assert agent.outcomes == [("saved", 1)]


def test_nobody_waits_for_a_writer_that_is_dead(agent: Agent) -> None:
    writer = agent.stop_writer()
    found: list[int | None] = []
    agent.link.settle(lambda answer: found.append(answer["step"]))
    os.kill(writer, signal.SIGKILL)

    agent.wait_until(lambda: bool(found))

    assert found == [None]
    assert not agent.link.is_settling


def test_writer_that_makes_no_progress_is_given_up_and_replaced(agent: Agent) -> None:
    """The agent does not wait for its end, which a hanging disk may delay for ever."""
    agent.stop_writer()
    agent.write(attempt=1)

    agent.link.look(agent.now + ANSWERED_WITHIN_S - 1)
    assert agent.answers == []
    agent.link.look(agent.now + ANSWERED_WITHIN_S + 1)

    assert agent.outcomes == [("unsaved", 1)]
    assert "makes no progress" in agent.answers[0]["reason"]
    assert agent.save(attempt=2)["kind"] == "saved"


def test_incomplete_save_takes_no_patience(agent: Agent) -> None:
    writer = agent.stop_writer()
    agent.write_part(1, 1)

    agent.link.look(agent.now + 1000 * ANSWERED_WITHIN_S)

    assert agent.link.pid == writer
    os.kill(writer, signal.SIGCONT)
    agent.write_part(1, 0)
    agent.wait_until(lambda: bool(agent.answers))
    assert agent.outcomes == [("saved", 1)]


def test_late_part_of_an_abandoned_save_is_passed_over(agent: Agent) -> None:
    """Its workers have begun another save, and wait for that alone."""
    agent.write_part(1, 0)
    agent.write_part(2, 0, generation=2)
    agent.wait_until(lambda: bool(agent.answers))
    assert agent.outcomes == [("unsaved", 1)], "when the later one begins"
    agent.write_part(1, 1)
    assert agent.answers[0]["is_expected"]

    agent.link.look(agent.now + 1000 * ANSWERED_WITHIN_S)
    assert agent.link.pid is not None, "nothing that is complete waits"
    agent.write_part(2, 1, generation=2)
    agent.wait_until(lambda: len(agent.answers) == 2)

    assert agent.outcomes == [("unsaved", 1), ("saved", 2)]


def test_damage_on_the_disk_is_mended_by_the_process(agent: Agent) -> None:
    agent.save(attempt=1)
    shards = sorted(agent.run_dir.glob("checkpoints/step-*/shard-*"))
    shards[0].write_bytes(b"rubbish")

    answer = agent.ask(agent.mend_of(10))

    assert answer["result"]["taken"] >= 1
    assert shards[0].stat().st_size > 10000


def test_nobody_waits_for_a_mend_of_a_writer_that_is_dead(agent: Agent) -> None:
    writer = agent.stop_writer()
    found: list[Message] = []
    agent.link.ask(agent.mend_of(10), found.append)
    os.kill(writer, signal.SIGKILL)

    agent.wait_until(lambda: bool(found))

    assert "has died" in found[0]["reason"]
    agent.link.ask({"kind": "keeps"}, found.append)
    assert "no process" in found[1]["reason"]


def test_mend_finds_a_writer_although_the_last_one_has_died(agent: Agent, tmp_path: Path) -> None:
    """A copy of the run directory has the parts, whatever a lost writer has kept."""
    agent.save(attempt=1)
    shutil.copytree(agent.run_dir / "checkpoints", tmp_path / "copy" / "checkpoints")
    next(agent.run_dir.glob("checkpoints/step-*/shard-*")).write_bytes(b"rubbish")
    agent.kill_writer()

    answer = agent.ask(agent.mend_of(10, tmp_path / "copy"))

    assert answer["result"]["taken"] >= 1
    assert restore(CheckpointStore(agent.run_dir), 10, run_id="run").manifest.step == 10


def test_several_may_ask_and_each_is_answered(agent: Agent) -> None:
    """Workers of a new launch ask at the same time."""
    agent.save(attempt=1)
    found: list[tuple[int, Message]] = []
    for number in range(3):
        agent.link.ask(
            {"kind": "keeps"}, lambda answer, number=number: found.append((number, answer))
        )
    agent.link.settle(lambda answer: found.append((3, answer)))

    agent.wait_until(lambda: len(found) == 4)

    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert [answer["step"] for _, answer in found] == [10, 10, 10, 10]


def test_writer_that_cannot_be_started_fails_the_save(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    agent.kill_writer()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        agent.write(attempt=1)
        assert agent.outcomes == [("unsaved", 1)]
        assert "no more processes" in agent.answers[0]["reason"]
        agent.write_part(2, 0)

    agent.write_part(2, 1)
    agent.wait_until(lambda: len(agent.answers) == 2)

    assert agent.outcomes == [("unsaved", 1), ("saved", 2)], "one part came before there was one"


def test_save_without_any_writer_is_settled_once_there_is_one(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    agent.kill_writer()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        agent.write(attempt=1)

    assert agent.settle() == 10


def test_parts_of_another_launch_or_layout_are_passed_over(agent: Agent) -> None:
    late = agent.saves.save(attempt=1)
    agent.launch(2)

    for message in late:
        agent.link.copied(message)

    assert agent.save(attempt=1)["launch"] == 2
    assert agent.outcomes == [("saved", 1)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_stay_as_many_over_saves_deaths_and_layouts(agent: Agent) -> None:
    for attempt in (1, 2):
        agent.save(attempt)
    before = descriptors()

    for attempt in range(3, 103):
        assert agent.save(attempt)["kind"] == "saved"
    assert descriptors() == before

    for attempt in range(103, 106):
        agent.write_part(attempt, 0)
        agent.kill_writer()
        assert agent.save(attempt + 10)["kind"] == "saved"
    assert descriptors() == before

    for shards in (3, 4, 5):
        agent.end_launch()
        agent.launch(1, shards=shards)
        assert agent.save(100 * shards)["kind"] == "saved"
        agent.write_part(100 * shards + 1, 0)
    assert descriptors() <= before


def test_descriptors_stay_open_until_their_message_has_left(agent: Agent) -> None:
    """A writer that commits reads nothing, so messages of many workers wait."""
    writer = agent.stop_writer()
    for attempt in range(1, 400):
        agent.write_part(attempt, 0)
    waiting = descriptors()

    os.kill(writer, signal.SIGCONT)
    assert agent.save(attempt=500)["kind"] == "saved"

    assert agent.link.pid == writer, "no descriptor was gone when its turn came"
    agent.save(attempt=501)
    assert descriptors() < waiting
