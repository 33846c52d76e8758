"""The scripts of docs/hpc.md: those for Slurm are run, with fewer workers and links."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from extended import shortened
from hpc_page import BLOCKS, COMMANDS, SLURM_SCRIPTS, write_train
from slurm import SlurmCluster
from slurm_jobs import HOLDFAST
from workload import EVEN

ON_ONE_NODE = [command for command in COMMANDS if "--nodes=1" in command]
"""Those for several run on nodes of their own (tests/hosts/test_slurm_hosts.py)."""
SMALLER = {
    "--ntasks=4": "--ntasks=2",
    "--chain 7": "--chain 2",
}


def _smaller(text: str) -> str:
    for whole, part in SMALLER.items():
        text = text.replace(whole, part)
    return text


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a user with a small train.py."""
    write_train(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_MICROBATCHES", "4")
    return tmp_path


def test_page_has_the_scripts_that_are_run_here() -> None:
    assert (len(SLURM_SCRIPTS), len(COMMANDS)) == (2, 3)
    assert all("exec holdfast run" in block for block in BLOCKS if block.startswith("#!"))


@pytest.mark.process
def test_script_for_pbs_is_one_that_bash_reads() -> None:
    (script,) = [block for block in BLOCKS if "#PBS" in block]

    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.mpi
@pytest.mark.process
@pytest.mark.parametrize(
    "script", shortened(SLURM_SCRIPTS, SLURM_SCRIPTS[:1]), ids=["requeued", "chain"]
)
def test_script_trains(cluster: SlurmCluster, directory: Path, script: str) -> None:
    (directory / "job.sh").write_text(_smaller(script))
    programs = {"PATH": f"{HOLDFAST.parent}:{cluster.environment['PATH']}"}

    job = int(cluster.call("sbatch", "--parsable", "job.sh", env=programs))
    cluster.wait_for_state(job, "COMPLETED", "FAILED", "TIMEOUT", within_s=90.0)

    log = (directory / "train.log").read_text()
    assert f"completed step {EVEN.steps}" in log, log
    assert "on 2 workers (4 microbatches" in log


@pytest.mark.mpi
@pytest.mark.process
@pytest.mark.parametrize(
    "command", shortened(ON_ONE_NODE, ON_ONE_NODE[1:]), ids=["requeued", "chain"]
)
def test_command_trains(cluster: SlurmCluster, directory: Path, command: str) -> None:
    programs = {"PATH": f"{HOLDFAST.parent}:{cluster.environment['PATH']}"}

    said = cluster.call("sh", "-c", _smaller(command), env=programs)
    jobs = [int(line.rpartition(" ")[2]) for line in said.splitlines()]
    ends = [cluster.wait_for_state(job, "COMPLETED", "FAILED", within_s=90.0) for job in jobs]

    log = (directory / "train.log").read_text()
    assert len(jobs) == (2 if "--chain" in command else 1)
    assert set(ends) == {"COMPLETED"}, log
    assert log.count(f"completed step {EVEN.steps}") == 1
