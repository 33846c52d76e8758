"""A job inside a batch system: its limit, its chain, its signals, its return."""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.checkpoint.names import step_name
from holdfast.recovery.event import ExitCode, StopAsked
from holdfast.recovery.job import JobState
from holdfast.runtime.batch import incarnations
from holdfast.runtime.batch.sbatch import SlurmRefused
from holdfast.runtime.batch.schedulers import Allocation, Deadline, Due, Scheduler
from holdfast.runtime.errors import RecoveryImpossible, UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.supervisor import batch_job
from holdfast.runtime.supervisor.batch_job import STOPS, BatchJob, ChainLink, Order, OrderSignals
from holdfast.runtime.supervisor.job_log import JobConsole
from holdfast.runtime.supervisor.job_run import batch_of
from holdfast.runtime.supervisor.screen import ProgressLog
from holdfast.runtime.supervisor.supervisor import Supervisor
from holdfast.runtime.supervisor.takeover import Takeover
from holdfast.runtime.system.processes import HeldProcess, age_s
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import SAVE_SIGNAL

TERM, INT, USR1, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2
ON_SLURM = Allocation(Scheduler.SLURM, "7", "slurm 7")
HOUR = Deadline(0.0, 3600.0, "squeue")

Step = Callable[[BatchJob], object]

RUN = "00112233aabbccdd"
JOB = Allocation(Scheduler.SLURM, "7", "slurm 7")

HUP = signal.SIGHUP
BOUND_S = 90.0


def job_of(allocation: Allocation = ON_SLURM) -> BatchJob:
    return BatchJob(allocation, HOUR, is_requeued=True)


