"""The ordered set of live workers, with a generation that tags every message."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NewType

WorkerId = NewType("WorkerId", int)


@dataclass(frozen=True, slots=True)
class World:
    """Workers in rank order; ``capacity`` of them hold microbatches, the rest are spares.

    A world never changes: a death makes a new one with the next generation.
    Worker ids ascend with the rank, because shrinking keeps the order of the
    survivors (MPI 5.0 ULFM chapter, ``MPI_Comm_shrink``).
    """

    generation: int
    workers: tuple[WorkerId, ...]
    capacity: int

    def __post_init__(self) -> None:
        """Refuse worlds that cannot exist."""
        if not self.workers:
            raise ValueError("a world must have at least one worker")
        if list(self.workers) != sorted(set(self.workers)):
            raise ValueError(f"worker ids must ascend without repeats, got {self.workers}")
        if self.capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {self.capacity}")

    @property
    def size(self) -> int:
        """Number of workers, spares included."""
        return len(self.workers)

    @property
    def active(self) -> tuple[WorkerId, ...]:
        """Workers that hold microbatches: the first ``capacity`` in rank order."""
        return self.workers[: self.capacity]

    @property
    def spares(self) -> tuple[WorkerId, ...]:
        """Workers that keep a replica but hold no microbatch yet."""
        return self.workers[self.capacity :]

    def shrunk_to(self, survivors: Collection[WorkerId]) -> World:
        """Return the next generation, which holds only ``survivors``."""
        strangers = set(survivors) - set(self.workers)
        if strangers:
            raise ValueError(f"workers {sorted(strangers)} are not in the world {self.workers}")
        kept = tuple(worker for worker in self.workers if worker in survivors)
        return World(self.generation + 1, kept, self.capacity)
