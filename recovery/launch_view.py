"""What the supervisor knows of one launch: who joined, who ended how, and how far it came."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.recovery.event import (
    CheckpointCommitted,
    Event,
    LaunchEnded,
    StopAsked,
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
    was_formed: bool = False
    """Whether a world was ever agreed on: before that nobody has trained."""

    @staticmethod
    def of(workers: tuple[WorkerId, ...], generation: int) -> LaunchView:
        """Return the view of a launch that has just begun."""
        return LaunchView(workers, generation, workers)

    def concerns(self, event: Event) -> bool:
        """Return whether ``event`` is about this launch, and not a late one of an older launch."""
        match event:
            case LaunchEnded() | StopAsked():
                return True
            case WorldFormed(workers=workers):
                return set(workers) <= set(self.workers)
            case _:
                return event.worker in self.workers

    @property
    def is_up(self) -> bool:
        """Whether every worker has initialised MPI."""
        return self.joined == frozenset(self.workers)

    @property
    def is_all_clean(self) -> bool:
        """Whether every worker of the newest world has left by agreement."""
        return all(w in self.exits and self.exits[w].is_clean for w in self.world)

    @property
    def has_left(self) -> bool:
        """Whether a worker has come to the end of the script and left by agreement."""
        return any(seen.is_clean for seen in self.exits.values())

    @property
    def common_failure(self) -> WorkerFailed | None:
        """The mistake that every worker of the newest world ended with, if they agree on one.

        Before a world was agreed on, those that failed speak for all: the rest
        was killed together with the launch, so nobody got any further.
        """
        by_worker = {f.worker: f for f in self.failures if not f.is_death}
        speakers = self.world if self.was_formed else tuple(by_worker)
        found = [by_worker[worker] for worker in speakers if worker in by_worker]
        if len(found) < len(speakers) or len({failure.kind for failure in found}) != 1:
            return None
        return found[0]

    @property
    def causes(self) -> str:
        """How the members of the newest world ended, in a few words."""
        ends = (self.exits[worker] for worker in self.world if worker in self.exits)
        unclean = [end for end in ends if not end.is_clean]
        return ", ".join(f"worker {e.worker}: {self._cause(e)}" for e in unclean) or (
            "no worker died" if self.exits else "no worker started"
        )

    def seeing(self, event: Sight) -> LaunchView:
        """Return the view after ``event``."""
        match event:
            case WorkerJoined(worker):
                return replace(self, joined=self.joined | {worker})
            case WorldFormed(generation, workers, _):
                return self._in_world(generation, workers)
            case CheckpointCommitted():
                return replace(self, has_saved=True)
            case WorkerExited(worker):
                return replace(self, exits=self.exits | {worker: event})
            case _:
                return self._told(event)

    def _told(self, ending: WorkerFailed | WorkerCompleted | WorkerStopped) -> LaunchView:
        match ending:
            case WorkerFailed():
                return replace(self, failures=(*self.failures, ending))
            case WorkerCompleted():
                return replace(self, completions=(*self.completions, ending))
            case WorkerStopped():
                return replace(self, stops=(*self.stops, ending))

    def _in_world(self, generation: int, workers: tuple[WorkerId, ...]) -> LaunchView:
        if generation < self.generation:
            return self  # an old report that came late
        return replace(self, generation=generation, world=workers, was_formed=True)

    def _cause(self, seen: WorkerExited) -> str:
        """Return what a worker itself said of its end, else what became of its process."""
        said = [f.message_with_kind for f in self.failures if f.worker == seen.worker]
        return said[-1].partition("\n")[0] if said else seen.cause