@pytest.fixture
def requeued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that Slurm was asked to requeue."""
    asked: list[str] = []
    monkeypatch.setattr(batch_job, "requeue", asked.append)
    return asked


def deadline(job: BatchJob) -> object:
    return job.poll(3595.0)


def heard(number: signal.Signals, now: float = 1000.0) -> Step:
    return lambda job: job.repeats(number, is_stopping=False, now=now)


@pytest.mark.parametrize(
    ("steps", "is_requeued"),
    [
        ([], False),
        ([deadline], True),
        ([heard(USR1)], True),
        ([heard(USR2)], True),
        ([heard(TERM)], False),
        ([heard(INT)], False),
        ([heard(USR2), heard(TERM)], False),
        ([heard(TERM), heard(USR2)], False),
        ([heard(TERM), deadline], False),
        ([deadline, heard(TERM, now=3600.5)], True),
    ],
    ids=[
        "by itself", "deadline", "USR1", "USR2", "TERM", "INT", "cancelled while it saves",
        "cancelled before", "cancelled just before", "TERM at the limit itself",
    ],
)  # fmt: skip
def test_limit_brings_a_job_back_and_an_order_does_not(
    requeued: list[str], steps: list[Step], *, is_requeued: bool
) -> None:
    job = job_of()
    for step in steps:
        step(job)

    assert job.end(ExitCode.STOPPED_EARLY, lambda text: None) == ExitCode.STOPPED_EARLY
    assert requeued == (["7"] if is_requeued else [])


def test_order_after_the_end_of_the_job_is_heeded(requeued: list[str]) -> None:
    """``scontrol requeue`` brings even a cancelled job back."""
    now = time.time()
    job = BatchJob(ON_SLURM, Deadline(now, now + 3600.0, "squeue"), is_requeued=True)
    job.repeats(USR2, is_stopping=False, now=now)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {TERM})
    try:
        signal.pthread_kill(threading.get_ident(), TERM)
        code = job.end(ExitCode.STOPPED_EARLY, lambda text: None)
    finally:
        signal.sigtimedwait({TERM}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert (code, requeued) == (ExitCode.STOPPED_EARLY, [])


@pytest.mark.parametrize(
    "code", [ExitCode.DONE, ExitCode.PROGRAM_FAILED, ExitCode.RECOVERY_IMPOSSIBLE]
)
def test_only_a_job_that_stopped_early_comes_back(requeued: list[str], code: ExitCode) -> None:
    job = job_of()
    deadline(job)

    assert job.end(code, lambda text: None) == code
    assert requeued == []


@pytest.mark.parametrize(
    ("allocation", "is_asked", "code"),
    [
        (replace(ON_SLURM, is_batch=False), True, 75),
        (ON_SLURM, False, 75),
        (Allocation(Scheduler.PBS, "8", "pbs 8"), True, 75),
        (Allocation(Scheduler.LSF, "9", "lsf 9", requeue_code=75), True, 75),
        (Allocation(Scheduler.SGE, "5", "sge 5", requeue_code=99), True, 99),
        (Allocation(Scheduler.SGE, "5", "sge 5", requeue_code=99), False, 75),
    ],
    ids=["a shell of salloc", "--no-requeue", "PBS", "LSF", "SGE", "SGE, --no-requeue"],
)
def test_exit_code_for_the_batch_system(
    requeued: list[str], allocation: Allocation, code: int, *, is_asked: bool
) -> None:
    job = BatchJob(allocation, HOUR, is_requeued=is_asked)
    deadline(job)

    assert job.end(ExitCode.STOPPED_EARLY, lambda text: None) == code
    assert requeued == []


def test_slurm_that_refuses_costs_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_job: str) -> None:
        raise SlurmRefused("scontrol: it is disabled")

    monkeypatch.setattr(batch_job, "requeue", refuse)
    job, said = job_of(), list[str]()
    deadline(job)

    assert job.end(ExitCode.STOPPED_EARLY, said.append) == ExitCode.STOPPED_EARLY
    assert said[0].startswith("asking Slurm to requeue Slurm job 7")
    assert said[-1].startswith("Slurm job 7 is not requeued (scontrol: it is disabled)")


@pytest.mark.parametrize(
    ("before", "number", "is_stopping", "repeats"),
    [
        ([deadline], TERM, True, True),
        ([heard(USR2)], TERM, True, True),
        ([heard(USR2), heard(TERM)], TERM, True, False),
        ([heard(USR2)], INT, True, False),
        ([heard(TERM)], TERM, True, False),
        ([deadline], USR2, True, True),
        ([heard(TERM)], USR2, True, True),
        ([], TERM, False, False),
    ],
    ids=[
        "TERM after the deadline", "TERM after USR2", "TERM twice", "Ctrl-C", "TERM after TERM",
        "USR2 after the deadline", "USR2 after TERM", "the first",
    ],
)  # fmt: skip
def test_warning_after_a_warning_does_not_cut_the_save_short(
    before: list[Step], number: signal.Signals, *, is_stopping: bool, repeats: bool
) -> None:
    job = job_of()
    for step in before:
        step(job)

    assert job.repeats(number, is_stopping=is_stopping, now=3599.0) is repeats


def test_each_moment_is_told_once() -> None:
    job = job_of()

    seen = [job.poll(now) for now in (0.0, 3580.0, 3581.0, 3591.0, 3592.0)]

    assert seen == [Due.NOTHING, Due.SAVE, Due.NOTHING, Due.END, Due.NOTHING]


def test_job_that_only_has_to_hurry_has_not_hit_its_limit() -> None:
    job = job_of()

    assert job.poll(3400.0) is Due.HURRY
    assert not job.wants_requeue


def test_longer_saves_bring_the_moment_forward() -> None:
    job = job_of()
    job.saved({"step": 5, "seconds": 100.0, "step_seconds": 20.0})

    assert job.poll(3360.0) is Due.SAVE


def test_outside_batch_systems_signals_keep_their_meaning() -> None:
    job = BatchJob()

    assert job.stops == STOPS
    assert not job.repeats(TERM, is_stopping=True, now=0.0)
    assert job.poll(1e12) is Due.NOTHING
    assert set(job_of().stops) == {*STOPS, USR1, USR2}


def _options(tmp_path: Path, **options: object) -> JobOptions:
    return JobOptions(script=tmp_path / "train.py", run_dir=tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends_in_s", "deadline_s", "expected"),
    [
        (3600.0, None, (3600.0, "SLURM_JOB_END_TIME")),
        (3600.0, 60.0, (60.0, batch_job.OWN_BEFORE_SLURMS)),
        (60.0, 3600.0, (60.0, "SLURM_JOB_END_TIME")),
        (None, None, (1800.0, "squeue")),
        (-60.0, None, (1800.0, "squeue")),
        (None, 60.0, (60.0, batch_job.OWN_BEFORE_SLURMS)),
    ],
)
def test_earliest_end_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends_in_s: float | None,
    deadline_s: float | None,
    expected: tuple[float, str],
) -> None:
    left_s, source = expected
    monkeypatch.setattr(batch_job, "time_left_s", lambda job: 1800.0)
    now = time.time()
    ends_at = None if ends_in_s is None else now + ends_in_s
    job = BatchJob.of(
        _options(tmp_path, deadline_s=deadline_s), replace(ON_SLURM, ends_at=ends_at), {}
    )

    said = list[str]()
    job.introduce(lambda text, event: said.append(text))

    assert job.poll(now + 0.4 * left_s) < Due.SAVE
    assert job.poll(now + left_s) is Due.END
    assert said[0].startswith("Slurm job 7, time until ")
    assert said[0].endswith(f"({source})")


@pytest.mark.parametrize(
    ("left_s", "deadline_s", "words"),
    [
        (None, None, "Slurm job 7, time limit not known: give --deadline"),
        (None, 60.0, "Slurm job 7, time until "),
        (math.inf, None, "Slurm job 7"),
        (math.inf, 60.0, "Slurm job 7, time until "),
    ],
)
def test_limit_that_slurm_does_not_tell_is_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left_s: float | None,
    deadline_s: float | None,
    words: str,
) -> None:
    monkeypatch.setattr(batch_job, "time_left_s", lambda job: left_s)
    over = replace(ON_SLURM, ends_at=time.time() - 60.0)
    said = list[str]()

    job = BatchJob.of(_options(tmp_path, deadline_s=deadline_s), over, {})
    job.introduce(lambda text, _: said.append(text))

    assert said[0].startswith(words)
    assert (said[0] == words) == (deadline_s is None)


def test_job_on_several_hosts_is_told_that_it_uses_one() -> None:
    said = list[str]()

    BatchJob(replace(ON_SLURM, hosts=("a", "b", "c"))).introduce(lambda text, _: said.append(text))

    assert said == ["Slurm job 7, 2 of its 3 hosts stay idle: a job has one"]


class Machine:
    """The state of a job, and the wishes to stop that it was given."""

    def __init__(self, state: JobState, *, is_stopping: bool) -> None:
        self.state, self.is_stopping, self.wishes = state, is_stopping, 0

    def handle(self, event: object) -> tuple[()]:
        assert event == StopAsked(ExitCode.STOPPED_EARLY)
        self.wishes += 1
        self.is_stopping = True
        return ()


class NoScreen:
    can_draw = False


class NoJournal:
    def record(self, event: str, **fields: object) -> None:
        """Keep nothing."""


def supervising(machine: Machine, left_s: float, **how: Any) -> Supervisor:
    """Return as much of a supervisor as minds the time, of which so much is left."""
    now, made = time.time(), Supervisor.__new__(Supervisor)
    made._batch = BatchJob(ON_SLURM, Deadline(now - 3600.0, now + left_s, "squeue"))
    made._machine = machine  # type: ignore[assignment]
    terms = {"is_verbose": False, "write": lambda _: None} | how
    made._narration = JobConsole(NoJournal(), **terms)  # type: ignore[arg-type]
    made._end = None
    return made


@pytest.mark.parametrize(
    ("left_s", "state", "is_stopping", "wishes"),
    [
        (20.0, JobState.RUNNING, False, 1),
        (20.0, JobState.RUNNING, True, 0),
        (5.0, JobState.RUNNING, True, 1),
        (5.0, JobState.RUNNING, False, 2),
        (5.0, JobState.ENDING, True, 0),
        (900.0, JobState.RUNNING, False, 0),
    ],
    ids=[
        "the moment to save", "it saves already", "the last moment", "the first was missed",
        "it is being killed", "there is time",
    ],
)  # fmt: skip
def test_supervisor_wishes_once_to_save_and_twice_to_end(
    left_s: float, state: JobState, wishes: int, *, is_stopping: bool
) -> None:
    machine = Machine(state, is_stopping=is_stopping)
    supervisor = supervising(machine, left_s)

    supervisor._mind_time()
    supervisor._mind_time()

    assert machine.wishes == wishes


@pytest.mark.parametrize(
    ("phase", "left_s", "lines"),
    [("training", 20.0, 1), ("concluding", 20.0, 0), ("concluding", 5.0, 1)],
)
def test_saving_in_time_is_not_told_of_when_the_training_is_over(
    phase: str, left_s: float, lines: int
) -> None:
    told = list[bytes]()
    progress = ProgressLog(NoScreen())  # type: ignore[arg-type]
    progress.heard({"kind": "pong", "workers": 1, "phase": phase})
    machine = Machine(JobState.RUNNING, is_stopping=False)

    supervising(machine, left_s, write=told.append, progress=progress)._mind_time()

    assert len(told) == lines


def test_limit_of_the_users_own_before_slurms_requeues_nothing(
    tmp_path: Path, requeued: list[str]
) -> None:
    """A requeue would end what else runs in the batch job, and begin it again."""
    allocation = replace(ON_SLURM, ends_at=time.time() + 3600.0)
    job = BatchJob.of(_options(tmp_path, deadline_s=60.0), allocation, {})

    assert job.poll(time.time() + 59.0) is Due.END
    assert job.end(ExitCode.STOPPED_EARLY, lambda text: None) == ExitCode.STOPPED_EARLY
    assert requeued == []


@dataclass(frozen=True)
class Config:
    options: JobOptions


@dataclass(frozen=True)
class Taken:
    """What is asked of a takeover here; this process stands for the agent."""

    config: Config
    environment: dict[str, str]
    agent: HeldProcess


@pytest.mark.parametrize(
    ("deadline_s", "environment", "at_s", "due"),
    [
        (None, {}, 1e6, Due.NOTHING),
        (3600.0, {}, 0.0, Due.NOTHING),
        (3600.0, {}, 3599.0, Due.END),
        (None, {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "end"}, 3000.0, Due.NOTHING),
        (None, {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "end"}, 3599.0, Due.END),
    ],
)
def test_time_of_a_job_that_is_taken_over_ends_when_it_would_have_ended(
    deadline_s: float | None, environment: dict[str, str], at_s: float, due: Due
) -> None:
    """The end is told by the job's own options and environment, not by those of the successor."""
    now, age = time.time(), age_s(os.getpid())
    ends = {"end": str(int(now - age + 3600))}
    options = JobOptions(Path("script"), Path("run"), deadline_s=deadline_s)
    settings = {name: ends.get(value, value) for name, value in environment.items()}
    taken = Taken(Config(options), settings, HeldProcess(os.getpid()))

    job = batch_of(cast(Takeover, taken))

    taken.agent.close()
    assert age > 0
    assert job.poll(now - age + at_s) is due


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    RunDirectory(run_dir).create_record(RunRecord(RUN, 1, 0.0, microbatches=4, seed=0, threads=1))
    (tmp_path / "train.py").write_text("train()")
    return JobOptions(script=tmp_path / "train.py", run_dir=run_dir)


