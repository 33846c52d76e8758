"""Slurm's environment as an `Allocation`.

Sources: sbatch(1) and srun(1), *output environment variables*; and jobs on Slurm 22.05.
``SLURM_JOB_END_TIME`` came after that version.  ``SLURM_STEP_ID`` is set in a step of srun
and not in a batch script.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from holdfast.runtime.batch.allocation import (
    Allocation,
    Lines,
    Scheduler,
    Workers,
    whole_number,
)

_ASKED_FOR = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
"""One of these is set if the user has asked for tasks; the tasks of each host always are."""

_PIECE = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def read(environ: Mapping[str, str], lines: Lines) -> Allocation | None:
    """Return the allocation of a Slurm job, None outside Slurm."""
    del lines  # everything is in the environment
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if not job:
        return None
    array = environ.get("SLURM_ARRAY_JOB_ID")
    index = environ.get("SLURM_ARRAY_TASK_ID", "")
    is_step = "SLURM_STEP_ID" in environ
    ends_at = whole_number(environ.get("SLURM_JOB_END_TIME"))
    return Allocation(
        scheduler=Scheduler.SLURM,
        job_id=f"{array}_{index}" if array else job,
        # Without it this is a shell of salloc, and a person types each command.
        chain=f"slurm {array or job}" if "ENVIRONMENT" in environ else "",
        hosts=tuple(expand_hosts(environ.get("SLURM_JOB_NODELIST", ""))),
        workers=_workers(environ),
        ends_at=float(ends_at) if ends_at else None,
        restarts=whole_number(environ.get("SLURM_RESTART_COUNT")),
        is_batch=environ.get("ENVIRONMENT") == "BATCH" and not is_step,
        copies=whole_number(environ.get("SLURM_STEP_NUM_TASKS"), 1) if is_step else 1,
        task=whole_number(environ.get("SLURM_PROCID")),
    )


def _workers(environ: Mapping[str, str]) -> Workers | None:
    source = next((name for name in _ASKED_FOR if whole_number(environ.get(name))), None)
    if source is None:
        return None
    of_hosts = tasks_of_hosts(environ.get("SLURM_TASKS_PER_NODE", ""))
    here = whole_number(environ.get("SLURM_NODEID"))
    if here < len(of_hosts):
        return Workers(of_hosts[here], source)
    return Workers(whole_number(environ[source]), source)


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
