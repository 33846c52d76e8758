"""Which batch system counts, what of it is believed, and who refuses to be one of many copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.runtime.batch.schedulers import (
    CHAIN,
    Allocation,
    Scheduler,
    Workers,
    find_allocation,
    limit_s,
    options_of,
    refuse_copies,
    refuse_mpi_copies,
    whole_number,
)
from holdfast.runtime.errors import ExitCode, UsageError

SLURM = {"SLURM_JOB_ID": "7", "ENVIRONMENT": "BATCH"}
PBS = {"PBS_JOBID": "8.head", "PBS_ENVIRONMENT": "PBS_BATCH"}
LSF = {"LSB_JOBID": "9", "LSB_HOSTS": "a a b"}
SGE = {"JOB_ID": "5", "SGE_TASK_ID": "undefined", "NSLOTS": "2"}


def found(environ: Mapping[str, str]) -> Allocation:
    allocation = find_allocation(environ)
    assert allocation is not None
    return allocation


@pytest.mark.parametrize(
    ("environ", "label"),
    [
        (SLURM | PBS | LSF | SGE, "Slurm job 7"),
        (PBS | LSF | SGE, "PBS job 8.head"),
        (LSF | SGE, "LSF job 9"),
        (SGE, "SGE job 5"),
    ],
)
def test_innermost_batch_system_counts(environ: Mapping[str, str], label: str) -> None:
    assert found(environ).label == label


def test_file_of_nodes_is_read_from_the_disk_without_its_empty_lines(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("r1\n\n  r1  \nr2\n")

    job = found(PBS | {"PBS_NODEFILE": str(nodes)})

    assert job.hosts == ("r1", "r2")
    assert job.workers == Workers(2, "PBS_NODEFILE")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["no file", "no text"])
def test_file_of_nodes_that_cannot_be_read_tells_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    nodes = tmp_path / "nodes"
    if content is not None:
        nodes.write_bytes(content)

    job = found(PBS | {"PBS_NODEFILE": str(nodes)})

    assert (job.hosts, job.workers) == ((), None)


def test_host_without_tasks_leaves_the_number_of_workers_to_the_user() -> None:
    job = found(SLURM | {"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2,0", "SLURM_NODEID": "1"})

    assert job.workers is None
    assert options_of(job) == {}


def test_tasks_of_a_host_that_slurm_does_not_list_are_those_that_were_asked_for() -> None:
    job = found(SLURM | {"SLURM_NTASKS_PER_NODE": "6", "SLURM_TASKS_PER_NODE": "odd"})

    assert job.workers == Workers(6, "SLURM_NTASKS_PER_NODE")


def test_chain_without_a_name_of_its_own_has_that_of_its_job() -> None:
    assert found(SLURM | {CHAIN: ""}).chain == "slurm 7"
    assert found(SLURM | {CHAIN: "mine"}).chain == "mine"


def test_element_of_an_array_is_a_link_of_the_arrays_chain() -> None:
    array = found(SGE | {"SGE_TASK_ID": "3"})

    assert (array.job_id, array.chain) == ("5.3", "sge 5")


@pytest.mark.parametrize(
    ("environ", "is_batch"),
    [
        (SLURM, True),
        (SLURM | {"SLURM_STEP_ID": "0"}, False),
        (PBS | {"PBS_ENVIRONMENT": "PBS_INTERACTIVE"}, False),
        (LSF | {"LSB_INTERACTIVE": "Y"}, False),
        (SGE | {"ENVIRONMENT": "INTERACTIVE"}, False),
        (LSF, True),
        (SGE, True),
    ],
)
def test_only_a_batch_script_can_be_requeued(environ: Mapping[str, str], *, is_batch: bool) -> None:
    assert found(environ).is_batch == is_batch


def test_time_limit_of_torque_is_no_limit_of_another_batch_system() -> None:
    environ = {"PBS_WALLTIME": "60"}

    assert limit_s(found(PBS), environ) == 60.0
    assert limit_s(found(PBS), {"PBS_WALLTIME": "0"}) is None
    assert limit_s(found(SLURM), environ) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("0", 0), (None, 3), ("", 3), ("-1", 3), ("1.5", 3), ("many", 3)],
)
def test_variable_without_a_number_counts_as_not_set(text: str | None, number: int) -> None:
    assert whole_number(text, 3) == number


def test_step_of_one_task_is_no_copy() -> None:
    step = Allocation(Scheduler.SLURM, "7", "slurm 7", copies=1, task=0)

    refuse_copies(step)
    refuse_copies(replace(step, task=3))


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "many", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_RANK": "3"},
    ],
    ids=["alone", "mpiexec -n 1", "no number", "a rank of nothing"],
)
def test_command_that_is_alone_in_its_world_is_let_go_on(environ: Mapping[str, str]) -> None:
    refuse_mpi_copies(environ, lambda: ("bash", "mpiexec"))


@pytest.mark.parametrize("rank", ["0", "3"])
@pytest.mark.parametrize(
    ("size", "name"),
    [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")],
)
def test_variables_of_an_mpi_job_that_is_over_keep_no_job_from_running(
    tmp_path: Path, size: str, name: str, rank: str
) -> None:
    gone = {"PMIX_SERVER_TMPDIR": str(tmp_path / "prte.host.0")}

    refuse_mpi_copies({size: "4", name: rank, **gone}, lambda: ("bash", "sshd", "systemd"))
    refuse_mpi_copies({size: "4"}, lambda: ("bash", "prterun"))

    lives = {"PMIX_SERVER_TMPDIR": str(tmp_path)}  # its mpiexec is in another container
    with pytest.raises((UsageError, SystemExit)):
        refuse_mpi_copies({size: "4", name: rank, **lives}, lambda: ("bash",))


@pytest.mark.parametrize(
    ("size", "rank"),
    [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")],
    ids=["Open MPI", "MPICH"],
)
def test_first_of_the_copies_that_mpiexec_has_started_speaks_and_the_others_end(
    size: str, rank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"this command 4 times, .* `holdfast run -n 4 SCRIPT`"):
        refuse_mpi_copies({size: "4", rank: "0"}, lambda: ("bash", "prterun"))
    with pytest.raises(SystemExit) as end:
        refuse_mpi_copies({size: "4", rank: "1"}, lambda: ("hydra_pmi_proxy",))
    assert end.value.code == ExitCode.USAGE

    assert capsys.readouterr() == ("", "")
