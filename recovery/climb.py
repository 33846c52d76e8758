"""How all ranks get to the top of the reduction tree together, by whole vectors.

At each combine of a plan some ranks know the left value and some the right one.
Those who lack one of them get it from one who knows it, and from then on all of them
know the sum. Where every rank holds one root and their number is a power of two, this
is recursive doubling (Thakur, Rabenseifner and Gropp, 2005): log2(ranks) stages, in
each of which every rank swaps one vector with one peer.

Values are numbered like the roots of the plan; after a combine the left number means
the sum.

Invariant: who gets what from whom is a function of the plan alone, and every rank goes
through its stages in the order of the combines. So the messages of one pair of ranks
are sent and expected in the same order, and no rank waits for one that waits for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.recovery.reduction import ReductionPlan


@dataclass(frozen=True, slots=True)
class Message:
    """A value on its way to, or from, a peer."""

    value: int
    peer: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What one rank does at one node: send, then receive, then add."""

    sends: tuple[Message, ...]
    arrival: Message | None
    addition: tuple[int, int] | None
    """Numbers of the left and the right value; None where nothing is left to add."""


@dataclass(frozen=True, slots=True)
class _Route:
    value: int
    source: int
    target: int


def plan_climb(plan: ReductionPlan, rank: int, ranks: int) -> tuple[Stage, ...]:
    """Return the stages after which ``rank`` knows the total as value 0.

    Ranks that hold no root take part in the last stage only: they are told.
    """
    knowers = [{root.rank} for root in plan.roots]
    stages = []
    for left, right in plan.combines:
        routes = _routes(left, knowers[left], knowers[right] - knowers[left])
        routes += _routes(right, knowers[right], knowers[left] - knowers[right])
        knowers[left] |= knowers[right]
        if rank in knowers[left]:
            stages.append(_stage(rank, routes, (left, right)))
    told = _stage(rank, _routes(0, knowers[0], set(range(ranks)) - knowers[0]), None)
    if told.sends or told.arrival:
        stages.append(told)
    return tuple(stages)


def _routes(value: int, sources: Collection[int], targets: Collection[int]) -> list[_Route]:
    """Return how ``value`` gets to ``targets``, the work spread evenly over ``sources``."""
    givers = sorted(sources)
    return [
        _Route(value, givers[turn % len(givers)], target)
        for turn, target in enumerate(sorted(targets))
    ]


def _stage(rank: int, routes: list[_Route], addition: tuple[int, int] | None) -> Stage:
    arrivals = [Message(route.value, route.source) for route in routes if route.target == rank]
    return Stage(
        tuple(Message(route.value, route.target) for route in routes if route.source == rank),
        arrivals[0] if arrivals else None,
        addition,
    )
