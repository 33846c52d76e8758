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
    """The workers of a launch that waits, from their announcement on."""

    def __init__(
        self,
        launch: WorkerConfig,
        workers: Sequence[HostedWorker],
        tell: Callable[[Event], None],
        forget: Callable[[Channel], None],
    ) -> None:
        self.generation = launch.generation
        self._order = launch.workers
        self._workers = {hosted.worker: hosted for hosted in workers}
        self._joined: set[WorkerId] = set()
        self._tell = tell
        self._forget = forget
        self._bound = Bound(_TAKES_S)
        self._has_failed = False

    @property
    def workers(self) -> tuple[HostedWorker, ...]:
        """Those that have not ended."""
        return tuple(self._workers.values())

    @property
    def is_over(self) -> bool:
        """Whether it has failed, and none of its workers is left."""
        return self._has_failed and not self._workers

    def of_rank(self, rank: int) -> HostedWorker | None:
        """Return the worker that waits for the guard of this rank."""
        worker = self._order[rank] if 0 <= rank < len(self._order) else None
        return None if worker is None else self._workers.get(worker)

    def has(self, worker: WorkerId) -> bool:
        """Whether a worker is one of those that wait."""
        return worker in self._workers

    def hear(self, message: Up) -> None:
        """Take note of what a worker tells, or its host tells of it."""
        match message:
            case Forked(_, worker, pid):
                self._workers[worker].pid = pid
            case WorkerJoined(worker):
                self._joined.add(worker)
                if len(self._joined) == len(self._order):
                    self._tell(LaunchPrepared(self.generation))
            case Killed(_, worker, why):
                self._workers[worker].was_killed(why)
            case WorkerExited(worker, cause):
                self._bury(self._workers.pop(worker))
                self.fail(f"worker {worker} died ({cause})")

    def lose(self, hosted: HostedWorker, why: str) -> None:
        """Take note that a worker is gone with its host."""
        self._workers.pop(hosted.worker)
        hosted.was_killed(why)
        self._bury(hosted)
        self.fail(why)

    def poll(self) -> None:
        """Fail if it has taken too long."""
        if self._bound.has_passed and len(self._joined) < len(self._order):
            self.fail(f"its workers have not all initialised MPI within {_TAKES_S:.0f} s")

    def fail(self, why: str) -> None:
        """Kill all workers, and tell it once."""
        if not self._has_failed:
            self.drop(why)
            self._tell(PreparationFailed(self.generation, why))

    def drop(self, why: str) -> None:
        """Kill all workers, and tell nothing."""
        self._has_failed = True
        for hosted in self.workers:
            hosted.kill(why)

    def _bury(self, hosted: HostedWorker) -> None:
        if hosted.guard is not None:
            hosted.guard.kill()
            self._forget(hosted.guard.channel)
        hosted.close()


class Preparations:
    """The launch that is prepared, and those that have failed and not ended."""

    def __init__(self, tell: Callable[[Event], None], forget: Callable[[Channel], None]) -> None:
        """Take the way to tell an event, and the reactor's to hear no more of a guard."""
        self._tell = tell
        self._forget = forget
        self._all: list[Preparation] = []

    def add(self, launch: WorkerConfig, workers: Sequence[HostedWorker]) -> None:
        """Keep a launch that is prepared from now on."""
        self._all.append(Preparation(launch, workers, self._tell, self._forget))

    def take(self, generation: int) -> Preparation | None:
        """Return the launch whose turn has come, which is no preparation any more."""
        found = self._of(generation)
        self._all = [one for one in self._all if one is not found]
        return found

    def expecting(self, hello: GuardHello) -> HostedWorker | None:
        """Return the worker that waits for a guard."""
        prepared = self._of(hello.generation)
        return None if prepared is None else prepared.of_rank(hello.rank)

    def hear(self, worker: WorkerId, message: Up) -> None:
        """Take note of what a worker tells that does not train."""
        for prepared in self._all:
            if prepared.has(worker):
                prepared.hear(message)

    def lose_host(self, host: HostLink, why: str) -> None:
        """Take note that a host is gone with all that wait there."""
        for prepared in self._all:
            for hosted in [one for one in prepared.workers if one.host is host]:
                prepared.lose(hosted, why)

    def poll(self) -> None:
        """Fail what has taken too long, and forget what has ended."""
        for prepared in self._all:
            prepared.poll()
        self._all = [one for one in self._all if not one.is_over]

    def fail(self, generation: int, why: str) -> None:
        """Kill the workers of a launch whose mpiexec has ended."""
        prepared = self._of(generation)
        if prepared is not None:
            prepared.fail(why)

    def drop(self, why: str) -> None:
        """Kill all workers, and tell nothing."""
        for prepared in self._all:
            prepared.drop(why)

    def _of(self, generation: int) -> Preparation | None:
        return next((one for one in self._all if one.generation == generation), None)
