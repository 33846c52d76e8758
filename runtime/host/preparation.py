"""In the head: a launch that is prepared beside the one that trains, to take its place.

Its workers are forked and have their guards, as those of any launch.  They initialise MPI, and wait
before the first line of their script: until their turn has come, another launch writes its files.
Nobody watches them or decides over them.  If one dies, or they do not come in time, all of them are
killed, and the launch that trains goes on.

Invariant: whoever trains has never waited for a launch that is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.recovery.event import (
    Event,
    LaunchPrepared,
    PreparationFailed,
    WorkerExited,
    WorkerJoined,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import HostLink, Killed, Up
from holdfast.runtime.host.hosted_worker import GuardHello, HostedWorker
from holdfast.runtime.host.pool_process import Forked
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.channel import Channel
from holdfast.runtime.system.witnessed_time import Bound

_TAKES_S = 180.0
"""As long as a launch may take to initialise MPI."""


class Preparation:
    """The workers of the launch that waits, and those of failed ones that have not ended."""

    def __init__(self, tell: Callable[[Event], None], forget: Callable[[Channel], None]) -> None:
        """Take the way to tell an event, and the reactor's to hear no more of a guard."""
        self._tell = tell
        self._forget = forget
        self._launch: WorkerConfig | None = None
        """The launch that waits, or has failed and has workers left."""
        self._workers: dict[WorkerId, HostedWorker] = {}
        self._joined: set[WorkerId] = set()
        self._bound = Bound(_TAKES_S)
        self._has_failed = False

    def begin(self, launch: WorkerConfig, workers: Sequence[HostedWorker]) -> None:
        """Take the workers of a launch that is prepared from now on."""
        self._launch, self._joined, self._has_failed = launch, set(), False
        self._bound = Bound(_TAKES_S)
        self._workers |= {hosted.worker: hosted for hosted in workers}

    def take(self, generation: int) -> tuple[HostedWorker, ...] | None:
        """Return the workers of a launch whose turn has come, None if it was not prepared."""
        launch = self._launch
        if launch is None or launch.generation != generation:
            return None
        self._launch = None
        return tuple(self._workers.pop(one) for one in launch.workers if one in self._workers)

    def expecting(self, hello: GuardHello) -> HostedWorker | None:
        """Return the worker that waits for a guard."""
        worker = hello.worker_in(self._launch)
        return None if worker is None else self._workers.get(worker)

    def hear(self, worker: WorkerId, message: Up) -> None:
        """Take note of what a worker tells that does not train, or its host tells of it."""
        hosted, launch = self._workers.get(worker), self._launch
        if hosted is None:
            return
        match message:
            case Forked(_, _, pid):
                hosted.pid = pid
            case WorkerJoined() if launch is not None and worker in launch.workers:
                self._joined.add(worker)
                if len(self._joined) == len(launch.workers):
                    self._tell(LaunchPrepared(launch.generation))
            case Killed(_, _, why):
                hosted.was_killed(why)
            case WorkerExited(_, cause):
                self._bury(hosted, f"worker {worker} died ({cause})")

    def lose_host(self, host: HostLink, why: str) -> None:
        """Take note that a host is gone with all that wait there."""
        for hosted in [one for one in self._workers.values() if one.host is host]:
            hosted.was_killed(why)
            self._bury(hosted, why)

    def poll(self) -> None:
        """Fail if it has taken too long, and forget a launch that has failed and ended."""
        launch = self._launch
        if launch is None:
            return
        if self._bound.has_passed and len(self._joined) < len(launch.workers):
            self.fail(f"its workers have not all initialised MPI within {_TAKES_S:.0f} s")
        if self._has_failed and self._workers.keys().isdisjoint(launch.workers):
            self._launch = None

    def fail(self, why: str) -> None:
        """Kill the workers of the launch that waits, and tell it once."""
        if self._launch is not None and not self._has_failed:
            self.drop(why)
            self._tell(PreparationFailed(self._launch.generation, why))

    def drop(self, why: str) -> None:
        """Kill all workers, and tell nothing."""
        self._has_failed = True
        for hosted in list(self._workers.values()):
            hosted.kill(why)

    def _bury(self, hosted: HostedWorker, why: str) -> None:
        del self._workers[hosted.worker]
        if hosted.guard is not None:
            hosted.guard.kill()
            self._forget(hosted.guard.channel)
        hosted.close()
        if self._launch is not None and hosted.worker in self._launch.workers:
            self.fail(why)
