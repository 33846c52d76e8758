"""Slurm's own time limits and preemption: minutes each, so only for `ci/slurm`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from slurm import SlurmCluster
from slurm_jobs import HOLDFAST, BatchRun

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.process,
    pytest.mark.skipif(
        "HOLDFAST_SLURM" not in os.environ, reason="takes ten minutes: run ci/slurm"
    ),
]

PAUSE_MS = 600
"""A step takes that long, and the whole training two minutes: three jobs of one minute."""


@pytest.fixture
def run(cluster: SlurmCluster, tmp_path: Path) -> BatchRun:
    return BatchRun(cluster, tmp_path, pause_ms=PAUSE_MS)


def test_job_is_requeued_before_each_limit_of_a_minute(
    cluster: SlurmCluster, run: BatchRun, sha256: str
) -> None:
    (job,) = run.sbatch("-n", "3", "-t", "1")

    facts = run.wait_for_end(job, within_s=480.0)

    assert facts["JobState"] == "COMPLETED", run.log
    assert int(facts["Restarts"]) >= 2
    assert run.events("completed")[0]["sha256"] == sha256
    assert "DUE TO TIME LIMIT" not in run.log
    assert run.log.count("asking Slurm to requeue") == int(facts["Restarts"])


def test_chain_goes_through_limits_of_a_minute(
    cluster: SlurmCluster, run: BatchRun, sha256: str
) -> None:
    jobs = run.sbatch("-n", "3", "-t", "1", chain=6)

    ends = [run.wait_for_end(job, within_s=480.0)["ExitCode"] for job in jobs]

    trained = ends.index("0:0")
    assert trained >= 2, run.log
    assert ends == ["75:0"] * trained + ["0:0"] * (len(jobs) - trained), run.log
    assert len(run.events("job_started")) == trained + 1
    assert run.events("completed")[0]["sha256"] == sha256


def test_preempted_job_saves_and_goes_on_after_the_urgent_one(
    cluster: SlurmCluster, run: BatchRun, sha256: str
) -> None:
    (job,) = run.sbatch("-n", "3", "-t", "10", "-p", "work")
    run.wait_for_checkpoint(1)

    urgent = run.submit(
        "#!/bin/bash\nsleep 3\n", "-n", "8", "-t", "1", "-p", "urgent", "-o", "/dev/null"
    )
    run.wait_for_end(urgent)
    run.wait_for_requeue(job, 1)
    facts = run.wait_for_end(job, within_s=480.0)

    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), run.log
    assert run.events("checkpoint")[-1]["step"] == run.workload.steps
    assert [end["exit_code"] for end in run.events("job_ended")] == [75, 0], run.log
    assert run.events("completed")[0]["sha256"] == sha256


def test_sigterm_to_a_step_saves(cluster: SlurmCluster, run: BatchRun) -> None:
    """A site that wants its programs under srun: one task, which starts the workers."""
    line = f"srun -n 1 --overlap {HOLDFAST} {shlex.join([*run.command[:1], '-n', '2'])}"
    script = f"#!/bin/bash\n{line} {shlex.join(run.command[1:])}\necho ended with $?\n"
    job = run.submit(script, "-n", "2", "-t", "5")
    run.wait_for_checkpoint(1)

    cluster.call("scancel", "--signal=TERM", f"{job}.0")
    facts = run.wait_for_end(job)

    assert "ended with 75" in run.log, run.log
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "0")
    assert run.events("checkpoint")[-1]["step"] == run.events("stopped")[0]["step"]


def test_chain_without_progress_stops(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A script that saves nothing before its time is up is started twice, not for ever."""
    stuck = BatchRun(cluster, tmp_path, pause_ms=100_000)
    (job,) = stuck.sbatch("-n", "2", "-t", "1")

    facts = stuck.wait_for_end(job, within_s=480.0)

    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("FAILED", "70:0", "2")
    assert "began at step 0 and have saved no later one" in stuck.log
