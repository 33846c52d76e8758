"""The turns of a step: updates that depend on earlier updates of the same step.

A script's step may update the discriminator, and then compute gradients of the generator
with the updated discriminator.  The sum over all microbatches comes in at each update.  So
the second gradients can be computed only after the first update is applied: they are of the
next *turn*.  Updates whose gradients need no earlier update share a turn.

A value that the step has read from a variable is a *read*: the variable, and the position of
the read in the traced graph.  An update changes variables at its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Read: TypeAlias = tuple[int, int]
"""The number of a variable, and the position at which it was read."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update of a step: what its gradients have read, and what it changes."""

    position: int
    changes: frozenset[int]
    reads: tuple[Read, ...]


def turns_of(updates: Sequence[Update]) -> tuple[int, ...]:
    """Return the turn of each update, counted from 0; updates keep their order."""
    turns: list[int] = []
    for i, update in enumerate(updates):
        earliest = _earliest(update.reads, updates[:i], turns)
        turns.append(max([earliest, *turns]))
    return tuple(turns)


def turn_of(reads: Iterable[Read], updates: Sequence[Update], turns: Sequence[int]) -> int | None:
    """Return the turn in which a value with these reads can be computed, None if in none.

    There is none if the value needs a variable both before and after an update of the step.
    """
    found = tuple(reads)
    turn = _earliest(found, updates, turns)
    return turn if is_consistent(found, updates, turns, turn) else None


def is_consistent(
    reads: Iterable[Read], updates: Sequence[Update], turns: Sequence[int], turn: int
) -> bool:
    """Return whether all reads see in ``turn`` what they saw in the script's step."""
    return all(
        (update.position <= position) == (turns[i] < turn)
        for variable, position in reads
        for i, update in enumerate(updates)
        if variable in update.changes
    )


def _earliest(reads: Iterable[Read], updates: Sequence[Update], turns: Sequence[int]) -> int:
    return max(
        (
            turns[i] + 1
            for variable, position in reads
            for i, update in enumerate(updates)
            if variable in update.changes and update.position <= position
        ),
        default=0,
    )
