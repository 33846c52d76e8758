"""What a batch system has given to this job, as one value.

The readers (`slurm`, `pbs`, `lsf`, `sge`) make it of the environment alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

Lines: TypeAlias = Callable[[str], tuple[str, ...]]
"""Returns the lines of a file that a variable names; none if it cannot be read."""


class Scheduler(Enum):
    """The batch systems that are recognised."""

    SLURM = "Slurm"
    PBS = "PBS"
    LSF = "LSF"
    SGE = "SGE"


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers the allocation has for one host, and the variable that says so."""

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
        hosts: the hosts in the order of the batch system; the first runs the batch script.
        workers: the tasks that the user asked for on this host, None if there was no wish.
        ends_at: when the batch system ends the job, in seconds since 1970, if it has said.
        restarts: how often the job was started before, as far as the batch system tells.
        is_batch: whether a batch script runs, which can be requeued.
        requeue_code: the exit code that has the job requeued, None if no code does.
        copies: the tasks of a parallel step that all run this same command.
        task: which of these copies this is.
    """

    scheduler: Scheduler
    job_id: str
    chain: str
    hosts: tuple[str, ...] = ()
    workers: Workers | None = None
    ends_at: float | None = None
    restarts: int = 0
    is_batch: bool = True
    requeue_code: int | None = None
    copies: int = 1
    task: int = 0

    @property
    def label(self) -> str:
        """The job as messages name it."""
        return f"{self.scheduler.value} job {self.job_id}"


def whole_number(text: str | None, default: int = 0) -> int:
    """Return the number in a variable, ``default`` if it holds none."""
    return int(text) if text is not None and text.isdecimal() else default
