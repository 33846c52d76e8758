from __future__ import annotations

import signal

import pytest
from agent_harness import AgentHarness, assert_ended
from extended import shortened

pytestmark = pytest.mark.process

KILLED_ITSELF = -signal.SIGKILL


def test_worker_that_leaves_ends_its_guard_in_peace(harness: AgentHarness) -> None:
    harness.launch([7], "leave")

    guard = harness.guard(0)

    event = harness.wait_for("worker_exited", worker=7)
    assert event["clean"] is True
    assert event["cause"] == "exit 0"
    assert event["phase"] == "training"
    assert event["step"] == 47
    assert guard.wait() == 0


@pytest.mark.parametrize(
    ("behaviour", "status", "cause"),
    [
        ("exit_0", 0, "exit 0 without leaving"),
        ("return_", 0, "exit 0 without leaving"),
        ("exit_1", 1, "exit 1"),
        ("leave_then_exit_3", 3, "exit 3"),
        ("sys_exit_4", 4, "exit 4"),
        ("raise_", 1, "exit 1"),
        ("segfault", -11, "signal SIGSEGV"),
        ("abort", -6, "signal SIGABRT"),
        ("sigkill", -9, "signal SIGKILL"),
        ("sigalrm", -14, "signal SIGALRM"),
    ],
)
def test_every_unclean_end_makes_the_guard_kill_itself(
    harness: AgentHarness, behaviour: str, status: int, cause: str
) -> None:
    harness.launch([3, 4], f"4:{behaviour}", "wait")
    survivor = harness.guard(0)

    guard = harness.guard(1)

    event = harness.wait_for("worker_exited")
    assert (event["worker"], event["status"], event["cause"]) == (4, status, cause)
    assert (event["clean"], event["fenced"]) == (False, False)
    assert (event["step"], event["phase"], event["generation"]) == (44, "training", 1)
    assert 1 << 20 < event["peak_bytes"] < 1 << 34
    assert guard.wait() == KILLED_ITSELF
    assert survivor.poll() is None


@pytest.mark.parametrize("behaviour", shortened(["stop", "hold_gil"], here=["stop"]))
def test_silent_worker_is_fenced(harness: AgentHarness, behaviour: str) -> None:
    harness.launch([0], behaviour)

    guard = harness.guard(0)

    fenced = harness.wait_for("worker_fenced", worker=0)
    exited = harness.wait_for("worker_exited", worker=0)
    assert fenced["silent_s"] > harness.heartbeat_timeout_s
    assert (fenced["step"], fenced["phase"]) == (40, "training")
    assert exited["fenced"] is True
    assert exited["status"] == -signal.SIGKILL
    assert exited["cause"].startswith("fenced after")
    assert harness.kinds(0)[-2:] == ["worker_fenced", "worker_exited"]
    assert guard.wait() == KILLED_ITSELF


@pytest.mark.parametrize(
    "behaviour", shortened(["compute_in_python", "compute_in_c"], here=["compute_in_c"])
)
def test_busy_worker_is_left_alone(harness: AgentHarness, behaviour: str) -> None:
    harness.launch([0], behaviour)

    harness.guard(0)

    assert harness.wait_for("worker_exited", worker=0)["clean"] is True
    assert "worker_fenced" not in harness.kinds(0)


def test_worker_dies_with_its_guard(harness: AgentHarness) -> None:
    harness.launch([0], "wait")
    guard = harness.guard(0)
    worker = harness.wait_for_report(0, "joined")["pid"]

    guard.kill()

    event = harness.wait_for("worker_exited", worker=0)
    assert (event["status"], event["cause"]) == (-signal.SIGKILL, "guard lost")
    assert_ended(worker)


def test_worker_that_sends_no_messages_any_more_but_noise_is_a_death(
    harness: AgentHarness,
) -> None:
    """It would wait for ever for the answer to what it meant to say."""
    harness.launch([0], "say_noise")
    guard = harness.guard(0)

    exited = harness.wait_for("worker_exited", worker=0)

    assert exited["cause"] == "it sent its agent what is no message"
    assert guard.wait() == -signal.SIGKILL
