"""The batch job around a supervisor: when it must stop, what signals mean, and how it comes back.

Under a batch system a stop has two kinds.  A *limit* stops the job although it should go on:
the deadline, SIGUSR1 and SIGUSR2.  So the job is requeued.  An *order* (SIGTERM, SIGINT) is
a person's wish, or a preemption: who sends it sees to what follows.

Batch systems warn before they kill.  So the first SIGTERM after a limit is no second order,
which would cut the last save short.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from holdfast.recovery.event import ExitCode
from holdfast.runtime.batch.allocation import Allocation, Scheduler
from holdfast.runtime.batch.deadline import Deadline, Due, earliest
from holdfast.runtime.batch.finding import limit_s
from holdfast.runtime.batch.slurm_commands import SlurmRefused, requeue, time_left_s
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.supervisor.order_signals import STOPS
from holdfast.runtime.system.channel import Message

_UNKNOWN = "time limit not known: give --deadline"

LIMITS = (signal.SIGUSR1, signal.SIGUSR2)

OWN_BEFORE_SLURMS = "--deadline, before Slurm's limit"
"""It ends this run alone: a requeue would end everything else in the batch job, too."""

Say = Callable[[str], None]


class BatchJob:
    """What a supervisor knows of the job that it runs in; without one it minds ``--deadline``."""

    def __init__(
        self,
        allocation: Allocation | None = None,
        deadline: Deadline | None = None,
        *,
        is_requeued: bool = False,
        unknown: str = "",
    ) -> None:
        self.allocation = allocation
        self.incarnation = "" if allocation is None else allocation.label
        """The batch job, and which start of the run this is, in words."""
        self._deadline = deadline
        self._unknown = unknown
        self._is_requeued = is_requeued
        self._hit_limit = False
        self._orders = 0

    @staticmethod
    def of(
        options: JobOptions,
        allocation: Allocation | None,
        environ: Mapping[str, str],
        age_s: float = 0.0,
    ) -> BatchJob:
        """Return the job of these options that began ``age_s`` ago."""
        now = time.time()
        asked = options.deadline_s
        theirs = None if allocation is None else _limit_of(allocation, environ, now)
        is_slurms = allocation is not None and allocation.scheduler is Scheduler.SLURM
        unknown = _UNKNOWN if is_slurms and theirs is None and asked is None else ""
        if theirs is not None and math.isinf(theirs.ends_at):
            theirs = None
        source = OWN_BEFORE_SLURMS if theirs is not None and is_slurms else "--deadline"
        own = None if asked is None else Deadline(now - age_s, now - age_s + asked, source)
        return BatchJob(
            allocation, earliest(theirs, own), is_requeued=options.requeue, unknown=unknown
        )

    @property
    def stops(self) -> Mapping[signal.Signals, ExitCode]:
        """The signals that stop the job, each with the exit code of a job without checkpoint."""
        if self.allocation is None:
            return STOPS
        return MappingProxyType(STOPS | dict.fromkeys(LIMITS, ExitCode.STOPPED_EARLY))

    def introduce(self, note: Callable[..., None]) -> None:
        """Say which batch job this is, and when its time ends, if either is known."""
        words = [word for word in (self.incarnation, self._unknown) if word]
        if self._deadline is not None:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._deadline.ends_at))
            words.append(f"time until {at} ({self._deadline.source})")
        hosts = () if self.allocation is None else self.allocation.hosts
        if len(hosts) > 1:
            words.append(f"{len(hosts) - 1} of its {len(hosts)} hosts stay idle: a job has one")
        if words:
            note(", ".join(words), "incarnation")

    @property
    def wants_requeue(self) -> bool:
        """Whether the job should be started again by its batch system."""
        is_batch = self.allocation is not None and self.allocation.is_batch
        return self._is_requeued and is_batch and self._hit_limit

    def saved(self, report: Message) -> None:
        """Take note of how long a save and the steps around it took."""
        if self._deadline is not None and "seconds" in report:
            self._deadline = self._deadline.saved(report["seconds"], report["step_seconds"])

    def look(self, now: float) -> Due:
        """Return what has become due since the last look, at ``now`` in seconds since 1970."""
        if self._deadline is None:
            return Due.NOTHING
        before, self._deadline = self._deadline.due, self._deadline.look(now)
        if self._deadline.due is before:
            return Due.NOTHING
        if self._deadline.due >= Due.SAVE and not self._is_own_limit:
            self._hit_limit = self._hit_limit or not self._orders
        return self._deadline.due

    @property
    def _is_own_limit(self) -> bool:
        """Whether the limit is the user's, and earlier than the end that Slurm tells."""
        return self._deadline is not None and self._deadline.source == OWN_BEFORE_SLURMS

    def repeats(self, number: signal.Signals, *, is_stopping: bool, now: float) -> bool:
        """Take note of a signal to stop; return whether it only repeats a limit that was hit."""
        if self.allocation is None:
            return False
        if number in LIMITS:
            self._hit_limit = self._hit_limit or not self._orders
            return is_stopping
        self._orders += 1
        is_first_after_limit = self._hit_limit and self._orders == 1
        if self._deadline is None or now < self._deadline.ends_at:
            self._hit_limit = False  # cancelled, or preempted: not ours to bring back
        return is_first_after_limit and is_stopping and number != signal.SIGINT

    def end(self, code: int, say: Say) -> int:
        """Have an unfinished job requeued; return the exit code for the batch system."""
        for number in {signal.SIGTERM, signal.SIGINT} & signal.sigpending():
            self.repeats(number, is_stopping=True, now=time.time())  # blocked since the job's end
        allocation = self.allocation
        if code != ExitCode.STOPPED_EARLY or not self.wants_requeue or allocation is None:
            return code
        if allocation.scheduler is not Scheduler.SLURM:
            return code if allocation.requeue_code is None else allocation.requeue_code
        # Said before: Slurm ends this process as soon as it has requeued the job.
        say(
            f"asking Slurm to requeue {allocation.label}: "
            "it then goes on from its newest checkpoint"
        )
        try:
            requeue(allocation.job_id)
        except SlurmRefused as error:
            say(
                f"{allocation.label} is not requeued ({error}); submit it again: "
                "it goes on from its newest checkpoint"
            )
        return code


def _limit_of(allocation: Allocation, environ: Mapping[str, str], now: float) -> Deadline | None:
    """Return the end of the allocation, from its environment or from Slurm's controller."""
    # A time that is over is an older job's: its variables live on in a tmux, and in `sbatch`.
    if allocation.ends_at is not None and allocation.ends_at > now:
        return Deadline(now, allocation.ends_at, "SLURM_JOB_END_TIME")
    if allocation.scheduler is Scheduler.SLURM:
        left_s, source = time_left_s(allocation.job_id), "squeue"
    else:
        left_s, source = limit_s(allocation, environ), "the time limit of the job"
    return None if left_s is None else Deadline(now, now + left_s, source)
