"""Batch jobs on a real Slurm: they stop in time, come back, and end with the right bytes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from slurm import SlurmCluster
from slurm_jobs import HOLDFAST, BatchRun

pytestmark = [pytest.mark.mpi, pytest.mark.process]


@pytest.fixture
def run(cluster: SlurmCluster, tmp_path: Path) -> BatchRun:
    """A run that takes ten seconds of training at least."""
    return BatchRun(cluster, tmp_path, pause_ms=50)


@pytest.mark.extended  # ci/slurm; test_hpc_page.py has a job that is requeued
def test_job_comes_back_by_requeue_until_it_is_complete(
    cluster: SlurmCluster, run: BatchRun, sha256: str
) -> None:
    """Stopped as ``--signal=B:USR2`` does, and once as by SIGUSR1."""
    (job,) = run.sbatch("-n", "3", "-t", "2")

    for incarnation, name in ((1, "USR2"), (2, "USR1")):
        run.wait_for_checkpoint(incarnation)
        cluster.call("scancel", "--batch", f"--signal={name}", str(job))
        run.wait_for_requeue(job, incarnation)
    facts = run.wait_for_end(job)

    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "2"), run.log
    assert [start["workers"] for start in run.events("job_started")] == [3, 3, 3]
    assert run.events("completed")[0]["sha256"] == sha256
    restored = [record["step"] for record in run.events("restored")]
    assert restored == [record["step"] for record in run.events("stopped")]
    for incarnation in (1, 2, 3):
        assert f"Slurm job {job}, incarnation {incarnation}, from step" in run.log
    assert run.log.count("(squeue)") == 3
    assert run.log.count("asking Slurm to requeue") == 2


@pytest.mark.extended
def test_chain_goes_on_link_by_link_and_ends_by_itself(
    cluster: SlurmCluster, run: BatchRun, sha256: str
) -> None:
    """Links meet runs in test_waiting.py, and incarnations follow each other by requeue."""
    jobs = run.sbatch("-n", "2", "-t", "2", chain=4)

    for link in (1, 2):
        run.wait_for_checkpoint(link)
        cluster.call("scancel", "--batch", "--signal=USR2", str(jobs[link - 1]))
    ends = [run.wait_for_end(job) for job in jobs]

    assert [end["ExitCode"] for end in ends] == ["75:0", "75:0", "0:0", "0:0"], run.log
    assert [end["Restarts"] for end in ends] == ["0", "0", "0", "0"]
    assert run.events("completed")[0]["sha256"] == sha256
    assert len(run.events("job_started")) == 3
    assert "holdfast: nothing to do: the run in " in run.log


def test_cancelled_job_saves_and_does_not_come_back(cluster: SlurmCluster, run: BatchRun) -> None:
    (job,) = run.sbatch("-n", "2", "-t", "2")
    run.wait_for_checkpoint(1)
    steps = cluster.call("squeue", "--noheader", "--steps", "--jobs", str(job), "-o", "%i")

    cluster.call("scancel", str(job))
    facts = run.wait_for_end(job)
    cluster.wait(lambda: bool(run.events("job_ended")), "last record")

    assert steps == f"{job}.batch", "mpiexec has used the allocation by itself"
    assert (facts["JobState"], facts["Restarts"]) == ("CANCELLED", "0")
    assert run.events("job_ended")[0]["exit_code"] == 75, run.log
    assert run.events("checkpoint")[-1]["step"] == run.events("stopped")[0]["step"]
    assert "requeued" not in run.log


def test_several_copies_under_srun_stop_with_one_sentence(
    run: BatchRun, cluster: SlurmCluster
) -> None:
    """And copies of the script itself end with the command that starts it."""
    lines = [
        "#!/bin/bash",
        f"srun -n 3 {HOLDFAST} {shlex.join(run.command)}",
        "echo ended with $?",
        f"srun -n 3 {sys.executable} {shlex.join(run.script)}",
        "echo ended with $?",
    ]
    job = run.submit("\n".join(lines), "-n", "3", "-t", "1")

    run.wait_for_end(job)

    assert run.log.count("srun has started this command 3 times") == 1, run.log
    assert run.log.count("run `holdfast run -n 1 ") == 3, run.log
    assert run.log.count("ended with 2") == 2
    assert not run.run_dir.exists()
