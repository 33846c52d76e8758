from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_harness import BOUND_S, AgentHarness, assert_ended, launcher_of
from configs import worker_config

from holdfast.runtime.system.channel import Message, connect
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS

pytestmark = pytest.mark.process

KILLED_ITSELF = -signal.SIGKILL


def test_worker_stands_where_its_launch_stands(harness: AgentHarness, tmp_path: Path) -> None:
    place = tmp_path / "a 'quoted' \"place\"\\"
    place.mkdir()
    harness.launch([5], "tell_place", env={"HF_FROM_LAUNCH": "ü\n2"})

    harness.guard(0, directory=place, PMIX_NAMESPACE="job.1", TMPDIR=str(place), HF_OTHER="no")

    told = harness.wait_for_report(5, "place")
    assert told["directory"] == str(place)
    assert told["environment"].pop("TMPDIR", None) == os.environ.get("TMPDIR")
    assert told["environment"] == {"HF_FROM_LAUNCH": "ü\n2", "PMIX_NAMESPACE": "job.1"}


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


def test_workers_die_with_their_agent_and_so_do_the_guards(harness: AgentHarness) -> None:
    harness.launch([0, 1], "1:stop", "wait")
    guards = [harness.guard(0), harness.guard(1)]
    pids = [harness.wait_for_report(worker, "joined")["pid"] for worker in (0, 1)]

    harness.process.kill()

    assert [guard.wait() for guard in guards] == [KILLED_ITSELF, KILLED_ITSELF]
    assert_ended(*pids)


def test_guards_and_workers_die_with_their_launcher(harness: AgentHarness) -> None:
    harness.launch([0, 1], "wait")
    with launcher_of(harness, ranks=2) as launcher:
        for worker in (0, 1):
            harness.wait_for_report(worker, "joined")

        launcher.kill()

        for worker in (0, 1):
            assert harness.wait_for("worker_exited", worker=worker)["cause"] == "guard lost"


def test_helpers_of_a_worker_die_with_it(harness: AgentHarness) -> None:
    harness.launch([0], "start_helper")
    guard = harness.guard(0)
    helper = harness.wait_for_report(0, "helper")["pid"]

    guard.kill()

    assert_ended(helper)


@pytest.mark.parametrize(
    ("rank", "generation"), [(0, 1), (0, 3), (2, 2), (-1, 2)], ids=["old", "new", "high", "low"]
)
def test_guard_that_is_not_expected_kills_itself(
    harness: AgentHarness, rank: int, generation: int
) -> None:
    harness.launch([0, 1], "wait", generation=2)

    guard = harness.guard(rank, generation=generation)

    assert guard.wait() == KILLED_ITSELF


def test_second_guard_of_a_rank_kills_itself(harness: AgentHarness) -> None:
    harness.launch([0], "wait")
    first = harness.guard(0)
    harness.wait_for("worker_started", worker=0)

    second = harness.guard(0)

    assert second.wait() == KILLED_ITSELF
    assert first.poll() is None


def test_guard_without_agent_kills_itself(harness: AgentHarness) -> None:
    guard = harness.guard(0, HOLDFAST_AGENT=str(harness.directory / "nobody.sock"))

    assert guard.wait() == KILLED_ITSELF
    assert "no agent at" in (harness.directory / "started-0").read_text()


def test_kill_ends_every_worker_of_the_launch_once(harness: AgentHarness) -> None:
    harness.launch([0, 1, 2], "1:stop", "wait")
    guards = [harness.guard(0), harness.guard(1)]
    for worker in (0, 1):
        harness.wait_for_report(worker, "joined")

    harness.send("kill")

    for worker in (0, 1, 2):
        event = harness.wait_for("worker_exited", worker=worker)
        assert event["cause"] == "killed by the supervisor"
    assert [guard.wait() for guard in guards] == [KILLED_ITSELF, KILLED_ITSELF]
    assert harness.guard(2).wait() == KILLED_ITSELF
    assert harness.wait_for("worker_exited", worker=2)["phase"] == "starting"


