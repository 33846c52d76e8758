from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_harness import AgentHarness, agent_running, assert_ended
from configs import worker_config
from extended import extended

from holdfast.recovery.event import Event
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.host import pool_process
from holdfast.runtime.host.pool_process import (
    FORKS_WITHIN_S,
    IMPORTS_WITHIN_S,
    Forked,
    ForkFailed,
    PoolProcess,
    PoolSettings,
    WarmPool,
)
from holdfast.runtime.system.reactor import Reactor

pytestmark = pytest.mark.process


def test_workers_find_modules_imported_but_no_mpi(tmp_path: Path) -> None:
    """NumPy's own threads end at a fork, so they do not keep it out of the pool."""
    several = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    with agent_running(tmp_path, "--preload", "numpy,mpi4py", environment=several) as harness:
        harness.wait_for("PoolWarmed")
        harness.launch([0], "tell_place")

        harness.guard(0)

        assert harness.wait_for_report(0, "place")["modules"] == ["numpy", "mpi4py"]
        assert not any(event["kind"] == "PreloadFailed" for event in harness.events)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("there_is_no_such_module", "ModuleNotFoundError: No module named"),
        extended("raises", "the pool ended with exit 1 while importing it"),
        ("ends_the_process", "the pool ended with signal SIGILL while importing it"),
        extended("leaves_a_thread", "the import of leaves_a_thread leaves 2 threads running"),
        ("brings_a_thread", "the import of leaves_a_thread leaves 2 threads running"),
    ],
)
def test_module_that_cannot_be_preloaded_is_left_out(
    tmp_path: Path, module: str, reason: str
) -> None:
    with agent_running(tmp_path, "--preload", f"{module},numpy") as harness:
        failed = harness.wait_for("PreloadFailed")
        harness.wait_for("PoolWarmed")
        harness.launch([0], "tell_place")
        harness.guard(0)

        assert failed["module"] == module
        assert failed["message"].startswith(reason)
        assert harness.wait_for_report(0, "place")["modules"] == ["numpy"]


def test_worker_that_cannot_import_its_own_modules_reports_it(tmp_path: Path) -> None:
    """Else it is a death, and the launch is tried again in vain."""
    with agent_running(tmp_path, entry="there_is_no_such_entry:main") as harness:
        harness.launch([0], "leave")

        told = harness.wait_for("WorkerFailed", worker=0)

        assert told["exit_code"] == ExitCode.USAGE
        assert told["message"] == (
            "a worker cannot import what it needs: No module named 'there_is_no_such_entry'; "
            "install holdfast-mpi again"
        )


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGKILL, "signal SIGKILL"), (signal.SIGSTOP, "stopped for ")]
)
def test_dead_or_stopped_pool_is_replaced_and_its_workers_stay(
    tmp_path: Path, number: int, cause: str
) -> None:
    with agent_running(tmp_path, "--heartbeat-timeout", "1") as harness:
        pool = harness.wait_for("PoolWarmed")["pid"]
        harness.launch([0, 1], "0:leave_when_asked")
        first = harness.guard(0)
        harness.wait_for_report(0, "joined")

        os.kill(pool, number)

        assert harness.wait_for("PoolRestarted")["cause"].startswith(cause)
        assert_ended(pool)
        harness.send("AskToStop")
        assert first.wait() == 0
        harness.launch([2], "leave", generation=2)
        assert harness.guard(0, generation=2).wait() == 0


def test_worker_that_a_dying_pool_owed_comes_from_the_next(harness: AgentHarness) -> None:
    pool = harness.wait_for("PoolWarmed")["pid"]
    os.kill(pool, signal.SIGSTOP)
    harness.launch([0, 1], "leave")
    guards = [harness.guard(0), harness.guard(1)]
    harness.go_on()

    os.kill(pool, signal.SIGKILL)

    assert [guard.wait() for guard in guards] == [0, 0]


def test_worker_that_was_killed_before_it_was_made_is_told_so(harness: AgentHarness) -> None:
    pool = harness.wait_for("PoolWarmed")["pid"]
    os.kill(pool, signal.SIGSTOP)
    harness.launch([0], "leave")
    guard = harness.guard(0)
    harness.send("KillLaunch", reason="")
    harness.go_on()

    os.kill(pool, signal.SIGCONT)

    assert harness.wait_for("WorkerExited")["cause"] == "killed with its launch"
    assert guard.wait() == -signal.SIGKILL


