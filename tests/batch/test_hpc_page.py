"""The scripts of docs/hpc.md: those for Slurm are run, with fewer workers and links.

That for several nodes runs on nodes of its own (tests/hosts/test_slurm_hosts.py).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hpc_page import BLOCKS, CHAIN_COMMANDS, CHAIN_SCRIPT, JOB_SCRIPT, write_train
from slurm import SlurmCluster
from slurm_jobs import HOLDFAST
from workload import EVEN


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a user with a small train.py."""
    write_train(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_MICROBATCHES", "4")
    return tmp_path


@pytest.fixture
def programs(cluster: SlurmCluster) -> dict[str, str]:
    """The environment of a user in whose shell holdfast is there."""
    return {"PATH": f"{HOLDFAST.parent}:{cluster.environment['PATH']}"}


def _of_two_workers(script: str) -> str:
    return script.replace("--ntasks=4", "--ntasks=2")


def test_signals_of_the_batch_shell_reach_the_job() -> None:
    assert all("exec holdfast run" in block for block in BLOCKS if block.startswith("#!"))


@pytest.mark.process
def test_script_for_pbs_is_one_that_bash_reads() -> None:
    (script,) = [block for block in BLOCKS if "#PBS" in block]

    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.mpi
@pytest.mark.process
def test_script_trains(cluster: SlurmCluster, directory: Path, programs: dict[str, str]) -> None:
    (directory / "train.sh").write_text(_of_two_workers(JOB_SCRIPT))

    job = int(cluster.call("sbatch", "--parsable", "train.sh", env=programs))
    cluster.wait_for_state(job, "COMPLETED", "FAILED", "TIMEOUT", within_s=90.0)

    log = (directory / "train.log").read_text()
    assert f"completed step {EVEN.steps}" in log, log
    assert "on 2 workers (4 microbatches" in log


@pytest.mark.mpi
@pytest.mark.process
def test_chain_trains_once(
    cluster: SlurmCluster, directory: Path, programs: dict[str, str]
) -> None:
    (directory / "chain.sh").write_text(_of_two_workers(CHAIN_SCRIPT))
    of_two_links = CHAIN_COMMANDS.replace("1 2 3 4 5 6 7", "1 2")

    said = cluster.call("sh", "-c", of_two_links, env=programs)
    jobs = [int(line.rpartition(" ")[2]) for line in said.splitlines()]
    ends = [cluster.wait_for_state(job, "COMPLETED", "FAILED", within_s=90.0) for job in jobs]

    log = (directory / "train.log").read_text()
    assert ends == ["COMPLETED"] * 2, log
    assert log.count(f"holdfast: completed step {EVEN.steps}") == 1
    assert "holdfast: nothing to do: the run in " in log