def test_next_launch_ends_what_is_left_of_the_last(harness: AgentHarness) -> None:
    harness.launch([0], "wait")
    harness.guard(0)
    harness.wait_for_report(0, "joined")

    harness.launch([0], "leave", generation=2)
    harness.guard(0, generation=2)

    assert harness.wait_for("worker_exited", generation=1)["clean"] is False
    assert harness.wait_for("worker_exited", generation=2)["clean"] is True


@pytest.mark.parametrize(("what", "bits"), [("save", 1), ("stop", 2)])
def test_request_reaches_the_worker(harness: AgentHarness, what: str, bits: int) -> None:
    harness.launch([0], "leave_when_asked")
    harness.guard(0)
    harness.wait_for_report(0, "joined")

    harness.send("request", what=what)

    assert harness.wait_for_report(0, "asked")["requests"] == bits


def test_training_goes_on_without_a_supervisor(harness: AgentHarness) -> None:
    harness.launch([0], "leave_when_asked")
    guard = harness.guard(0)
    harness.wait_for_report(0, "joined")

    harness.channel.close()
    harness.channel = harness.connect()
    harness.send("request", what="stop")

    assert harness.wait_for("worker_exited", worker=0)["clean"] is True
    assert guard.wait() == 0


def test_events_without_a_supervisor_wait_for_the_next(harness: AgentHarness) -> None:
    harness.launch([0, 1], "0:leave", "wait")
    harness.guard(1)
    harness.wait_for_report(1, "joined")
    harness.channel.close()

    assert harness.guard(0).wait() == 0
    harness.channel = harness.connect()

    assert harness.wait_for("worker_exited", worker=0)["clean"] is True


def test_agent_ends_when_nobody_needs_it(harness: AgentHarness) -> None:
    harness.launch([0], "leave")
    harness.guard(0)
    harness.wait_for("worker_exited")

    harness.channel.close()

    assert harness.process.wait() == 0


def test_shutdown_kills_all_and_leaves_nothing(harness: AgentHarness) -> None:
    harness.launch([0, 1], "0:stop", "wait")
    guards = [harness.guard(0), harness.guard(1)]
    pids = [harness.wait_for_report(worker, "joined")["pid"] for worker in (0, 1)]

    harness.send("shutdown")

    assert harness.process.wait() == 0
    assert [guard.wait() for guard in guards] == [KILLED_ITSELF, KILLED_ITSELF]
    assert_ended(*pids)
    assert not (harness.directory / "agent.sock").exists()


def test_signal_to_the_agent_is_told_to_its_supervisor_and_ends_nobody(
    harness: AgentHarness,
) -> None:
    """A batch system signals every process of a job; one of them decides."""
    harness.launch([0], "leave_when_asked")
    guard = harness.guard(0)
    worker = harness.wait_for_report(0, "joined")["pid"]
    pool = harness.wait_for("warm")["pid"]

    for pid in (worker, guard.pid, pool, harness.process.pid):
        for number in SENT_BY_BATCH_SYSTEMS:
            os.kill(pid, number)

    assert harness.wait_for("signalled")["signal"] == "SIGTERM"
    harness.send("request", what="stop")
    assert guard.wait() == 0
    assert not [event for event in harness.events if event["kind"] == "pool_restarted"]


def test_first_signal_to_an_agent_alone_asks_its_workers_to_stop(harness: AgentHarness) -> None:
    harness.launch([0], "leave_when_asked")
    guard = harness.guard(0)
    harness.wait_for_report(0, "joined")
    harness.channel.close()

    harness.process.terminate()

    assert guard.wait() == 0
    assert harness.process.wait(BOUND_S) == 0


