"""Which batch system this process runs in, what it has given to the job, and until when.

A reader for each batch system makes an `Allocation` of the environment alone:

* *Slurm*: sbatch(1) and srun(1), *output environment variables*; and jobs on Slurm 22.05.
  ``SLURM_JOB_END_TIME`` came after that version.  ``SLURM_STEP_ID`` is set in a step of srun
  and not in a batch script.  Nodes have one task each if nobody asks for tasks, as with srun;
* *PBS* Professional, OpenPBS and Torque: qsub(1B) of each.  Only Torque tells the time limit.  No
  exit code has a job requeued: ``qrerun`` is for operators, so a run goes on in a further job.
  A task that ``pbs_tmrsh`` starts has no stdin, so the other hosts are reached by ssh.

Slurm's own programs are called, too.  A controller that is down or busy lets its clients wait for
minutes.  So each call has a time limit, and none may stop a job.

An allocation with ``--no-kill`` goes on without a lost node, and be it the one of the batch script.
Then nothing of the job runs, but it keeps its other nodes until its limit.  Slurm (22.05) leaves it
so, even when the lost node is back.  So a host that has lost the head asks Slurm whether the
script's node is still one of the job's (`bring_back`).  When it was given up, the host has the job
requeued.  Where sites switch that off, it ends the job, and the next one of a chain begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from holdfast.recovery.placement import HostSlots, total_slots
from holdfast.recovery.schedule import clock_s
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.system.own_process import answer_of
from holdfast.runtime.system.processes import ancestors_names

_NODES = "SLURM_JOB_NODELIST"
_ASKED_FOR = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
"""One of these is set if the user has asked for tasks; the tasks of each host always are."""

_INTERACTIVE_STEP = "4294967290"
"""The step in which ``salloc`` opens a shell on the first node, where sites want it there."""

_PIECE = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")

CHAIN = "HOLDFAST_CHAIN"
"""Set by the batch scripts of a chain: the name that all its links have in common."""

_ARRAYS = (
    ("Slurm array", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID"),
    ("PBS array", "PBS_ARRAY_INDEX", "PBS_JOBID"),
    ("PBS array", "PBS_ARRAYID", "PBS_JOBID"),
)
"""What each batch system calls the index of a task in a job array, and the array; the last one is
Torque's.
"""

_MPI_WORLDS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
)
"""Where Open MPI, MPICH and Intel MPI tell a process the size of its world, and its rank."""

_STARTERS = frozenset({
    "mpiexec", "mpirun", "mpiexec.hydra", "prterun", "prted", "orterun", "orted",
    "hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy", "slurmstepd", "palsd", "jsmd",
})  # fmt: skip
"""Names of processes that start the ranks of an MPI job; the kernel keeps 15 bytes of them."""

_SESSION = "PMIX_SERVER_TMPDIR"
"""A directory that lives as long as the launcher of Open MPI, which may be in another container."""

ANSWERS_WITHIN_S = 8.0

_LOOK_S = 5.0
_LOOKS = 240
"""After much more than Slurm's ``SlurmdTimeout`` the head has ended by something else."""

_NONE = "(null)"
_TERMS = ("--partition", "--account", "--qos", "--time", "--constraint")
_TERMS_SHOWN = "%P|%a|%q|%l|%f"
"""Terms of a job that decide on which nodes it may run, and squeue's letters for them."""


class Scheduler(Enum):
    """The batch systems that are recognised."""

    SLURM = "Slurm"
    PBS = "PBS"


