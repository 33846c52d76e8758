"""Which incarnations of a run start, and which leave at once."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.checkpoint.names import step_name
from holdfast.runtime.batch import incarnations
from holdfast.runtime.batch.schedulers import Allocation, Scheduler
from holdfast.runtime.errors import RecoveryImpossible, UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.supervisor.batch_job import ChainLink

RUN = "00112233aabbccdd"
JOB = Allocation(Scheduler.SLURM, "7", "slurm 7")


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
