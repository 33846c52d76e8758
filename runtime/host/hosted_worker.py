"""One worker as its launch knows it, on any host: its status, its guard and its words.

A guard kills itself when its connection ends without a word of peace.  A guard that was
stopped cannot, and mpiexec would never tell the survivors.  So the agent kills it as well.

Its process, with what belongs to it, is `WorkerProcess`: that exists on the worker's host alone.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.recovery.event import LOST_WITH_ITS_HOST, WorkerExited, WorkerFailed
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import HostLink, KillWorker, MakeWorkers
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.progress import LaunchReport, StepReport, WorkerReport
from holdfast.runtime.system.activity import Activity
from holdfast.runtime.system.channel import Channel, to_message
from holdfast.runtime.system.processes import HeldProcess
from holdfast.runtime.system.worker_status import (
    HaltedSaveEnded,
    OwnReport,
    Phase,
    ScriptEnded,
    TrainingBegun,
    TrainingFailed,
    WorkerHalted,
)

_IN_ORDER = (*(phase for phase in Phase if phase is not Phase.LEAVING), Phase.LEAVING)
"""A worker leaves when its script has come to its end."""


class GuardLink:
    """One guard; ``process`` is None in tests of connections alone."""

    def __init__(self, channel: Channel, process: HeldProcess | None) -> None:
        self.channel = channel
        self._process = process

    @property
    def pid(self) -> int | None:
        """The process id of the guard."""
        return None if self._process is None else self._process.pid

    def release(self) -> None:
        """Let the guard end in peace: its worker has left."""
        self.channel.post(to_message(WorkerLeft()))

    def kill(self) -> None:
        """SIGKILL the guard, so that MPI tells the survivors of its worker's death."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Close the connection and the hold on the process."""
        self.channel.close()
        if self._process is not None:
            self._process.close()
            self._process = None


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """The worker of a guard has left: anything else, and the end of the connection, is a death."""


@dataclass(frozen=True, slots=True)
class GuardHello:
    """The message of a guard that connects (`guard`, which spells it by itself)."""

    rank: int
    generation: int
    directory: str
    environment: dict[str, str]
    connections: tuple[int, ...] = ()
    """The rank's descriptor to its launcher, which may come along."""

    def worker_in(self, launch: WorkerConfig | None) -> WorkerId | None:
        """Return the worker of the guard, None if it is of another launch or has no such rank."""
        if launch is None or launch.generation != self.generation or self.rank < 0:
            return None
        return next(iter(launch.workers[self.rank : self.rank + 1]), None)

    def close(self) -> None:
        """Close the descriptors of a guard that is turned away."""
        for descriptor in self.connections:
            os.close(descriptor)


