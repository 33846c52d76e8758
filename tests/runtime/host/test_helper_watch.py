"""Helpers that are stopped: within the limit it costs nothing, beyond it they are replaced."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from agent_harness import BOUND_S, AgentHarness, agent_running, assert_ended

from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.processes import is_stopped

pytestmark = pytest.mark.process

LIMIT_S = ("--heartbeat-timeout", "1")


def _end_of(harness: AgentHarness, worker: int) -> Message:
    return harness.wait_for("worker_exited", worker=worker)


def test_worker_of_a_stopped_guard_dies_and_so_does_the_guard(tmp_path: Path) -> None:
    with agent_running(tmp_path, *LIMIT_S) as harness:
        harness.launch([0, 1], "wait")
        guards = [harness.guard(0), harness.guard(1)]
        harness.wait_for("worker_started", worker=0)
        harness.wait_for("worker_started", worker=1)

        guards[0].send_signal(signal.SIGSTOP)

        assert _end_of(harness, 0)["cause"].startswith("guard stopped for ")
        assert guards[0].wait() == -signal.SIGKILL
        assert guards[1].poll() is None


def test_guard_that_was_stopped_follows_its_dead_worker_nevertheless(tmp_path: Path) -> None:
    """It cannot kill itself, and without its death MPI would tell the survivors nothing."""
    with agent_running(tmp_path, "--heartbeat-timeout", "600") as harness:
        harness.launch([0], "wait")
        guard = harness.guard(0)
        pid = harness.wait_for("worker_started", worker=0)["pid"]
        guard.send_signal(signal.SIGSTOP)

        os.kill(pid, signal.SIGKILL)

        assert guard.wait() == -signal.SIGKILL


def test_stopped_pool_is_replaced_and_its_workers_stay(tmp_path: Path) -> None:
    with agent_running(tmp_path, *LIMIT_S) as harness:
        pool = harness.wait_for("warm")["pid"]
        harness.launch([0], "0:leave_when_asked")
        guard = harness.guard(0)
        harness.wait_for_report(0, "joined")

        os.kill(pool, signal.SIGSTOP)

        assert harness.wait_for("pool_restarted")["cause"].startswith("stopped for ")
        assert_ended(pool)
        harness.send("request", what="stop")
        assert guard.wait() == 0


def test_helper_that_goes_on_within_the_limit_is_left_alone(tmp_path: Path) -> None:
    with agent_running(tmp_path, "--heartbeat-timeout", "600") as harness:
        pool = harness.wait_for("warm")["pid"]
        os.kill(pool, signal.SIGSTOP)
        deadline = time.monotonic() + BOUND_S
        while not is_stopped(pool):
            assert time.monotonic() < deadline
        os.kill(pool, signal.SIGCONT)

        harness.launch([0], "leave")

        assert harness.guard(0).wait() == 0
        harness.wait_for("worker_exited", worker=0, clean=True)
        assert not [event for event in harness.events if event["kind"] == "pool_restarted"]
