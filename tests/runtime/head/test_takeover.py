"""A job that lives without its supervisor: who may take it over, and what others are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from configs import worker_config

from holdfast.recovery.event import Launch
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import RunDirectoryBusy, UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.supervisor import takeover
from holdfast.runtime.supervisor.job_run import attach
from holdfast.runtime.supervisor.takeover import StoppedAgentEnded, another_job, find_takeover
from holdfast.runtime.system.channel import FDS, pair
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.processes import HeldProcess

SCRIPT = Path("/a/slow.py")
RUN = Path("/my runs/1")


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        (JobOptions(SCRIPT, RUN, fresh=True), "and which --fresh would set aside; "),
        (JobOptions(Path("/b/train.py"), RUN), "and which runs another script, /a/slow.py; "),
        (
            JobOptions(SCRIPT, RUN, argv=("--foo", "a b")),
            "(its: --epochs 3; asked for: --foo 'a b'); ",
        ),
        (JobOptions(SCRIPT, RUN), "(its: --epochs 3; asked for: none); "),
    ],
)
def test_difference_is_named_with_the_command_that_goes_on(
    asked: JobOptions, difference: str
) -> None:
    its = [False, str(SCRIPT), "--epochs", "3"]

    text = another_job(RunDirectory(RUN), its, asked)

    assert difference in text
    assert "take the job over with `holdfast attach '/my runs/1'`" in text


def test_attach_to_a_job_that_has_completed_says_so(tmp_path: Path) -> None:
    journal = Journal(RunDirectory(tmp_path).journal_path, run_id="r", source="test")
    journal.record("launch")
    journal.record("completed", step=325)
    journal.close()

    with pytest.raises(UsageError, match=r"no job lives in .*completed step 325: look at it with"):
        attach(tmp_path)


class Orphan:
    """A run directory whose lease names an agent, and the agent's end of the connection."""

    def __init__(self, folder: Path) -> None:
        self.directory = RunDirectory(folder)
        self.directory.prepare()
        self.lease = self.directory.acquire_lease()
        self.lease.name_agent(folder / "agent.sock")
        self.asks, self.answers = pair()

    def close(self) -> None:
        self.lease.release()
        self.asks.close()
        self.answers.close()


@pytest.fixture
def orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orphan]:
    made = Orphan(tmp_path)
    monkeypatch.setattr(takeover, "connect", lambda path: made.asks)
    monkeypatch.setattr(takeover, "ANSWERS_WITHIN_S", 0.0)  # what it says was said before
    yield made
    made.close()


def test_job_that_lives_is_taken_over_as_it_stands(orphan: Orphan) -> None:
    config = worker_config(7, (7, 8), run_dir=orphan.directory.path, generation=4)
    launch = {"config": to_plain(config), "relaunch": 1, "spent": 2}
    launch["mpi"] = {"mpiexec": "/opt/mpiexec", "library": "MPICH"}
    told = [{"kind": "worker_started", "worker": 7}]
    places = {"directory": "/dev/shm/holdfast-1", "cwd": "/work", "environment": {"A": "1"}}
    answer = {"kind": "agent_ready", "warm": True, "launch": launch, "told": told, **places}
    orphan.answers.post(answer, (orphan.lease.fileno(),))

    found = find_takeover(orphan.directory)

    assert found is not None
    workers = (WorkerId(7), WorkerId(8))
    assert found.launch == Launch(4, workers, relaunch=1, reason="taken over", spent=2)
    assert (found.config, found.told, found.is_warm) == (config, tuple(told), True)
    assert (found.mpiexec, found.mpi_library) == (Path("/opt/mpiexec"), "MPICH")
    assert (found.directory, found.cwd) == (Path("/dev/shm/holdfast-1"), Path("/work"))
    assert (found.environment, found.agent.pid) == ({"A": "1"}, os.getpid())
    lease = os.fstat(found.lease.fileno())
    assert os.path.samestat(lease, orphan.directory.lease_path.stat())
    found.agent.close()
    found.lease.release()


