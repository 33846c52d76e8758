"""What the supervisor knows of one launch: who joined, who ended how, and how far it came."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.recovery.event import (
    CheckpointCommitted,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.world import WorkerId

Sight = (
    WorkerJoined
    | WorldFormed
    | CheckpointCommitted
    | WorkerFailed
    | WorkerCompleted
    | WorkerStopped
    | WorkerExited
)


@dataclass(frozen=True, slots=True)
class LaunchView:
    """One launch, from its start on; a new value for each thing seen."""

    workers: tuple[WorkerId, ...]
    generation: int
    world: tuple[WorkerId, ...]
    """Members of the newest world; those of the launch until one was formed."""
    joined: frozenset[WorkerId] = frozenset()
    failures: tuple[WorkerFailed, ...] = ()
    completions: tuple[WorkerCompleted, ...] = ()
    stops: tuple[WorkerStopped, ...] = ()
    exits: dict[WorkerId, WorkerExited] = field(default_factory=dict)
    has_saved: bool = False

    @staticmethod
    def of(workers: tuple[WorkerId, ...], generation: int) -> LaunchView:
        """Return the view of a launch that has just begun."""
        return LaunchView(workers, generation, workers)

    @property
    def is_up(self) -> bool:
        """Whether every worker has initialised MPI."""
        return self.joined == frozenset(self.workers)

    @property
    def is_all_clean(self) -> bool:
        """Whether every worker of the newest world has left by agreement."""
        return all(w in self.exits and self.exits[w].is_clean for w in self.world)

    @property
    def common_failure(self) -> WorkerFailed | None:
        """The error that every worker of the newest world ended with, if they agree on one."""
        by_worker = {f.worker: f for f in self.failures if not f.is_injected}
        kinds = {by_worker[w].kind for w in self.world if w in by_worker}
        if len(kinds) != 1 or not all(w in by_worker for w in self.world):
            return None
        return by_worker[self.world[0]]

    @property
    def causes(self) -> str:
        """How the members of the newest world ended, in a few words."""
        ends = (self.exits[worker] for worker in self.world if worker in self.exits)
        unclean = [end for end in ends if not end.is_clean]
        return ", ".join(f"worker {e.worker}: {e.cause}" for e in unclean) or "no worker started"

    def seeing(self, event: Sight) -> LaunchView:
        """Return the view after ``event``."""
        match event:
            case WorkerJoined(worker):
                return replace(self, joined=self.joined | {worker})
            case WorldFormed(generation, workers, _):
                return self._in_world(generation, workers)
            case CheckpointCommitted():
                return replace(self, has_saved=True)
            case WorkerFailed():
                return replace(self, failures=(*self.failures, event))
            case WorkerCompleted():
                return replace(self, completions=(*self.completions, event))
            case WorkerStopped():
                return replace(self, stops=(*self.stops, event))
            case WorkerExited(worker):
                return replace(self, exits=self.exits | {worker: event})

    def _in_world(self, generation: int, workers: tuple[WorkerId, ...]) -> LaunchView:
        if generation < self.generation:
            return self  # an old report that came late
        return replace(self, generation=generation, world=workers)
