"""Which jobs inside a batch system are links of a chain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.runtime.batch.allocation import Allocation, Scheduler
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.supervisor import batch_run
from holdfast.runtime.supervisor.batch_job import BatchJob
from holdfast.runtime.supervisor.chain_link import ChainLink

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

    monkeypatch.setattr(batch_run, "run_job", run_job)

    codes = [batch_run.run_batch_job(options, allocation) for _ in range(3)]

    assert (codes, started) == ([ExitCode.DONE] * 3, fresh)