@pytest.mark.parametrize(
    ("asked", "job"),
    [
        (None, None),
        (JobOptions(SCRIPT, RUN, argv=("--lr", "1")), [False, "/a/slow.py", "--lr", "1"]),
        (JobOptions(SCRIPT, RUN, fresh=True), [True, "/a/slow.py"]),
    ],
    ids=["attach", "run", "run --fresh"],
)
def test_agent_is_told_what_job_is_asked_for_and_where_its_output_goes(
    orphan: Orphan, asked: JobOptions | None, job: list[object] | None
) -> None:
    orphan.answers.post({"kind": "agent_ready", "launch": None})

    with pytest.raises(RunDirectoryBusy):
        find_takeover(orphan.directory, asked)

    (question,) = orphan.answers.drain()
    streams = question.pop(FDS)
    assert question == {"kind": "supervisor", "takes_over": True, "job": job}
    for number, stream in enumerate(streams, start=1):
        assert os.path.samestat(os.fstat(stream), os.fstat(number))
        os.close(stream)
    assert len(streams) == 2
    assert orphan.asks.is_closed


@pytest.mark.parametrize(
    ("answer", "is_asked", "why"),
    [
        ({"kind": "supervised", "pid": 12}, True, "another job, which pid 12 supervises; wait for"),
        ({"kind": "supervised", "pid": 12}, False, "a job that pid 12 supervises; it needs no"),
        ({"kind": "agent_ready", "launch": None}, True, "a job that has just lost its supervisor"),
        ({"kind": "another_job", "job": [False, "/b.py"]}, True, "another script, /b.py; take the"),
        (None, True, f"a job whose agent, pid {os.getpid()}, does not answer; let it go on"),
    ],
    ids=["supervised", "attach to a supervised one", "not launched", "another job", "silent"],
)
def test_job_that_cannot_be_taken_over_is_told_with_what_to_do(
    orphan: Orphan, answer: dict[str, object] | None, *, is_asked: bool, why: str
) -> None:
    if answer is not None:
        orphan.answers.post(answer)

    with pytest.raises(RunDirectoryBusy, match=f"run directory .* belongs to .*{why}"):
        find_takeover(orphan.directory, JobOptions(SCRIPT, RUN) if is_asked else None)


def test_run_whose_agent_is_gone_has_nobody_to_be_taken_over(orphan: Orphan) -> None:
    orphan.answers.close()

    assert find_takeover(orphan.directory) is None
    assert orphan.asks.is_closed


def test_run_without_an_agent_has_nobody_to_be_taken_over(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert find_takeover(directory) is None  # nobody ever owned it

    lease = directory.acquire_lease()
    assert find_takeover(directory) is None  # its owner has started no agent
    lease.name_agent(tmp_path / "agent.sock")
    assert find_takeover(directory) is None  # nobody listens
    lease.release()


@pytest.mark.process
@pytest.mark.parametrize("lives", [True, False], ids=["supervisor lives", "supervisor is gone"])
def test_stopped_agent_is_ended_only_if_nobody_supervises_it(
    orphan: Orphan, monkeypatch: pytest.MonkeyPatch, *, lives: bool
) -> None:
    """A batch system that suspends a job stops its supervisor as well, which still lives."""
    agent = subprocess.Popen(["sleep", "600"])
    agent.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, agent.pid, os.WSTOPPED | os.WNOWAIT)
    monkeypatch.setattr(HeldProcess, "of_peer", lambda channel: HeldProcess(agent.pid))
    owner = orphan.directory.lease_owner()
    pid = os.getpid() if lives else _pid_of_a_dead_process()
    orphan.directory.lease_path.write_text(json.dumps(owner | {"pid": pid}))

    with pytest.raises(RunDirectoryBusy if lives else StoppedAgentEnded, match=str(agent.pid)):
        find_takeover(orphan.directory)

    has_ended = agent.poll() is not None
    agent.kill()
    agent.wait()
    assert has_ended is not lives


def _pid_of_a_dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid
