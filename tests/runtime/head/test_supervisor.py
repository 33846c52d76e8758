"""The supervisor between agent and machine, and the events that it makes of messages."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from supervised import COLD, ENDED, WARM, Agent, Job, completed, exited, joined, report

from holdfast.recovery.event import (
    CheckpointCommitted,
    Event,
    ExitCode,
    Launch,
    LaunchEnded,
    LaunchRenewing,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.batch.schedulers import Allocation, Scheduler
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import HistoryReader, Journal, read_journal
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.supervisor import supervisor as module
from holdfast.runtime.supervisor.batch_job import BatchJob
from holdfast.runtime.supervisor.job_log import JobConsole
from holdfast.runtime.supervisor.job_setup import JobSetup
from holdfast.runtime.supervisor.supervisor import event_of, missed_faults
from holdfast.runtime.system.channel import FDS, Message

TERM, USR2, HUP = signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP
Make = Callable[..., Job]

WORKER = WorkerId(3)
ERROR = {"kind": "error", "message": "m", "traceback": "t", "exit_code": 1}

KILL_7 = "kill worker=7 step=3"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    jobs: list[Job] = []

    def made(*agents: Agent, **options: Any) -> Job:
        jobs.append(Job(tmp_path, list(agents), **options))
        monkeypatch.setattr(module, "start_agent", jobs[-1].start_agent)
        return jobs[-1]

    yield made
    for job in jobs:
        job.close()
        for agent in job.agents:
            agent.close()


def test_job_that_completes_has_launched_once_and_leaves_nothing(make: Make) -> None:
    agent = Agent(WARM, *joined(0, 1), *completed(0, 1))
    job = make(agent, faults=("kill worker=7 step=3",))

    assert job.supervisor.run() == ExitCode.DONE
    job.close()

    assert agent.kinds == ["launch", "shutdown"]
    launch = agent.told[0]
    assert launch["config"]["workers"] == [0, 1]
    assert launch["mpi"] == {"mpiexec": "/opt/mpiexec", "library": "Open MPI", "ulfm": True}
    assert (launch["relaunch"], launch["spent"]) == (0, 0)
    assert b"completed step 9, state sha256 cafe" in job.said
    assert b"--inject 'kill worker=7 step=3 site=compute attempt=1' never struck" in job.said
    assert not job.base.exists()


def test_agent_and_workers_are_started_on_the_terms_of_the_job(make: Make) -> None:
    agent = Agent()
    job = make(agent, heartbeat_timeout_s=3.0, spares=1)

    job.begin()

    (terms,) = job.terms
    assert (terms.directory, terms.cwd, terms.preload) == (job.base, Path("/work"), ("numpy",))
    assert (terms.heartbeat_timeout_s, terms.lease) == (3.0, job.setup.lease.fileno())
    assert job.base.stat().st_mode & 0o777 == 0o700
    assert agent.told[0]["config"]["workers"] == [0, 1, 2]


def test_lost_launch_is_followed_by_one_of_new_workers(make: Make) -> None:
    agent = Agent(WARM, *joined(0, 1), exited(0), exited(1), ENDED, *joined(2, 3), *completed(2, 3))
    job = make(agent)

    assert job.supervisor.run() == ExitCode.DONE

    again = agent.told[1]
    assert (again["config"]["workers"], again["config"]["generation"]) == ([2, 3], 3)
    assert (again["relaunch"], again["spent"]) == (1, 2)
    assert len(job.terms) == 1


def test_job_ends_when_its_budget_is_spent(make: Make) -> None:
    agent = Agent(WARM, *joined(0, 1), exited(0), exited(1), ENDED)
    job = make(agent, max_restarts=1)

    assert job.supervisor.run() == ExitCode.RECOVERY_IMPOSSIBLE

    assert agent.kinds == ["launch"]
    assert b"error: the last launch ended with worker 0: " in job.said
    assert b"(the restart budget of 1 allows no other relaunch: " in job.said


def test_death_of_the_agent_ends_its_launch_and_another_agent_follows(make: Make) -> None:
    first = Agent(WARM, *joined(0, 1), dies=True)
    second = Agent(WARM, *joined(2, 3), *completed(2, 3))
    job = make(first, second)

    assert job.supervisor.run() == ExitCode.DONE

    assert second.kinds == ["launch"]
    assert b"the agent of this host died, and its workers with it" in job.said
    assert b"relaunching 2 workers (worker 0: its agent died, worker 1: its agent died)" in job.said


@pytest.mark.parametrize(
    ("workers", "is_shrunk", "is_killed"), [(2, True, False), (2, False, True), (1, False, False)]
)
def test_death_ends_the_launch_only_if_others_would_wait_for_ever(
    make: Make, workers: int, *, is_shrunk: bool, is_killed: bool
) -> None:
    agent = Agent()
    job = make(agent, workers=workers, shrink=is_shrunk)

    job.begin(WARM, *joined(*range(workers)), exited(0))

    assert agent.kinds == ["launch", *["kill"] * is_killed]


def test_signal_that_the_agent_has_got_stops_the_job_once(make: Make) -> None:
    first, second = ({"kind": "signalled", "signal": name} for name in ("SIGTERM", "SIGINT"))
    stopped = [report(worker, "stopped", step=7) for worker in (0, 1)]
    leaving = [exited(worker, is_clean=True) for worker in (0, 1)]
    agent = Agent(WARM, *joined(0, 1), first, second, *stopped, *leaving, ENDED)
    job = make(agent)

    assert job.supervisor.run() == ExitCode.STOPPED_EARLY

    assert agent.kinds == ["launch", "stop"]
    assert b"SIGTERM: stopping" in job.said


def test_second_order_to_stop_ends_the_launch_at_once(make: Make) -> None:
    agent = Agent()
    job = make(agent)
    job.begin(WARM, *joined(0, 1))

    job.supervisor.signals.hear(bytes([TERM]))
    job.supervisor.signals.hear(bytes([signal.SIGINT]))

    assert agent.kinds == ["launch", "stop", "kill"]
    assert b"SIGINT: stopping at once" in job.said


def test_warning_of_a_batch_system_after_its_limit_cuts_no_save_short(make: Make) -> None:
    agent = Agent()
    job = make(agent, batch=BatchJob(Allocation(Scheduler.SLURM, "7", "slurm 7")))
    job.begin(WARM, *joined(0, 1))

    job.supervisor.signals.hear(bytes([USR2]))
    job.supervisor.signals.hear(bytes([TERM]))

    assert agent.kinds == ["launch", "stop"]
    assert job.said.endswith(b"holdfast: SIGTERM: the job is stopping already\n")


def test_request_to_save_and_a_lost_terminal_stop_nothing(make: Make) -> None:
    agent = Agent()
    job = make(agent)
    job.begin(WARM, *joined(0, 1))

    job.supervisor.signals.hear(bytes([USR2]))
    job.supervisor.signals.hear(bytes([HUP]))

    assert agent.kinds == ["launch", "save"]
    assert job.said.endswith(b"holdfast: SIGHUP: the job goes on without its terminal\n")


def test_agent_that_answers_nothing_is_killed_and_followed_by_another(make: Make) -> None:
    silent, next_one = Agent(), Agent()
    job = make(silent, next_one)
    job.begin(WARM, *joined(0, 1))

    job.poll(10, hears=False)
    assert not silent.process.is_killed
    job.poll(2, hears=False)

    assert silent.process.is_killed
    assert next_one.told[0]["config"]["workers"] == [2, 3]
    assert b"killing the agent of this host and its workers: it has not answered for" in job.said


@pytest.mark.parametrize(
    ("ready", "bound_s", "why"),
    [
        (WARM, 180, b"its workers have not all initialised MPI"),
        (COLD, 900, b"its warm process has not imported everything"),
    ],
    ids=["warm", "cold"],
)
def test_launch_that_does_not_begin_in_time_is_killed(
    make: Make, ready: Message, bound_s: int, why: bytes
) -> None:
    agent = Agent()
    job = make(agent)
    job.begin(ready, *joined(0))

    job.poll(bound_s, hears=True)
    assert agent.kinds == ["launch"]
    job.poll(2, hears=True)

    assert agent.kinds == ["launch", "kill"]
    assert why in job.said


def test_launch_that_runs_has_no_bound_and_one_that_stops_has_that_of_the_user(make: Make) -> None:
    agent = Agent()
    job = make(agent, grace_s=30.0)
    job.begin(WARM, *joined(0, 1))
    job.poll(1000, hears=True)
    assert agent.kinds == ["launch"]

    job.supervisor.signals.hear(bytes([TERM]))
    job.poll(30, hears=True)
    assert agent.kinds == ["launch", "stop"]
    job.poll(2, hears=True)

    assert agent.kinds == ["launch", "stop", "kill"]


def test_launch_that_mpiexec_could_not_begin_is_tried_again_with_its_words(make: Make) -> None:
    agent = Agent(WARM, ENDED | {"words": "no slots"}, *joined(2, 3), *completed(2, 3))
    job = make(agent)

    assert job.supervisor.run() == ExitCode.DONE

    assert b"relaunching 2 workers (mpiexec started no worker: no slots)" in job.said


def test_mistake_of_the_supervisor_leaves_agent_and_workers_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: JobConsole, message: Message) -> None:
        if message["kind"] == "odd":
            raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(JobConsole, "heard", fail)
    agent = Agent(WARM, *joined(0, 1), {"kind": "odd"})
    job = make(agent)

    with pytest.raises(ZeroDivisionError):
        job.supervisor.run()
    job.close()

    assert agent.kinds == ["launch"]
    assert job.base.is_dir()
    assert b"the supervisor failed (ZeroDivisionError: a mistake); the workers go on" in job.said


def test_mistake_before_the_first_launch_ends_the_agent(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(JobSetup, "worker_config")
    agent = Agent()
    job = make(agent)

    with pytest.raises(AttributeError, match="worker_config"):
        job.supervisor.run()
    job.close()

    assert agent.kinds == ["shutdown"]
    assert not job.base.exists()


def test_job_that_was_taken_over_is_gone_on_with(make: Make) -> None:
    launch = Launch(4, (WorkerId(7), WorkerId(8)), 1, "taken over", spent=1)
    lost = [exited(7), exited(8), ENDED]
    agent = Agent(*lost, *joined(9, 10), *completed(9, 10))
    job = make(agent, takes_over=launch)

    assert job.supervisor.run() == ExitCode.DONE

    (again,) = agent.told
    assert (again["config"]["workers"], again["config"]["generation"]) == ([9, 10], 6)
    assert (again["relaunch"], again["spent"]) == (2, 3)
    assert job.terms == []


@pytest.mark.parametrize("is_written", [True, False])
def test_run_directory_that_was_removed_is_made_again_and_its_lease_handed_on(
    make: Make, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """Even if nothing can be written into the lease."""
    agent = Agent()
    job = make(agent)
    job.begin(WARM, *joined(0, 1))
    shutil.rmtree(job.directory.path)

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if not is_written:
        monkeypatch.setattr(Lease, "name_agent", fail)
    job.supervisor._on_message(report(0, "checkpoint", step=5))

    (lease,) = agent.told[1:]
    assert lease["kind"] == "lease"
    assert os.path.samestat(os.fstat(lease[FDS][0]), job.directory.lease_path.stat())
    assert job.directory.load_record() == job.setup.record
    assert job.directory.agent_socket() == (job.base / "agent.sock" if is_written else None)
    os.close(lease[FDS][0])
    job.supervisor._keeper.lease.release()


@pytest.mark.parametrize("is_whole", [False, True], ids=["record", "all"])
def test_job_is_one_job_in_the_journal_whatever_was_removed(make: Make, *, is_whole: bool) -> None:
    """A second begin in a journal that was not lost would be a second job, and a failure."""
    agent = Agent()
    job = make(agent)
    job.setup.journal.record("job_started", workers=2)
    job.begin(WARM, *joined(0, 1))
    if is_whole:
        shutil.rmtree(job.directory.path)
    else:
        job.directory.record_path.unlink()

    job.supervisor._on_message(report(0, "checkpoint", step=5))

    events = [record["event"] for record in read_journal(job.directory.journal_path)]
    assert events.count("job_started") == 1
    assert HistoryReader(job.directory.journal_path).read().failures == 0
    job.supervisor._keeper.lease.release()


@pytest.mark.parametrize("is_left", [False, True], ids=["ended", "left to its agent"])
def test_end_of_a_job_is_said_in_its_lease_when_nothing_can_follow(
    make: Make, monkeypatch: pytest.MonkeyPatch, *, is_left: bool
) -> None:
    last: list[Callable[[], None]] = []
    monkeypatch.setattr(module, "atexit", SimpleNamespace(register=last.append))
    job = make(Agent(WARM, *joined(0, 1), *completed(0, 1)))
    job.supervisor.run()
    job.supervisor.is_left = is_left

    job.close()

    assert "ended" not in job.directory.lease_owner()
    assert last == ([] if is_left else [job.setup.lease.end])


def reported(**fields: Any) -> dict[str, Any]:
    return {"kind": "worker_report", "worker": 3, "report": fields}


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (reported(kind="joined"), WorkerJoined(WORKER)),
        (
            reported(kind="world", generation=2, workers=[1, 3], step=5),
            WorldFormed(2, (WorkerId(1), WORKER), 5),
        ),
        (reported(kind="checkpoint", step=5), CheckpointCommitted(WORKER, 5)),
        (
            reported(kind="complete", step=9, sha256="cafe", is_first=True),
            WorkerCompleted(WORKER, 9, "cafe", is_first=True),
        ),
        (reported(kind="stopped", step=7), WorkerStopped(WORKER, 7)),
        (
            {"kind": "worker_exited", "worker": 3, "clean": True, "cause": "exit 0"},
            WorkerExited(WORKER, is_clean=True, cause="exit 0"),
        ),
        (
            {"kind": "worker_exited", "worker": 3, "clean": False, "cause": "guard lost"},
            WorkerExited(WORKER, is_clean=False, cause="guard lost"),
        ),
    ],
)
def test_message_becomes_an_event(message: dict[str, Any], event: Event) -> None:
    assert event_of(message) == event


@pytest.mark.parametrize(
    ("error", "is_death"),
    [("ValueError", False), ("KeyError", False), ("InjectedFault", True), ("WorldLost", True)],
)
def test_only_what_a_relaunch_may_mend_is_a_death(error: str, *, is_death: bool) -> None:
    event = event_of(reported(**ERROR, type=error))

    assert event == WorkerFailed(WORKER, error, "m", "t", 1, is_death)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"kind": "warm", "pid": 1},
        {"kind": "worker_started", "worker": 3},
        {"kind": "worker_fenced", "worker": 3},
        reported(kind="notice", text="disk full"),
        reported(),
    ],
)
def test_message_that_changes_nothing_is_no_event(message: dict[str, Any]) -> None:
    assert event_of(message) is None


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"kind": "renewing", "worker": 3}, LaunchRenewing(WORKER)),
        ({"kind": "launch_ended", "words": ""}, LaunchEnded()),
        (
            {"kind": "launch_ended", "words": "no slots"},
            LaunchEnded("mpiexec started no worker: no slots"),
        ),
    ],
    ids=["renewing", "ended", "never begun"],
)
def test_word_on_the_whole_launch_becomes_an_event(message: dict[str, Any], event: Event) -> None:
    assert event_of(message) == event


@pytest.mark.parametrize(("fields", "is_in_training"), [({}, False), ({"is_in_training": 1}, True)])
def test_error_says_whether_it_has_ended_a_training(
    fields: dict[str, Any], *, is_in_training: bool
) -> None:
    event = event_of(reported(**ERROR, type="ValueError", **fields))

    assert isinstance(event, WorkerFailed)
    assert event.is_in_training is is_in_training
    assert event.exit_code is ExitCode.PROGRAM_FAILED


@pytest.fixture
def struck(tmp_path: Path) -> Path:
    """A run directory in which a fault of worker 1 has struck."""
    journal = Journal(RunDirectory(tmp_path).journal_path, run_id="r", source="worker 1")
    journal.record("fault", worker=1, step=3, site="compute", attempt=1, kind="kill")
    journal.close()
    return tmp_path


def _missed(run_dir: Path, *faults: str) -> list[str]:
    options = JobOptions(script=Path("train.py"), run_dir=run_dir, workers=2, faults=faults)
    return list(missed_faults(options))


def test_fault_of_a_worker_that_never_was_is_told(struck: Path) -> None:
    (sentence,) = _missed(struck, "kill worker=1 step=3", KILL_7)

    assert sentence.startswith(
        "--inject 'kill worker=7 step=3 site=compute attempt=1' never struck"
    )
    assert sentence.endswith("are 0 to 1")


def test_faults_that_struck_cost_no_word(struck: Path) -> None:
    assert _missed(struck, "kill worker=1 step=3") == []
    assert _missed(struck) == []


def test_journal_that_is_gone_accuses_nobody(tmp_path: Path) -> None:
    assert _missed(tmp_path, KILL_7) == []
