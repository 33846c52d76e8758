"""The real thing: mpiexec, ULFM, and every way a rank may die."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_harness import AgentHarness, agent_running, assert_ended
from extended import shortened

pytestmark = pytest.mark.mpi

WORKERS = [0, 1, 2]
VICTIM = 1


@pytest.fixture
def mpi(tmp_path: Path) -> Iterator[AgentHarness]:
    preload = ("--preload", "numpy,mpi4py")
    with agent_running(tmp_path, *preload, entry="mpi_worker:main") as harness:
        harness.wait_for("PoolWarmed")
        yield harness
    assert list(tmp_path.glob("launch-*/*")) == []


DEATHS = [
    "kill",
    "exit_1",
    "exit_0",
    "sys_exit",
    "raise",
    "segfault",
    "mpi_abort",
    "stop",
    "hold_gil",
]
"""Who stands still is fenced in test_agent_deaths.py, and whole jobs shrink then."""


@pytest.mark.parametrize("fatal", shortened(DEATHS, here=["kill", "segfault", "mpi_abort"]))
def test_survivors_shrink_whatever_kills_a_worker(mpi: AgentHarness, fatal: str) -> None:
    mpi.launch(WORKERS, f"{VICTIM}:training:{fatal}")

    job = mpi.mpiexec(len(WORKERS))

    for survivor in (0, 2):
        assert mpi.wait_for_report(survivor, "world")["size"] == 2
        assert mpi.wait_for("WorkerExited", worker=survivor)["is_clean"] is True
    death = mpi.wait_for("WorkerExited", worker=VICTIM)
    assert (death["is_clean"], death["step"], death["phase"]) == (False, 5, "training")
    job.wait()


@pytest.mark.parametrize("site", ["starting:exit_1", "starting:kill", "joining:alarm"])
def test_death_before_the_job_is_up_is_told_so_that_it_can_be_ended(
    mpi: AgentHarness, site: str
) -> None:
    """The others hang in ``MPI_Init``, which only the head can end."""
    mpi.launch(WORKERS, f"{VICTIM}:{site}")
    job = mpi.mpiexec(len(WORKERS))

    death = mpi.wait_for("WorkerExited", worker=VICTIM)
    mpi.send("KillLaunch", reason="")

    assert death["phase"] == site.partition(":")[0]
    assert all(mpi.wait_for("WorkerExited", worker=w)["is_clean"] is False for w in WORKERS)
    job.wait()


def test_pool_stays_for_the_next_launch(mpi: AgentHarness) -> None:
    mpi.launch(WORKERS, f"{VICTIM}:training:kill")
    mpi.mpiexec(len(WORKERS)).wait()

    mpi.launch(WORKERS, generation=2)
    assert mpi.mpiexec(len(WORKERS), generation=2).wait() == 0

    exits = [mpi.wait_for("WorkerExited", worker=w, generation=2) for w in WORKERS]
    assert [event["is_clean"] for event in exits] == [True, True, True]
    assert sum(event["kind"] == "PoolWarmed" for event in mpi.events) == 1


def test_killed_mpiexec_takes_its_workers_along(mpi: AgentHarness) -> None:
    mpi.launch(WORKERS, "9:training:kill")
    job = mpi.mpiexec(len(WORKERS))
    for worker in WORKERS:
        mpi.wait_for_report(worker, "joined")

    os.kill(job.pid, signal.SIGKILL)

    pids = [mpi.wait_for("worker_started", worker=w)["pid"] for w in WORKERS]
    assert_ended(*pids)
    for worker in WORKERS:
        assert mpi.wait_for("WorkerExited", worker=worker)["is_clean"] is False
    shutil.rmtree(mpi.directory / "launch-1")  # nobody else removes what mpiexec leaves then
