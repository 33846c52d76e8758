"""A job over several hosts grows again when a lost one is back, and is scaled over them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import Cluster
from host_jobs import HostJob, Loss, assert_whole
from workload import LONG, Undisturbed, request_of

from holdfast.testing import JobRun

pytestmark = [pytest.mark.mpi, pytest.mark.process]

_SLOW = replace(LONG, pause_ms=80)


def _sizes_of(job: JobRun) -> list[int]:
    return [len(launch["workers"]) for launch in job.events("launch")]


def _scale(cluster: Cluster, run_dir: Path, workers: int) -> str:
    """Scale a job from the host of its head; return what is refused."""
    argv = [sys.executable, "-m", "holdfast", "scale", str(run_dir), str(workers)]
    return cluster.run("a", argv, check=False).stderr


def test_host_that_is_back_takes_its_workers_again(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Three hosts, then two, then three: nobody asks for it."""
    options = ("--regrow", "auto", "--max-restarts", "0", "--heartbeat-timeout", "5")
    request = request_of(_SLOW, tmp_path / "run", workers=5, options=options)
    with HostJob(cluster, request, "a:1,b:3,c:1") as running:
        running.wait_for("checkpoint")
        running.strike(Loss.AGENT_KILLED, "b")
        running.wait_for("host_lost", host="b")
        running.wait_for("host_back", host="b")
        job = running.wait()

    assert_whole(job, undisturbed(_SLOW))
    assert _sizes_of(job) == [5, 5]
    assert "2 of 5 workers are left: stopping with a checkpoint" in job.stderr


@pytest.mark.extended  # a worker that is prepared dies in tests/jobs/test_growth.py
def test_loss_of_a_host_of_a_prepared_launch_costs_those_that_train_on_others_nothing(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """No world has saved at the gate, so the launch waits, also on c, where nobody trains."""
    gates = ("--gates", str(tmp_path), "--gate-steps", "3")
    plain = request_of(LONG, tmp_path / "run", workers=2, options=("--heartbeat-timeout", "5"))
    with HostJob(cluster, replace(plain, argv=[*plain.argv, *gates]), "a:1,b:1,c:1") as running:
        running.wait_for("world")
        refused = _scale(cluster, tmp_path / "run", 4)
        assert "its hosts take 3 workers; stop it and run it again with other --hosts" in refused
        assert _scale(cluster, tmp_path / "run", 3) == ""
        running.wait_until(lambda: bool(running.workers("c")), "a worker on c")
        running.strike(Loss.AGENT_KILLED, "c")
        running.wait_for("preparation_failed")
        (tmp_path / "3").touch()
        job = running.wait()

    assert_whole(job, undisturbed(LONG))
    assert not job.report.failures
