"""The calls of Slurm's own programs, and the job that comes back by them.

A controller that is down or busy lets its clients wait for minutes.  So each call has a time
limit, and none may stop a job.

An allocation with ``--no-kill`` goes on without a lost node, and be it the one of the batch script.
Then nothing of the job runs, but it keeps its other nodes until its limit.  Slurm (22.05) leaves it
so, even when the lost node is back.  So a host that has lost the head asks Slurm whether the
script's node is still one of the job's (`bring_back`).  When it was given up, the host has the job
requeued.  Where sites switch that off, it ends the job, and the next one of a chain begins.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.runtime.batch.schedulers import (
    Scheduler,
    clock_s,
    expand_hosts,
    find_allocation,
)
from holdfast.runtime.system.own_process import answer_of

ANSWERS_WITHIN_S = 8.0

_LOOK_S = 5.0
_LOOKS = 240
"""After much more than Slurm's ``SlurmdTimeout`` the head has ended by something else."""

_NONE = "(null)"
_TERMS = ("--partition", "--account", "--qos", "--time", "--constraint")
_TERMS_SHOWN = "%P|%a|%q|%l|%f"
"""Terms of a job that decide on which nodes it may run, and squeue's letters for them."""


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

    @property
    def script_is_lost(self) -> bool:
        """Whether the job goes on without the node of its batch script."""
        return bool(self.nodes) and self.of_script not in self.nodes


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


def cancel(job_id: str) -> None:
    """End a job for good.

    Raises:
        SlurmRefused: Slurm has not done so; the text gives the reason.
    """
    _call(("scancel", job_id))


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
        if nodes.script_is_lost:
            try:
                requeue(job)  # Slurm gives no job a node that is down
            except SlurmRefused:
                cancel(job)
            return
