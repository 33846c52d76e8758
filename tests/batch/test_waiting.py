"""Links of a chain that find their run owned or complete: Slurm's variables, without Slurm."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from workload import EVEN, LONG, Workload, request_of, wait_for_checkpoints

from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.testing import JobRequest, JobRun, start_job

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


def _ended(run_dir: Path, environment: Mapping[str, str] = LINK) -> JobRun:
    request = request_of(EVEN, run_dir, workers=2, environment=environment)
    with start_job(request) as job:
        return job.wait()


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


@pytest.mark.extended  # three jobs; the next test has a link that goes on
def test_link_of_a_complete_run_ends_at_once_and_another_chain_looks_itself(
    tmp_path: Path,
) -> None:
    first = _ended(tmp_path / "run")
    second = _ended(tmp_path / "run")
    other = _ended(tmp_path / "run", LINK | {"HOLDFAST_CHAIN": "beef"})

    assert [job.exit_code for job in (first, second, other)] == [0, 0, 0]
    assert "Slurm job 7, incarnation 1, from step 0" in first.stderr
    assert "nothing to do: the run in " in second.stderr
    assert second.report.jobs == 1
    assert other.report.jobs == 2


def _task(index: int, run_dir: Path, workload: Workload = EVEN, *options: str) -> JobRequest:
    """Return the job of a task of a job array, each with a Slurm job of its own."""
    environment = {
        **{name: value for name, value in LINK.items() if name != "HOLDFAST_CHAIN"},
        "SLURM_ARRAY_JOB_ID": "55",
        "SLURM_ARRAY_TASK_ID": str(index),
        "SLURM_JOB_ID": str(55 + index),
    }
    return request_of(workload, run_dir, workers=2, options=options, environment=environment)


@pytest.mark.extended  # four jobs; the test beside it has the tasks
def test_task_of_an_array_does_not_take_the_run_of_another_over(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with start_job(_task(0, run_dir, LONG)) as first:
        wait_for_checkpoints(first, 1)
        with start_job(_task(1, run_dir, LONG, "--wait-lease", "60")) as second:
            refused = second.wait()
        first.signal(signal.SIGTERM)
        stopped = first.wait()

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert (
        f"{run_dir} holds the run of task 0, and this is task 1 of Slurm array 55: "
        "`export HOLDFAST_CHAIN="
    ) in refused.stderr
    assert "as by `--run-dir run-$SLURM_ARRAY_TASK_ID`" in refused.stderr
    assert stopped.exit_code == 75, stopped.stderr

    with start_job(_task(0, run_dir, LONG)) as again:  # as Slurm requeues it
        ended = again.wait()
    with start_job(_task(1, run_dir, LONG)) as second:
        refused = second.wait()

    assert ended.exit_code == 0, ended.stderr
    assert ended.report.steps == LONG.steps
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert ended.report.jobs == 2


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