_SLURM_SHELL = (
    "srun --overlap -N1 -n1 --no-kill --kill-on-bad-exit=0 --wait=0 --mpi=none "
    "--cpu-bind=none --unbuffered --quit-on-interrupt --quiet -w"
)
"""Slurm's remote shell.  Its processes belong to the job, and no key is needed.

It is one step on one node, beside all others, with all that the job has there.  It outlives the
loss of other nodes, and neither binds its processes nor prepares them for MPI.
"""


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers the allocation has for its hosts, and the variable that says so."""

    count: int
    source: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """One job of a batch system, as it stands when `holdfast run` begins.

    Attributes:
        scheduler: the batch system.
        job_id: the job's own name there, with its index in an array.
        chain: what all incarnations of one submission have in common, empty in a
            shell where each command is a wish of its own.
        hosts: the hosts in the order of the batch system, and the tasks of each; the first
            runs the batch script.
        workers: the tasks that the user asked for, None if there was no wish.
        ends_at: when the batch system ends the job, in seconds since 1970, if it has said.
        limit_s: how long the whole job may last, if only that was said.
        restarts: how often the job was started before, as far as the batch system tells.
        is_batch: whether a batch script runs, which can be requeued.
        copies: the tasks of a parallel step that all run this same command.
        task: which of these copies this is.
        apart: which hosts of the whole job are none of ``hosts``, in words; "" without any.
    """

    scheduler: Scheduler
    job_id: str
    chain: str
    hosts: tuple[HostSlots, ...] = ()
    workers: Workers | None = None
    ends_at: float | None = None
    limit_s: float | None = None
    restarts: int = 0
    is_batch: bool = True
    copies: int = 1
    task: int = 0
    apart: str = ""

    @property
    def label(self) -> str:
        """The job as messages name it."""
        return f"{self.scheduler.value} job {self.job_id}"


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that this process runs in, None outside batch systems."""
    # Slurm first: other batch systems can be started inside one of its jobs, not around it.
    found = _read_slurm(environ) or _read_pbs(environ)
    if found is None:
        return None
    has_workers = found.workers is not None and found.workers.count > 0
    return dataclasses.replace(
        found,
        workers=found.workers if has_workers else None,
        chain=environ.get(CHAIN) or found.chain,
    )


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """A task of a job array: its index, the variable that holds it, and the array in words."""

    index: str
    variable: str
    array: str


def find_array_task(environ: Mapping[str, str]) -> ArrayTask | None:
    """Return the task of a job array that this process belongs to, None outside of an array.

    Tasks of one chain are links of one run, so none counts as a task.
    """
    if environ.get(CHAIN):
        return None
    for kind, variable, array in _ARRAYS:
        if environ.get(variable) and environ.get(array):
            return ArrayTask(environ[variable], variable, f"{kind} {environ[array]}")
    return None


def _lines_of(path: str) -> tuple[str, ...]:
    try:
        return tuple(filter(None, map(str.strip, Path(path).read_text().splitlines())))
    except (OSError, ValueError):
        return ()


def options_of(allocation: Allocation | None) -> dict[str, tuple[str, Any]]:
    """Return the options of a job that its allocation settles, each with its origin.

    Several hosts are those of the job, and Slurm's own shell reaches them.  A job on one host has
    workers alone.
    """
    if allocation is None:
        return {}
    workers, label = allocation.workers, allocation.label
    if len(allocation.hosts) > 1:
        source = _NODES if workers is None else workers.source
        found: dict[str, tuple[str, Any]] = {"hosts": (f"{source} of {label}", allocation.hosts)}
        is_slurm = allocation.scheduler is Scheduler.SLURM
        return found | ({"rsh": (label, _SLURM_SHELL)} if is_slurm else {})
    return {} if workers is None else {"workers": (f"{workers.source} of {label}", workers.count)}


def refuse_copies(allocation: Allocation) -> None:
    """Refuse to be one of several equal commands, which would all train the same.

    The first of them says so; the others end without a word.

    Raises:
        UsageError: the step has several tasks, and this is the first.
    """
    if allocation.copies > 1 and allocation.task > 0:
        sys.exit(ExitCode.USAGE)
    if allocation.copies > 1:
        raise UsageError(
            f"srun has started this command {allocation.copies} times, and each would be a job of "
            "its own; put `holdfast run` into the batch script without srun: it starts its "
            "workers itself"
        )


def refuse_mpi_copies(
    environ: Mapping[str, str], ancestors: Callable[[], Collection[str]] = ancestors_names
) -> None:
    """Refuse to be one of several commands that mpiexec has started.

    The first of them says so; the others end without a word.  The variables of a job that is
    over, in a shell or a batch script, are none of this one's: nothing of it starts with them.

    Raises:
        UsageError: mpiexec has started several, and this is the first.
    """
    for size, rank in _MPI_WORLDS:
        copies = environ.get(size, "")
        if not copies.isdecimal() or int(copies) < 2 or rank not in environ:
            continue
        is_alive = os.path.isdir(environ.get(_SESSION, "")) or _STARTERS & set(ancestors())
        if not is_alive:
            continue
        if environ.get(rank) != "0":
            sys.exit(ExitCode.USAGE)
        raise UsageError(
            f"mpiexec has started this command {copies} times, and each would be a job of its "
            f"own; leave mpiexec out: `holdfast run -n {copies} SCRIPT` starts the workers itself"
        )


def whole_number(text: str | None, default: int = 0) -> int:
    """Return the number in a variable, ``default`` if it holds none."""
    return int(text) if text is not None and text.isdecimal() else default


