"""Links of a chain that find their run owned or complete: Slurm's variables, without Slurm."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from workload import EVEN, request_of

from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.testing import JobRequest, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.process]

LINK = {
    "ENVIRONMENT": "BATCH",
    "HOLDFAST_CHAIN": "c0ffee",
    "SLURM_CONF": os.devnull,
    "SLURM_JOB_ID": "7",
}
"""No Slurm answers to this job, so it has no time limit.

An empty configuration is refused at once; for one that is missing Slurm's programs wait.
"""


def test_link_that_waits_goes_on_when_the_run_is_free(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    lease = directory.acquire_lease()
    options = ["--wait-lease", "2min"]
    request = request_of(EVEN, directory.path, workers=2, options=options, environment=LINK)
    with start_job(request) as job:
        until = time.monotonic() + 60.0
        while "waiting for 120 s at most" not in job.stderr:
            assert time.monotonic() < until, job.stderr
            time.sleep(0.05)
        lease.release()
        ended = job.wait()

    assert ended.exit_code == 0, ended.stderr
    assert ended.report.steps == EVEN.steps


def _task(index: int, run_dir: Path) -> JobRequest:
    """Return the job of a task of a job array, each with a Slurm job of its own."""
    environment = {
        **{name: value for name, value in LINK.items() if name != "HOLDFAST_CHAIN"},
        "SLURM_ARRAY_JOB_ID": "55",
        "SLURM_ARRAY_TASK_ID": str(index),
        "SLURM_JOB_ID": str(55 + index),
    }
    return request_of(EVEN, run_dir, workers=2, environment=environment)


def test_array_that_is_one_training_in_turns_says_so_by_a_chain(tmp_path: Path) -> None:
    tasks = [_task(index, tmp_path / "run") for index in range(2)]
    chain = [
        replace(task, environment={**task.environment, "HOLDFAST_CHAIN": "one"}) for task in tasks
    ]
    ended = []
    for task in chain:
        with start_job(task) as job:
            ended.append(job.wait())

    assert [job.exit_code for job in ended] == [0, 0]
    assert "nothing to do: the run in " in ended[1].stderr
