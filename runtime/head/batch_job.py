"""The batch job around a job: when its time ends, and how it comes back.

A batch system starts the same command again and again.  A *chain* is one submission: a job with all
its requeues, or all jobs with one ``HOLDFAST_CHAIN``.  It must come to an end by itself: when the
run is complete, and when it does not get on.  A small file in the run directory remembers the
incarnations of the run, each with what it began with.  The file helps, and is never needed:
without it, or when it cannot be read, a chain has just begun.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.placement import place_workers
from holdfast.runtime.batch.schedulers import (
    CHAIN,
    Allocation,
    Scheduler,
    SlurmRefused,
    requeue,
    time_left_s,
)
from holdfast.runtime.errors import JobError, RecoveryImpossible, UsageError
from holdfast.runtime.head.orders import OWN_BEFORE_SLURMS, TimeLimit, TimeLimits
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.files import read_at_most, write_whole
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.codec import from_plain, to_plain

FILE_NAME = "incarnations.json"
_MOST_WITHOUT_PROGRESS = 2
"""One may be the victim of its node; what stops two would stop the next."""

_LARGEST_BYTES = 1 << 20
_REMEMBERED = 100

_UNKNOWN = "time limit not known: give --deadline"

Say = Callable[[str], None]


@dataclass(slots=True)
class BatchJob:
    """The batch job around a client, if there is one, and the limits that come from it."""

    allocation: Allocation | None = None
    limits: TimeLimits = field(default_factory=TimeLimits)
    """By the end of the job those that its head has sent."""
    is_requeued: bool = False
    """Whether the user lets Slurm begin the job again."""
    unknown: str = ""
    used_hosts: int = 1
    lost_hosts: tuple[str, ...] = ()
    """Those that the head has lost; the requeued job does without them."""
    incarnation: str = ""
    """The batch job, and which start of the run this is, in words."""

    def __post_init__(self) -> None:
        """Name the batch job until the start is known."""
        self.incarnation = "" if self.allocation is None else self.allocation.label

    @staticmethod
    def of(
        options: JobOptions,
        allocation: Allocation | None,
        age_s: float = 0.0,
    ) -> BatchJob:
        """Return the job of these options that began ``age_s`` ago."""
        now = time.time()
        asked = options.deadline_s
        theirs = None if allocation is None else _limit_of(allocation, now)
        is_slurms = allocation is not None and allocation.scheduler is Scheduler.SLURM
        unknown = _UNKNOWN if is_slurms and theirs is None and asked is None else ""
        if theirs is not None and math.isinf(theirs.ends_at):
            theirs = None
        source = OWN_BEFORE_SLURMS if theirs is not None and is_slurms else "--deadline"
        own = None if asked is None else TimeLimit(now - age_s, now - age_s + asked, source)
        ends = filter(None, (theirs, own))
        earliest = min(ends, key=lambda end: end.ends_at, default=None)
        limits = TimeLimits(earliest, is_batch=allocation is not None)
        workers = options.workers + options.spares
        return BatchJob(
            allocation,
            limits,
            is_requeued=options.requeue,
            unknown=unknown,
            used_hosts=len(set(place_workers(workers, options.hosts))) if options.hosts else 1,
        )

    @property
    def introduction(self) -> str:
        """Which batch job this is, and when its time ends; "" if neither is known."""
        words = [self.incarnation, self.unknown, self.limits.words]
        hosts = () if self.allocation is None else self.allocation.hosts
        idle = len(hosts) - self.used_hosts
        if hosts and idle > 0:
            words.append(
                f"{idle} of its {len(hosts)} hosts stay idle: give more workers by -n, or name "
                "them by --hosts"
            )
        words.append("" if self.allocation is None else self.allocation.apart)
        return ", ".join(word for word in words if word)

    def end(
        self, code: int, say: Say, requeue: Callable[[str, Sequence[str], int], None] = requeue
    ) -> None:
        """Have a job requeued that ends with ``code`` and is unfinished."""
        for number in {signal.SIGTERM, signal.SIGINT} & signal.sigpending():
            # Blocked since the job's end.
            self.limits.repeats(number, is_stopping=True, now=self.limits.now)
        allocation = self.allocation
        is_unfinished = code == ExitCode.STOPPED_EARLY and self.limits.hit_limit
        if allocation is None or not (is_unfinished and self.is_requeued):
            return
        if allocation.scheduler is not Scheduler.SLURM or not allocation.is_batch:
            return
        # Said before: Slurm ends this process as soon as it has requeued the job.
        say(
            f"asking Slurm to requeue {allocation.label}: "
            "it then goes on from its newest checkpoint"
        )
        try:
            requeue(allocation.job_id, self.lost_hosts, len(allocation.hosts))
        except SlurmRefused as error:
            say(
                f"{allocation.label} is not requeued ({error}); submit it again: "
                "it goes on from its newest checkpoint"
            )


def _limit_of(allocation: Allocation, now: float) -> TimeLimit | None:
    """Return the end of the allocation, from its environment or from Slurm's controller."""
    # A time that is over is an older job's: its variables live on in a tmux, and in `sbatch`.
    if allocation.ends_at is not None and allocation.ends_at > now:
        return TimeLimit(now, allocation.ends_at, "SLURM_JOB_END_TIME")
    if allocation.scheduler is Scheduler.SLURM:
        left_s, source = time_left_s(allocation.job_id), "squeue"
    else:
        left_s, source = allocation.limit_s, "the time limit of the job"
    return None if left_s is None else TimeLimit(now, now + left_s, source)


