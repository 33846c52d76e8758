"""The host's writer, as the agent holds it: what it is told, and what it answers."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
from copied_saves import STATE
from process_agent import AgentOfProcess

from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving import writer_link
from holdfast.runtime.saving.writer_link import ANSWERED_WITHIN_S
from holdfast.runtime.system.channel import Message

pytestmark = pytest.mark.process


def test_save_is_committed_by_the_process_when_its_last_part_is_there(
    agent: AgentOfProcess,
) -> None:
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
        agent = AgentOfProcess(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    agent.save(attempt=1)

    found = agent.link.pid and resource.prlimit(agent.link.pid, resource.RLIMIT_NOFILE)

    agent.close()
    assert found == (before[1], before[1])


def test_writer_that_makes_no_progress_is_given_up_and_replaced(agent: AgentOfProcess) -> None:
    """The agent does not wait for its end, which a hanging disk may delay for ever."""
    agent.stop_writer()
    agent.write(attempt=1)

    agent.link.look(agent.now + ANSWERED_WITHIN_S - 1)
    assert agent.answers == []
    agent.link.look(agent.now + ANSWERED_WITHIN_S + 1)

    assert agent.outcomes == [("unsaved", 1)]
    assert "makes no progress" in agent.answers[0]["reason"]
    assert agent.save(attempt=2)["kind"] == "saved"


def test_writer_that_does_not_end_is_killed_and_waited_for(
    agent: AgentOfProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_link, "_ENDED_WITHIN_S", 0.05)
    writer = agent.stop_writer()

    agent.link.close()

    with pytest.raises(ChildProcessError):
        os.waitpid(writer, os.WNOHANG)


def test_incomplete_save_takes_no_patience(agent: AgentOfProcess) -> None:
    writer = agent.stop_writer()
    agent.write_part(1, 1)

    agent.link.look(agent.now + 1000 * ANSWERED_WITHIN_S)

    assert agent.link.pid == writer
    os.kill(writer, signal.SIGCONT)
    agent.write_part(1, 0)
    agent.wait_until(lambda: bool(agent.answers))
    assert agent.outcomes == [("saved", 1)]


def test_late_part_of_an_abandoned_save_is_passed_over(agent: AgentOfProcess) -> None:
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


def test_damage_on_the_disk_is_mended_by_the_process(agent: AgentOfProcess) -> None:
    agent.save(attempt=1)
    shards = sorted(agent.run_dir.glob("checkpoints/step-*/shard-*"))
    shards[0].write_bytes(b"rubbish")

    answer = agent.ask(agent.mend_of(10))

    assert answer["result"]["taken"] >= 1
    assert shards[0].stat().st_size > 10000


def test_several_may_ask_and_each_is_answered(agent: AgentOfProcess) -> None:
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


def test_parts_of_another_launch_or_layout_are_passed_over(agent: AgentOfProcess) -> None:
    late = agent.saves.save(attempt=1)
    agent.launch(2)

    for message in late:
        agent.link.copied(message)

    assert agent.save(attempt=1)["launch"] == 2
    assert agent.outcomes == [("saved", 1)]