def save(options: JobOptions, step: int) -> None:
    (RunDirectory(options.run_dir).checkpoints_path / step_name(step)).mkdir(parents=True)


def start(options: JobOptions, job: Allocation = JOB) -> str:
    return ChainLink(options, job).begin(RUN)


def test_each_start_is_counted_and_names_its_step(options: JobOptions) -> None:
    first = start(options)
    save(options, 40)

    assert first == "Slurm job 7, incarnation 1, from step 0"
    assert start(options) == "Slurm job 7, incarnation 2, from step 40"


def test_slurm_may_have_counted_more(options: JobOptions) -> None:
    assert "incarnation 4" in start(options, replace(JOB, restarts=3))


def test_two_incarnations_without_progress_stop_the_chain(options: JobOptions) -> None:
    save(options, 40)
    start(options)
    start(options)

    for _ in range(2):
        with pytest.raises(RecoveryImpossible, match=r"incarnation 1 and .* incarnation 2 began"):
            start(options)

    assert "incarnation 1" in start(options, replace(JOB, chain="slurm 8"))


def test_end_of_a_chain_that_the_user_named_asks_for_another_name(
    options: JobOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CHAIN", "c1")
    start(options, replace(JOB, chain="c1"))
    start(options, replace(JOB, chain="c1"))

    with pytest.raises(RecoveryImpossible, match=r"a new HOLDFAST_CHAIN \(it was c1\)"):
        start(options, replace(JOB, chain="c1"))
    assert "incarnation 1" in start(options, replace(JOB, chain="c2"))


def test_progress_keeps_a_chain_going(options: JobOptions) -> None:
    for step in (10, 20, 30, 40):
        start(options)
        save(options, step)

    assert start(options).endswith("incarnation 5, from step 40")


def test_link_of_a_complete_run_has_nothing_to_do(options: JobOptions) -> None:
    link = ChainLink(options, JOB)
    link.begin(RUN)
    assert not ChainLink(options, JOB).is_complete

    link.completed()

    assert ChainLink(options, JOB).is_complete
    assert not ChainLink(replace(options, argv=("--epochs", "9")), JOB).is_complete
    assert not ChainLink(options, replace(JOB, chain="slurm 8")).is_complete


def test_only_the_first_link_begins_a_fresh_run(options: JobOptions) -> None:
    fresh = replace(options, fresh=True)

    assert ChainLink(fresh, JOB).asked(fresh).fresh
    start(options)
    assert not ChainLink(fresh, JOB).asked(fresh).fresh


def test_script_that_cannot_be_read_is_never_complete(options: JobOptions) -> None:
    options.script.unlink()
    link = ChainLink(options, JOB)
    link.begin(RUN)
    link.completed()

    assert not ChainLink(options, JOB).is_complete


@pytest.mark.parametrize("fresh", [True, False])
def test_fresh_chain_that_cannot_be_remembered_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, *, fresh: bool
) -> None:
    """Each of its incarnations would set the progress of the last one aside."""

    def refuse(_path: Path, _content: bytes) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(incarnations, "create_durably", refuse)
    link = ChainLink(replace(options, fresh=fresh), JOB)

    with pytest.raises(UsageError, match="quota") if fresh else nullcontext():
        link.begin(RUN)