def test_second_signal_to_an_agent_alone_ends_it_with_all_its_processes(
    harness: AgentHarness,
) -> None:
    harness.launch([0], "wait")
    guard = harness.guard(0)
    worker = harness.wait_for_report(0, "joined")["pid"]
    harness.channel.close()
    deadline = time.monotonic() + BOUND_S

    while harness.process.poll() is None:  # the same signal within a second is the same wish
        assert time.monotonic() < deadline
        harness.process.terminate()
        time.sleep(0.1)

    assert harness.process.returncode == 143
    assert guard.wait() == KILLED_ITSELF
    assert_ended(worker)
    assert not (harness.directory / "agent.sock").exists()


def test_output_of_the_first_worker_comes_as_it_is(harness: AgentHarness) -> None:
    harness.launch([3], "print_lines")
    harness.guard(0)
    harness.wait_for("worker_exited")

    harness.send("shutdown")
    harness.process.wait()

    assert harness.stdout.read_text() == "one line\nno end\n"
    assert harness.stderr.read_text() == "to stderr\n"


def test_much_output_of_many_workers_keeps_its_lines(verbose: AgentHarness) -> None:
    harness = verbose
    harness.launch([0, 1, 2], "print_much")
    for rank in range(3):
        harness.guard(rank)
    for worker in range(3):
        assert harness.wait_for("worker_exited", worker=worker)["clean"] is True

    harness.send("shutdown")
    harness.process.wait()

    lines = harness.stdout.read_text().splitlines()
    assert len(lines) == 3 * 20_000
    assert set(lines) == {f"[w{worker}] " + str(worker) * 79 for worker in range(3)}


def test_output_of_other_workers_is_not_shown_until_one_of_them_is_the_first(
    harness: AgentHarness,
) -> None:
    harness.launch([0, 1, 2], "print_much")
    for rank in range(3):
        harness.guard(rank)
    for worker in range(3):
        assert harness.wait_for("worker_exited", worker=worker)["clean"] is True

    harness.send("shutdown")
    harness.process.wait()

    assert harness.stdout.read_text().splitlines() == ["0" * 79] * 20_000


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "stranger"},
        {"kind": "guard", "rank": "none"},
        {"kind": "guard"},
        {},
    ],
)
def test_stranger_is_turned_away(harness: AgentHarness, message: dict[str, object]) -> None:
    stranger = connect(harness.directory / "agent.sock")

    stranger.send(message)

    assert stranger.receive() is None
    stranger.close()


@pytest.mark.parametrize(
    "order",
    [
        {"kind": "launch"},
        {"kind": "launch", "config": {"nonsense": 1}},
        {"kind": "launch", "config": worker_config(seed=1).to_json() | {"options": {"seed": -1}}},
        {"kind": "request", "what": "dance"},
        {"kind": "unknown"},
    ],
)
def test_order_that_makes_no_sense_is_refused(
    harness: AgentHarness, order: dict[str, object]
) -> None:
    harness.channel.send(order)

    assert harness.wait_for("refused")["message"]
    assert harness.process.poll() is None


