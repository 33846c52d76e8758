"""A job inside a batch system: its limit, its chain, its return."""

from __future__ import annotations

import errno
import math
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.checkpoint.names import step_name
from holdfast.recovery.errors import ExitCode
from holdfast.runtime.batch.schedulers import (
    Allocation,
    Scheduler,
    TimeDue,
    TimeLimit,
    find_allocation,
)
from holdfast.runtime.batch.slurm_calls import SlurmRefused
from holdfast.runtime.errors import RecoveryImpossible, UsageError
from holdfast.runtime.head import batch_job
from holdfast.runtime.head import batch_job as incarnations
from holdfast.runtime.head.batch_job import BatchJob, ChainLink
from holdfast.runtime.head.orders import OWN_BEFORE_SLURMS, TimeLimits
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import read_hosts
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord

TERM, INT, USR1, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2
ON_SLURM = Allocation(Scheduler.SLURM, "7", "slurm 7")
HOUR = TimeLimit(0.0, 3600.0, "squeue")

Step = Callable[[TimeLimits], object]

RUN = "00112233aabbccdd"
JOB = Allocation(Scheduler.SLURM, "7", "slurm 7")


def limits_of(deadline: TimeLimit = HOUR) -> TimeLimits:
    return TimeLimits(deadline, is_batch=True)


def job_of(allocation: Allocation = ON_SLURM) -> BatchJob:
    return BatchJob(allocation, limits_of(), is_requeued=True)