class ChainLink:
    """This start of a run, among those of its chain; only the owner of the lease writes their file.

    ``before`` is what is remembered of this chain and this run, None if nothing is.
    """

    def __init__(self, options: JobOptions, allocation: Allocation) -> None:
        self._allocation = allocation
        self._directory = RunDirectory(options.run_dir)
        self._path = self._directory.path / FILE_NAME
        self.before = self._read()
        self._begins_afresh = options.fresh and self.before is None

    def _read(self) -> Chain | None:
        try:
            fields = json.loads(read_at_most(self._path, _LARGEST_BYTES))
            chain = from_plain(Chain, fields, allows_more=True)
            record = self._directory.load_record()
        except (OSError, ValueError, RecursionError, JobError):
            return None  # the job can do without
        ours = record and (self._allocation.chain, record.run_id)
        return chain if (chain.name, chain.run_id) == ours else None

    def asked(self, options: JobOptions) -> JobOptions:
        """Return the options of this link: only the first one begins anew."""
        if self.before is not None:
            return dataclasses.replace(options, fresh=False, again=False)
        return options

    def begin(self, run_id: str) -> str:
        """Remember this start, and return it in words; the caller holds the lease.

        Raises:
            RecoveryImpossible: the chain does not get on.
            RunUnreadable: whether it does cannot be told just now.
            UsageError: the next job would not know that this one began a fresh run.
        """
        step = self._directory.newest_step or 0
        chain = self.before or Chain(self._allocation.chain, run_id)
        objection = chain.objection(step, CHAIN if os.environ.get(CHAIN) else None)
        if objection is not None:
            raise RecoveryImpossible(objection)
        number = max(len(chain.incarnations), self._allocation.restarts) + 1
        label = f"{self._allocation.label}, incarnation {number}"
        chain = chain.with_next(ChainedStart(label, step))
        try:
            write_whole(self._path, json.dumps(to_plain(chain), indent=1).encode(), is_durable=True)
        except OSError as error:
            if self._begins_afresh:  # else the disk that takes nothing stops nothing here
                raise UsageError(
                    f"the first job of a chain with --fresh must be remembered in {self._path}, "
                    f"else each job begins anew: {error}; make it writable, or leave --fresh out"
                ) from error
        return f"{label}, from step {step}"


@dataclass(frozen=True, slots=True)
class ChainedStart:
    """One start of a run in a batch system, and the newest step that was saved before it."""

    label: str
    step: int


@dataclass(frozen=True, slots=True)
class Chain:
    """What a run directory remembers of the newest chain."""

    name: str
    run_id: str
    incarnations: tuple[ChainedStart, ...] = ()

    def with_next(self, incarnation: ChainedStart) -> Chain:
        """Return the chain after one more start."""
        kept = (*self.incarnations, incarnation)[-_REMEMBERED:]
        return dataclasses.replace(self, incarnations=kept)

    def objection(self, step: int, variable: str | None = None) -> str | None:
        """Return why another incarnation would be in vain, None if it may help.

        ``variable`` is the one that holds the chain's name, None if the batch system names it.
        """
        newest = self.incarnations[-_MOST_WITHOUT_PROGRESS:]
        if len(newest) < _MOST_WITHOUT_PROGRESS or any(one.step < step for one in newest):
            return None
        labels = " and ".join(incarnation.label for incarnation in newest)
        renamed = "" if variable is None else f" with a new {variable} (it was {self.name})"
        return (
            f"{labels} began at step {step} and have saved no later one, so this chain of jobs "
            "stops. Their output tells why they ended. Remove the cause or give more time, "
            f"then submit again{renamed}"
        )
