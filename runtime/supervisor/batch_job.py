"""The batch job around a supervisor: when it must stop, what signals mean, and how it comes back.

Under a batch system a stop has two kinds.  A *limit* stops the job although it should go on:
the deadline, SIGUSR1 and SIGUSR2.  So the job is requeued.  An *order* (SIGTERM, SIGINT) is
a person's wish, or a preemption: who sends it sees to what follows.  Batch systems warn before
they kill.  So the first SIGTERM after a limit is no second order, which would cut the last
save short.

A batch system starts the same command again and again.  Its *chain* must come to an end by
itself: when the run is complete, and when it does not get on.

A batch system may send one *signal* several times: to the process, to its group and to its
session.  So the same signal again within a second is the same order.  Another signal, or a
later one, is a second order, and that means "now".
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from types import MappingProxyType

from holdfast.recovery.event import ExitCode
from holdfast.runtime.batch.incarnations import Chain, ChainFile, Incarnation, identity_of
from holdfast.runtime.batch.sbatch import SlurmRefused, requeue, time_left_s
from holdfast.runtime.batch.schedulers import (
    CHAIN,
    Allocation,
    Deadline,
    Due,
    Scheduler,
    earliest,
    limit_s,
)
from holdfast.runtime.errors import RecoveryImpossible, UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import SAVE_SIGNAL

STOPS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGXCPU: ExitCode.TERMINATED,
}
_WATCHED = (*STOPS, signal.SIGUSR1, signal.SIGUSR2, SAVE_SIGNAL, signal.SIGHUP)
"""SIGUSR1 may ask for nothing; its default would end this process."""

_SAME_ORDER_WITHIN_S = {signal.SIGINT: 0.25, signal.SIGTERM: 1.0}
"""People press Ctrl-C twice faster than that only by mistake.

Any other signal asks for the same as before whenever it comes: SIGXCPU comes every second.
"""

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

    def poll(self, now: float) -> Due:
        """Return what has become due since the last look, at ``now`` in seconds since 1970."""
        if self._deadline is None:
            return Due.NOTHING
        before, self._deadline = self._deadline.due, self._deadline.poll(now)
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


class ChainLink:
    """This start of a run, among those of its chain."""

    def __init__(self, options: JobOptions, allocation: Allocation) -> None:
        self._allocation = allocation
        self._file = ChainFile(RunDirectory(options.run_dir), allocation.chain)
        self._program = identity_of(options.script, options.argv)
        self._before = self._file.read()
        self._begins_afresh = options.fresh and self._before is None
        self._chain: Chain | None = None

    @property
    def is_complete(self) -> bool:
        """Whether an earlier link has come to the end of the same program."""
        return self._before is not None and self._before.complete == self._program != ""

    def asked(self, options: JobOptions) -> JobOptions:
        """Return the options of this link: only the first one begins a fresh run."""
        if options.fresh and self._before is not None:
            return dataclasses.replace(options, fresh=False)
        return options

    def begin(self, run_id: str) -> str:
        """Remember this start, and return it in words; the caller holds the lease.

        Raises:
            RecoveryImpossible: the chain does not get on.
            RunUnreadable: whether it does cannot be told just now.
            UsageError: the next job would not know that this one began a fresh run.
        """
        step = self._file.newest_step()
        chain = self._before or Chain(self._allocation.chain, run_id)
        objection = chain.objection(step, CHAIN if os.environ.get(CHAIN) else None)
        if objection is not None:
            raise RecoveryImpossible(objection)
        number = max(len(chain.incarnations), self._allocation.restarts) + 1
        label = f"{self._allocation.label}, incarnation {number}"
        self._chain = chain.with_next(Incarnation(label, step))
        failure = self._file.write(self._chain)
        if failure is not None and self._begins_afresh:
            raise UsageError(
                f"the first job of a chain with --fresh must be remembered in {self._file.path}, "
                f"else each job begins anew: {failure}; make it writable, or leave --fresh out"
            )
        return f"{label}, from step {step}"

    def completed(self) -> None:
        """Remember that the program has come to its end: later links have nothing to do."""
        if self._chain is not None:
            self._file.write(dataclasses.replace(self._chain, complete=self._program))


class Order(Enum):
    """What a signal asks for."""

    STOP = "stop"
    SAVE = "save"
    GO_ON = "go on without a terminal"


class OrderSignals:
    """The handlers of this process, from its making until ``restore``."""

    def __init__(
        self,
        reactor: Reactor,
        obey: Callable[[Order, signal.Signals], None],
        clock: Callable[[], float] = time.monotonic,
        stops: Collection[signal.Signals] = tuple(STOPS),
    ) -> None:
        self._obey = obey
        self._stops = stops
        self._clock = clock
        self._heard_at: dict[signal.Signals, float] = {}
        self._before = {number: signal.getsignal(number) for number in _WATCHED}
        self._read, write = os.pipe()
        self._write = write
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        for number in _WATCHED:
            # A job that was started with nohup keeps ignoring what nohup ignores.
            if number == SAVE_SIGNAL or self._before[number] is not signal.SIG_IGN:
                signal.signal(number, _wake)
        reactor.watch(self._read, lambda: self.hear(os.read(self._read, 64)))

    def hear(self, numbers: bytes) -> None:
        """Turn signals into orders, in the order of their numbers; each one once."""
        now = self._clock()
        for number in sorted(set(numbers)):
            received = signal.Signals(number)
            if received in self._stops:
                if not self._is_the_same(received, now):
                    self._obey(Order.STOP, received)
            elif received in (signal.SIGUSR2, SAVE_SIGNAL):
                self._obey(Order.SAVE, received)
            elif received == signal.SIGHUP:
                self._obey(Order.GO_ON, received)

    def restore(self) -> None:
        """Give the process its former handlers back."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            # A late request must not end this process, and nobody should wait for it.
            signal.signal(number, signal.SIG_IGN if number == SAVE_SIGNAL else handler)
        os.close(self._read)
        os.close(self._write)

    def _is_the_same(self, received: signal.Signals, now: float) -> bool:
        before = self._heard_at.get(received)
        self._heard_at.setdefault(received, now)
        return before is not None and now - before < _SAME_ORDER_WITHIN_S.get(received, math.inf)


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: the number is in the pipe by now."""