class HostedWorker:
    """What is known of a worker, from the launch's announcement to its end.

    Two things must come before it runs, in any order: its process and its guard.
    """

    def __init__(
        self, worker: WorkerId, generation: int, host: HostLink, host_name: str = ""
    ) -> None:
        self.worker = worker
        self.host_name = host_name
        """The name of its host, empty if the job has one."""
        self.generation = generation
        self.host = host
        self.page = host.status_of(generation, worker)
        self.guard: GuardLink | None = None
        self.pid: int | None = None
        """The number of its process on its host."""
        self.trainings = 0
        """How many trainings its script has begun."""
        self.characters_read = 0
        """What it has read while it restores."""
        self.resident_bytes: int | None = None
        """What its host has told last of its memory, for a person who asked."""
        self.silent_s: float | None = None
        """What its host has told last of its silence."""
        self.is_at_end = False
        self.may_leave = False
        """Whether it was told that the scripts of all have come to their end: nothing is left."""
        self.failure = ""
        """The error that has ended its training, if one has and its script goes on."""
        self.error: WorkerFailed | None = None
        """The error that ends its script."""
        self.halted: WorkerHalted | None = None
        """What it holds, once it has halted."""
        self.halt_failure: str | None = None
        """Why its part of the last save has failed, "" if it has not, None while it is not over."""
        self.place = ""
        """Where it was when it had not come on for long, in the script's code if it can be told."""
        self.is_gone = False
        self._why_killed: str | None = None

    @property
    def silence_s(self) -> float | None:
        """For how long nobody has seen it alive: a host that is cut off tells nothing new."""
        return None if self.silent_s is None else self.silent_s + self.host.unheard_s

    @property
    def is_condemned(self) -> bool:
        """Whether it was killed, or will be killed as soon as it exists."""
        return self._why_killed is not None

    @property
    def occupies_a_rank(self) -> bool:
        """Whether mpiexec has a rank for it that runs, or will as soon as the pool has forked."""
        will_never_run = self.is_condemned and self.pid is None
        return self.guard is not None and not will_never_run

    def note(self, report: OwnReport) -> None:
        """Keep what the worker has reported."""
        match report:
            case TrainingBegun(_, number):
                self.trainings = number
            case ScriptEnded():
                self.is_at_end = True
            case TrainingFailed(_, error):
                self.failure = error
            case WorkerHalted():
                self.halted = report
            case HaltedSaveEnded(_, attempt, failure):
                if attempt == self.page.halt_order.attempt:
                    self.halt_failure = failure

    def kill(self, why: str, limit: str | None = None) -> None:
        """SIGKILL the worker, its helpers and its guard; the first reason given is kept.

        The guard follows when its host has killed the worker.
        """
        if self._why_killed is None:
            self._why_killed = why
        self.host.post(KillWorker(self.generation, self.worker, why, limit))

    def was_killed(self, why: str) -> None:
        """Let the guard follow a worker that runs no code any more, so that MPI hears of it."""
        if self._why_killed is None:
            self._why_killed = why
        if self.guard is not None:
            self.guard.kill()

    def lost_event(self, cause: str) -> WorkerExited:
        """Return the end of a worker whose host is gone."""
        return WorkerExited(
            self.worker,
            cause,
            step=self.page.step,
            phase=self.page.phase.label,
            generation=self.generation,
            limit=LOST_WITH_ITS_HOST,
            collateral=True,
        )

    def placed(self, end: WorkerExited, rank: int | None) -> WorkerExited:
        """Return the worker's end with what is known of it here; its own error is the cause."""
        end = dataclasses.replace(end, host=self.host_name or None, launch_rank=rank)
        error = self.error
        if end.is_clean or error is None:
            return end
        return dataclasses.replace(
            end,
            cause=f"{error.error_type}: {error.message}",
            where=error.where,
            traceback=error.traceback,
        )

    def close(self) -> None:
        """Close its status and the connection of its guard."""
        self.is_gone = True
        self.page.close()
        if self.guard is not None:
            self.guard.close()


def placing(launch: WorkerConfig, hosts: Mapping[str, HostLink]) -> Mapping[WorkerId, HostLink]:
    """Return the host of each worker of a launch; of several hosts the workers name theirs.

    Raises ``OSError`` if one of them is lost.
    """
    names = launch.host_of
    known = {"": next(iter(hosts.values())), **hosts}
    gone = sorted(set(names.values()) - known.keys())
    if gone:
        raise OSError(errno.EHOSTDOWN, f"{', '.join(gone)} cannot be reached")
    return {worker: known[name] for worker, name in names.items()}


def make_workers(
    launch: WorkerConfig, placed: Mapping[WorkerId, HostLink]
) -> tuple[HostedWorker, ...]:
    """Let the hosts make the workers of a launch, which wait for their guards."""
    names = launch.host_of
    of_hosts: dict[HostLink, list[WorkerId]] = {}
    for worker in launch.workers:
        of_hosts.setdefault(placed[worker], []).append(worker)
    for host, workers in of_hosts.items():
        host.post(MakeWorkers(launch.generation, tuple(workers)))
    return tuple(
        HostedWorker(worker, launch.generation, placed[worker], names[worker])
        for worker in launch.workers
    )


def describe(hosted: HostedWorker, standing_s: float | None) -> WorkerReport:
    """Return how a worker stands, which all may have waited for ``standing_s``."""
    page, silent_s = hosted.page, hosted.silence_s
    return WorkerReport(
        worker=hosted.worker,
        pid=hosted.pid,
        phase=page.phase.label,
        step=page.step,
        generation=page.generation,
        resident_bytes=hosted.resident_bytes,
        silent_s=None if silent_s is None else round(silent_s, 3),
        standing_s=None if standing_s is None else round(standing_s, 3),
        where="" if standing_s is None else hosted.place,
        host=hosted.host_name,
        spent_s={a.label: round(page.spent_ns[a] / 1e9, 3) for a in Activity if page.spent_ns[a]},
    )


def short_report(workers: Sequence[HostedWorker]) -> LaunchReport:
    """Return how far training has come: cheap at any number of workers.

    The newest word of any worker counts: the first one of today's world has written it.  The phase
    is that of the worker that has come least far.
    """
    told = [StepReport.decode(text) for hosted in workers if (text := hosted.page.progress)]
    newest = max(filter(None, told), key=lambda report: report.now, default=None)
    phases = [hosted.page.phase for hosted in workers]
    return LaunchReport(
        progress=newest,
        living=sum(hosted.pid is not None for hosted in workers),
        phase=min(phases, key=_IN_ORDER.index).label if phases else None,
    )