@pytest.fixture
def requeued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that Slurm was asked to requeue."""
    asked: list[str] = []
    monkeypatch.setattr(batch_job, "requeue", lambda job, *_: asked.append(job))
    return asked


def deadline(limits: TimeLimits) -> object:
    return limits.poll(3595.0)


def heard(number: signal.Signals, now: float = 1000.0) -> Step:
    return lambda limits: limits.repeats(number, is_stopping=False, now=now)


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
        step(job.limits)

    job.end(ExitCode.STOPPED_EARLY, lambda text: None)
    assert requeued == (["7"] if is_requeued else [])


def test_requeued_job_does_without_the_lost_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(batch_job, "requeue", lambda *words: asked.extend(words))
    job = job_of(replace(ON_SLURM, hosts=read_hosts("a:1,b:1,c:1")))
    job.lost_hosts = ("b",)
    heard(USR2)(job.limits)

    job.end(ExitCode.STOPPED_EARLY, lambda _: None)

    assert asked == ["7", ("b",), 3]


def test_order_after_the_end_of_the_job_is_heeded(requeued: list[str]) -> None:
    """``scontrol requeue`` brings even a cancelled job back."""
    now = time.time()
    job = BatchJob(ON_SLURM, limits_of(TimeLimit(now, now + 3600.0, "squeue")), is_requeued=True)
    job.limits.repeats(USR2, is_stopping=False, now=now)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {TERM})
    try:
        signal.pthread_kill(threading.get_ident(), TERM)
        job.end(ExitCode.STOPPED_EARLY, lambda text: None)
    finally:
        signal.sigtimedwait({TERM}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert requeued == []


@pytest.mark.parametrize(
    "code", [ExitCode.DONE, ExitCode.PROGRAM_FAILED, ExitCode.RECOVERY_IMPOSSIBLE]
)
def test_only_a_job_that_stopped_early_comes_back(requeued: list[str], code: ExitCode) -> None:
    job = job_of()
    deadline(job.limits)

    job.end(code, lambda text: None)
    assert requeued == []


@pytest.mark.parametrize(
    ("allocation", "is_asked"),
    [
        (replace(ON_SLURM, is_batch=False), True),
        (ON_SLURM, False),
        (Allocation(Scheduler.PBS, "8", "pbs 8"), True),
    ],
    ids=["a shell of salloc", "--no-requeue", "PBS"],
)
def test_only_a_batch_job_of_slurm_requeues_itself(
    requeued: list[str], allocation: Allocation, *, is_asked: bool
) -> None:
    job = BatchJob(allocation, limits_of(), is_requeued=is_asked)
    deadline(job.limits)

    job.end(ExitCode.STOPPED_EARLY, lambda text: None)
    assert requeued == []


def test_slurm_that_refuses_costs_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise SlurmRefused("scontrol: it is disabled")

    monkeypatch.setattr(batch_job, "requeue", refuse)
    job, said = job_of(), list[str]()
    deadline(job.limits)

    job.end(ExitCode.STOPPED_EARLY, said.append)
    assert said[0].startswith("asking Slurm to requeue Slurm job 7")
    assert said[-1].startswith("Slurm job 7 is not requeued (scontrol: it is disabled)")


def _options(tmp_path: Path, **options: object) -> JobOptions:
    return JobOptions(script=tmp_path / "train.py", run_dir=tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends_in_s", "deadline_s", "expected"),
    [
        (3600.0, None, (3600.0, "SLURM_JOB_END_TIME")),
        (3600.0, 60.0, (60.0, OWN_BEFORE_SLURMS)),
        (60.0, 3600.0, (60.0, "SLURM_JOB_END_TIME")),
        (None, None, (1800.0, "squeue")),
        (-60.0, None, (1800.0, "squeue")),
        (None, 60.0, (60.0, OWN_BEFORE_SLURMS)),
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

    assert job.limits.poll(now + 0.4 * left_s) < TimeDue.SAVE
    assert job.limits.poll(now + left_s) is TimeDue.END
    assert job.introduction.startswith("Slurm job 7, time until ")
    assert job.introduction.endswith(f"({source})")


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

    said = BatchJob.of(_options(tmp_path, deadline_s=deadline_s), over, {}).introduction

    assert said.startswith(words)
    assert (said == words) == (deadline_s is None)


@pytest.mark.parametrize(
    ("used", "workers", "end"),
    [
        ("", 3, ", 2 of its 3 hosts stay idle: give more workers by -n, or name them by --hosts"),
        ("a,b,c", 3, "(SLURM_JOB_END_TIME)"),
        (
            "a:4,b:4,c:4",
            5,
            ", 1 of its 3 hosts stay idle: give more workers by -n, or name them by --hosts",
        ),
    ],
)
def test_hosts_that_a_job_does_not_use_are_told(
    tmp_path: Path, used: str, workers: int, end: str
) -> None:
    wide = replace(ON_SLURM, hosts=read_hosts("a,b,c"), ends_at=time.time() + 3600.0)
    options = _options(tmp_path, hosts=read_hosts(used), workers=workers)

    said = BatchJob.of(options, wide, {}).introduction

    assert said.startswith("Slurm job 7, ")
    assert said.endswith(end)


def test_hosts_of_the_whole_job_that_are_not_this_commands_are_told(tmp_path: Path) -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1"}
    het = {"SLURM_HET_SIZE": "2"}
    het |= {f"SLURM_JOB_NODELIST_HET_GROUP_{part}": f"n[{part}1-{part}2]" for part in (0, 1)}
    het |= {"SLURM_JOB_NODELIST": "n[01-02]"}

    def said(environ: dict[str, str]) -> str:
        allocation = find_allocation(environ)
        assert allocation is not None
        names = ",".join(host.name for host in allocation.hosts)
        options = _options(tmp_path, hosts=read_hosts(names), workers=len(allocation.hosts))
        return BatchJob.of(options, allocation, environ).introduction

    assert "idle" not in said(batch)
    assert said(batch | step).endswith("n2 of the same job stay idle: this step has none of them")
    assert said(batch | het).endswith(
        "n11, n12 of the same job stay idle: its first component has none of them"
    )


def test_job_outside_of_a_batch_system_introduces_its_own_limit_alone(tmp_path: Path) -> None:
    own = BatchJob.of(_options(tmp_path, deadline_s=60.0), None, {}).introduction

    assert own.startswith("time until ")
    assert own.endswith(" (--deadline)")
    assert BatchJob.of(_options(tmp_path), None, {}).introduction == ""


@pytest.mark.parametrize(
    ("deadline_s", "at_s", "due"),
    [(None, 1e6, TimeDue.NOTHING), (3600.0, 0.0, TimeDue.NOTHING), (3600.0, 3599.0, TimeDue.END)],
)
def test_time_of_a_job_that_is_attached_to_ends_when_it_would_have_ended(
    tmp_path: Path, deadline_s: float | None, at_s: float, due: TimeDue
) -> None:
    began = time.time() - 600.0

    job = BatchJob.of(_options(tmp_path, deadline_s=deadline_s), None, {}, age_s=600.0)

    assert job.limits.poll(began + at_s) is due


def test_limits_that_the_head_has_sent_at_the_end_count(requeued: list[str]) -> None:
    job, minded = job_of(), limits_of()
    deadline(minded)

    job.limits = minded

    job.end(ExitCode.STOPPED_EARLY, lambda text: None)
    assert requeued == ["7"]


def test_limit_of_the_users_own_before_slurms_requeues_nothing(
    tmp_path: Path, requeued: list[str]
) -> None:
    """A requeue would end what else runs in the batch job, and begin it again."""
    allocation = replace(ON_SLURM, ends_at=time.time() + 3600.0)
    job = BatchJob.of(_options(tmp_path, deadline_s=60.0), allocation, {})

    assert job.limits.poll(time.time() + 59.0) is TimeDue.END
    job.end(ExitCode.STOPPED_EARLY, lambda text: None)
    assert requeued == []


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    RunDirectory(run_dir).create_record(RunRecord(RUN, 1, 0.0, microbatches=4, seed=0, threads=1))
    (tmp_path / "train.py").write_text("train()")
    return JobOptions(script=tmp_path / "train.py", run_dir=run_dir)


def save(options: JobOptions, step: int) -> None:
    (RunDirectory(options.run_dir).checkpoints_path / step_name(step)).mkdir(parents=True)


def _link(options: JobOptions, job: Allocation = JOB) -> ChainLink:
    return ChainLink(options, job)


def start(options: JobOptions, job: Allocation = JOB) -> str:
    return _link(options, job).begin(RUN)


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


def test_only_the_first_link_begins_a_fresh_run(options: JobOptions) -> None:
    fresh = replace(options, fresh=True, again=True)

    assert _link(fresh).asked(fresh) == fresh
    start(options)
    assert _link(fresh).asked(fresh) == options


@pytest.mark.parametrize("fresh", [True, False])
def test_fresh_chain_that_cannot_be_remembered_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, *, fresh: bool
) -> None:
    """Each of its incarnations would set the progress of the last one aside."""

    def refuse(_path: Path, _content: bytes, **_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(incarnations, "write_whole", refuse)
    link = _link(replace(options, fresh=fresh))

    with pytest.raises(UsageError, match="quota") if fresh else nullcontext():
        link.begin(RUN)
