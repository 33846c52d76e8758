"""The host's writer, as the agent holds it: what it is told, what it answers, and its deaths."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest
from host_saves import saved_steps
from process_agent import AgentOfProcess

from holdfast.runtime.saving import writer_link
from holdfast.runtime.saving.writer_link import ANSWERED_WITHIN_S
from holdfast.runtime.system.worker_status import lease_clock_s

pytestmark = pytest.mark.process


def test_save_is_committed_by_the_process_when_its_last_part_is_there(
    agent: AgentOfProcess,
) -> None:
    agent.copy(1, 0)
    agent.copy(1, 1)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.outcomes == [("saved", 1)]
    assert saved_steps(agent.run_dir) == (10,)
    assert agent.settle() == 10


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
    agent.copy(1, 0, 1)

    agent.link.poll(agent.now + ANSWERED_WITHIN_S - 1)
    assert agent.answers == []
    agent.link.poll(agent.now + ANSWERED_WITHIN_S + 1)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.outcomes == [("unsaved", 1)]
    assert "makes no progress" in agent.answers[0].reason
    assert agent.save(attempt=2).is_durable


def test_save_in_flight_is_not_committed_once_the_lease_of_the_host_has_ended(
    agent: AgentOfProcess,
) -> None:
    """Its agent may be stopped; then the others go on from another step, and save it."""
    agent.status.lease_ms = int(1000 * (lease_clock_s() + 3600))
    assert agent.save(attempt=1).is_durable
    writer = agent.stop_writer()
    agent.copy(2, 0, 1)
    agent.status.lease_ms = int(1000 * lease_clock_s())
    os.kill(writer, signal.SIGCONT)
    agent.wait_until(lambda: len(agent.answers) == 2)

    assert agent.outcomes == [("saved", 1), ("unsaved", 2)]
    assert "the lease of this host has ended" in agent.answers[1].reason
    assert agent.steps == (10,)


def test_writer_that_does_not_end_is_killed_and_waited_for(
    agent: AgentOfProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_link, "_ENDED_WITHIN_S", 0.05)
    writer = agent.stop_writer()

    agent.link.close()

    with pytest.raises(ChildProcessError):
        os.waitpid(writer, os.WNOHANG)


def test_writer_that_dies_fails_what_it_had_and_is_replaced(agent: AgentOfProcess) -> None:
    first = agent.stop_writer()
    agent.copy(1, 0, 1)
    os.kill(first, signal.SIGKILL)
    agent.wait_until(lambda: bool(agent.answers))

    assert agent.outcomes == [("unsaved", 1)]
    assert "has died" in agent.answers[0].reason
    assert agent.save(attempt=2).is_durable, "it was told memory and plan"
    assert agent.link.pid != first
    assert agent.outcomes == [("unsaved", 1), ("saved", 2)]


def test_save_at_which_a_writer_died_is_settled_by_the_next_one(agent: AgentOfProcess) -> None:
    agent.save(attempt=1)
    first = agent.stop_writer()
    agent.copy(2, 0, 1)
    os.kill(first, signal.SIGKILL)
    agent.wait_until(lambda: len(agent.answers) == 2)

    assert agent.settle() == 20

    assert agent.outcomes == [("saved", 1), ("unsaved", 2)], "the workers were told once"
    assert saved_steps(agent.run_dir) == (20, 10)


def _refuse(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.EAGAIN, "no more processes")


def test_writer_that_cannot_be_started_fails_the_save(
    agent: AgentOfProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.kill_writer()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", _refuse)
        agent.copy(1, 0, 1)
        assert agent.outcomes == [("unsaved", 1)]
        assert "no more processes" in agent.answers[0].reason

    assert agent.save(attempt=2).is_durable
    assert agent.settle() == 20


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_stay_as_many_over_saves_deaths_and_layouts(agent: AgentOfProcess) -> None:
    for attempt in (1, 2):
        agent.save(attempt)
    before = descriptors()

    for attempt in range(3, 12):
        assert agent.save(attempt).is_durable
    assert descriptors() == before

    for attempt in range(103, 106):
        agent.copy(attempt, 0)
        agent.kill_writer()
        assert agent.save(attempt + 10).is_durable
    assert descriptors() == before

    for shards in (3, 4, 5):
        agent.launch(shards, shards=shards)
        assert agent.save(100 * shards).is_durable
        agent.copy(100 * shards + 1, 0)
    assert descriptors() <= 2 * before