class Heard:
    """The orders so far, and the time."""

    def __init__(self) -> None:
        self.orders: list[tuple[Order, int]] = []
        self.now = 100.0
        self.reactor = Reactor()
        self.signals = OrderSignals(
            self.reactor, lambda order, number: self.orders.append((order, number)), self._clock
        )

    def _clock(self) -> float:
        return self.now


@pytest.fixture
def hearing() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.signals.restore()
    made.reactor.close()


@pytest.mark.parametrize(
    ("number", "order"),
    [(INT, Order.STOP), (TERM, Order.STOP), (USR2, Order.SAVE), (HUP, Order.GO_ON)],
)
def test_signal_to_this_process_becomes_an_order(
    hearing: Heard, number: signal.Signals, order: Order
) -> None:
    os.kill(os.getpid(), number)
    while not hearing.orders:
        hearing.reactor.run_once(BOUND_S)

    assert hearing.orders == [(order, number)]


@pytest.mark.parametrize(
    ("numbers", "apart_s", "orders"),
    [
        ([TERM, TERM], 0.9, [TERM]),  # a scheduler tells the process and its group
        ([TERM] * 3, 1.1, [TERM] * 3),
        ([INT] * 2, 0.3, [INT] * 2),  # a key that is pressed twice
        ([TERM, INT], 0.0, [TERM, INT]),
        ([signal.SIGXCPU] * 10, 1.0, [signal.SIGXCPU]),
        ([USR2] * 2, 0.0, [USR2] * 2),
    ],
    ids=["at once", "later", "key", "another signal", "processor time", "save"],
)
def test_signal_is_one_order_or_several(
    hearing: Heard, numbers: list[int], apart_s: float, orders: list[int]
) -> None:
    for number in numbers:
        hearing.signals.hear(bytes([number, number]))
        hearing.now += apart_s

    kind = Order.SAVE if USR2 in numbers else Order.STOP
    assert hearing.orders == [(kind, number) for number in orders]


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(HUP, signal.SIG_IGN)
    made = Heard()

    os.kill(os.getpid(), HUP)
    made.reactor.run_once(0.0)

    assert made.orders == []
    made.signals.restore()
    made.reactor.close()
    assert signal.getsignal(HUP) is signal.SIG_IGN
    signal.signal(HUP, before)


def test_signal_that_asks_for_nothing_gives_no_order(hearing: Heard) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    hearing.reactor.run_once(BOUND_S)

    assert hearing.orders == []


def test_under_a_batch_system_sigusr2_stops_and_holdfast_save_still_saves() -> None:
    orders: list[tuple[Order, int]] = []
    reactor = Reactor()
    signals = OrderSignals(
        reactor, lambda order, number: orders.append((order, number)), stops=(TERM, USR2)
    )
    try:
        signals.hear(bytes([USR2]))
        signals.hear(bytes([USR2, SAVE_SIGNAL]))
    finally:
        signals.restore()
        reactor.close()

    assert orders == [(Order.STOP, USR2), (Order.SAVE, SAVE_SIGNAL)]


def test_late_request_to_save_ends_nobody() -> None:
    """The supervisor has its signals' defaults back, and is about to end."""
    orders: list[tuple[Order, int]] = []
    reactor = Reactor()
    OrderSignals(reactor, lambda order, number: orders.append((order, number))).restore()
    reactor.close()

    os.kill(os.getpid(), SAVE_SIGNAL)

    assert orders == []
