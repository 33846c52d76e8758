"""An agent with tiny workers that need no MPI: launches, deaths, orders, helpers, its own end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent_harness import BOUND_S, AgentHarness, agent_running, assert_ended, launcher_of
from extended import extended, shortened

from holdfast.runtime.system.channel import connect
from holdfast.runtime.system.processes import is_stopped
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS

pytestmark = pytest.mark.process

KILLED_ITSELF = -signal.SIGKILL

LIMIT_S = ("--heartbeat-timeout", "1")

WORKERS = 24
"""A launch needs 9 open files for each."""


def test_worker_stands_where_its_launch_stands(harness: AgentHarness, tmp_path: Path) -> None:
    place = tmp_path / "a 'quoted' \"place\"\\"
    place.mkdir()
    harness.launch([5], "tell_place")

    harness.guard(0, directory=place, PMIX_NAMESPACE="ü\n2", TMPDIR=str(place), HF_OTHER="no")

    told = harness.wait_for_report(5, "place")
    assert told["directory"] == str(place)
    assert told["environment"].pop("TMPDIR", None) == os.environ.get("TMPDIR")
    assert told["environment"] == {"PMIX_NAMESPACE": "ü\n2"}


def test_worker_inherits_nothing_of_its_pool(harness: AgentHarness) -> None:
    harness.launch([5, 6, 7], "tell_place")
    for rank in range(3):
        harness.guard(rank)

    for worker in (5, 6, 7):
        told = harness.wait_for_report(worker, "place")
        assert told["stdin"] == "/dev/null"
        assert set(told["handlers"]) == {number.name for number in SENT_BY_BATCH_SYSTEMS}
        assert told["leads_group"] is True
        assert told["parent"] == harness.process.pid
        page = "/memfd"  # twice, since a mapping keeps a descriptor of its own
        assert told["targets"] == ["/dev/null", page, page, "pipe", "pipe", "socket"]
        assert told["modules"] == []


def test_workers_and_guards_die_with_their_agent_and_another_one_can_follow(
    harness: AgentHarness, tmp_path: Path
) -> None:
    harness.launch([0, 1], "1:stop", "wait")
    guards = [harness.guard(0), harness.guard(1)]
    pids = [harness.wait_for_report(worker, "joined")["pid"] for worker in (0, 1)]
    pids.append(harness.wait_for("PoolWarmed")["pid"])

    harness.process.kill()

    assert [guard.wait() for guard in guards] == [KILLED_ITSELF, KILLED_ITSELF]
    assert_ended(*pids)
    with agent_running(tmp_path) as successor:
        successor.launch([0], "leave", generation=2)
        assert successor.guard(0, generation=2).wait() == 0


def test_guards_and_workers_die_with_their_launcher(harness: AgentHarness) -> None:
    harness.launch([0, 1], "wait")
    with launcher_of(harness, ranks=2) as launcher:
        for worker in (0, 1):
            harness.wait_for_report(worker, "joined")

        launcher.kill()

        for worker in (0, 1):
            assert harness.wait_for("WorkerExited", worker=worker)["cause"] == "guard lost"


def test_worker_and_its_helpers_die_with_its_guard(harness: AgentHarness) -> None:
    harness.launch([0], "start_helper")
    guard = harness.guard(0)
    worker = harness.wait_for("worker_started", worker=0)["pid"]
    helper = harness.wait_for_report(0, "helper")["pid"]

    guard.kill()

    assert harness.wait_for("WorkerExited", worker=0)["cause"] == "guard lost"
    assert_ended(worker, helper)


@pytest.mark.parametrize(
    ("rank", "generation"),
    [(0, 1), (0, 3), (2, 2), (-1, 2), (1, 2)],
    ids=["old", "new", "high", "low", "second"],
)
def test_guard_that_is_not_expected_kills_itself(
    harness: AgentHarness, rank: int, generation: int
) -> None:
    harness.launch([0, 1], "wait", generation=2)
    expected = harness.guard(1, generation=2)
    harness.wait_for_report(1, "joined")

    guard = harness.guard(rank, generation=generation)

    assert guard.wait() == KILLED_ITSELF
    assert expected.poll() is None


def test_kill_ends_every_worker_of_the_launch_once(harness: AgentHarness) -> None:
    harness.launch([0, 1, 2], "1:stop", "wait")
    guards = [harness.guard(0), harness.guard(1)]
    for worker in (0, 1):
        harness.wait_for_report(worker, "joined")

    harness.send("KillLaunch", reason="")

    for worker in (0, 1, 2):
        event = harness.wait_for("WorkerExited", worker=worker)
        assert event["cause"] == "killed with its launch"
    assert [guard.wait() for guard in guards] == [KILLED_ITSELF, KILLED_ITSELF]
    assert harness.guard(2).wait() == KILLED_ITSELF
    assert harness.wait_for("WorkerExited", worker=2)["phase"] == "starting"


def test_next_launch_ends_what_is_left_of_the_last(harness: AgentHarness) -> None:
    harness.launch([0], "wait")
    harness.guard(0)
    harness.wait_for_report(0, "joined")

    harness.launch([1], "leave", generation=2)
    harness.guard(0, generation=2)

    assert harness.wait_for("WorkerExited", generation=1)["is_clean"] is False
    assert harness.wait_for("WorkerExited", generation=2)["is_clean"] is True


def test_launch_whose_mpiexec_cannot_be_started_has_ended(harness: AgentHarness) -> None:
    (harness.directory / "agent" / "launch-1").mkdir()

    harness.launch([0], mpi={"mpiexec": "/opt/mpiexec", "library": "Open MPI", "ulfm": True})

    reason = harness.wait_for("LaunchEnded")["reason"]
    assert reason.startswith("mpiexec started no worker: /opt/mpiexec cannot be started: ")


@pytest.mark.parametrize(
    ("what", "fields", "bits"),
    [("AskToSave", {}, 1), ("AskToStop", {}, 2), ("Renew", {"reason": "2 are left"}, 2)],
)
def test_request_reaches_the_worker(
    harness: AgentHarness, what: str, fields: dict[str, str], bits: int
) -> None:
    harness.launch([0], "leave_when_asked")
    harness.guard(0)
    harness.wait_for_report(0, "joined")

    harness.send(what, **fields)

    assert harness.wait_for_report(0, "asked")["requests"] == bits


def test_shutdown_kills_all_and_leaves_nothing(harness: AgentHarness) -> None:
    harness.launch([0, 1], "0:stop", "wait")
    guards = [harness.guard(0), harness.guard(1)]
    pids = [harness.wait_for_report(worker, "joined")["pid"] for worker in (0, 1)]

    harness.send("shutdown")

    assert harness.process.wait() == 0
    assert [guard.wait() for guard in guards] == [KILLED_ITSELF, KILLED_ITSELF]
    assert_ended(*pids)
    assert not harness.socket.parent.exists()


def test_signal_to_the_agent_is_told_to_who_decides_and_ends_nobody(
    harness: AgentHarness,
) -> None:
    """A batch system signals every process of a job; one of them decides."""
    harness.launch([0], "leave_when_asked")
    guard = harness.guard(0)
    worker = harness.wait_for_report(0, "joined")["pid"]
    pool = harness.wait_for("PoolWarmed")["pid"]

    for pid in (worker, guard.pid, pool, harness.process.pid):
        for number in SENT_BY_BATCH_SYSTEMS:
            os.kill(pid, number)

    harness.wait_for("signalled")
    harness.send("AskToStop")
    assert guard.wait() == 0
    assert not [event for event in harness.events if event["kind"] == "PoolRestarted"]


def test_much_output_of_many_workers_keeps_its_lines(tmp_path: Path) -> None:
    with agent_running(tmp_path, "--verbose") as harness:
        harness.launch([0, 1, 2], "print_much")
        for rank in range(3):
            harness.guard(rank)
        for worker in range(3):
            assert harness.wait_for("WorkerExited", worker=worker)["is_clean"] is True
        harness.send("shutdown")
        harness.process.wait()
        lines = harness.stdout.read_text().splitlines()

    assert len(lines) == 3 * 20_000
    assert set(lines) == {f"[w{worker}] " + str(worker) * 79 for worker in range(3)}


@pytest.mark.parametrize("fields", [{"rank": "none"}, {}])
def test_guard_that_makes_no_sense_is_turned_away(
    harness: AgentHarness, fields: dict[str, object]
) -> None:
    stranger = connect(harness.socket)

    stranger.send({"kind": "GuardHello", **fields})

    assert stranger.receive() is None
    stranger.close()


@pytest.mark.extended  # a minute of waiting for the client
def test_head_whose_client_dies_before_it_calls_ends(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "head = subprocess.Popen([sys.executable, '-m', 'holdfast.runtime.head', '--directory',"
        " sys.argv[1], '--heartbeat-timeout', '9'], stdout=subprocess.DEVNULL)\n"
        "print(head.pid)\n"
    )
    private = tmp_path / "private"
    private.mkdir()
    arguments = [sys.executable, "-c", script, str(private)]

    client = subprocess.run(arguments, capture_output=True, check=True)

    assert_ended(int(client.stdout))
    assert os.listdir(tmp_path) == []


def test_agent_keeps_nothing_of_past_launches(harness: AgentHarness) -> None:
    """Descriptors, zombies and orphans would add up over a long job."""
    harness.wait_for("PoolWarmed")
    before = _held_by(harness.process.pid)

    for generation in range(1, 4):
        harness.events.clear()
        harness.launch([0, 1], "0:start_helper", "leave", generation=generation)
        guards = [harness.guard(rank, generation=generation) for rank in (0, 1)]
        harness.wait_for_report(0, "helper")
        guards[0].kill()
        for worker in (0, 1):
            harness.wait_for("WorkerExited", worker=worker, generation=generation)

    # pipes are closed by another thread, and orphans are reaped at the next look
    while _held_by(harness.process.pid) != before:
        harness.go_on()


def _held_by(pid: int) -> tuple[int, list[str]]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return len(os.listdir(f"/proc/{pid}/fd")), children


def test_workers_leave_when_the_last_one_has_come_to_the_end(harness: AgentHarness) -> None:
    """Until then they wait for a message; MPI would have each of them wait with a core."""
    harness.launch([0, 1], "1:leave_when_asked", "come_to_the_end")
    guards = [harness.guard(0), harness.guard(1)]
    harness.wait_for_report(1, "joined")
    harness.wait_for_report(0, "joined")
    assert "told" not in harness.kinds(0)

    harness.send("AskToStop")

    assert harness.wait_for_report(0, "told")["kind_told"] == "LetLeave"
    assert [guard.wait() for guard in guards] == [0, 0]


def test_worker_that_leaves_ends_its_guard_in_peace_and_its_output_comes_as_it_is(
    harness: AgentHarness,
) -> None:
    harness.launch([3], "print_lines")

    guard = harness.guard(0)

    event = harness.wait_for("WorkerExited", worker=3)
    assert (event["is_clean"], event["cause"]) == (True, "exit 0")
    assert (event["phase"], event["step"]) == ("training", 43)
    assert guard.wait() == 0
    harness.send("shutdown")
    harness.process.wait()
    assert harness.stdout.read_text() == "one line\nno end\n"
    assert harness.stderr.read_text() == "to stderr\n"


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        ("exit_0", "exit 0 without leaving"),
        extended("return_", "exit 0 without leaving"),
        ("exit_1", "exit 1"),
        ("leave_then_exit_3", "exit 3"),
        extended("sys_exit_4", "exit 4"),
        ("raise_", "exit 1"),
        ("segfault", "signal SIGSEGV"),
        extended("abort", "signal SIGABRT"),
        ("sigkill", "signal SIGKILL"),
        extended("sigalrm", "signal SIGALRM"),
    ],
)
def test_every_unclean_end_makes_the_guard_kill_itself(
    harness: AgentHarness, behaviour: str, cause: str
) -> None:
    harness.launch([3, 4], f"4:{behaviour}", "wait")
    survivor = harness.guard(0)

    guard = harness.guard(1)

    event = harness.wait_for("WorkerExited")
    assert (event["worker"], event["cause"]) == (4, cause)
    assert (event["is_clean"], event["fenced"]) == (False, False)
    assert (event["step"], event["phase"], event["generation"]) == (44, "training", 1)
    assert 1 << 20 < event["peak_bytes"] < 1 << 34
    assert guard.wait() == KILLED_ITSELF
    assert survivor.poll() is None


@pytest.mark.parametrize("behaviour", shortened(["stop", "hold_gil"], here=["stop"]))
def test_silent_worker_is_fenced(harness: AgentHarness, behaviour: str) -> None:
    harness.launch([0], behaviour)

    guard = harness.guard(0)

    fenced = harness.wait_for("WorkerFenced", worker=0)
    exited = harness.wait_for("WorkerExited", worker=0)
    assert fenced["silent_s"] > harness.heartbeat_timeout_s
    assert fenced["step"] == 40
    assert exited["fenced"] is True
    assert exited["cause"].startswith("fenced after")
    assert harness.kinds(0)[-2:] == ["WorkerFenced", "WorkerExited"]
    assert guard.wait() == KILLED_ITSELF


@pytest.mark.parametrize(
    "behaviour", shortened(["compute_in_python", "compute_in_c"], here=["compute_in_c"])
)
def test_busy_worker_is_left_alone(harness: AgentHarness, behaviour: str) -> None:
    harness.launch([0], behaviour)

    harness.guard(0)

    assert harness.wait_for("WorkerExited", worker=0)["is_clean"] is True
    assert "WorkerFenced" not in harness.kinds(0)


def test_worker_that_sends_no_messages_any_more_but_noise_is_a_death(
    harness: AgentHarness,
) -> None:
    """It would wait for ever for the answer to what it meant to say."""
    harness.launch([0], "say_noise")
    guard = harness.guard(0)

    exited = harness.wait_for("WorkerExited", worker=0)

    assert exited["cause"] == "it sent its agent what is no message"
    assert guard.wait() == -signal.SIGKILL


def test_worker_of_a_stopped_guard_dies_and_so_does_the_guard(tmp_path: Path) -> None:
    with agent_running(tmp_path, *LIMIT_S) as harness:
        harness.launch([0, 1], "wait")
        guards = [harness.guard(0), harness.guard(1)]
        harness.wait_for("worker_started", worker=0)
        harness.wait_for("worker_started", worker=1)

        guards[0].send_signal(signal.SIGSTOP)

        assert harness.wait_for("WorkerExited", worker=0)["cause"].startswith("guard stopped")
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


def test_helper_that_goes_on_within_the_limit_is_left_alone(tmp_path: Path) -> None:
    with agent_running(tmp_path, "--heartbeat-timeout", "600") as harness:
        pool = harness.wait_for("PoolWarmed")["pid"]
        os.kill(pool, signal.SIGSTOP)
        deadline = time.monotonic() + BOUND_S
        while not is_stopped(pool):
            assert time.monotonic() < deadline
        os.kill(pool, signal.SIGCONT)

        harness.launch([0], "leave")

        assert harness.guard(0).wait() == 0
        harness.wait_for("WorkerExited", worker=0, is_clean=True)
        assert not [event for event in harness.events if event["kind"] == "PoolRestarted"]


@contextmanager
def files_limited_to(count: int) -> Iterator[None]:
    """Give the processes that are started meanwhile a soft limit of open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_agent_hosts_more_workers_than_its_user_may_open_files_for(tmp_path: Path) -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = len(os.listdir("/proc/self/fd")) + 60
    with files_limited_to(few), agent_running(tmp_path) as harness:
        harness.launch(range(WORKERS), "wait")
        guards = [harness.guard(rank) for rank in range(WORKERS)]
        pids = [harness.wait_for_report(worker, "joined")["pid"] for worker in range(WORKERS)]

        of_agent = resource.prlimit(harness.process.pid, resource.RLIMIT_NOFILE)
        of_worker = resource.prlimit(pids[-1], resource.RLIMIT_NOFILE)

    assert of_agent == (usual, usual)
    assert of_worker == (few + 4 * WORKERS, usual)
    assert_ended(*pids, *(guard.pid for guard in guards))


def test_launch_that_needs_more_files_than_there_may_be_ends_with_its_reason(
    tmp_path: Path,
) -> None:
    with agent_running(tmp_path) as harness:
        harness.wait_for("PoolWarmed")
        resource.prlimit(harness.process.pid, resource.RLIMIT_NOFILE, (100, 100))
        harness.launch(range(WORKERS), "wait")

        ended = harness.wait_for("LaunchEnded")

        assert f"{WORKERS} workers cannot be made" in ended["reason"]
        assert "Too many open files" in ended["reason"]
        while len(os.listdir(f"/proc/{harness.process.pid}/fd")) > 90:
            harness.go_on()
        harness.launch([1], "leave", generation=2)
        harness.guard(0, generation=2)
        harness.wait_for("WorkerExited", worker=1, generation=2, is_clean=True)
