"""An agent that is started before its job is known: it takes a job, or ends without one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.runtime.agent.early_agent import EarlyAgent
from holdfast.runtime.supervisor.agent_process import AgentProcess, AgentTerms, start_agent
from holdfast.runtime.system.processes import wait_all_ended

pytestmark = pytest.mark.process

BOUND_S = 90.0
NOTES = "import json, os; json.dump(dict(os.environ), open(os.environ['NOTED'], 'w'))"


def terms(directory: Path, lease: int) -> AgentTerms:
    private = directory / "private"  # goes with the agent
    private.mkdir()
    return AgentTerms(
        directory=private,
        cwd=directory,
        heartbeat_timeout_s=5.0,
        preload=("notes",),
        lease=lease,
        verbose=False,
    )


def begin_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> EarlyAgent:
    (directory / "notes.py").write_text(NOTES)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.setenv("LEFT_OUT", "of the job")
    return EarlyAgent.begin()


def environment_of(directory: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "LEFT_OUT"}
    return {**kept, "NOTED": str(directory / "noted")}


def wait_until_warm(agent: AgentProcess) -> None:
    while (event := agent.channel.receive()) is not None:
        if event["kind"] == "warm":
            return
    pytest.fail("the agent has ended")


def is_free(lease: Path) -> bool:
    with lease.open() as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def told(
    early: EarlyAgent, job: AgentTerms, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    begun = early.tell(job.arguments(), environment, job.lease)
    assert begun is not None
    return begun


def test_it_takes_arguments_environment_and_lease_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = tmp_path / "lease"
    with begin_in(tmp_path, monkeypatch) as early, lease.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        environment = environment_of(tmp_path)
        job = terms(tmp_path, held.fileno())
        begun = told(early, job, environment)

    agent = start_agent(job, environment, begun)
    wait_until_warm(agent)

    noted = json.loads((tmp_path / "noted").read_text())
    assert noted == environment
    assert not is_free(lease)
    agent.end()
    assert is_free(lease)


def test_without_a_job_it_ends_with_its_starter_or_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, dismissed = begin_in(tmp_path, monkeypatch), begin_in(tmp_path, monkeypatch)

    left._channel.close()  # as the kernel does when the starter dies
    with dismissed:
        pass

    assert left._process.wait(BOUND_S) == 0
    assert dismissed._process.returncode == -signal.SIGKILL
    assert not (tmp_path / "noted").exists()


@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP])
def test_job_gets_another_agent_if_the_early_one_was_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strike: signal.Signals
) -> None:
    early = begin_in(tmp_path, monkeypatch)
    environment = environment_of(tmp_path)
    os.kill(early._process.pid, strike)
    with early, (tmp_path / "lease").open("w") as held:
        job = replace(terms(tmp_path, held.fileno()), heartbeat_timeout_s=1.0)
        begun = told(early, job, environment)

        agent = start_agent(job, environment, begun)

    wait_until_warm(agent)
    agent.end()
    assert begun.returncode == -signal.SIGKILL


def test_agent_that_reads_nothing_is_ended_when_its_job_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = begin_in(tmp_path, monkeypatch)
    os.kill(early._process.pid, signal.SIGSTOP)

    with (tmp_path / "lease").open("w") as held:
        job = terms(tmp_path, held.fileno())
        begun = early.tell(job.arguments(), {"LARGE": "x" * (8 << 20)}, job.lease)

    assert begun is None
    assert wait_all_ended([early._process.pid], BOUND_S) == ()


def test_system_without_a_process_to_spare_leaves_no_descriptor_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError("no process to spare")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(subprocess, "Popen", refuse)

    with pytest.raises(BlockingIOError, match="no process to spare"):
        EarlyAgent.begin()

    assert set(os.listdir("/proc/self/fd")) <= before
