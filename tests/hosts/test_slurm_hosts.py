"""Slurm on several hosts, as jobs over several hosts find it: steps, a lost node, a requeue."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from slurm import SlurmCluster
from slurm_jobs import BatchRun
from workload import LONG, Undisturbed

from holdfast.runtime.clusters.cluster import Cluster, wait_until

pytestmark = [pytest.mark.process, pytest.mark.extended]  # ci/slurm runs them, one at a time

_STEP = "srun --overlap -N1 -n1 --no-kill --kill-on-bad-exit=0 --wait=0 --mpi=none"


def _submit(slurm: SlurmCluster, tmp_path: Path, script: str, *options: str) -> int:
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    return int(slurm.call("sbatch", "--parsable", "-o", f"{tmp_path}/log", *options, str(path)))


def test_a_batch_job_reaches_all_its_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = f"for host in a b c; do {_STEP} -w $host hostname; done"
    job = _submit(slurm, tmp_path, script, "-N", "3", "-n", "3")
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert (tmp_path / "log").read_text().split() == ["a", "b", "c"]


def test_an_allocation_outlives_a_lost_node_if_it_asks_to(
    slurm: SlurmCluster, cluster: Cluster, tmp_path: Path
) -> None:
    """Slurm gives the node up after ``SlurmdTimeout``, and steps still start on the others."""
    wait = f"until test -e {tmp_path}/go; do sleep 0.1; done; {_STEP} -w c hostname"
    with slurm.popen(
        *("salloc", "-N", "3", "-n", "3", "--no-kill", "sh", "-c", f"echo; {wait}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as allocation:
        assert allocation.stdout is not None
        allocation.stdout.readline()
        cluster.kill("b", silently=True)
        slurm.wait(lambda: "down" in slurm.call("sinfo", "-h", "-n", "b", "-o", "%T"), "end of b",
                   within_s=240.0)  # fmt: skip
        (tmp_path / "go").touch()
        assert allocation.communicate(timeout=60)[0] == "c\n"
        assert allocation.returncode == 0


@pytest.mark.extended  # the loss of a node as above, with Slurm's other answer
def test_a_job_is_requeued_when_its_node_fails(
    slurm: SlurmCluster, cluster: Cluster, tmp_path: Path
) -> None:
    job = _submit(slurm, tmp_path, "sleep 1000", "-N", "2", "-w", "a,b", "--requeue")
    slurm.wait_for_state(job, "RUNNING")
    cluster.kill("b", silently=True)
    slurm.wait(lambda: slurm.facts(job)["Restarts"] == "1", "requeue", within_s=240.0)
    cluster.restart("b")
    wait_until(lambda: "down" not in slurm.call("sinfo", "-h", "-n", "b", "-o", "%T"), "node b")


@pytest.fixture
def run(slurm: SlurmCluster, tmp_path: Path) -> BatchRun:
    """A run that takes some twenty seconds of training on the nodes."""
    return BatchRun(slurm, tmp_path, pause_ms=100)


@pytest.mark.mpi
def test_run_goes_on_in_place_on_the_nodes_that_are_left(
    run: BatchRun, cluster: Cluster, undisturbed: Undisturbed
) -> None:
    """No host is named, nobody asks for tasks, and srun does not tell of the loss."""
    (job,) = run.sbatch("-N", "3", "-t", "8")
    run.wait_for_checkpoint(1)
    cluster.kill("c", silently=True)

    facts = run.wait_for_end(job, within_s=240.0)

    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "0"), run.log
    assert "3 hosts on the network 10.77.0.0/24: a:1, b:1, c:1" in run.log
    assert [loss["host"] for loss in run.events("host_lost")] == ["c"]
    assert "relaunching" not in run.log
    assert run.events("completed")[0]["sha256"] == undisturbed(replace(LONG, pause_ms=0))
    assert [line for host in "ab" for line in cluster.wait_empty(host)] == []


@pytest.mark.mpi
@pytest.mark.extended  # Slurm takes its time to give a node up
def test_job_that_has_lost_the_node_of_its_script_is_requeued_by_another_node(
    slurm: SlurmCluster, run: BatchRun, cluster: Cluster, undisturbed: Undisturbed
) -> None:
    """Slurm would let it hold the other one until its limit.  The controller is on another host."""
    slurm.call("scontrol", "update", "NodeName=a", "State=DRAIN", "Reason=later")
    (job,) = run.sbatch("-N", "2", "-t", "8")
    run.wait_for_checkpoint(1)
    slurm.call("scontrol", "update", "NodeName=a", "State=RESUME")
    cluster.kill("b", silently=True)
    slurm.wait(lambda: slurm.facts(job)["JobState"] == "PENDING", "requeue", within_s=240.0)

    facts = run.wait_for_end(job, within_s=240.0)

    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), run.log
    assert facts["NodeList"] == "a,c"
    assert run.events("restored")
    assert run.events("completed")[0]["sha256"] == undisturbed(replace(LONG, pause_ms=0))


@pytest.mark.mpi
@pytest.mark.extended  # the requeue of one node (tests/batch/test_slurm.py), after a loss
def test_job_that_its_limit_stops_after_a_loss_comes_back_on_other_nodes(
    slurm: SlurmCluster, run: BatchRun, cluster: Cluster, undisturbed: Undisturbed
) -> None:
    (job,) = run.sbatch("-N", "2", "-t", "8")
    run.wait_for_checkpoint(1)
    cluster.kill("b", silently=True)
    slurm.wait(lambda: bool(run.events("host_lost")), "loss")
    slurm.call("scancel", "--batch", "--signal=USR2", str(job))
    facts = run.wait_for_end(job, within_s=240.0)

    assert (facts["JobState"], facts["Restarts"], facts["ExcNodeList"]) == ("COMPLETED", "1", "b")
    assert facts["NodeList"] == "a,c"
    assert run.events("completed")[0]["sha256"] == undisturbed(replace(LONG, pause_ms=0))
