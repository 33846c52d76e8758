"""What each batch system's environment says of a job.

The environments of Slurm are recorded from Slurm 22.05; only ``SLURM_JOB_END_TIME`` is of a
later version.  Those of PBS, LSF and SGE follow their manuals: none of these systems was
at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.batch import schedulers
from holdfast.runtime.batch.schedulers import (
    CHAIN,
    Allocation,
    Scheduler,
    Workers,
    find_allocation,
    limit_s,
    options_of,
    refuse_copies,
)
from holdfast.runtime.errors import UsageError

SLURM_BATCH = {
    "ENVIRONMENT": "BATCH",
    "SLURM_CPUS_ON_NODE": "3",
    "SLURM_JOB_ID": "812",
    "SLURM_JOBID": "812",
    "SLURM_JOB_CPUS_PER_NODE": "3",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_NPROCS": "3",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "3",
}

SLURM_STEP = SLURM_BATCH | {
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEPID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_TASKS_PER_NODE": "2",
}

SLURM_SALLOC = {name: value for name, value in SLURM_BATCH.items() if name != "ENVIRONMENT"}

SLURM_MANY_HOSTS = SLURM_BATCH | {
    "SLURM_JOB_NODELIST": "gpu[07-09,12]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NTASKS": "14",
    "SLURM_TASKS_PER_NODE": "4(x3),2",
    "SLURM_JOB_END_TIME": "1800000000",
    "SLURM_RESTART_COUNT": "2",
}

SLURM_ARRAY = SLURM_BATCH | {"SLURM_ARRAY_JOB_ID": "800", "SLURM_ARRAY_TASK_ID": "7"}

SLURM_WITHOUT_TASKS = {
    name: value for name, value in SLURM_BATCH.items() if name not in ("SLURM_NTASKS",)
} | {"SLURM_TASKS_PER_NODE": "64"}

PBS_PRO = {
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "PBS_JOBID": "4711.head",
    "PBS_NODEFILE": "/var/spool/pbs/aux/4711.head",
    "NCPUS": "4",
}
TORQUE = PBS_PRO | {"PBS_WALLTIME": "7200", "PBS_NP": "6"}
PBS_NODES = ("r1i0", "r1i0", "r1i0", "r1i0", "r1i1", "r1i1")

LSF = {
    "LSB_JOBID": "9001",
    "LSB_JOBINDEX": "0",
    "LSB_MCPU_HOSTS": "hostA 4 hostB 2",
    "LSB_HOSTS": "hostA hostA hostA hostA hostB hostB",
    "LSB_DJOB_NUMPROC": "6",
}
LSF_ARRAY = {
    "LSB_JOBID": "9001",
    "LSB_JOBINDEX": "3",
    "LSB_HOSTS": "hostA hostA",
    "LSB_RESTART": "Y",
}

SGE = {
    "ENVIRONMENT": "BATCH",
    "JOB_ID": "55",
    "SGE_TASK_ID": "undefined",
    "NSLOTS": "6",
    "PE_HOSTFILE": "/opt/sge/spool/55.1/pe_hostfile",
    "RESTARTED": "1",
}
SGE_SERIAL = {"ENVIRONMENT": "BATCH", "JOB_ID": "56", "SGE_TASK_ID": "4", "NSLOTS": "1"}
SGE_HOSTS = ("c01 4 all.q@c01 UNDEFINED", "c02 2 all.q@c02 UNDEFINED")

FILES = {PBS_PRO["PBS_NODEFILE"]: PBS_NODES, SGE["PE_HOSTFILE"]: SGE_HOSTS}


def lines(path: str) -> tuple[str, ...]:
    return FILES.get(path, ())


def found(environ: Mapping[str, str]) -> Allocation:
    allocation = find_allocation(environ, lines)
    assert allocation is not None
    return allocation


ON_ONE_HOST = Allocation(
    Scheduler.SLURM, "812", "slurm 812", ("n1",), Workers(3, "SLURM_NTASKS"), is_batch=True
)
ON_PBS = Allocation(
    Scheduler.PBS, "4711.head", "pbs 4711.head", ("r1i0", "r1i1"), Workers(4, "PBS_NODEFILE")
)
ON_LSF = Allocation(
    Scheduler.LSF,
    "9001",
    "lsf 9001",
    ("hostA", "hostB"),
    Workers(4, "LSB_MCPU_HOSTS"),
    requeue_code=75,
)
ON_SGE = Allocation(
    Scheduler.SGE,
    "55",
    "sge 55",
    ("c01", "c02"),
    Workers(4, "PE_HOSTFILE"),
    restarts=1,
    requeue_code=99,
)

CASES = {
    "Slurm, a batch script": (SLURM_BATCH, ON_ONE_HOST),
    "Slurm, a task of srun": (
        SLURM_STEP,
        replace(ON_ONE_HOST, workers=Workers(2, "SLURM_NTASKS"), is_batch=False, copies=2, task=1),
    ),
    "Slurm, a shell of salloc": (SLURM_SALLOC, replace(ON_ONE_HOST, is_batch=False, chain="")),
    "Slurm, a requeued job on many hosts": (
        SLURM_MANY_HOSTS,
        replace(
            ON_ONE_HOST,
            hosts=("gpu07", "gpu08", "gpu09", "gpu12"),
            workers=Workers(4, "SLURM_NTASKS"),
            ends_at=1_800_000_000.0,
            restarts=2,
        ),
    ),
    "Slurm, the last of these hosts": (
        SLURM_MANY_HOSTS | {"SLURM_NODEID": "3"},
        replace(
            ON_ONE_HOST,
            hosts=("gpu07", "gpu08", "gpu09", "gpu12"),
            workers=Workers(2, "SLURM_NTASKS"),
            ends_at=1_800_000_000.0,
            restarts=2,
        ),
    ),
    "Slurm, an element of an array": (
        SLURM_ARRAY,
        replace(ON_ONE_HOST, job_id="800_7", chain="slurm 800"),
    ),
    "Slurm, nobody asked for tasks": (SLURM_WITHOUT_TASKS, replace(ON_ONE_HOST, workers=None)),
    "PBS Professional": (PBS_PRO, ON_PBS),
    "PBS without its file of nodes": (
        PBS_PRO | {"PBS_NODEFILE": "/gone"},
        replace(ON_PBS, hosts=(), workers=None),
    ),
    "PBS, an interactive job": (
        PBS_PRO | {"PBS_ENVIRONMENT": "PBS_INTERACTIVE"},
        replace(ON_PBS, is_batch=False),
    ),
    "LSF": (LSF, ON_LSF),
    "LSF, a requeued element of an array": (
        LSF_ARRAY,
        replace(
            ON_LSF, job_id="9001[3]", hosts=("hostA",), workers=Workers(2, "LSB_HOSTS"), restarts=1
        ),
    ),
    "SGE": (SGE, ON_SGE),
    "SGE, one slot of an array": (
        SGE_SERIAL,
        Allocation(Scheduler.SGE, "56.4", "sge 56", workers=Workers(1, "NSLOTS"), requeue_code=99),
    ),
}


@pytest.mark.parametrize(("environ", "expected"), CASES.values(), ids=CASES)
def test_environment_is_read(environ: Mapping[str, str], expected: Allocation) -> None:
    assert find_allocation(environ, lines) == expected


@pytest.mark.parametrize(
    "environ",
    [{}, {"JOB_ID": "7"}, {"SLURM_CONF": "/etc/slurm.conf"}, {"PBS_JOBID": ""}],
    ids=["nothing", "a variable that anybody may set", "a login node", "an empty one"],
)
def test_outside_batch_systems_there_is_nothing(environ: Mapping[str, str]) -> None:
    assert find_allocation(environ, lines) is None


def test_all_links_of_a_chain_have_one_name() -> None:
    assert found(SLURM_BATCH | {CHAIN: "c0ffee"}).chain == "c0ffee"


def test_only_torque_tells_its_limit_in_the_environment() -> None:
    limits = {
        name: limit_s(found(environ), environ)
        for name, environ in (("Torque", TORQUE), ("PBS Pro", PBS_PRO), ("LSF", LSF), ("SGE", SGE))
    }

    assert limits == {"Torque": 7200.0, "PBS Pro": None, "LSF": None, "SGE": None}


def test_workers_of_the_allocation_are_an_option_with_its_origin() -> None:
    assert options_of(found(SLURM_BATCH)) == {"workers": ("SLURM_NTASKS of Slurm job 812", 3)}
    assert options_of(found(SLURM_WITHOUT_TASKS)) == {}
    assert options_of(None) == {}


def test_copies_of_one_command_are_refused() -> None:
    refuse_copies(found(SLURM_BATCH))

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


@pytest.mark.parametrize(
    ("text", "tasks"), [("3", [3]), ("4(x3),2", [4, 4, 4, 2]), ("", []), ("many", [])]
)
def test_tasks_of_hosts(text: str, tasks: list[int]) -> None:
    assert schedulers.tasks_of_hosts(text) == tasks


_NAMES = sorted(
    set().union(*(environ for environ, _ in CASES.values())) | {"SLURM_JOB_END_TIME", CHAIN}
)


@given(st.dictionaries(st.sampled_from(_NAMES), st.text(max_size=12)))
def test_no_environment_is_an_error(environ: dict[str, str]) -> None:
    allocation = find_allocation(environ, lambda path: tuple(re.split(r"\s", path)))

    assert allocation is None or allocation.workers is None or allocation.workers.count > 0
