"""A job inside a batch system: its limit, its chain, its return."""

from __future__ import annotations

import errno
import json
import math
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.names import step_name
from holdfast.recovery.errors import ExitCode
from holdfast.runtime.batch.schedulers import (
    Allocation,
    Scheduler,
    SlurmRefused,
    find_allocation,
)
from holdfast.runtime.errors import RecoveryImpossible, UsageError
from holdfast.runtime.head import batch_job
from holdfast.runtime.head.batch_job import FILE_NAME, BatchJob, Chain, ChainedStart, ChainLink
from holdfast.runtime.head.orders import OWN_BEFORE_SLURMS, TimeDue, TimeLimit, TimeLimits
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import read_hosts
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord

TERM = signal.SIGTERM
ON_SLURM = Allocation(Scheduler.SLURM, "7", "slurm 7")
HOUR = TimeLimit(0.0, 3600.0, "squeue")

RUN = "00112233aabbccdd"
JOB = Allocation(Scheduler.SLURM, "7", "slurm 7")


class Slurm:
    """What Slurm was asked to requeue, and what was said of it."""

    def __init__(self, refusal: str = "") -> None:
        self.asked: list[object] = []
        self.said: list[str] = []
        self._refusal = refusal

    def requeue(self, *words: object) -> None:
        if self._refusal:
            raise SlurmRefused(self._refusal)
        self.asked += words

    def end(self, job: BatchJob, code: ExitCode = ExitCode.STOPPED_EARLY) -> None:
        job.end(code, self.said.append, requeue=self.requeue)


AGAIN = ["7", (), 0]
IN_SHELL = replace(ON_SLURM, is_batch=False)
ON_PBS = Allocation(Scheduler.PBS, "8", "pbs 8")


@pytest.mark.parametrize(
    ("hit_limit", "code", "allocation", "is_requeued", "asked"),
    [
        (True, ExitCode.STOPPED_EARLY, ON_SLURM, True, AGAIN),
        (False, ExitCode.STOPPED_EARLY, ON_SLURM, True, []),
        (True, ExitCode.DONE, ON_SLURM, True, []),
        (True, ExitCode.PROGRAM_FAILED, ON_SLURM, True, []),
        (True, ExitCode.RECOVERY_IMPOSSIBLE, ON_SLURM, True, []),
        (True, ExitCode.STOPPED_EARLY, IN_SHELL, True, []),
        (True, ExitCode.STOPPED_EARLY, ON_SLURM, False, []),
        (True, ExitCode.STOPPED_EARLY, ON_PBS, True, []),
    ],
)
def test_limit_brings_a_job_of_slurm_back_and_an_order_does_not(
    code: ExitCode,
    allocation: Allocation,
    *,
    hit_limit: bool,
    is_requeued: bool,
    asked: list[object],
) -> None:
    slurm = Slurm()
    job = BatchJob(allocation, is_requeued=is_requeued)
    job.limits = TimeLimits(HOUR, is_batch=True, hit_limit=hit_limit)  # as the head has sent them

    slurm.end(job, code)

    assert slurm.asked == asked


def test_requeued_job_does_without_the_lost_nodes_and_a_refusal_costs_a_sentence() -> None:
    wide = replace(ON_SLURM, hosts=read_hosts("a:1,b:1,c:1"))
    job = BatchJob(wide, TimeLimits(HOUR, hit_limit=True), is_requeued=True)
    job.lost_hosts = ("b",)
    slurm, disabled = Slurm(), Slurm("scontrol: it is disabled")

    slurm.end(job)
    disabled.end(job)

    assert slurm.asked == ["7", ("b",), 3]
    assert disabled.said[0].startswith("asking Slurm to requeue Slurm job 7")
    assert disabled.said[-1].startswith("Slurm job 7 is not requeued (scontrol: it is disabled)")


