"""Slurm on several hosts: limits, lost nodes and chains, to the bytes of an undisturbed run.

All tests of the file share one Slurm.  After each of them nothing of its jobs may be left.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hpc_page import HOSTS_PAGE, NODES_SCRIPT, write_train
from slurm import SlurmCluster
from slurm_jobs import HOLDFAST, BatchRun
from workload import EVEN, LONG, Undisturbed

pytestmark = [pytest.mark.process]

_LONG = pytest.mark.extended
"""For what takes minutes, mostly until Slurm gives a node up: ci/slurm runs it with the others."""

_STEP = "srun --overlap -N1 -n1 --no-kill --kill-on-bad-exit=0 --wait=0 --mpi=none"
_ON_ALL = "3 hosts on the network 10.77.0.0/24: a:1, b:1, c:1"
_LONG_S = 600.0
"""For a node that Slurm gives up, a requeue and two starts, on a machine with other work."""


@pytest.fixture(autouse=True)
def _nothing_is_left(slurm: SlurmCluster) -> Iterator[None]:
    yield
    assert slurm.clear() == {}


@pytest.fixture
def folder(slurm: SlurmCluster) -> Path:
    """A new folder that all hosts see."""
    return Path(tempfile.mkdtemp(dir=slurm.shared))


@pytest.fixture
def run(slurm: SlurmCluster, folder: Path) -> BatchRun:
    """A run that takes ten seconds of training at least."""
    return BatchRun(slurm, folder, pause_ms=50)


@pytest.fixture
def slow(slurm: SlurmCluster, folder: Path) -> BatchRun:
    """A run that still trains when Slurm notices something."""
    return BatchRun(slurm, folder, pause_ms=400)


def _submit(slurm: SlurmCluster, folder: Path, script: str, *options: str) -> int:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    return int(slurm.call("sbatch", "--parsable", "-o", f"{folder}/log", *options, str(path)))


def _assert_complete(run: BatchRun, undisturbed: Undisturbed) -> None:
    """Each worker of the last launch has the bytes of the undisturbed run."""
    digests = {record["sha256"] for record in run.events("completed")}
    assert digests == {undisturbed(replace(LONG, pause_ms=0))}, run.log


def _trained(slurm: SlurmCluster, folder: Path, before: str, *options: str) -> BatchRun:
    """Return a run that a batch script has trained to its end, with these lines ``before``."""
    quick = BatchRun(slurm, folder, pause_ms=0)
    line = shlex.join([str(HOLDFAST), *quick.command])
    facts = quick.wait_for_end(quick.submit(f"#!/bin/sh\n{before}exec {line}\n", *options))
    assert facts["JobState"] == "COMPLETED", quick.log
    return quick


# What Slurm does, as the design takes it to be


def test_a_batch_job_reaches_all_its_nodes(slurm: SlurmCluster, folder: Path) -> None:
    script = f"for host in a b c; do {_STEP} -w $host hostname; done"
    job = _submit(slurm, folder, script, "-N", "3", "-n", "3")
    assert slurm.wait_for_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert (folder / "log").read_text().split() == ["a", "b", "c"]


@_LONG
def test_an_allocation_outlives_a_lost_node_if_it_asks_to(
    slurm: SlurmCluster, folder: Path
) -> None:
    """Slurm gives the node up after ``SlurmdTimeout``, and steps still start on the others."""
    wait = f"until test -e {folder}/go; do sleep 0.1; done; {_STEP} -w c hostname"
    with slurm.popen(
        *("salloc", "-N", "3", "-n", "3", "--no-kill", "sh", "-c", f"echo; {wait}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as allocation:
        assert allocation.stdout is not None
        allocation.stdout.readline()
        slurm.lose("b")
        slurm.wait(lambda: "down" in slurm.call("sinfo", "-h", "-n", "b", "-o", "%T"), "end of b")
        (folder / "go").touch()
        assert allocation.communicate(timeout=60)[0] == "c\n"
        assert allocation.returncode == 0


# Limits


@_LONG
@pytest.mark.mpi
def test_job_of_three_nodes_goes_through_a_limit_of_two_minutes(
    slurm: SlurmCluster, folder: Path, undisturbed: Undisturbed
) -> None:
    """Nobody sends a signal: the job knows when its time ends."""
    slow = BatchRun(slurm, folder, pause_ms=600)
    (job,) = slow.sbatch("--nodes=3", "--time=2")

    facts = slow.wait_for_end(job, within_s=_LONG_S)

    assert (facts["JobState"], facts["ExitCode"]) == ("COMPLETED", "0:0"), slow.log
    assert int(facts["Restarts"]) >= 1
    assert slow.log.count("asking Slurm to requeue") == int(facts["Restarts"])
    assert "DUE TO TIME LIMIT" not in slow.log
    assert slow.log.count(_ON_ALL) == int(facts["Restarts"]) + 1
    restored = [record["step"] for record in slow.events("restored")]
    assert restored == [record["step"] for record in slow.events("stopped")] != []
    assert slow.events("host_lost") == []
    _assert_complete(slow, undisturbed)


# Losses


@pytest.mark.extended  # test_losses.py loses hosts by ssh
@pytest.mark.mpi
def test_run_goes_on_in_place_on_the_nodes_that_are_left(
    slurm: SlurmCluster, run: BatchRun, undisturbed: Undisturbed
) -> None:
    """No host is named, nobody asks for tasks, and srun does not tell of the loss."""
    (job,) = run.sbatch("-N", "3", "-t", "8")
    run.wait_for_checkpoint(1)
    slurm.lose("c")

    facts = run.wait_for_end(job, within_s=_LONG_S)

    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "0"), run.log
    assert [loss["host"] for loss in run.events("host_lost")] == ["c"]
    assert "relaunching" not in run.log
    _assert_complete(run, undisturbed)


@pytest.mark.extended  # ci/slurm
@pytest.mark.mpi
def test_variables_of_srun_and_a_prolog_that_prints_change_no_step(
    slurm: SlurmCluster, folder: Path, undisturbed: Undisturbed
) -> None:
    """The agent of the other node has a clean connection, and its step is as ever."""
    variables = {
        **dict.fromkeys(("SRUN_CPUS_PER_TASK", "SLURM_LABELIO", "SLURM_KILL_BAD_EXIT"), "1"),
        **{"SLURM_STDINMODE": "none", "SLURM_STDOUTMODE": "none", "SLURM_NTASKS_PER_NODE": "3"},
        **{"SLURM_EXACT": "1", "SLURM_EXPORT_ENV": "NONE", "SLURM_DEBUG": "3", "SLURM_WAIT": "1"},
        **{"SLURM_DISTRIBUTION": "cyclic", "SLURM_CPU_BIND": "verbose,cores"},
        **{"SLURM_TASK_PROLOG": "/bin/false", "SLURM_TIMELIMIT": "1", "SLURM_EXCLUSIVE": "1"},
    }
    variables["GREETING"] = "'the site greets you'"
    exports = "".join(f"export {name}={value}\n" for name, value in variables.items())
    greeted = f"GREETING=greetings {_STEP} -w b echo hello\n"

    quick = _trained(slurm, folder, f"{greeted}{exports}", "-N2", "-n2")

    assert "greetings\nhello\n" in quick.log
    assert "2 hosts on the network 10.77.0.0/24: a:1, b:1" in quick.log
    assert " site greets " not in quick.log
    _assert_complete(quick, undisturbed)


@_LONG
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("nodes", "excluded"), [("2", "b"), ("2-3", "(null)")], ids=["two", "two-or-three"]
)
def test_job_that_its_limit_stops_after_a_loss_comes_back_on_other_nodes(
    slurm: SlurmCluster, slow: BatchRun, undisturbed: Undisturbed, nodes: str, excluded: str
) -> None:
    """A job that had all nodes cannot exclude one, but Slurm gives it none that is silent."""
    (job,) = slow.sbatch(f"--nodes={nodes}", "-t", "8")
    slow.wait_for_checkpoint(1)
    slurm.lose("b")
    slurm.wait(lambda: bool(slow.events("host_lost")), "loss")
    slurm.wait(lambda: "*" in slurm.call("sinfo", "-h", "-n", "b", "-o", "%T"), "silence of b")
    slurm.call("scancel", "--batch", "--signal=USR2", str(job))
    facts = slow.wait_for_end(job, within_s=_LONG_S)

    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), slow.log
    assert (facts["NodeList"], facts["ExcNodeList"]) == ("a,c", excluded)
    _assert_complete(slow, undisturbed)


@_LONG
@pytest.mark.mpi
def test_requeued_job_that_needs_the_lost_node_waits_for_it(
    slurm: SlurmCluster, slow: BatchRun, undisturbed: Undisturbed
) -> None:
    (job,) = slow.sbatch("--nodes=3", "--time=8")
    slow.wait_for_checkpoint(1)
    slurm.lose("c")
    slurm.wait(lambda: bool(slow.events("host_lost")), "loss")
    slurm.call("scancel", "--batch", "--signal=USR2", str(job))
    slurm.wait_for_state(job, "PENDING", within_s=_LONG_S)
    slurm.bring_back("c")
    facts = slow.wait_for_end(job, within_s=_LONG_S)

    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), slow.log
    assert (facts["NumNodes"], facts["ExcNodeList"]) == ("3", "(null)")
    _assert_complete(slow, undisturbed)


@_LONG
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("options", "lost", "left"),
    [
        (("--nodes=2",), "a", "b,c"),
        (("--nodes=2-3",), "a", "b,c"),
        (("--nodes=2", "--no-kill=off"), "b", "a,c"),
    ],
    ids=["of the script", "of the script, two or three", "may not go on"],
)
def test_job_that_has_lost_the_node_of_its_script_or_may_not_go_on_is_requeued_on_others(
    slurm: SlurmCluster,
    folder: Path,
    undisturbed: Undisturbed,
    options: tuple[str, ...],
    lost: str,
    left: str,
) -> None:
    """Slurm alone would let it hold the others until its limit.

    A job begins again only on as many nodes as it has asked for at least.  Where it may not go on,
    the others train on until Slurm gives the node up, and ends the job.
    """
    run = BatchRun(slurm, folder, pause_ms=50 if lost == "a" else 400)
    (job,) = run.sbatch(*options, "--time=8")
    run.wait_for_checkpoint(1)
    slurm.lose(lost)

    facts = run.wait_for_end(job, within_s=_LONG_S)

    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), run.log
    assert facts["NodeList"] == left
    assert run.events("restored")
    _assert_complete(run, undisturbed)


@_LONG
@pytest.mark.mpi
def test_link_that_has_lost_the_node_of_its_script_ends_for_the_next_where_none_is_requeued(
    slurm: SlurmCluster, run: BatchRun, undisturbed: Undisturbed
) -> None:
    first, second = run.sbatch("--nodes=2", "--time=8", "--no-requeue", chain=2)
    run.wait_for_checkpoint(1)
    slurm.lose("a")

    ends = [run.wait_for_end(job, within_s=_LONG_S) for job in (first, second)]

    assert [end["JobState"] for end in ends] == ["CANCELLED", "COMPLETED"], run.log
    assert [end["Restarts"] for end in ends] == ["0", "0"]
    assert ends[1]["NodeList"] == "b,c"
    assert run.events("restored")
    _assert_complete(run, undisturbed)


@_LONG
@pytest.mark.mpi
def test_job_that_may_neither_go_on_nor_come_back_fails_and_the_next_one_resumes(
    slurm: SlurmCluster, folder: Path, undisturbed: Undisturbed
) -> None:
    """Slurm gives the node up long before the training would end."""
    slow = BatchRun(slurm, folder, pause_ms=2000)
    (job,) = slow.sbatch("--nodes=2", "--time=20", "--no-kill=off", "--no-requeue", requeue=False)
    slow.wait_for_checkpoint(1)
    slurm.lose("b")

    facts = slow.wait_for_end(job, within_s=_LONG_S)

    assert (facts["JobState"], facts["Restarts"]) == ("NODE_FAIL", "0"), slow.log
    assert facts["ExitCode"] != "0:0"
    assert slow.events("completed") == []

    again = BatchRun(slurm, folder, pause_ms=50)
    (job,) = again.sbatch("--nodes=2", "--time=8")
    facts = again.wait_for_end(job, within_s=_LONG_S)

    assert facts["JobState"] == "COMPLETED", again.log
    assert again.events("restored")
    _assert_complete(again, undisturbed)


# What docs/hpc.md and docs/hosts.md tell a user to type


@pytest.fixture
def programs(slurm: SlurmCluster) -> dict[str, str]:
    """The environment of a user, who trains ``train.py`` on as many microbatches as `EVEN`."""
    path = f"{HOLDFAST.parent}:{slurm.environment['PATH']}"
    return {"PATH": path, "HOLDFAST_MICROBATCHES": str(EVEN.microbatches)}


@_LONG
@pytest.mark.mpi
def test_script_of_the_page_trains(
    slurm: SlurmCluster, folder: Path, programs: dict[str, str], undisturbed: Undisturbed
) -> None:
    write_train(folder)
    (folder / "train.sh").write_text(NODES_SCRIPT)
    said = slurm.call("sh", "-c", f"cd {folder} && sbatch --parsable train.sh", env=programs)
    job = int(said)

    end = slurm.wait_for_state(job, "COMPLETED", "FAILED", within_s=_LONG_S)

    log = (folder / "train.log").read_text()
    assert end == "COMPLETED", log
    assert _ON_ALL in log
    assert f"completed step {EVEN.steps}, state sha256 {undisturbed(EVEN)}" in log


@_LONG
@pytest.mark.mpi
def test_command_with_srun_works_in_a_shell_of_salloc_on_the_login_node(
    slurm: SlurmCluster, folder: Path, programs: dict[str, str], undisturbed: Undisturbed
) -> None:
    """The login node leads the job, and has no worker."""
    write_train(folder)
    page = next(line for line in HOSTS_PAGE.splitlines() if '--rsh "srun' in line)
    run = page.replace("a:4,b:4", "a:1,b:1")
    doctor = run.replace("holdfast run", "holdfast doctor").replace(" train.py", "")
    lines = [f"cd {folder}", "exec 2>&1", doctor, run, "holdfast run --fresh train.py"]
    with slurm.popen(
        *("salloc", "-N", "2", "-n", "2", "sh", "-c", "\n".join(lines)),
        env=programs,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        said = shell.communicate(timeout=_LONG_S)[0]

    assert shell.returncode == 0, said
    assert re.findall("^ok +host +(.*?) +takes (.) worker", said, re.M) == [
        *(("login", "0"), ("a", "1"), ("b", "1"))
    ], said
    assert "FAIL" not in said
    assert said.count("3 hosts on the network 10.77.0.0/24: login:0, a:1, b:1") == 2, said
    assert said.count(f"completed step {EVEN.steps}, state sha256 {undisturbed(EVEN)}") == 2, said
