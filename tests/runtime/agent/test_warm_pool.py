from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from agent_harness import AgentHarness, agent_running, assert_ended

from holdfast.runtime.agent.warm_pool import PoolSettings, WarmPool
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.reactor import Reactor

pytestmark = pytest.mark.process


def test_workers_find_modules_imported_but_no_mpi(tmp_path: Path) -> None:
    """NumPy's own threads end at a fork, so they do not keep it out of the pool."""
    several = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    with agent_running(tmp_path, "--preload", "numpy,mpi4py", environment=several) as harness:
        harness.wait_for("warm")
        harness.launch([0], "tell_place")

        harness.guard(0)

        assert harness.wait_for_report(0, "place")["modules"] == ["numpy", "mpi4py"]
        assert not any(event["kind"] == "preload_failed" for event in harness.events)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("there_is_no_such_module", "ModuleNotFoundError: No module named"),
        ("raises", "the pool ended with exit 1 while importing it"),
        ("ends_the_process", "the pool ended with signal SIGILL while importing it"),
        ("leaves_a_thread", "its import leaves 2 threads running"),
    ],
)
def test_module_that_cannot_be_preloaded_is_left_out(
    tmp_path: Path, module: str, reason: str
) -> None:
    with agent_running(tmp_path, "--preload", f"{module},numpy") as harness:
        failed = harness.wait_for("preload_failed")
        harness.wait_for("warm")
        harness.launch([0], "tell_place")
        harness.guard(0)

        assert failed["module"] == module
        assert failed["message"].startswith(reason)
        assert harness.wait_for_report(0, "place")["modules"] == ["numpy"]


def test_dead_pool_is_replaced_and_its_workers_stay(harness: AgentHarness) -> None:
    pool = harness.wait_for("warm")["pid"]
    harness.launch([0, 1], "0:leave_when_asked")
    first = harness.guard(0)
    harness.wait_for_report(0, "joined")

    os.kill(pool, signal.SIGKILL)

    assert harness.wait_for("pool_restarted")["cause"] == "signal SIGKILL"
    harness.send("request", what="stop")
    assert first.wait() == 0
    harness.launch([2], "leave", generation=2)
    assert harness.guard(0, generation=2).wait() == 0


def test_worker_that_a_dying_pool_owed_comes_from_the_next(harness: AgentHarness) -> None:
    pool = harness.wait_for("warm")["pid"]
    os.kill(pool, signal.SIGSTOP)
    harness.launch([0, 1], "leave")
    guards = [harness.guard(0), harness.guard(1)]
    harness.send("request", what="unknown")
    harness.wait_for("refused")  # so the launch was handled too

    os.kill(pool, signal.SIGKILL)

    assert [guard.wait() for guard in guards] == [0, 0]


def test_worker_that_was_killed_before_it_was_made_is_told_so(harness: AgentHarness) -> None:
    pool = harness.wait_for("warm")["pid"]
    os.kill(pool, signal.SIGSTOP)
    harness.launch([0], "leave")
    guard = harness.guard(0)
    harness.send("kill")
    harness.send("request", what="unknown")
    harness.wait_for("refused")

    os.kill(pool, signal.SIGCONT)

    assert harness.wait_for("worker_exited")["cause"] == "killed by the supervisor"
    assert guard.wait() == -signal.SIGKILL


def test_pool_dies_with_its_agent(harness: AgentHarness) -> None:
    pool = harness.wait_for("warm")["pid"]

    harness.process.kill()

    assert_ended(pool)


class _Owner:
    """Takes note of what a pool tells."""

    def __init__(self) -> None:
        self.events: list[Message] = []

    def on_forked(self, generation: int, worker: int, pid: int) -> None:
        raise AssertionError("nobody asked for a worker")

    def on_fork_failed(self, generation: int, worker: int, message: str) -> None:
        raise AssertionError("nobody asked for a worker")

    def on_pool_event(self, event: Message) -> None:
        self.events.append(event)

    def on_pool_output(self, stdout_fd: int, stderr_fd: int) -> None:
        os.close(stdout_fd)
        os.close(stderr_fd)


def test_pool_that_never_gets_warm_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    owner, reactor = _Owner(), Reactor()
    pool = WarmPool(reactor, PoolSettings((), "none:none"), owner)

    while owner.events[-1:] == [] or owner.events[-1]["kind"] != "pool_lost":
        reactor.run_once(10.0)

    assert [event["kind"] for event in owner.events] == ["pool_restarted"] * 5 + ["pool_lost"]
    pool.close()
    reactor.close()
