"""Allocations of batch systems as their jobs see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.batch import schedulers
from holdfast.runtime.batch.schedulers import (
    CHAIN,
    Allocation,
    Scheduler,
    Workers,
    find_allocation,
    options_of,
    refuse_copies,
    refuse_mpi_copies,
)
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.hosts.remote_host import RemoteShell
from holdfast.runtime.options.sources import Sources, build_options


def without(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    return {other: value for other, value in environ.items() if other != name}


SLURM_BATCH = {
    "ENVIRONMENT": "BATCH",
    "SLURM_JOB_ID": "812",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "3",
}
SLURM_STEP = SLURM_BATCH | {
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_TASKS_PER_NODE": "2",
}
SLURM_SALLOC = without("ENVIRONMENT", SLURM_BATCH)
SLURM_MANY_HOSTS = SLURM_BATCH | {
    "SLURM_JOB_NODELIST": "gpu[07-09,12]",
    "SLURM_NTASKS": "14",
    "SLURM_TASKS_PER_NODE": "4(x3),2",
    "SLURM_JOB_END_TIME": "1800000000",
    "SLURM_RESTART_COUNT": "2",
}
SLURM_EACH_NODE = without("SLURM_NTASKS", SLURM_MANY_HOSTS) | {"SLURM_TASKS_PER_NODE": "64(x4)"}
SLURM_STEP_ON_ONE = SLURM_MANY_HOSTS | {
    "SLURM_NTASKS": "1",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "gpu08",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
SLURM_SHELL_ON_A_NODE = SLURM_MANY_HOSTS | {
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NODELIST": "gpu07",
    "SLURM_STEP_NUM_TASKS": "1",
}
SLURM_ARRAY = SLURM_BATCH | {"SLURM_ARRAY_JOB_ID": "800", "SLURM_ARRAY_TASK_ID": "7"}
SLURM_WITHOUT_TASKS = without("SLURM_NTASKS", SLURM_BATCH) | {"SLURM_TASKS_PER_NODE": "64"}
PBS_PRO = {
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "PBS_JOBID": "4711.head",
    "PBS_NODEFILE": str(Path(__file__).with_name("pbs_nodes.txt")),
    "NCPUS": "4",
}
TORQUE = PBS_PRO | {"PBS_WALLTIME": "7200", "PBS_NP": "6"}

ON_ONE_HOST = Allocation(
    Scheduler.SLURM,
    "812",
    "slurm 812",
    (HostSlots("n1", 3),),
    Workers(3, "SLURM_NTASKS"),
    is_batch=True,
)
ON_MANY_HOSTS = replace(
    ON_ONE_HOST,
    hosts=(*(HostSlots(f"gpu{n}", 4) for n in ("07", "08", "09")), HostSlots("gpu12", 2)),
    workers=Workers(14, "SLURM_NTASKS"),
    ends_at=1_800_000_000.0,
    restarts=2,
)
ON_PBS = Allocation(
    Scheduler.PBS,
    "4711.head",
    "pbs 4711.head",
    (HostSlots("r1i0", 4), HostSlots("r1i1", 2)),
    Workers(6, "PBS_NODEFILE"),
)
CASES = {
    "Slurm, a batch script": (SLURM_BATCH, ON_ONE_HOST),
    "Slurm, a task of srun": (
        SLURM_STEP,
        replace(
            ON_ONE_HOST,
            hosts=(HostSlots("n1", 2),),
            workers=Workers(2, "SLURM_NTASKS"),
            is_batch=False,
            copies=2,
            task=1,
        ),
    ),
    "Slurm, a shell of salloc": (SLURM_SALLOC, replace(ON_ONE_HOST, is_batch=False, chain="")),
    "Slurm, a requeued job on many hosts": (
        SLURM_MANY_HOSTS,
        ON_MANY_HOSTS,
    ),
    "Slurm, the last of these hosts": (SLURM_MANY_HOSTS | {"SLURM_NODEID": "3"}, ON_MANY_HOSTS),
    "Slurm, many hosts without a wish for tasks": (
        SLURM_EACH_NODE,
        replace(
            ON_MANY_HOSTS,
            hosts=tuple(HostSlots(host.name, 1) for host in ON_MANY_HOSTS.hosts),
            workers=None,
        ),
    ),
    "Slurm, a step on one of many hosts": (
        SLURM_STEP_ON_ONE,
        replace(
            ON_MANY_HOSTS,
            hosts=(HostSlots("gpu08", 1),),
            workers=Workers(1, "SLURM_NTASKS"),
            is_batch=False,
            apart="gpu07, gpu09, gpu12 of the same job stay idle: this step has none of them",
        ),
    ),
    "Slurm, the shell of salloc on the first node": (
        SLURM_SHELL_ON_A_NODE | {"ENVIRONMENT": "INTERACTIVE"},
        replace(ON_MANY_HOSTS, is_batch=False),
    ),
    "Slurm, an element of an array": (
        SLURM_ARRAY,
        replace(ON_ONE_HOST, job_id="800_7", chain="slurm 800_7"),
    ),
    "Slurm, nobody asked for tasks": (
        SLURM_WITHOUT_TASKS,
        replace(ON_ONE_HOST, hosts=(HostSlots("n1", 1),), workers=None),
    ),
    "PBS Professional": (PBS_PRO, ON_PBS),
    "PBS without its file of nodes": (
        PBS_PRO | {"PBS_NODEFILE": "/gone"},
        replace(ON_PBS, hosts=(), workers=None),
    ),
    "PBS, an interactive job": (
        PBS_PRO | {"PBS_ENVIRONMENT": "PBS_INTERACTIVE"},
        replace(ON_PBS, is_batch=False),
    ),
}

_NAMES = sorted(
    set().union(*(environ for environ, _ in CASES.values())) | {"SLURM_JOB_END_TIME", CHAIN}
)

OF_SLURM = {"SLURM_JOB_ID": "7", "ENVIRONMENT": "BATCH"}
OF_PBS = {"PBS_JOBID": "8.head", "PBS_ENVIRONMENT": "PBS_BATCH"}


def found(environ: Mapping[str, str]) -> Allocation:
    allocation = find_allocation(environ)
    assert allocation is not None
    return allocation


@pytest.mark.parametrize(("environ", "expected"), CASES.values(), ids=CASES)
def test_environment_is_read(environ: Mapping[str, str], expected: Allocation) -> None:
    assert find_allocation(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [{}, {"LSB_JOBID": "7"}, {"SLURM_CONF": "/etc/slurm.conf"}, {"PBS_JOBID": ""}],
    ids=["nothing", "one that is not known", "a login node", "an empty one"],
)
def test_outside_batch_systems_there_is_nothing(environ: Mapping[str, str]) -> None:
    assert find_allocation(environ) is None


@pytest.mark.parametrize(
    ("environ", "limit"),
    [
        (TORQUE, 7200.0),
        (TORQUE | {"PBS_WALLTIME": "0"}, None),
        (PBS_PRO, None),
        (SLURM_BATCH | {"PBS_WALLTIME": "60"}, None),
    ],
    ids=["Torque", "Torque without", "PBS Pro", "Slurm"],
)
def test_only_torque_tells_its_limit_in_the_environment(
    environ: Mapping[str, str], limit: float | None
) -> None:
    assert found(environ).limit_s == limit


@pytest.mark.parametrize(
    ("environ", "origin", "hosts", "shell"),
    [
        (SLURM_MANY_HOSTS, "SLURM_NTASKS of Slurm job 812",
         "gpu07:4,gpu08:4,gpu09:4,gpu12:2", "srun"),
        (SLURM_EACH_NODE, "SLURM_JOB_NODELIST of Slurm job 812",
         "gpu07:1,gpu08:1,gpu09:1,gpu12:1", "srun"),
        (PBS_PRO, "PBS_NODEFILE of PBS job 4711.head", "r1i0:4,r1i1:2", "ssh"),
    ],
)  # fmt: skip
def test_job_has_all_hosts_of_its_allocation_and_reaches_them_by_its_shell(
    environ: Mapping[str, str], origin: str, hosts: str, shell: str
) -> None:
    sources = Sources({}, {}, {}, Path("/here"), allocation=options_of(found(environ)))

    built = build_options(Path("train.py"), (), sources)

    assert built.origins["workers"] == f"slots of {origin}"
    assert built.options.workers == sum(host.slots for host in built.options.hosts)
    assert ",".join(map(str, built.options.hosts)) == hosts
    assert RemoteShell.of(built.options.rsh).program == shell


def test_hosts_and_shell_of_the_user_come_before_those_of_the_allocation() -> None:
    flags = {"hosts": "a:2,b:2", "rsh": "ssh -p 22"}
    sources = Sources(flags, {}, {}, Path("/"), allocation=options_of(found(SLURM_MANY_HOSTS)))

    options = build_options(Path("train.py"), (), sources).options

    assert (options.workers, options.rsh, options.hosts[1]) == (4, "ssh -p 22", HostSlots("b", 2))


def test_copies_of_one_command_are_refused() -> None:
    refuse_copies(found(SLURM_BATCH))
    refuse_copies(replace(ON_ONE_HOST, copies=1, task=3))

    with pytest.raises(UsageError, match="srun has started this command 2 times"):
        refuse_copies(found(SLURM_STEP | {"SLURM_PROCID": "0"}))
    with pytest.raises(SystemExit, match="2"):
        refuse_copies(found(SLURM_STEP))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("login", ["login"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11],m7", ["n08", "n09", "n10", "n11", "m7"]),
        ("r[1,3]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r3n1-ib", "r3n2-ib"]),
        ("odd[1-x]", ["odd1-x"]),
    ],
)
def test_list_of_hosts_is_expanded(text: str, hosts: list[str]) -> None:
    assert list(schedulers.expand_hosts(text)) == hosts


@given(st.dictionaries(st.sampled_from(_NAMES), st.text(max_size=12)))
def test_no_environment_is_an_error(environ: dict[str, str]) -> None:
    allocation = find_allocation(environ)

    assert allocation is None or allocation.workers is None or allocation.workers.count > 0


@pytest.mark.parametrize(
    ("content", "hosts"),
    [
        (b"r1\n\n  r1  \nr2\n", (HostSlots("r1", 2), HostSlots("r2", 1))),
        (None, ()),
        (b"\xff\xfe", ()),
    ],
    ids=["with empty lines", "no file", "no text"],
)
def test_file_of_nodes_is_read_from_the_disk_if_it_can_be(
    tmp_path: Path, content: bytes | None, hosts: tuple[HostSlots, ...]
) -> None:
    nodes = tmp_path / "nodes"
    if content is not None:
        nodes.write_bytes(content)

    job = found(OF_PBS | {"PBS_NODEFILE": str(nodes)})

    assert job.hosts == hosts
    assert job.workers == (Workers(3, "PBS_NODEFILE") if hosts else None)


def test_host_without_tasks_leaves_the_number_of_workers_to_the_user() -> None:
    job = found(
        OF_SLURM | {"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2,0", "SLURM_NODEID": "1"}
    )

    assert job.workers is None
    assert options_of(job) == {}


def test_tasks_of_a_host_that_slurm_does_not_list_are_those_that_were_asked_for() -> None:
    job = found(OF_SLURM | {"SLURM_NTASKS_PER_NODE": "6", "SLURM_TASKS_PER_NODE": "odd"})

    assert job.workers == Workers(6, "SLURM_NTASKS_PER_NODE")


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


IN_A_WORLD = pytest.mark.parametrize(
    ("size", "rank"),
    [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")],
    ids=["Open MPI", "MPICH"],
)


@IN_A_WORLD
@pytest.mark.parametrize("number", ["0", "3"])
def test_variables_of_an_mpi_job_that_is_over_keep_no_job_from_running(
    tmp_path: Path, size: str, rank: str, number: str
) -> None:
    gone = {"PMIX_SERVER_TMPDIR": str(tmp_path / "prte.host.0")}

    refuse_mpi_copies({size: "4", rank: number, **gone}, lambda: ("bash", "sshd", "systemd"))
    refuse_mpi_copies({size: "4"}, lambda: ("bash", "prterun"))

    lives = {"PMIX_SERVER_TMPDIR": str(tmp_path)}  # its mpiexec is in another container
    with pytest.raises((UsageError, SystemExit)):
        refuse_mpi_copies({size: "4", rank: number, **lives}, lambda: ("bash",))


@IN_A_WORLD
def test_first_of_the_copies_that_mpiexec_has_started_speaks_and_the_others_end(
    size: str, rank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"this command 4 times, .* `holdfast run -n 4 SCRIPT`"):
        refuse_mpi_copies({size: "4", rank: "0"}, lambda: ("bash", "prterun"))
    with pytest.raises(SystemExit) as end:
        refuse_mpi_copies({size: "4", rank: "1"}, lambda: ("hydra_pmi_proxy",))
    assert end.value.code == ExitCode.USAGE

    assert capsys.readouterr() == ("", "")