def test_order_after_the_end_of_the_job_is_heeded() -> None:
    """``scontrol requeue`` brings even a cancelled job back."""
    now, slurm = time.time(), Slurm()
    job = BatchJob(
        ON_SLURM,
        TimeLimits(TimeLimit(now, now + 3600.0, "squeue"), is_batch=True),
        is_requeued=True,
    )
    job.limits.repeats(signal.SIGUSR2, is_stopping=False, now=now)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {TERM})
    try:
        signal.pthread_kill(threading.get_ident(), TERM)
        slurm.end(job)
    finally:
        signal.sigtimedwait({TERM}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert slurm.asked == []


def _options(tmp_path: Path, **options: object) -> JobOptions:
    return JobOptions(script=tmp_path / "train.py", run_dir=tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends_in_s", "told_s", "deadline_s", "left_s", "source"),
    [
        (3600.0, 1800.0, None, 3600.0, "SLURM_JOB_END_TIME"),
        (3600.0, 1800.0, 60.0, 60.0, OWN_BEFORE_SLURMS),
        (60.0, 1800.0, 3600.0, 60.0, "SLURM_JOB_END_TIME"),
        (None, 1800.0, None, 1800.0, "squeue"),
        (-60.0, 1800.0, None, 1800.0, "squeue"),
        (None, 1800.0, 60.0, 60.0, OWN_BEFORE_SLURMS),
        (-60.0, None, None, None, "time limit not known: give --deadline"),
        (-60.0, None, 60.0, 60.0, "--deadline"),
        (-60.0, math.inf, None, None, ""),
        (-60.0, math.inf, 60.0, 60.0, "--deadline"),
    ],
)
def test_earliest_end_counts_and_one_that_slurm_does_not_tell_is_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends_in_s: float | None,
    told_s: float | None,
    deadline_s: float | None,
    left_s: float | None,
    source: str,
) -> None:
    monkeypatch.setattr(batch_job, "time_left_s", lambda job: told_s)
    now = time.time()
    ends_at = None if ends_in_s is None else now + ends_in_s
    options = _options(tmp_path, deadline_s=deadline_s)

    job = BatchJob.of(options, replace(ON_SLURM, ends_at=ends_at))

    if left_s is None:
        assert job.introduction == ", ".join(filter(None, ("Slurm job 7", source)))
        assert job.limits.poll(1e12) is TimeDue.NOTHING
        return
    assert job.limits.poll(now + 0.4 * left_s) < TimeDue.SAVE
    assert job.limits.poll(now + left_s) is TimeDue.END
    assert job.introduction.startswith("Slurm job 7, time until ")
    assert job.introduction.endswith(f"({source})")


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

    said = BatchJob.of(options, wide).introduction

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
        return BatchJob.of(options, allocation).introduction

    assert "idle" not in said(batch)
    assert said(batch | step).endswith("n2 of the same job stay idle: this step has none of them")
    assert said(batch | het).endswith(
        "n11, n12 of the same job stay idle: its first component has none of them"
    )


def test_job_outside_of_a_batch_system_introduces_its_own_limit_alone(tmp_path: Path) -> None:
    own = BatchJob.of(_options(tmp_path, deadline_s=60.0), None).introduction

    assert own.startswith("time until ")
    assert own.endswith(" (--deadline)")
    assert BatchJob.of(_options(tmp_path), None).introduction == ""


@pytest.mark.parametrize(
    ("deadline_s", "at_s", "due"),
    [(None, 1e6, TimeDue.NOTHING), (3600.0, 0.0, TimeDue.NOTHING), (3600.0, 3599.0, TimeDue.END)],
)
def test_time_of_a_job_that_is_attached_to_ends_when_it_would_have_ended(
    tmp_path: Path, deadline_s: float | None, at_s: float, due: TimeDue
) -> None:
    began = time.time() - 600.0

    job = BatchJob.of(_options(tmp_path, deadline_s=deadline_s), None, age_s=600.0)

    assert job.limits.poll(began + at_s) is due


def test_limit_of_the_users_own_before_slurms_requeues_nothing(
    tmp_path: Path,
) -> None:
    """A requeue would end what else runs in the batch job, and begin it again."""
    allocation = replace(ON_SLURM, ends_at=time.time() + 3600.0)
    job = BatchJob.of(_options(tmp_path, deadline_s=60.0), allocation)

    slurm = Slurm()
    assert job.limits.poll(time.time() + 59.0) is TimeDue.END
    slurm.end(job)
    assert slurm.asked == []


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
    assert start(options) == "Slurm job 7, incarnation 1, from step 0"
    for number, step in enumerate((10, 20, 30, 40), 2):
        save(options, step)
        assert start(options) == f"Slurm job 7, incarnation {number}, from step {step}"
    save(options, 50)
    assert "incarnation 9" in start(options, replace(JOB, restarts=8))  # Slurm has counted more


@pytest.mark.parametrize("fresh", [True, False])
def test_fresh_chain_that_cannot_be_remembered_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, *, fresh: bool
) -> None:
    """Each of its incarnations would set the progress of the last one aside."""

    def refuse(_path: Path, _content: bytes, **_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(batch_job, "write_whole", refuse)
    link = ChainLink(replace(options, fresh=fresh), JOB)

    with pytest.raises(UsageError, match="quota") if fresh else nullcontext():
        link.begin(RUN)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_chain_starts_at_most_twice_from_any_step(gains: list[int]) -> None:
    """Whatever each incarnation achieves, the same step is begun with twice at most."""
    chain, step = Chain("slurm 7", RUN), 0
    for gained in gains:
        if chain.objection(step) is not None:
            break
        chain = chain.with_next(ChainedStart("job", step))
        step += gained

    begun = [incarnation.step for incarnation in chain.incarnations]
    assert all(begun.count(step) <= 2 for step in begun)


@pytest.mark.parametrize(
    ("content", "is_remembered"),
    [
        ({"name": "slurm 7", "run_id": RUN, "complete": "abc"}, True),  # of an older holdfast
        ({"name": "slurm 8", "run_id": RUN}, False),
        ({"name": "slurm 7", "run_id": "0" * 16}, False),
        ({"name": "slurm 7", "run_id": RUN, "incarnations": 3}, False),
        ({"name": "slurm 7", "run_id": RUN, "incarnations": [{"label": "a", "step": "4"}]}, False),
        (b"", False),
        (b"{", False),
        ([], False),
        (None, False),
        ({}, False),
    ],
    ids=str,
)
def test_file_of_another_chain_or_of_none_begins_anew(
    options: JobOptions, content: object, *, is_remembered: bool
) -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (options.run_dir / FILE_NAME).write_bytes(raw)

    assert (ChainLink(options, JOB).before is not None) == is_remembered
