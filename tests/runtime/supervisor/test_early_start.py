"""An agent that is started before its job is known: it takes a job, or ends without one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.runtime.host.early_agent import EarlyAgent
from holdfast.runtime.supervisor.agent_process import AgentProcess, AgentTerms, start_agent
from holdfast.runtime.system.processes import wait_all_ended

pytestmark = pytest.mark.process

BOUND_S = 90.0
NOTES = """
import json, os, pathlib, sys
if not any("writer" in word for word in sys.orig_argv):  # it may begin before the test ends
    note = pathlib.Path(os.environ["NOTED"], str(os.getpid()))
    note.write_text(json.dumps(dict(os.environ)))
"""
LOST_STARTER = """
import os, signal
from holdfast.runtime.host.early_agent import EarlyAgent
early = EarlyAgent.begin(os.environ)
print(early._process.pid, flush=True)
input()
os.kill(early._process.pid, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


def terms(directory: Path, lease: int) -> AgentTerms:
    private = directory / "private"  # goes with the agent
    private.mkdir()
    return AgentTerms(
        directory=private,
        cwd=directory,
        heartbeat_timeout_s=5.0,
        preload=("numpy",),
        lease=lease,
        verbose=False,
    )


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return that of a job; each process of it notes the one in which it began."""
    (tmp_path / "sitecustomize.py").write_text(NOTES)
    (tmp_path / "noted").mkdir()
    monkeypatch.setenv("LEFT_OUT", "of the job")
    job = {"PYTHONPATH": str(tmp_path), "NOTED": str(tmp_path / "noted"), "THREADS": "1"}
    return {name: text for name, text in os.environ.items() if name != "LEFT_OUT"} | job


def wait_until_warm(agent: AgentProcess) -> None:
    while (event := agent.channel.receive()) is not None:
        if event["kind"] == "warm":
            return
    pytest.fail("the agent has ended")


def wait_for_entries(directory: Path, count: int) -> None:
    deadline = time.monotonic() + BOUND_S
    while len(list(directory.iterdir())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_free(lease: Path) -> bool:
    with lease.open() as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def told(
    early: EarlyAgent, job: AgentTerms, environment: Mapping[str, str]
) -> subprocess.Popen[bytes] | None:
    return early.tell(job.arguments(), environment, job.lease)


def test_it_takes_arguments_and_lease_and_began_in_the_environment_of_its_job(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    lease = tmp_path / "lease"
    with EarlyAgent.begin(environment) as early, lease.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        job = terms(tmp_path, held.fileno())
        begun = told(early, job, environment)

    agent = start_agent(job, environment, begun)
    wait_until_warm(agent)

    noted = {path.name: json.loads(path.read_text()) for path in (tmp_path / "noted").iterdir()}
    assert begun is not None
    assert str(begun.pid) in noted
    assert len(noted) == 2
    assert all(found == environment for found in noted.values())
    assert not is_free(lease)
    agent.end()
    assert is_free(lease)


def test_without_a_job_it_ends_with_its_starter_or_is_ended(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    left, dismissed = EarlyAgent.begin(environment), EarlyAgent.begin(environment)

    left._channel.close()
    with dismissed:
        pass

    assert left._process.wait(BOUND_S) == 0
    assert dismissed._process.returncode == -signal.SIGKILL


def test_it_dies_with_its_starter_though_it_is_stopped(environment: dict[str, str]) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", LOST_STARTER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    early = int(starter.stdout.readline())
    noted = Path(environment["NOTED"])
    wait_for_entries(noted, 3)  # starter, agent, and pool: so the agent has made its arrangements

    starter.communicate("\n")

    assert starter.returncode == -signal.SIGKILL
    assert wait_all_ended([early], BOUND_S) == ()


def test_job_of_another_environment_takes_no_such_agent(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    early = EarlyAgent.begin(environment)
    with (tmp_path / "lease").open("w") as held:
        job = terms(tmp_path, held.fileno())

        assert told(early, job, environment | {"THREADS": "2"}) is None

    assert early._process.returncode == -signal.SIGKILL


def test_signal_that_came_before_the_job_is_no_order_to_it(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with EarlyAgent.begin(environment) as early, (tmp_path / "lease").open("w") as held:
        os.kill(early._process.pid, signal.SIGTERM)
        job = terms(tmp_path, held.fileno())
        begun = told(early, job, environment)

        agent = start_agent(job, environment, begun)

    wait_until_warm(agent)
    assert begun is not None
    assert begun.poll() is None
    agent.end()


def test_job_gets_another_agent_if_the_early_one_was_stopped(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    early = EarlyAgent.begin(environment)
    os.kill(early._process.pid, signal.SIGSTOP)
    with early, (tmp_path / "lease").open("w") as held:
        job = replace(terms(tmp_path, held.fileno()), heartbeat_timeout_s=1.0)
        begun = told(early, job, environment)

        agent = start_agent(job, environment, begun)

    wait_until_warm(agent)
    agent.end()
    assert begun is not None
    assert begun.returncode == -signal.SIGKILL


@pytest.mark.parametrize("is_killed", [True, False])
def test_early_agent_that_takes_no_job_is_followed_by_none(
    tmp_path: Path, environment: dict[str, str], *, is_killed: bool
) -> None:
    """It was killed, or stands still and the message does not fit into the socket."""
    early = EarlyAgent.begin(environment)
    os.kill(early._process.pid, signal.SIGKILL if is_killed else signal.SIGSTOP)
    if is_killed:
        os.waitid(os.P_PID, early._process.pid, os.WEXITED | os.WNOWAIT)
    words = [] if is_killed else ["x" * (8 << 20)]

    with (tmp_path / "lease").open("w") as held:
        begun = early.tell(words, environment, held.fileno())

    assert begun is None
    assert early._process.returncode == -signal.SIGKILL


def test_system_without_a_process_to_spare_leaves_no_descriptor_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError("no process to spare")

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(subprocess, "Popen", refuse)

    with pytest.raises(BlockingIOError, match="no process to spare"):
        EarlyAgent.begin(os.environ)

    assert set(os.listdir("/proc/self/fd")) <= before
