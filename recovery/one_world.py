"""Which survivors go on after a break: the world that the head names, and no other one.

Theory.  After a break MPI lets each side of a cut shrink to a world of its own, and each takes the
other one for dead.  A worker cannot know on which side it is.  So survivors only *propose* a world:
they shrink, agree on their members, and the first of them asks the head.  The head names worlds one
after the other, each from members of the last one.  Before its word has come, a world applies
nothing, runs no line of the script and saves nothing.  A side that does not reach the head gets no
word: its workers wait, and end with the lease of their host.

Invariant: *at most one world of a generation ever applies.*

- The first world of a launch is named by the order to launch.  Each other one is named here and has
  the next number, so a number has one set of members.  The same members get the same number.
- A world that is named has no member that the last one lacks.  So of two sides one is refused.
- An older world applies nothing once a newer one is named.  A step needs the votes of all its
  members, and those of the newer one had left it before they asked.

Each new number costs a member.  So a launch of n workers has at most n numbers.  The next launch
begins above them (`recovery.job`), also that of another head, which may not know the last word.
Names of saves have the number in them: no two worlds write under one name.

*Which side.*  If no more members are outside than ask, those who ask go on at once.  So it is after
each death that the head has heard of.  A minority may be cut off from workers that are well, and
yet ask first.  So it waits for a moment.

*The next launch.*  A lost host may have the last world of its launch, or the first worker of that,
which may be in the script.  Then the next launch waits until the host's lease has ended.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.recovery.world import WorkerId

MINORITY_WAITS_S = 1.0
"""So long the others have to ask.  It is also lost where the head knows no death of theirs yet."""

REFUSED = 0
"""In place of a number: another world goes on."""


@dataclass(frozen=True, slots=True)
class Word:
    """The head's answer to the worker that has asked for a world."""

    asker: WorkerId
    generation: int
    outside: frozenset[WorkerId] = frozenset()
    """Who can be in no world any more, if it is refused."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    workers: frozenset[WorkerId]
    asked_at: float


class OneWorld:
    """The worlds of one launch, of which the last one may train."""

    def __init__(self, generation: int, workers: Collection[WorkerId]) -> None:
        """Begin with the world that was ordered; it needs no other word."""
        self.generation = generation
        self.workers = frozenset(workers)
        self._named_at = 0.0
        self._proposals: dict[WorkerId, _Proposal] = {}

    @property
    def first(self) -> WorkerId | None:
        """The first worker of the last world, which writes on behalf of all; None before any."""
        return min(self.workers, default=None)

    @property
    def is_asked(self) -> bool:
        """Whether an answer is due."""
        return bool(self._proposals)

    def ask(self, asker: WorkerId, workers: Collection[WorkerId], now: float) -> None:
        """Take note that survivors have formed a world, for which its first worker asks."""
        self._proposals[asker] = _Proposal(frozenset(workers), now)

    def next_word(self, living: Collection[WorkerId], now: float) -> Word | None:
        """Return the next answer, None if none can be given yet.

        ``living`` are the workers that the head does not know to be dead.
        """
        alive = frozenset(living)
        for asker in self._proposals.keys() - alive:
            del self._proposals[asker]
        ripe = [
            (-len(proposal.workers), asker)
            for asker, proposal in self._proposals.items()
            if now - proposal.asked_at >= MINORITY_WAITS_S or self._is_sure(proposal.workers, alive)
        ]
        if not ripe:
            return None
        _, asker = min(ripe)
        return self._answer(asker, self._proposals.pop(asker).workers, now)

    def left_behind(
        self, living: Collection[WorkerId], now: float, limit_s: float
    ) -> set[WorkerId]:
        """Return the living workers that the last world lacks, once it is older than the limit.

        What is well asks long before.  One that does not hangs in MPI.
        """
        return set(living) - self.workers if now - self._named_at > limit_s else set()

    def _is_sure(self, workers: frozenset[WorkerId], alive: frozenset[WorkerId]) -> bool:
        """Whether no larger world can ask; of two halves that with the lowest worker counts."""
        others = (alive & self.workers) - workers
        if len(others) == len(workers):
            return min(workers) < min(others)
        return len(others) < len(workers) or not workers <= self.workers

    def _answer(self, asker: WorkerId, workers: frozenset[WorkerId], now: float) -> Word:
        outside = workers - self.workers
        if outside or asker not in workers:
            return Word(asker, REFUSED, outside | {asker})
        if workers != self.workers:
            self.generation += 1
            self.workers, self._named_at = workers, now
        return Word(asker, self.generation)