def test_pool_that_hangs_does_not_keep_its_launch(harness: AgentHarness) -> None:
    """What it was asked for is forgotten, and another pool makes the next launch."""
    pool = harness.wait_for("PoolWarmed")["pid"]
    os.kill(pool, signal.SIGSTOP)
    harness.launch([0, 1], "leave")

    harness.send("AbandonLaunch", reason="it does not end")

    for worker in (0, 1):
        cause = harness.wait_for("WorkerExited", worker=worker)["cause"]
        assert cause == "not started: it does not end"
    harness.wait_for("LaunchEnded")
    assert harness.wait_for("PoolRestarted")["cause"] == "it does not end"
    assert_ended(pool)
    harness.launch([2], "leave", generation=2)
    assert harness.guard(0, generation=2).wait() == 0


class _Owner:
    """Takes note of what a pool tells."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def pool(self, reactor: Reactor) -> WarmPool:
        settings = PoolSettings((), "none:none")
        return WarmPool(reactor, settings, self.hear, self.forward)

    def hear(self, event: Forked | ForkFailed | Event) -> None:
        assert isinstance(event, Event), "no pool of these tests can fork"
        self.events.append(event)

    def forward(self, stdout_fd: int, stderr_fd: int) -> None:
        os.close(stdout_fd)
        os.close(stderr_fd)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def wait_for(self, kind: str, reactor: Reactor) -> None:
        while kind not in self.kinds[-1:]:
            reactor.run_once(10.0)


def test_pool_that_never_gets_warm_is_given_up_until_a_worker_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    owner, reactor = _Owner(), Reactor()
    pool = owner.pool(reactor)

    owner.wait_for("PoolLost", reactor)

    assert owner.kinds == ["PoolRestarted"] * 5 + ["PoolLost"]
    assert pool.pid is None
    pool.request(worker_config(), (0, 0, 0, 0))
    assert pool.pid is not None
    pool.close()
    reactor.close()


def test_system_without_a_process_to_spare_is_tried_again_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    owner, reactor = _Owner(), Reactor()
    pool = owner.pool(reactor)
    pool.request(worker_config(), (0, 0, 0, 0))

    for now in range(1, 20):
        pool.poll(float(now))

    assert owner.kinds == ["PoolLost"]
    assert "Resource temporarily unavailable" in owner.events[0].reason
    pool.close()
    reactor.close()


@pytest.mark.parametrize("pipes", [0, 1])
def test_start_without_a_descriptor_to_spare_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch, pipes: int
) -> None:
    made: list[tuple[int, int]] = []

    def pipe() -> tuple[int, int]:
        if len(made) == pipes:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(os.pipe2(os.O_CLOEXEC))
        return made[-1]

    monkeypatch.setattr(pool_process.os, "pipe", pipe)
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="Too many open files"):
        PoolProcess.start(PoolSettings((), "module:function"))

    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("is_warm", [False, True])
def test_pool_that_owes_an_answer_for_too_long_is_replaced(
    monkeypatch: pytest.MonkeyPatch, *, is_warm: bool
) -> None:
    monkeypatch.setattr(subprocess, "Popen", _sleeping(subprocess.Popen))
    owner, reactor = _Owner(), Reactor()
    pool = owner.pool(reactor)
    pool.is_warm = is_warm
    pool.request(worker_config(), (0, 0, 0, 0))
    limit_s = FORKS_WITHIN_S if is_warm else IMPORTS_WITHIN_S
    for second in range(0, round(limit_s) + 1, 10):
        pool.poll(1000.0 + second)
    assert owner.kinds == []

    pool.poll(1001.0 + limit_s)
    owner.wait_for("PoolRestarted", reactor)

    assert owner.events[-1].cause == f"without an answer for {limit_s + 1:.0f} s"
    pool.close()
    reactor.close()


def _sleeping(popen: Any) -> Any:
    """Return ``popen`` with another command: a process that says nothing."""
    return lambda command, **options: popen(["sleep", "600"], **options)