def _read_slurm(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of a Slurm job, None outside Slurm."""
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if not job:
        return None
    array = environ.get("SLURM_ARRAY_JOB_ID")
    index = environ.get("SLURM_ARRAY_TASK_ID", "")
    job_id = f"{array}_{index}" if array else job
    is_step = environ.get("SLURM_STEP_ID", _INTERACTIVE_STEP) != _INTERACTIVE_STEP
    hosts = _slurm_hosts(environ, "SLURM_STEP_NODELIST" if is_step else _NODES)
    ends_at = whole_number(environ.get("SLURM_JOB_END_TIME"))
    return Allocation(
        scheduler=Scheduler.SLURM,
        job_id=job_id,
        # Without it this is a shell of salloc, and a person types each command.
        chain=f"slurm {job_id}" if "ENVIRONMENT" in environ else "",
        hosts=hosts,
        workers=_slurm_workers(environ, hosts),
        ends_at=float(ends_at) if ends_at else None,
        restarts=whole_number(environ.get("SLURM_RESTART_COUNT")),
        is_batch=environ.get("ENVIRONMENT") == "BATCH" and not is_step,
        copies=whole_number(environ.get("SLURM_STEP_NUM_TASKS"), 1) if is_step else 1,
        task=whole_number(environ.get("SLURM_PROCID")),
        apart=_apart(environ, hosts, "this step" if is_step else "its first component"),
    )


def _apart(environ: Mapping[str, str], hosts: Sequence[HostSlots], ours: str) -> str:
    """Return in words which hosts of the whole job are not among ``hosts``, those of ``ours``.

    A heterogeneous job has a list for each component, and a command belongs to the first one.
    """
    components = range(whole_number(environ.get("SLURM_HET_SIZE")))
    lists = (_NODES, *(f"{_NODES}_HET_GROUP_{number}" for number in components))
    whole = dict.fromkeys(host for name in lists for host in expand_hosts(environ.get(name, "")))
    others = [host for host in whole if host not in {host.name for host in hosts}]
    return f"{', '.join(others)} of the same job stay idle: {ours} has none of them" * bool(others)


def _slurm_hosts(environ: Mapping[str, str], nodes: str) -> tuple[HostSlots, ...]:
    """Return the hosts that a variable lists; each has its tasks, or one if nobody asks."""
    names = list(expand_hosts(environ.get(nodes, "")))
    tasks = tasks_of_hosts(environ.get("SLURM_TASKS_PER_NODE", ""))
    if _asked_for(environ) is None or len(tasks) != len(names):
        tasks = [1] * len(names)
    return tuple(map(HostSlots, names, tasks))


def _slurm_workers(environ: Mapping[str, str], hosts: tuple[HostSlots, ...]) -> Workers | None:
    source = _asked_for(environ)
    if source is None:
        return None
    if len(hosts) > 1:
        return Workers(total_slots(hosts), source)
    of_hosts = tasks_of_hosts(environ.get("SLURM_TASKS_PER_NODE", ""))
    here = whole_number(environ.get("SLURM_NODEID"))
    if here < len(of_hosts):
        return Workers(of_hosts[here], source)
    return Workers(whole_number(environ[source]), source)


def _asked_for(environ: Mapping[str, str]) -> str | None:
    """Return the variable by which the user has asked for tasks, None if there is none."""
    return next((name for name in _ASKED_FOR if whole_number(environ.get(name))), None)


def tasks_of_hosts(text: str) -> list[int]:
    """Return the tasks of each host from the form ``4,2(x3)``: [4, 2, 2, 2]."""
    tasks: list[int] = []
    for piece in filter(None, text.split(",")):
        match = _REPEATED.fullmatch(piece)
        if match is None:
            return []
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def expand_hosts(text: str) -> Iterator[str]:
    """Yield the hosts of a list such as ``n[01-03,7],login``: n01, n02, n03, n7, login."""
    for piece in _PIECE.findall(text):
        parts = re.split(r"\[([^\]]*)\]", piece)  # plain text and ranges alternate
        choices = [
            list(_expand_ranges(part)) if number % 2 else [part]
            for number, part in enumerate(parts)
        ]
        yield from ("".join(chosen) for chosen in itertools.product(*choices))


def _expand_ranges(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if first.isdecimal() and last.isdecimal():
            yield from (f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
        else:
            yield piece


def _read_pbs(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of a PBS job, None outside PBS."""
    job = environ.get("PBS_JOBID")
    if not job:
        return None
    # The file has a line for each slot, and begins with the host of the batch script.
    slots = Counter(_lines_of(environ.get("PBS_NODEFILE", "")))
    hosts = tuple(HostSlots(name, count) for name, count in slots.items())
    workers = Workers(total_slots(hosts), "PBS_NODEFILE") if hosts else None
    return Allocation(
        scheduler=Scheduler.PBS,
        job_id=job,
        chain=f"pbs {job}",
        hosts=hosts,
        workers=workers,
        limit_s=float(whole_number(environ.get("PBS_WALLTIME"))) or None,
        is_batch=environ.get("PBS_ENVIRONMENT") == "PBS_BATCH",
    )


class SlurmRefused(Exception):
    """A program of Slurm is missing, does not answer, or says no."""


def time_left_s(job_id: str) -> float | None:
    """Return the seconds until a job's limit, infinite without one, None if Slurm is silent."""
    try:
        said = _call(("squeue", "-h", "-j", job_id, "-o", "%L"))
    except SlurmRefused:
        return None
    return math.inf if said == "UNLIMITED" else clock_s(said)


@dataclass(frozen=True, slots=True)
class BatchNodes:
    """The nodes that a job has just now."""

    of_script: str
    """The node of its batch script, which stays named when it is lost."""
    nodes: tuple[str, ...]
    is_running: bool = True


def nodes_of(job_id: str) -> BatchNodes:
    """Return the nodes of a job.

    Raises:
        SlurmRefused: Slurm does not say.
    """
    script, nodes, state = _call(("squeue", "-h", "-j", job_id, "-o", "%B|%N|%T")).split("|")
    return BatchNodes(script, tuple(expand_hosts(nodes)), state == "RUNNING")


def requeue(job_id: str, lost: Sequence[str] = (), nodes: int = 1) -> None:
    """Have a job begin again, under the same id; its processes are ended soon.

    A job of so many ``nodes`` begins on other ones than the ``lost`` if there are enough.

    Raises:
        SlurmRefused: Slurm has not done so; the text gives the reason.
    """
    if lost:
        with contextlib.suppress(SlurmRefused):
            excluded = _excluded_too(job_id, lost, nodes)
            change = f"update JobId={job_id} ExcNodeList={excluded}"
            # Only a job that waits takes it, and this process ends soon after: one call for both.
            _call(("scontrol",), f"requeue {job_id}\n{change}\n")
            return
    if not lost or nodes_of(job_id).is_running:
        _call(("scontrol", "requeue", job_id))


def _excluded_too(job_id: str, lost: Sequence[str], nodes: int) -> str:
    """Return the nodes that a job excludes, with the lost ones.

    Slurm takes any list, and holds a job for good for which too few nodes are left.  So it is
    asked first whether such a job could be submitted.  Without an exclusion the job waits until
    enough nodes answer.

    Raises:
        SlurmRefused: it could not.
    """
    shown = _call(("squeue", "-h", "-j", job_id, "-o", f"%x|{_TERMS_SHOWN}"))
    users, *terms = shown.split("|", len(_TERMS))  # a constraint, the last, may have bars itself
    excluded = ",".join(dict.fromkeys([*expand_hosts(users.replace(_NONE, "")), *lost]))
    given = [f"{name}={term}" for name, term in zip(_TERMS, terms, strict=True) if term != _NONE]
    _call(
        ("sbatch", "--test-only", f"--nodes={nodes}", f"--exclude={excluded}", *given),
        "#!/bin/sh\n",
    )
    return excluded


def _call(command: Sequence[str], text: str = "") -> str:
    # The user's wishes for squeue, such as SQUEUE_STATES, would hide this job.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = answer_of(command, ANSWERS_WITHIN_S, environ, text)
    except subprocess.TimeoutExpired as error:
        reason = f"{command[0]} has not answered for {ANSWERS_WITHIN_S:.0f} s"
        raise SlurmRefused(reason) from error
    except OSError as error:
        raise SlurmRefused(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip() or f"it ended with {done.returncode}"
        raise SlurmRefused(f"{command[0]}: {said}")
    return done.stdout.strip()


def bring_back(
    environ: Mapping[str, str],
    ask: Callable[[str], BatchNodes] = nodes_of,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Have the batch job around this process begin again, if it has lost its script's node.

    It returns at once outside of Slurm's batch jobs.  Slurm's SIGTERM ends the process meanwhile.
    """
    allocation = find_allocation(environ)
    if allocation is None or allocation.scheduler is not Scheduler.SLURM or not allocation.is_batch:
        return
    job = environ["SLURM_JOB_ID"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for _ in range(_LOOKS):
        sleep(_LOOK_S)
        try:
            nodes = ask(job)
        except SlurmRefused:
            continue  # Slurm's controller may be on the lost node
        if not nodes.is_running:
            return
        if nodes.nodes and nodes.of_script not in nodes.nodes:
            try:
                requeue(job)  # Slurm gives no job a node that is down
            except SlurmRefused:
                _call(("scancel", job))
            return
