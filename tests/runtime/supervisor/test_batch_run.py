"""Which jobs inside a batch system are links of a chain."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.runtime.batch.schedulers import CHAIN, Allocation, Scheduler
from holdfast.runtime.errors import ExitCode, RunDirectoryBusy
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.supervisor import job_run
from holdfast.runtime.supervisor.batch_job import BatchJob, ChainLink

RUN = "00112233aabbccdd"
BY_HAND = Allocation(Scheduler.SLURM, "7", chain="", is_batch=False, ends_at=4e9)


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    run = RunRecord(RUN, 1, 0.0, microbatches=4, seed=0, threads=1)
    RunDirectory(tmp_path).create_record(run)
    (tmp_path / "train.py").write_text("train()")
    return JobOptions(script=tmp_path / "train.py", run_dir=tmp_path, fresh=True)


@pytest.mark.parametrize(
    ("allocation", "fresh"),
    [(BY_HAND, [True, True, True]), (replace(BY_HAND, chain="slurm 7"), [True])],
    ids=["typed in a shell of salloc", "batch job"],
)
def test_job_that_a_person_starts_is_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    options: JobOptions,
    allocation: Allocation,
    fresh: list[bool],
) -> None:
    started: list[bool] = []

    def run_job(
        asked: JobOptions, batch: BatchJob, link: ChainLink | None = None, **_: object
    ) -> ExitCode:
        started.append(asked.fresh)
        assert batch.incarnation == "Slurm job 7"
        if link is not None:
            link.begin(RUN)
        return ExitCode.DONE

    monkeypatch.setattr(job_run, "run_job", run_job)

    codes = [job_run.run_batch_job(options, allocation) for _ in range(3)]

    assert (codes, started) == ([ExitCode.DONE] * 3, fresh)


IN_BATCH = replace(BY_HAND, chain="slurm 7", is_batch=True)


class Runs:
    """Stands in for the job: ends with a code or an error, and notes what it was asked for."""

    def __init__(self, patch: pytest.MonkeyPatch, end: ExitCode | Exception) -> None:
        self.end, self.asked, self.said = end, list[JobOptions](), list[str]()
        self.hits_limit = False
        patch.setattr(job_run, "run_job", self._run)
        patch.setattr(job_run, "say", self.said.append)

    def _run(self, asked: JobOptions, batch: BatchJob, link: ChainLink) -> ExitCode:
        self.asked.append(asked)
        if isinstance(self.end, Exception):
            raise self.end
        if self.hits_limit:
            batch.repeats(signal.SIGUSR1, is_stopping=False, now=0.0)
        batch.incarnation = link.begin(RUN)
        return self.end


def test_job_of_a_complete_run_has_nothing_to_do_and_says_so(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions
) -> None:
    runs = Runs(monkeypatch, ExitCode.DONE)

    codes = [job_run.run_batch_job(options, IN_BATCH) for _ in range(2)]

    assert codes == [ExitCode.DONE] * 2
    assert len(runs.asked) == 1
    assert runs.said == [f"the run in {options.run_dir} is complete: Slurm job 7 has nothing to do"]


def test_job_after_one_that_stopped_early_goes_on_with_its_run(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions
) -> None:
    runs = Runs(monkeypatch, ExitCode.STOPPED_EARLY)

    codes = [job_run.run_batch_job(options, IN_BATCH) for _ in range(2)]

    assert codes == [ExitCode.STOPPED_EARLY] * 2
    assert [asked.fresh for asked in runs.asked] == [True, False]
    assert runs.said == [
        "--fresh began this run with the first incarnation; this one goes on with it"
    ]


@pytest.mark.parametrize("is_chain", [True, False])
def test_link_leaves_a_run_alone_that_another_link_still_has(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, *, is_chain: bool
) -> None:
    """Of a single job it is an error that its user must see."""
    runs = Runs(monkeypatch, RunDirectoryBusy("pid 3 has it"))
    if is_chain:
        monkeypatch.setenv(CHAIN, "mine")
    else:
        monkeypatch.delenv(CHAIN, raising=False)

    if is_chain:
        assert job_run.run_batch_job(options, IN_BATCH) == ExitCode.RUN_DIRECTORY_BUSY
        assert runs.said == ["pid 3 has it; Slurm job 7 leaves it alone"]
    else:
        with pytest.raises(RunDirectoryBusy, match="pid 3 has it"):
            job_run.run_batch_job(options, IN_BATCH)


@pytest.mark.parametrize(("hits_limit", "code"), [(True, 99), (False, ExitCode.STOPPED_EARLY)])
def test_job_that_its_limit_stops_gets_the_exit_code_of_its_batch_system(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, code: int, *, hits_limit: bool
) -> None:
    runs = Runs(monkeypatch, ExitCode.STOPPED_EARLY)
    runs.hits_limit = hits_limit
    job = Allocation(Scheduler.SGE, "5", chain="sge 5", requeue_code=99)

    assert job_run.run_batch_job(options, job) == code