def test_agent_imports_nothing_heavy() -> None:
    script = (
        "import sys, holdfast.runtime.host, holdfast.runtime.host.pool\n"
        "print([m for m in ('numpy', 'mpi4py', 'tensorflow', 'keras', 'h5py') if m in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert found.stdout == b"[]\n"


@pytest.mark.parametrize("waits", [True, False], ids=["later", "at once"])
def test_agent_whose_supervisor_dies_before_it_calls_ends(tmp_path: Path, *, waits: bool) -> None:
    """A supervisor may be killed between starting its agent and connecting to it."""
    script = (
        "import os, subprocess, sys\n"
        "ready, told = os.pipe()\n"
        "agent = subprocess.Popen([sys.executable, '-m', 'holdfast.runtime.host', '--directory',"
        " sys.argv[1], '--heartbeat-timeout', '9', '--ready-fd', str(told)], pass_fds=[told],"
        " stdout=subprocess.DEVNULL)\n"
        "waits and os.read(ready, 9)\n".replace("waits", str(waits))
        + "print(agent.pid)\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path)]

    supervisor = subprocess.run(arguments, capture_output=True, check=True)

    assert_ended(int(supervisor.stdout))
    assert os.listdir(tmp_path) == []


def test_agent_keeps_nothing_of_past_launches(harness: AgentHarness) -> None:
    """Descriptors, zombies and orphans would add up over a long job."""
    harness.wait_for("warm")
    before = _held_by(harness.process.pid)

    for generation in range(1, 4):
        harness.events.clear()
        harness.launch([0, 1], "0:start_helper", "leave", generation=generation)
        guards = [harness.guard(rank, generation=generation) for rank in (0, 1)]
        harness.wait_for_report(0, "helper")
        guards[0].kill()
        for worker in (0, 1):
            harness.wait_for("worker_exited", worker=worker, generation=generation)

    # pipes are closed by another thread, and orphans are reaped at the next look
    while _held_by(harness.process.pid) != before:
        harness.events.clear()
        harness.send("request", what="unknown")
        harness.wait_for("refused")


def _held_by(pid: int) -> tuple[int, list[str]]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return len(os.listdir(f"/proc/{pid}/fd")), children


def test_takeover_is_refused_while_the_supervisor_is_well_and_costs_nothing(
    harness: AgentHarness,
) -> None:
    harness.launch([0], "wait")
    harness.guard(0)
    harness.wait_for_report(0, "joined")
    before = len(os.listdir(f"/proc/{harness.process.pid}/fd"))

    for _ in range(20):
        stranger = connect(harness.directory / "agent.sock")
        stranger.send({"kind": "supervisor", "takes_over": True}, (1, 2))
        assert stranger.receive() == {"kind": "supervised", "pid": os.getpid()}
        assert stranger.receive() is None
        stranger.close()

    assert len(os.listdir(f"/proc/{harness.process.pid}/fd")) == before
    harness.send("request", what="unknown")
    harness.wait_for("refused")  # the supervisor is the one that it was


def test_supervisor_that_takes_over_is_told_the_launch_so_far(harness: AgentHarness) -> None:
    harness.launch([0], "wait", relaunch=2, spent=3)
    harness.guard(0)
    harness.wait_for_report(0, "joined")
    harness.channel.close()
    with open(os.devnull, "wb") as nowhere:
        answer: Message = {"kind": "supervised"}
        while answer["kind"] == "supervised":  # until the agent has seen the end of the last one
            harness.channel = connect(harness.directory / "agent.sock")
            order = {"kind": "supervisor", "takes_over": True}
            harness.channel.send(order, (nowhere.fileno(), nowhere.fileno()))
            answer = harness.channel.receive() or {"kind": "nothing"}

    assert answer["kind"] == "agent_ready"
    assert (answer["launch"]["relaunch"], answer["launch"]["spent"]) == (2, 3)
    told = [event.get("report", event)["kind"] for event in answer["told"]]
    assert told == ["worker_started", "joined"]
    assert answer["cwd"] == os.getcwd()
    assert answer["environment"]["PATH"] == os.environ["PATH"]


def test_workers_leave_when_the_last_one_has_come_to_the_end(harness: AgentHarness) -> None:
    """Until then they wait for a message; MPI would have each of them wait with a core."""
    harness.launch([0, 1], "1:leave_when_asked", "come_to_the_end")
    guards = [harness.guard(0), harness.guard(1)]
    harness.wait_for_report(1, "joined")
    harness.wait_for_report(0, "joined")
    assert "told" not in harness.kinds(0)

    harness.send("request", what="stop")

    assert harness.wait_for_report(0, "told")["kind_told"] == "leave"
    assert [guard.wait() for guard in guards] == [0, 0]


def test_workers_do_not_wait_for_a_dead_one_to_come_to_the_end(harness: AgentHarness) -> None:
    harness.launch([0, 1], "1:wait", "come_to_the_end")
    guard = harness.guard(0)
    harness.guard(1)
    harness.wait_for_report(0, "joined")
    victim = harness.wait_for_report(1, "joined")["pid"]

    os.kill(victim, signal.SIGKILL)

    assert harness.wait_for_report(0, "told")["kind_told"] == "leave"
    assert guard.wait() == 0
