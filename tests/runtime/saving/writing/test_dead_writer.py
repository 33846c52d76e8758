"""The host's writer may die like any other process, or may not be started at all."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from process_agent import AgentOfProcess

from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Message

pytestmark = pytest.mark.process


def test_writer_that_dies_fails_what_it_had_and_is_replaced(agent: AgentOfProcess) -> None:
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
    agent: AgentOfProcess,
) -> None:
    agent.write_part(1, 0)
    agent.kill_writer()

    agent.write_part(1, 1)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.outcomes == [("saved", 1)]


def test_complete_save_waits_for_the_settle_when_the_writer_died_of_it(
    agent: AgentOfProcess,
) -> None:
    agent.stop_writer()
    agent.write(attempt=1)
    agent.kill_writer()
    assert agent.outcomes == [("unsaved", 1)]

    agent.write_part(2, 0)
    assert agent.ask({"kind": "keeps"})["step"] is None, "it might kill the new one, too"
    assert agent.settle() == 10, "a later save that stays incomplete does not hide it"

    assert agent.steps == (10,)
    assert agent.outcomes == [("unsaved", 1)], "it is answered once"


def test_newest_of_two_saves_of_dead_writers_is_settled(agent: AgentOfProcess) -> None:
    for attempt in (1, 2):
        agent.write_part(attempt, 0)
        agent.stop_writer()
        agent.write_part(attempt, 1)
        agent.kill_writer()

    assert agent.settle() == 20

    assert agent.steps == (20,)
    assert agent.outcomes == [("unsaved", 1), ("unsaved", 2)]


def test_settle_after_a_writer_has_died_writes_nothing_twice(agent: AgentOfProcess) -> None:
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


def test_durable_save_is_kept_by_the_writer_that_follows_its_writer(agent: AgentOfProcess) -> None:
    assert agent.save(attempt=1)["kind"] == "saved"
    agent.kill_writer()

    assert agent.settle() == 10
    next(agent.run_dir.glob("checkpoints/step-*/shard-*")).write_bytes(b"rubbish")

    assert agent.ask(agent.mend_of(10))["result"]
    assert agent.outcomes == [("saved", 1)]


def test_nobody_waits_for_a_writer_that_is_dead(agent: AgentOfProcess) -> None:
    writer = agent.stop_writer()
    found: list[int | None] = []
    agent.link.settle(lambda answer: found.append(answer["step"]))
    os.kill(writer, signal.SIGKILL)

    agent.wait_until(lambda: bool(found))

    assert found == [None]
    assert not agent.link.is_settling


def test_nobody_waits_for_a_mend_of_a_writer_that_is_dead(agent: AgentOfProcess) -> None:
    writer = agent.stop_writer()
    found: list[Message] = []
    agent.link.ask(agent.mend_of(10), found.append)
    os.kill(writer, signal.SIGKILL)

    agent.wait_until(lambda: bool(found))

    assert "has died" in found[0]["reason"]
    agent.link.ask({"kind": "keeps"}, found.append)
    assert "no process" in found[1]["reason"]


def test_mend_finds_a_writer_although_the_last_one_has_died(
    agent: AgentOfProcess, tmp_path: Path
) -> None:
    """A copy of the run directory has the parts, whatever a lost writer has kept."""
    agent.save(attempt=1)
    shutil.copytree(agent.run_dir / "checkpoints", tmp_path / "copy" / "checkpoints")
    next(agent.run_dir.glob("checkpoints/step-*/shard-*")).write_bytes(b"rubbish")
    agent.kill_writer()

    answer = agent.ask(agent.mend_of(10, tmp_path / "copy"))

    assert answer["result"]["taken"] >= 1
    assert restore(CheckpointStore(agent.run_dir), 10, run_id="run").manifest.step == 10


def _refuse(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.EAGAIN, "no more processes")


def test_writer_that_cannot_be_started_fails_the_save(
    agent: AgentOfProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.kill_writer()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", _refuse)
        agent.write(attempt=1)
        assert agent.outcomes == [("unsaved", 1)]
        assert "no more processes" in agent.answers[0]["reason"]
        agent.write_part(2, 0)

    agent.write_part(2, 1)
    agent.wait_until(lambda: len(agent.answers) == 2)

    assert agent.outcomes == [("unsaved", 1), ("saved", 2)], "one part came before there was one"


def test_save_without_any_writer_is_settled_once_there_is_one(
    agent: AgentOfProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.kill_writer()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", _refuse)
        agent.write(attempt=1)

    assert agent.settle() == 10
